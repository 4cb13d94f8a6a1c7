"""Deadlines by key, in ms of the host's monotonic clock: of groups, and of members of consumer groups."""

import heapq
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=str | tuple[str, str])

_SPARE_ENTRIES: Final = 64


class Schedule(Generic[K]):
    """A replaced deadline stays in the heap until its time, or until there are too many replaced deadlines."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, K]] = []
        self._deadlines: dict[K, int] = {}

    def __len__(self) -> int:
        """The number of entries in the heap: at most twice the number of deadlines, and `_SPARE_ENTRIES`."""
        return len(self._heap)

    @property
    def next_deadline_ms(self) -> int | None:
        """A time that is not later than the earliest deadline."""
        return self._heap[0][0] if self._heap else None

    def get(self, key: K) -> int | None:
        """The deadline of the key, or None."""
        return self._deadlines.get(key)

    def set(self, key: K, deadline_ms: int | None) -> None:
        """Set the deadline of the key; None removes the deadline."""
        if deadline_ms is None:
            self._deadlines.pop(key, None)
        elif self._deadlines.get(key) != deadline_ms:
            self._deadlines[key] = deadline_ms
            heapq.heappush(self._heap, (deadline_ms, key))
            if len(self._heap) > 2 * len(self._deadlines) + _SPARE_ENTRIES:
                # The heap stays bounded while keys come and go; the cost for each dropped entry is constant.
                self._heap = [(deadline_ms, key) for key, deadline_ms in self._deadlines.items()]
                heapq.heapify(self._heap)

    def take_due(self, now_ms: int) -> list[K]:
        """Remove and return the keys whose deadline has passed."""
        due = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, key = heapq.heappop(self._heap)
            if self._deadlines.get(key) == deadline_ms:
                del self._deadlines[key]
                due.append(key)
        return due
