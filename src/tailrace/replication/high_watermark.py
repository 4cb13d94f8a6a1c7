"""The high watermark of one partition: what waits for it to rise, and how many bytes can be read because it has.

Moves only up, unless the log is cut. Whether it may is not decided here (`replication.leadership`).
"""

from collections import deque
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.replication.waiting import OffsetWaiters, Waiter

_MOST_NOTES: Final = 1_000
"""Writes that are told apart. Those behind them are taken for one: what they wrote counts when the last is reached."""


class HighWatermark:
    """The high watermark of one partition, with its waiters."""

    __slots__ = ("_unflushed", "_waiters", "offset", "readable_bytes")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """Below it everything is safe."""
        self.readable_bytes = 0
        """The bytes that had been written when it was reached, or fewer. Only differences mean anything."""
        self._unflushed: deque[tuple[int, int]] | None = None  # (log end offset, bytes written) after each write
        self._waiters: OffsetWaiters | None = None

    def note_write(self, log_end_offset: int, written_bytes: int) -> None:
        """Remember how much had been written when the log ended here, until this is reached."""
        if self._unflushed is None:
            self._unflushed = deque()
        elif len(self._unflushed) >= _MOST_NOTES:
            self._unflushed.pop()  # it may stand still for hours, while replicas are away
        self._unflushed.append((log_end_offset, written_bytes))

    def rise(self, offset: int, written_bytes: int | None = None) -> None:
        """Move up, and call the waiters. `written_bytes` if no write was noted: all of them can be read now."""
        self.offset = offset
        if written_bytes is not None:
            self.readable_bytes = written_bytes
            self._unflushed = None
        elif (unflushed := self._unflushed) is not None:
            while unflushed and unflushed[0][0] <= offset:
                self.readable_bytes = unflushed.popleft()[1]
        if self._waiters:
            self._waiters.reached(offset)

    def move_to(self, offset: int) -> None:
        """Set it after a truncation of the log. No callback runs: none waits for a log that its leader has cut."""
        self.offset = offset
        self._unflushed = None

    def wait(self, offset: int, waiter: Waiter) -> None:
        """Have `waiter` called when this offset, which is above, is reached, or with an error."""
        if self._waiters is None:
            self._waiters = OffsetWaiters()
        self._waiters.add(offset, waiter)

    def wait_no_more(self, offset: int, waiter: Waiter) -> None:
        """Forget this callback of this offset, if it still waits."""
        if self._waiters is not None:
            self._waiters.remove(offset, waiter)

    def fail(self, error: KafkaError) -> None:
        """Call every waiting callback with the error."""
        if self._waiters is not None:
            self._waiters.fail(error)
