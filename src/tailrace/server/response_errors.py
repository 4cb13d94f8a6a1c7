"""Counts of errors in answers, by API and code, for the metrics.

A response carries its errors wherever its declaration has a field `error_code`: at the top, per topic, per partition.
Where to look is found once per kind of response; then looking costs one attribute per field, and no error costs nothing
more. `NONE` is not counted.
"""

from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from tailrace.protocol.declaration import Array, Nested, Schema, schema_of

_FIELD = "error_code"
_FIELD_OF_A_PARTITION = "partition_error_code"
"""The name of the error code in AddPartitionsToTxn."""

Look = Callable[[Any, list[int]], None]


class ResponseErrors:
    """The counts of one node."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        """The number of errors, by API key and error code."""
        self._found: list[int] = []

    def count(self, api_key: int, response: Any) -> None:
        """Count the errors in a response."""
        look = _look_of(type(response))
        if look is None:
            return
        found = self._found
        look(response, found)
        if found:
            self.counts.update((api_key, code) for code in found)
            found.clear()


def error_codes(response: Any) -> list[int]:
    """The errors in a response, at any depth."""
    found: list[int] = []
    look = _look_of(type(response))
    if look is not None:
        look(response, found)
    return found


_looks: dict[type[Any], Look | None] = {}


def _look_of(kind: type[Any]) -> Look | None:
    try:
        return _looks[kind]
    except KeyError:
        look = _looks[kind] = _look_into(schema_of(kind))
        return look


def _look_into(schema: Schema) -> Look | None:
    """A function that appends the error codes of a value of this schema to a list; None if it has no such field."""
    parts: list[Look] = []
    for field in schema.fields:
        if field.name == _FIELD:
            parts.append(_look_at_code)
        elif field.name == _FIELD_OF_A_PARTITION:
            parts.append(_look_at_code_of_a_partition)
        elif isinstance(field.type, Array) and isinstance(field.type.element, Nested):
            inner = _look_into(field.type.element.schema)
            if inner is not None:
                parts.append(_look_at_each(attrgetter(field.name), inner))
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else _look_at_all(tuple(parts))


def _look_at_code(value: Any, found: list[int]) -> None:
    if value.error_code:
        found.append(value.error_code)


def _look_at_code_of_a_partition(value: Any, found: list[int]) -> None:
    if value.partition_error_code:
        found.append(value.partition_error_code)


def _look_at_each(elements: Callable[[Any], Any], inner: Look) -> Look:
    if inner is _look_at_code:  # mostly partitions: no call for each

        def look_at_codes(value: Any, found: list[int]) -> None:
            found += [element.error_code for element in elements(value) or () if element.error_code]

        return look_at_codes

    def look(value: Any, found: list[int]) -> None:
        for element in elements(value) or ():
            inner(element, found)

    return look


def _look_at_all(parts: tuple[Look, ...]) -> Look:
    def look(value: Any, found: list[int]) -> None:
        for part in parts:
            part(value, found)

    return look
