"""Counts of errors in answers, by API and code, for the metrics.

A response carries its errors wherever its declaration has a field `error_code`: at the top, per topic, per partition.
For each kind of response a function is compiled once that reads only these fields, since every answer is examined.
`NONE` is not counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

from tailrace.protocol.declaration import Array, Nested, Schema, schema_of
from tailrace.protocol.source import Source

_FIELDS: Final = ("error_code", "partition_error_code")
"""The names of fields with errors; `partition_error_code` is the name in AddPartitionsToTxn."""
_STEP: Final = 64
"""The elements of an array that a step examines; a power of two."""

_Collector = Callable[[Any, list[int]], None]
"""Appends the errors in a response to a list."""


class ResponseErrors:
    """The counts of one node."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        """The number of errors, by API key and error code."""
        self._found: list[int] = []

    def counted_in_steps(self, api_key: int, response: Any) -> Iterator[None]:
        """Do the work of `count` in steps."""
        found: list[int] = []
        kind: type = type(response)
        for _ in _step_collector_of(kind)(response, found):
            self._add(api_key, found)
            yield
        self._add(api_key, found)

    def count(self, api_key: int, response: Any) -> None:
        """Count the errors in a response."""
        found, kind = self._found, type(response)
        collect = _collectors.get(kind) or _collector_of(kind)
        collect(response, found)
        if found:
            self._add(api_key, found)

    def _add(self, api_key: int, found: list[int]) -> None:
        self.counts.update((api_key, code) for code in found)
        found.clear()


def error_codes(response: Any) -> list[int]:
    """The errors in a response, at any depth."""
    found: list[int] = []
    _collector_of(type(response))(response, found)
    return found


_collectors: Final[dict[type[Any], _Collector]] = {}


def _collector_of(kind: type[Any]) -> _Collector:
    collector = _collectors.get(kind)
    if collector is None:
        collector = _collectors[kind] = _compiled(schema_of(kind))
    return collector


@cache
def _step_collector_of(kind: type) -> Callable[[Any, list[int]], Iterator[None]]:
    return _compiled(schema_of(kind), in_steps=True)


def _compiled(schema: Schema, *, in_steps: bool = False) -> Callable[[Any, list[int]], Any]:
    source = Source()
    with source.block("def collect(value, found):"):
        source.line("append = found.append")
        if in_steps:
            source.line("yield")
        _write(source, schema, "value", in_steps=in_steps)
    return source.compile("collect", f"errors of {schema.name}")


def _write(source: Source, schema: Schema, value: str, *, in_steps: bool) -> None:
    """Write the source lines that examine one struct, and its arrays."""
    for field in schema.fields:
        if field.name in _FIELDS:
            with source.block(f"if {value}.{field.name}:"):
                source.line(f"append({value}.{field.name})")
    for name, inner in _arrays(schema):
        element = source.fresh("v")
        if not in_steps:
            with source.block(f"for {element} in {value}.{name} or ():"):
                _write(source, inner, element, in_steps=False)
            continue
        number = source.fresh("i")
        with source.block(f"for {number}, {element} in enumerate({value}.{name} or ()):"):
            with source.block(f"if {number} & {_STEP - 1} == {_STEP - 1}:"):
                source.line("yield")
            _write(source, inner, element, in_steps=True)


def _arrays(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """The arrays of structs with error codes."""
    for field in schema.fields:
        if isinstance(field.type, Array) and isinstance(field.type.element, Nested):
            inner = field.type.element.schema
            if has_error_codes(inner):
                yield field.name, inner


def has_error_codes(schema: Schema) -> bool:
    """Whether the struct has a field for an error code, at any depth."""
    return any(field.name in _FIELDS for field in schema.fields) or any(True for _ in _arrays(schema))
