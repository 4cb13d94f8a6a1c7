"""Hypothesis strategies for values of model and protocol. A message's strategy is derived from its declaration."""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

from tailrace.protocol.declaration import Array, Blob, Field, Fixed, Nested, RecordBytes, Text, WireType, schema_of
from tailrace.protocol.source import Layout

T = TypeVar("T")

Override = Callable[[Field], "st.SearchStrategy[Any] | None"]
"""A strategy for one field that a test wants to narrow, or None for the ordinary one."""

_BITS = {"b": (8, True), "h": (16, True), "i": (32, True), "q": (64, True), "H": (16, False), "I": (32, False)}

MAX_ITEMS = 3


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
    """All integers of this width; the ends of the range more often than chance would have it."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return st.integers(low, high) | st.sampled_from([low, high])
