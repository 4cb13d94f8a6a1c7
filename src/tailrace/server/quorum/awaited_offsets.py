"""Who waits until a log has been applied so far."""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count


class AwaitedOffsets:
    """Callbacks by the end offset that they wait for; those of one offset in the order in which they came."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def add(self, end_offset: int, callback: Callable[[], None]) -> None:
        """Somebody waits for everything below."""
        heappush(self._waiting, (end_offset, next(self._numbers), callback))

    def reached(self, end_offset: int) -> Iterator[Callable[[], None]]:
        """Those who need not wait any more, and are forgotten."""
        while self._waiting and self._waiting[0][0] <= end_offset:
            yield heappop(self._waiting)[2]
