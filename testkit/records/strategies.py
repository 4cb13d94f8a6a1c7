"""Hypothesis strategies for values of model and protocol, and all messages that are one step away from a message.

Both are derived from the declaration of the message.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from hypothesis import strategies as st

from tailrace.protocol.declaration import Array, Blob, Field, Fixed, Nested, RecordBytes, Text, WireType, schema_of
from tailrace.protocol.schema import replace
from tailrace.protocol.source import Layout

T = TypeVar("T")

Override = Callable[[Field], "st.SearchStrategy[Any] | None"]
"""A strategy for a field that a test wants to narrow, or None for the ordinary strategy."""

_BITS = {"b": (8, True), "h": (16, True), "i": (32, True), "q": (64, True), "H": (16, False), "I": (32, False)}

MAX_ITEMS = 3
LONGEST_STRING = "x" * 32_767
CROWD = 2_000
"""The number of elements of a crowd."""


def messages(cls: type[T], version: int, override: Override = lambda _: None) -> st.SearchStrategy[T]:
    """Values of a message that survive one version: fields that the version lacks are at their defaults."""
    return _structs(cls, version, schema_of(cls).flexible.has(version), override)


def _structs(cls: type[T], version: int, flexible: bool, override: Override) -> st.SearchStrategy[T]:
    layout = Layout(schema_of(cls), version, flexible)
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for field in layout.plain + layout.tagged:
        values = override(field)
        if values is None:
            values = _values(field.type, version, flexible, override)
        if field.nullable.has(version):
            values = st.none() | values
        if field.tag is not None:
            values = st.just(field.default) | values
        parts[field.name] = values
    return st.fixed_dictionaries(parts).map(lambda values: cls(**values))


def _values(kind: WireType, version: int, flexible: bool, override: Override) -> st.SearchStrategy[Any]:
    match kind:
        case Fixed(code="?"):
            return st.booleans()
        case Fixed(code="d"):
            return st.floats(allow_nan=False)
        case Fixed(code="16s"):
            return st.binary(min_size=16, max_size=16)
        case Fixed(code=code):
            bits, signed = _BITS[code]
            return integers(bits, signed=signed)
        case Text():
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
        case Blob():
            return st.binary(max_size=20)
        case RecordBytes():
            return st.none() | st.binary(max_size=40)
        case Array(element=element):
            return st.lists(_values(element, version, flexible, override), max_size=MAX_ITEMS).map(tuple)
        case Nested(schema=schema):
            return _structs(schema.cls, version, flexible, override)


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    """Integers of this width; the ends of the range more often than by chance."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, high])


def neighbours(value: Any, version: int, flexible: bool) -> Iterator[Any]:
    """Copies of a message in which one field, at any depth, is at an extreme."""
    layout = Layout(schema_of(type(value)), version, flexible)
    for field in layout.plain + layout.tagged:
        if field.nullable.has(version):
            yield replace(value, **{field.name: None})
        for extreme in extremes(getattr(value, field.name), field.type, version, flexible):
            yield replace(value, **{field.name: extreme})


def extremes(value: Any, kind: WireType, version: int, flexible: bool) -> Iterator[Any]:
    """Extreme values of a field of this kind, which has `value` now."""
    match kind:
        case Fixed(code="?"):
            yield not value
        case Fixed(code="16s"):
            yield from (bytes(16), bytes(15) + b"\1", b"\xff" * 16)
        case Fixed(code="H"):
            yield from (0, 1, (1 << 16) - 1)
        case Fixed(size=size):
            yield from (-(1 << 8 * size - 1), -2, -1, 0, 1, 2, 3, (1 << 8 * size - 1) - 1)
        case Text():
            yield from ("", ".", "new topic/\0é", "orders", "never seen", "__consumer_offsets", "__cluster_metadata")
            yield LONGEST_STRING
        case Blob():
            yield from (b"", bytes(40_000))
        case RecordBytes():
            good = bytes(value)
            yield from (b"", bytes(61), good[:-1], good + good, good[:-1] + b"\0")
        case Nested():
            yield from neighbours(value, version, flexible)
        case Array(element=element):
            items = tuple(value or ())
            yield ()
            yield items * 2
            for place, item in enumerate(items):
                for extreme in extremes(item, element, version, flexible):
                    yield (*items[:place], extreme, *items[place + 1 :])
                    yield (*items, extreme)


def crowds(value: Any, version: int, flexible: bool) -> Iterator[Any]:
    """Copies of a message in which one array, at any depth, has very many elements: all the same, or all different."""
    layout = Layout(schema_of(type(value)), version, flexible)
    for field in layout.plain + layout.tagged:
        if not isinstance(field.type, Array):
            continue
        items = tuple(getattr(value, field.name) or ())
        element = field.type.element
        numbers = 1 << 8 * element.size - 1 if isinstance(element, Fixed) else CROWD
        for crowd in crowds_of(items, numbers):
            yield replace(value, **{field.name: crowd})
        for item in items[:1]:
            if hasattr(item, "__schema__"):
                yield from (replace(value, **{field.name: (inner,)}) for inner in crowds(item, version, flexible))


def crowds_of(items: tuple[Any, ...], numbers: int) -> Iterator[tuple[Any, ...]]:
    """Crowds of the first item; `numbers`: the number of different numbers."""
    for item in items[:1]:
        yield (item,) * CROWD
        if numbered(item, 0) is not None:
            yield tuple(numbered(item, number % numbers) for number in range(CROWD))


def numbered(item: Any, number: int) -> Any:
    """A value like `item`, different for every number; None if `item` has no name and no number."""
    if isinstance(item, str):
        return f"{item}{number}"
    if isinstance(item, int):
        return number
    if isinstance(item, bytes):
        return number.to_bytes(len(item), "big")
    fields = schema_of(type(item)).fields
    texts = [field.name for field in fields if isinstance(field.type, Text) and getattr(item, field.name) is not None]
    numbers = [field.name for field in fields if isinstance(field.type, Fixed) and field.type.size in (4, 8)]
    for name in texts + numbers:
        return replace(item, **{name: numbered(getattr(item, name), number)})
    return None
