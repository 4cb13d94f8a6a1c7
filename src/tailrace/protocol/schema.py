"""Messages as values: how messages are declared, become bytes and come back.

    @message(api_key=12, versions="0-4", flexible="4+")
    class HeartbeatRequest:
        group_id: str
        generation_id: Int32
        member_id: str
        group_instance_id: str | None = field(versions="3+", default=None)

One declaration serves all versions. Codecs are compiled when a (message, version) is first used.
"""

import struct as _struct
from collections.abc import Generator, Iterator
from functools import cache
from typing import TypeVar

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.protocol.declaration import (
    ZERO_UUID,
    Field,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    Schema,
    UInt16,
    UInt32,
    Uuid,
    Versions,
    field,
    message,
    positional,
    protect_values,
    replace,
    schema_of,
    struct,
    unknown_tags,
)
from tailrace.protocol.decoder import Decoder, StepDecoder, compile_decoder, compile_step_decoder
from tailrace.protocol.encoder import (
    Encoder,
    StepEncoder,
    compile_encoder,
    compile_step_encoder,
    compile_struct_encoder,
)
from tailrace.protocol.primitives import Buffer, UnknownTags

__all__ = (
    "MAX_ELEMENTS",
    "PREFIX_BYTES",
    "ZERO_UUID",
    "Buffer",
    "Field",
    "Float64",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Records",
    "Schema",
    "UInt16",
    "UInt32",
    "UnknownTags",
    "Uuid",
    "Versions",
    "decode",
    "decode_from",
    "decode_in_steps",
    "encode",
    "encode_bytes",
    "encode_in_steps",
    "encode_into",
    "encode_prefixed",
    "field",
    "message",
    "positional",
    "prefix_of",
    "protect_values",
    "replace",
    "schema_of",
    "struct",
    "struct_encoder",
    "unknown_tags",
)

T = TypeVar("T")

_PREFIX = _struct.Struct(">h")
PREFIX_BYTES = _PREFIX.size
"""The bytes in front of a message of `encode_prefixed`."""
_PARTS_OF_A_CHUNK = 16_384
"""A message in steps is joined in chunks: the parts of 20 MB are millions of objects, whose end takes 0.2 s."""
MAX_ELEMENTS = 200_000
"""Array elements and tagged fields that one message may have, all arrays together.

An element of 1 byte on the wire may take a hundred in memory."""


def encode(value: object, version: int) -> list[Buffer]:
    """The message's bytes, in chunks. Records and other long bytes are in the list themselves, not copied.

    A field that this version does not have is not written. Raises KafkaError UNSUPPORTED_VERSION for a version that the
    message does not have, INVALID_REQUEST for a value that has no form in this version: null where null is not allowed,
    a number too large.
    """
    parts: list[Buffer] = []
    chunks: list[Buffer] = []
    encode_into(value, version, parts, chunks)
    if parts or not chunks:
        chunks.append(b"".join(parts))
    return chunks


def encode_bytes(value: object, version: int) -> bytes:
    """The message's bytes in one piece."""
    parts: list[Buffer] = []
    chunks: list[Buffer] = []
    encode_into(value, version, parts, chunks)
    return b"".join((*chunks, *parts))


def encode_prefixed(value: object, version: int) -> bytes:
    """The message behind its version, an int16: records of coordinators, and messages inside other messages."""
    return _PREFIX.pack(version) + encode_bytes(value, version)


def prefix_of(data: Buffer) -> int:
    """The version that `encode_prefixed` has put in front of a message. Raises MalformedMessage."""
    if len(data) < PREFIX_BYTES:
        raise MalformedMessage(f"{len(data)} bytes cannot hold the version in front of a message")
    version: int = _PREFIX.unpack_from(data)[0]
    return version


def encode_into(value: object, version: int, parts: list[Buffer], chunks: list[Buffer]) -> None:
    """Encode the value behind the content of `parts`. Afterwards the content of `parts` belongs behind `chunks`."""
    schema: Schema = value.__schema__  # type: ignore[attr-defined]
    try:
        encoder = schema.encoders[version]
    except KeyError:
        encoder = _encoder_of(schema, version)
    try:
        encoder(value, parts, chunks)
    except (_struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{schema.name} v{version} cannot be encoded: {error}") from error


def encode_in_steps(value: object, version: int, parts: list[Buffer], chunks: list[Buffer]) -> Iterator[None]:
    """Do what `encode_into` does, in steps: a value of very many elements would take too long in one step."""
    schema = schema_of(type(value))
    try:
        for _ in _step_encoder_of(schema, version)(value, parts, chunks):
            if len(parts) >= _PARTS_OF_A_CHUNK:
                chunks.append(b"".join(parts))
                parts.clear()
            yield
    except (_struct.error, TypeError, AttributeError, UnicodeEncodeError) as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{schema.name} v{version} cannot be encoded: {error}") from error


def struct_encoder(message: type, struct: type, version: int) -> Encoder:
    """The encoder of a struct as it stands in this version of a message, for messages that are encoded in steps."""
    return compile_struct_encoder(schema_of(struct), version, flexible=schema_of(message).flexible.has(version))


def decode(cls: type[T], version: int, data: Buffer, position: int = 0, *, max_elements: int = MAX_ELEMENTS) -> T:
    """The message in `data` from `position` to the end. Records are views into `data`; everything else is copied.

    Raises MalformedMessage if the bytes are not exactly one such message.
    """
    value, stop = decode_from(cls, version, data, position, max_elements=max_elements)
    if stop != len(data):
        raise MalformedMessage(f"{cls.__name__} v{version}: {len(data) - stop} bytes too many")
    return value


def decode_from(
    cls: type[T], version: int, data: Buffer, position: int = 0, *, max_elements: int = MAX_ELEMENTS
) -> tuple[T, int]:
    """The message at `position`, and the position behind the message."""
    schema: Schema = cls.__schema__  # type: ignore[attr-defined]
    try:
        decoder = schema.decoders[version]
    except KeyError:
        decoder = _decoder_of(schema, version)
    try:
        value, stop, _ = decoder(data if type(data) is memoryview else memoryview(data), position, max_elements)
    except (_struct.error, IndexError) as error:
        raise MalformedMessage(f"{schema.name} v{version}: the bytes end too early") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"{schema.name} v{version}: a string is not UTF-8") from error
    return value, stop


def decode_in_steps(
    cls: type[T], version: int, data: memoryview, position: int, *, max_elements: int
) -> Generator[None, None, tuple[T, int]]:
    """Do what `decode_from` does, in steps: a message of very many elements would take too long in one step."""
    schema = schema_of(cls)
    try:
        value, stop, _ = yield from _step_decoder_of(schema, version)(data, position, max_elements)
    except (_struct.error, IndexError) as error:
        raise MalformedMessage(f"{schema.name} v{version}: the bytes end too early") from error
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"{schema.name} v{version}: a string is not UTF-8") from error
    return value, stop


def _encoder_of(schema: Schema, version: int) -> Encoder:
    _check_version(schema, version)
    encoder: Encoder = compile_encoder(schema, version)
    schema.encoders[version] = encoder
    return encoder


@cache
def _step_encoder_of(schema: Schema, version: int) -> StepEncoder:
    _check_version(schema, version)
    return compile_step_encoder(schema, version)


@cache
def _step_decoder_of(schema: Schema, version: int) -> StepDecoder:
    _check_version(schema, version)
    return compile_step_decoder(schema, version)


def _decoder_of(schema: Schema, version: int) -> Decoder:
    _check_version(schema, version)
    decoder: Decoder = compile_decoder(schema, version)
    schema.decoders[version] = decoder
    return decoder


def _check_version(schema: Schema, version: int) -> None:
    if not schema.versions.has(version):
        known = f"{schema.versions.first} to {schema.versions.last}"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{schema.name} has versions {known}, not {version}")
