"""Immutable maps of which a changed version costs little: the next version shares most entries with the version before.

A map has a large dict that versions share, and a small dict with later changes. A new version costs a copy of the small
dict. When the small dict is larger than the square root of the large dict, the new version merges both. So a change
costs about as many steps as the root of the map's size, on average, and never more than one copy of the whole.

The order is the order of insertion, as in a dict, whenever the merges happened. So the order depends only on the
records.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from math import isqrt
from typing import Any, Final, Generic, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_GONE: Final = object()
_ABSENT: Final = object()
_SMALL: Final = 64
"""Maps of at most so many entries are copied as a whole."""


class _Layers(Generic[K, V]):
    """The shared part of a map, and the changes above that part."""

    __slots__ = ("_changes", "_count", "_shared")

    def __init__(self, shared: Mapping[K, V], changes: dict[K, Any], count: int) -> None:
        self._shared = shared
        self._changes = changes
        """New and changed values; `_GONE` for a removed key that the shared part still has."""
        self._count = count

    def __getitem__(self, key: K) -> V:
        found = self._changes.get(key, _ABSENT)
        if found is _ABSENT:
            return self._shared[key]
        if found is _GONE:
            raise KeyError(key)
        value: V = found
        return value

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...
    def get(self, key: K, /, default: V | D | None = None) -> V | D | None:
        """The value, or the default."""
        found = self._changes.get(key, _ABSENT)
        if found is _ABSENT:
            return self._shared.get(key, default)
        return default if found is _GONE else found

    def __contains__(self, key: Any) -> bool:
        found = self._changes.get(key, _ABSENT)
        return key in self._shared if found is _ABSENT else found is not _GONE

    def __len__(self) -> int:
        return self._count


class PersistentMap(_Layers[K, V], Mapping[K, V]):
    """A version of a map. Made by `MapDraft`; a version without a small part is a plain dict instead."""

    __slots__ = ()

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.entries())

    def items(self) -> ItemsView[K, V]:
        return _Items(self)

    def values(self) -> ValuesView[V]:
        return _Values(self)

    def keys(self) -> KeysView[K]:
        return KeysView(self)

    def entries(self) -> Iterator[tuple[K, V]]:
        """Keys and values in order."""
        shared, changes = self._shared, self._changes
        for key, value in shared.items():
            found = changes.get(key, value)
            if found is not _GONE:
                yield key, found
        for key, value in changes.items():
            if key not in shared:
                yield key, value

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self.entries())})"

    def draft_parts(self) -> tuple[Mapping[K, V], dict[K, Any]]:
        """The shared part and the new part, for the next version, which copies the new part before a write."""
        return self._shared, self._changes


class _Items(ItemsView[K, V]):
    _mapping: PersistentMap[K, V]

    def __iter__(self) -> Iterator[tuple[K, V]]:
        return self._mapping.entries()


class _Values(ValuesView[V]):
    _mapping: PersistentMap[Any, V]

    def __iter__(self) -> Iterator[V]:
        return (value for _, value in self._mapping.entries())


class MapDraft(_Layers[K, V]):
    """The next version of a map, which can be read and written until it is finished. The version before stays
    unchanged."""

    __slots__ = ("_before", "_is_own")

    def __init__(self, before: Mapping[K, V]) -> None:
        self._before = self._shared = before
        self._changes = {}
        if isinstance(before, PersistentMap):
            self._shared, self._changes = before.draft_parts()
        self._count = len(before)
        self._is_own = False

    def __setitem__(self, key: K, value: V) -> None:
        if not self._is_own:
            self._own()
        found = self._changes.get(key, _ABSENT)
        if found is _GONE:
            # A key that was removed and added again comes last, as in a dict; the shared part would give the key its
            # old place.
            self._merge()
            found = _ABSENT
        if found is _ABSENT and key not in self._shared:
            self._count += 1
        self._changes[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        if not self._is_own:
            self._own()
        self._count -= 1
        if key in self._shared:
            self._changes[key] = _GONE
        else:
            del self._changes[key]

    def pop(self, key: K) -> V:
        """Remove the key, and return its value. Raises KeyError."""
        value = self[key]
        del self[key]
        return value

    def values(self) -> Iterable[V]:
        """The values in order. The draft must not be written to meanwhile."""
        return (
            PersistentMap(self._shared, self._changes, self._count).values() if self._changes else self._shared.values()
        )

    def finish(self) -> Mapping[K, V]:
        """The new version, or the version before if nothing was written. The draft must not be used afterwards."""
        if not self._is_own:
            return self._before
        if len(self._changes) > max(_SMALL, 4 * isqrt(len(self._shared))) or len(self._shared) <= _SMALL:
            self._merge()
        if not self._changes:
            return self._shared
        return PersistentMap(self._shared, self._changes, self._count)

    def _own(self) -> None:
        self._changes = dict(self._changes)
        self._is_own = True

    def _merge(self) -> None:
        if self._shared:
            merged = dict(self._shared)
            merged.update(self._changes)
            for key, value in self._changes.items():
                if value is _GONE:
                    del merged[key]
            self._shared = merged
        else:
            self._shared = self._changes
        self._changes = {}
