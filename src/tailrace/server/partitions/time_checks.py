"""The examination of records in batches with unchecked headers, before a lookup or retention uses their times.

Logs of older releases, and batches of leaders that do not vouch for headers, have the headers as producers wrote them
(decision 0069). A log is examined once after its opening, in steps between other work, when the first lookup by time or
the first retention needs it. A lookup waits for the examination, but at most MAX_WAIT_MS; after that its answer is
OFFSET_NOT_AVAILABLE (78), and the examination goes on for later lookups.
"""

from collections.abc import Callable, Collection
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import Rotation, call_each
from tailrace.server.ports import Clock, Timer

MAX_WAIT_MS: Final = 10_000
"""The longest wait of a request: a third of the request timeout of most clients."""
MOST_WAITING: Final = 1_000
"""The most requests that wait at the same time; any further request is answered at once."""


class TimeChecks:
    """The examinations of the logs of one table."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._callbacks: dict[Partition, list[Callable[[], None]]] = {}
        self._checks = Rotation(clock, self._goes_on, self._done)
        self._waiting = 0

    def check(self, partition: Partition, on_done: Callable[[], None]) -> None:
        """Examine this log; then call `on_done`, even if the examination has failed or the partition was closed."""
        self._callbacks.setdefault(partition, []).append(on_done)
        self._checks.add(partition)

    def wait(self, partitions: Collection[Partition], on_ready: Callable[[], None]) -> bool:
        """Call `on_ready` once, later, when these logs are examined, or the time is over.

        False: there is nothing to wait for, or no room, and `on_ready` is not called. The first step is taken at once,
        and is enough for most logs.
        """
        if not partitions or self._waiting >= MOST_WAITING:
            return False
        self._goes_on(next(iter(partitions)))
        left = [partition for partition in partitions if _is_doubtful(partition)]
        if not left:
            return False
        self._waiting += 1
        waiting = _TimesWait(len(left), on_ready, self._ended)
        waiting.timer = self._clock.call_at(self._clock.monotonic_ms() + MAX_WAIT_MS, waiting.expire)
        for partition in left:
            self.check(partition, waiting.checked)
        return True

    def _ended(self) -> None:
        self._waiting -= 1

    def _done(self, partition: Partition) -> None:
        call_each(lambda callback: callback(), self._callbacks.pop(partition))

    def _goes_on(self, partition: Partition) -> bool:
        """Do a step, and return whether there are more steps."""
        try:
            return not partition.is_closed and partition.log.times.check_on(self._clock.monotonic_ms)
        except KafkaError:
            return False  # a reader gets the error of its own lookup


class _TimesWait:
    """The wait of a request."""

    def __init__(self, count: int, on_ready: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._open = count
        self._on_ready = on_ready
        self._on_end = on_end
        self.timer: Timer | None = None

    def checked(self) -> None:
        """Count a log that was examined."""
        self._open -= 1
        if not self._open:
            assert self.timer is not None
            self.timer.cancel()
            self._end()

    def expire(self) -> None:
        """End the wait: the time is over."""
        if self._open > 0:
            self._open = 0
            self._end()

    def _end(self) -> None:
        on_ready, self._on_ready = self._on_ready, _do_nothing
        self._on_end()
        on_ready()


def _do_nothing() -> None:
    """Takes the place of a callback that was called. The callback itself would keep a request in memory, for hours if
    a log is examined for so long."""


def _is_doubtful(partition: Partition) -> bool:
    return not partition.is_closed and not partition.log.is_offline and partition.log.times.are_doubtful
