"""Work on the logs of partitions, in steps between other work, and requests that wait for the end of the work.

A request waits for MAX_WAIT_MS at most; the work goes on for later requests.
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


class PartitionWork:
    """Work of one kind on the logs of this broker."""

    def __init__(self, clock: Clock, step: Callable[[Partition], bool], is_due: Callable[[Partition], bool]) -> None:
        """`step` does a step of the work on the log of a partition that is open, and returns whether there are more
        steps; a KafkaError ends the work. `is_due`: whether the log of an open partition needs the work."""
        self._clock = clock
        self._step = step
        self._is_due = is_due
        self._callbacks: dict[Partition, list[Callable[[], None]]] = {}
        self._under_way = Rotation(clock, self._goes_on, self._done)
        self._waiting = 0

    def __contains__(self, partition: Partition) -> bool:
        """Whether the work on the partition is under way."""
        return partition in self._under_way

    @property
    def under_way(self) -> tuple[Partition, ...]:
        """The partitions whose work is under way."""
        return self._under_way.things

    def begin(self, partition: Partition, on_done: Callable[[], None]) -> None:
        """Do the work; then call `on_done`, even if the work has failed or the partition was closed."""
        self._callbacks.setdefault(partition, []).append(on_done)
        self._under_way.add(partition)

    def wait(self, partitions: Collection[Partition], on_ready: Callable[[], None]) -> bool:
        """Call `on_ready` once, later, when the work on these partitions is done, or the time is over.

        False: there is nothing to wait for, or no room, and `on_ready` is not called. The first step is taken at once,
        and is enough for most logs.
        """
        if not partitions or self._waiting >= MOST_WAITING:
            return False
        self._goes_on(next(iter(partitions)))
        left = [partition for partition in partitions if not partition.is_closed and self._is_due(partition)]
        if not left:
            return False
        self._waiting += 1
        waiting = _RequestWait(len(left), on_ready, self._ended)
        waiting.timer = self._clock.call_at(self._clock.monotonic_ms() + MAX_WAIT_MS, waiting.expire)
        for partition in left:
            self.begin(partition, waiting.done)
        return True

    def _ended(self) -> None:
        self._waiting -= 1

    def _done(self, partition: Partition) -> None:
        call_each(lambda callback: callback(), self._callbacks.pop(partition))

    def _goes_on(self, partition: Partition) -> bool:
        """Do a step, and return whether there are more steps."""
        try:
            return not partition.is_closed and self._step(partition)
        except KafkaError:
            return False  # a reader gets the error of its own read


class _RequestWait:
    """The wait of a request."""

    def __init__(self, count: int, on_ready: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._open = count
        self._on_ready = on_ready
        self._on_end = on_end
        self.timer: Timer | None = None

    def done(self) -> None:
        """Count a partition whose work is done."""
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
    the work on a log takes so long."""
