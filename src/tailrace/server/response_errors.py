"""Counts of errors in answers, by API and code, for the metrics.

A response carries its errors wherever its declaration has a field `error_code`: at the top, per topic, per partition.
Where to look is found once per kind of response; then looking costs one attribute per field, and no error costs nothing
more. `NONE` is not counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tailrace.protocol.declaration import Array, Nested, Schema, schema_of

_FIELDS = ("error_code", "partition_error_code")
"""The second is the name in AddPartitionsToTxn."""


@dataclass(frozen=True, slots=True)
class _Places:
    """The places of the error codes in values of one type."""

    code_of: Callable[[Any], int] | None
    """The code of the value itself."""
    arrays: tuple[tuple[Callable[[Any], Iterable[Any] | None], "_Places"], ...]
    """Arrays of values with codes."""

    @property
    def are_none(self) -> bool:
        return self.code_of is None and not self.arrays


class ResponseErrors:
    """The counts of one node."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[int, int]] = Counter()
        """The number of errors, by API key and error code."""
        self._found: list[int] = []

    def count(self, api_key: int, response: Any) -> None:
        """Count the errors in a response."""
        found = self._found
        kind = type(response)
        _collect(_places.get(kind) or _places_of(kind), response, found)
        if found:
            self.counts.update((api_key, code) for code in found)
            found.clear()


def error_codes(response: Any) -> list[int]:
    """The errors in a response, at any depth."""
    found: list[int] = []
    _collect(_places_of(type(response)), response, found)
    return found


_places: dict[type[Any], _Places] = {}


def _places_of(kind: type[Any]) -> _Places:
    places = _places.get(kind)
    if places is None:
        places = _places[kind] = _places_in(schema_of(kind))
    return places


def _collect(places: _Places, value: Any, found: list[int]) -> None:
    if places.code_of is not None:
        code = places.code_of(value)
        if code:
            found.append(code)
    for elements_of, inner in places.arrays:
        elements = elements_of(value)
        if not elements:
            continue
        if inner.arrays:
            for element in elements:
                _collect(inner, element, found)
        elif inner.code_of is not None:  # mostly partitions: no call for each
            found.extend(filter(None, map(inner.code_of, elements)))


def _places_in(schema: Schema) -> _Places:
    names = [field.name for field in schema.fields if field.name in _FIELDS]
    assert len(names) <= 1, f"{schema.name} has two error codes: {names}"
    arrays = [
        (attrgetter(field.name), _places_in(field.type.element.schema))
        for field in schema.fields
        if isinstance(field.type, Array) and isinstance(field.type.element, Nested)
    ]
    return _Places(
        attrgetter(names[0]) if names else None,
        tuple((elements_of, inner) for elements_of, inner in arrays if not inner.are_none),
    )
