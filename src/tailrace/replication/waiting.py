"""Callbacks that wait until an offset is reached: a high watermark, the end of what is applied, a count of new logs."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable

from tailrace.model.errors import KafkaError

Waiter = Callable[[KafkaError | None], None]
"""Called once: with None when the offset has been reached, or with the error that makes this impossible."""


class OffsetWaiters:
    """Waiters by the offset they wait for. Most are added in the order of their offsets, and called in that order."""

    __slots__ = ("_offsets", "_waiters")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, offset: int, waiter: Waiter) -> None:
        """Wait for `offset`, behind all that wait for the same one."""
        offsets = self._offsets
        if not offsets or offsets[-1] <= offset:
            offsets.append(offset)
            self._waiters.append(waiter)
        else:
            index = bisect_right(offsets, offset)
            offsets.insert(index, offset)
            self._waiters.insert(index, waiter)

    def remove(self, offset: int, waiter: Waiter) -> None:
        """Do not call this waiter for `offset`, if it is there."""
        offsets, waiters = self._offsets, self._waiters
        index = bisect_left(offsets, offset)
        while index < len(offsets) and offsets[index] == offset:
            if waiters[index] == waiter:
                del offsets[index], waiters[index]
                return
            index += 1

    def reached(self, offset: int) -> None:
        """Call all that wait for `offset` or less, smallest first."""
        count = bisect_right(self._offsets, offset)
        if count:
            due = self._waiters[:count]
            del self._offsets[:count], self._waiters[:count]
            for waiter in due:
                waiter(None)

    def fail(self, error: KafkaError) -> None:
        """Call every callback with the error."""
        due, self._offsets, self._waiters = self._waiters, [], []
        for waiter in due:
            waiter(error)
