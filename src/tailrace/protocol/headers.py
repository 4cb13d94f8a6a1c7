"""The headers that stand before each request and response.

Requests: header v1 (key, version, correlation id, client id), or v2, which adds a tag section, if the request is
flexible. Responses: header v0 (correlation id), or v1, which adds a tag section, if the response is flexible; but
ApiVersions answers always with v0, because a client that guessed a version too high must be able to read it (KIP-511).
"""

from collections.abc import Generator
from struct import Struct
from typing import Any, TypeVar

from tailrace.protocol.declaration import api_key_of, schema_of
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.primitives import Buffer, read_tag_section, too_short
from tailrace.protocol.schema import MAX_ELEMENTS, decode_from, encode_in_steps, encode_into

T = TypeVar("T")

API_VERSIONS = api_key_of(ApiVersionsRequest)

MAX_RESPONSE_ELEMENTS = 10_000_000
"""A client trusts the server that it chose; Metadata of 100,000 partitions has a million elements."""

REQUEST_HEAD = Struct(">hhih")
"""The key, version, correlation id and length of the client id: the start of every request."""
_CORRELATION = Struct(">i")
_LENGTH = Struct(">i")
_CORRELATION_AND_NO_TAGS = Struct(">ix")


def encode_request(request: Any, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A whole request without its frame length."""
    schema = schema_of(type(request))
    client = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(client)
    parts: list[Buffer] = [REQUEST_HEAD.pack(schema.api_key, version, correlation_id, length), client]
    if schema.flexible.has(version):
        parts.append(b"\0")
    chunks: list[Buffer] = []
    encode_into(request, version, parts, chunks)
    if parts:
        chunks.append(b"".join(parts))
    return chunks


def encode_response(response: Any, version: int, correlation_id: int) -> list[Buffer]:
    """A whole response without its frame length."""
    schema = response.__schema__
    is_flexible = version >= schema.flexible.first and schema.api_key != API_VERSIONS
    parts: list[Buffer] = [(_CORRELATION_AND_NO_TAGS if is_flexible else _CORRELATION).pack(correlation_id)]
    chunks: list[Buffer] = []
    encode_into(response, version, parts, chunks)
    if parts:
        chunks.append(b"".join(parts))
    return chunks


def encode_response_in_steps(response: Any, version: int, correlation_id: int) -> Generator[None, None, list[Buffer]]:
    """The same as `encode_response`, in steps."""
    schema = response.__schema__
    is_flexible = version >= schema.flexible.first and schema.api_key != API_VERSIONS
    parts: list[Buffer] = [(_CORRELATION_AND_NO_TAGS if is_flexible else _CORRELATION).pack(correlation_id)]
    chunks: list[Buffer] = []
    yield from encode_in_steps(response, version, parts, chunks)
    chunks.append(b"".join(parts))
    return chunks


def decode_response(cls: type[T], version: int, data: Buffer) -> tuple[int, T]:
    """The correlation id and the response in the frame `data`, which must be of the given class and version.

    Bytes behind the response are left alone, as Kafka's own client does: librdkafka's mock cluster sends one byte too
    many.
    """
    if len(data) < _CORRELATION.size:
        too_short("correlation id", 0)
    correlation_id: int = _CORRELATION.unpack_from(data)[0]
    position = _CORRELATION.size
    schema = schema_of(cls)
    if schema.flexible.has(version) and schema.api_key != API_VERSIONS:
        position = skip_tags(data, position)
    response, _ = decode_from(cls, version, data, position, max_elements=MAX_RESPONSE_ELEMENTS)
    return correlation_id, response


def frame_prefix(chunks: list[Buffer]) -> bytes:
    """The length prefix of a frame, an int32 that does not count itself, for these chunks."""
    return _LENGTH.pack(sum(map(len, chunks)))


def skip_tags(data: Buffer, position: int) -> int:
    """The position behind the tag section of a header."""
    if position >= len(data):
        too_short("header tags", position)
    count = data[position]
    if count == 0:
        return position + 1
    return read_tag_section(memoryview(data), position + 1, count, MAX_ELEMENTS)[1]
