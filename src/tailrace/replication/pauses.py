"""Pauses of partitions, every pause with its own end. Pure; times are monotonic ms."""

from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")


class _Pause(NamedTuple):
    until_ms: int
    number: int
    """The number of pauses that began before."""


class Pauses(Generic[K]):
    """The pauses under way. A step costs no more for pauses that do not end."""

    def __init__(self) -> None:
        self._under_way: dict[K, _Pause] = {}
        self._heap: list[tuple[_Pause, K]] = []  # the first pause is under way, other pauses may be over
        self._begun = 0

    def __contains__(self, key: K) -> bool:
        return key in self._under_way

    @property
    def next_end_ms(self) -> int | None:
        """The earliest end of a pause; None if there is none."""
        return self._heap[0][0].until_ms if self._heap else None

    def begin(self, key: K, until_ms: int) -> None:
        """Pause `key` until this time. `key` must not be paused already."""
        self._begun += 1
        pause = self._under_way[key] = _Pause(until_ms, self._begun)
        heappush(self._heap, (pause, key))

    def end(self, key: K) -> None:
        """End the pause of this key now, if there is a pause."""
        if self._under_way.pop(key, None) is not None:
            self._drop_past()

    def take_due(self, now_ms: int) -> list[K]:
        """End the pauses whose time is over, and return their keys in the order in which they began."""
        due: list[tuple[int, K]] = []
        while self._heap and self._heap[0][0].until_ms <= now_ms:
            pause, key = heappop(self._heap)
            due.append((pause.number, key))
            del self._under_way[key]
            self._drop_past()
        return [key for _, key in sorted(due, key=lambda pair: pair[0])]

    def _drop_past(self) -> None:
        """Remove ended pauses from the top of the heap, so that the next pause to end is first."""
        while self._heap and self._under_way.get(self._heap[0][1]) is not self._heap[0][0]:
            heappop(self._heap)
