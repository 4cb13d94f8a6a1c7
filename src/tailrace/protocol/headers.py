"""The headers that stand before each request and response.

Requests: header v1 (key, version, correlation id, client id), or v2, which adds a tag section, if the request is
flexible. Responses: header v0 (correlation id), or v1, which adds a tag section, if the response is flexible; but
ApiVersions answers always with v0, because a client that guessed a version too high must be able to read it (KIP-511).
"""

from collections.abc import Generator
from struct import Struct, error
from typing import Any, NamedTuple, TypeVar

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.declaration import schema_of
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.primitives import Buffer, read_tag_section, too_short
from tailrace.protocol.registry import APIS, api_of
from tailrace.protocol.schema import MAX_ELEMENTS, decode_from, encode_in_steps, encode_into

T = TypeVar("T")

API_VERSIONS = api_of(ApiVersionsRequest).key

MAX_RESPONSE_ELEMENTS = 10_000_000
"""A client trusts the server that it chose; Metadata of 100,000 partitions has a million elements."""

_FIXED = Struct(">hhih")
_client_id_length = Struct(">h").unpack_from
_CLIENT_ID_LENGTH_OFFSET = 8
_TOO_SHORT = "a request shorter than its header"
_CORRELATION = Struct(">i")
_LENGTH = Struct(">i")
_CORRELATION_AND_NO_TAGS = Struct(">ix")


class RequestHeader(NamedTuple):
    """The key, version and correlation id of a request. Tagged fields are skipped: Kafka defines none."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(data: Buffer) -> tuple[RequestHeader, int]:
    """The header of the request frame `data`, and where the body starts.

    The header of an unknown API is read as v1, so that the refusal can name the API. Raises MalformedMessage.
    """
    try:
        api_key, api_version, correlation_id, _ = _FIXED.unpack_from(data)
    except error as short:
        raise MalformedMessage(_TOO_SHORT) from short
    api = APIS.get(api_key)
    client_id, position = decode_client_id(data, is_flexible=api is not None and api_version >= api.flexible_from)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def decode_client_id(data: Buffer, *, is_flexible: bool) -> tuple[str | None, int]:
    """The client id in the header of the request frame `data`, and where the body starts. Raises MalformedMessage.

    `is_flexible`: the header has a tag section.
    """
    try:
        (length,) = _client_id_length(data, _CLIENT_ID_LENGTH_OFFSET)
    except error as short:
        raise MalformedMessage(_TOO_SHORT) from short
    position = _FIXED.size
    client_id = None
    if length >= 0:
        stop = position + length
        if stop > len(data):
            too_short("client id", position)
        try:
            client_id = str(data[position:stop], "utf-8")
        except UnicodeDecodeError as bad:
            raise MalformedMessage("a client id that is not UTF-8") from bad
        position = stop
    elif length != -1:
        raise MalformedMessage(f"a client id of {length} bytes")
    if is_flexible:
        has_no_tags = position < len(data) and data[position] == 0
        position = position + 1 if has_no_tags else _skip_tags(data, position)
    return client_id, position


def encode_request(request: Any, version: int, correlation_id: int, client_id: str | None) -> list[Buffer]:
    """A whole request without its frame length."""
    schema = schema_of(type(request))
    client = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(client)
    parts: list[Buffer] = [_FIXED.pack(schema.api_key, version, correlation_id, length), client]
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
        position = _skip_tags(data, position)
    response, _ = decode_from(cls, version, data, position, max_elements=MAX_RESPONSE_ELEMENTS)
    return correlation_id, response


def frame_prefix(chunks: list[Buffer]) -> bytes:
    """The length prefix of a frame, an int32 that does not count itself, for these chunks."""
    return _LENGTH.pack(sum(map(len, chunks)))


def _skip_tags(data: Buffer, position: int) -> int:
    if position >= len(data):
        too_short("header tags", position)
    count = data[position]
    if count == 0:
        return position + 1
    return read_tag_section(memoryview(data), position + 1, count, MAX_ELEMENTS)[1]
