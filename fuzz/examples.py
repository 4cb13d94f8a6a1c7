"""A few values of every message in every version: what mutations start from."""

from collections.abc import Callable, Iterator
from typing import Any

from tailrace.protocol.declaration import (
    Array,
    Blob,
    Field,
    Fixed,
    Nested,
    RecordBytes,
    Schema,
    Text,
    WireType,
    schema_of,
)
from tailrace.protocol.records.record import Record, build_batch
from tailrace.protocol.schema import encode_bytes
from tailrace.protocol.source import Layout

BATCH = bytes(build_batch([Record(0, 1_700_000_000_000, b"key", b"value", (("header", b"h"),))]))

Known = Callable[[Field], tuple[Any] | None]
"""The value of a field, if the caller has a value that gets further than ours."""


def examples(cls: type[Any], version: int, known: Known = lambda _: None) -> Iterator[Any]:
    """A value with everything, a value with every array twice as long, and a value with as little as possible."""
    for size in (1, 2, 0):
        yield _struct(schema_of(cls), version, size, known)


def encoded_examples(cls: type[Any], version: int) -> Iterator[bytes]:
    """The same as bytes."""
    for value in examples(cls, version):
        yield encode_bytes(value, version)


def _struct(schema: Schema, version: int, size: int, known: Known) -> Any:
    layout = Layout(schema, version, schema.flexible.has(version))
    values: dict[str, Any] = {}
    for field in layout.plain + layout.tagged:
        better = known(field)
        if better is not None:
            (values[field.name],) = better
        elif field.tag is not None and not size:
            values[field.name] = field.default
        elif not size and field.nullable.has(version):
            values[field.name] = None
        else:
            values[field.name] = _value(field.type, field.name, version, size, known)
    return schema.cls(**values)


def _value(kind: WireType, name: str, version: int, size: int, known: Known) -> Any:
    match kind:
        case Fixed(code="?"):
            return bool(size)
        case Fixed(code="16s"):
            return bytes(range(16)) if size else bytes(16)
        case Fixed():
            return size
        case Text():
            return "orders"[: 3 * size]
        case RecordBytes():
            return BATCH if size else None
        case Blob():
            return name.encode()[: 4 * size]
        case Array(element=element):
            return tuple(_value(element, name, version, max(1, size), known) for _ in range(size))
        case Nested(schema=schema):
            return _struct(schema, version, size, known)
