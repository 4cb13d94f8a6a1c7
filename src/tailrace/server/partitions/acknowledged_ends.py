"""Requests for the end of a partition that wait until acknowledged records are below it (decision 0078).

A leader with other replicas in sync acknowledges acks=1 when the batch is in its log, as Kafka does, and the high
watermark follows when the other replicas have stored the batch. A client that then asks for the end of the partition
must not get an end before its own record. So such a request waits, for the time of a round of replication, but at most
MAX_WAIT_MS; without acknowledged records above the high watermark the request is answered at once.
"""

from collections.abc import Callable, Collection
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.replication.partition import Partition
from tailrace.server.waiters import Deadlines

MAX_WAIT_MS: Final = 500
"""The longest wait. Kafka does not wait, so a hanging replica must not make requests fail here that succeed in
Kafka."""
MOST_WAITING: Final = 1_000
"""The most requests that wait at the same time; any further request is answered with the present ends."""


class AcknowledgedEnds:
    """The waiting requests of one broker."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._waiting: set[_EndWait] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, partitions: Collection[Partition | None], on_ready: Callable[[], None]) -> bool:
        """Call `on_ready` once, later, when the acknowledged records of these partitions can be read, or the time is
        over. False: the records can be read now, and `on_ready` is not called."""
        awaited = {
            partition: end for partition in partitions if partition and (end := partition.awaited_end) is not None
        }
        if not awaited or len(self._waiting) >= MOST_WAITING:
            return False
        wait = _EndWait(awaited, on_ready, self._ended)
        self._waiting.add(wait)
        self._deadlines.add(wait, MAX_WAIT_MS)
        wait.begin()
        return True

    def _ended(self, wait: "_EndWait") -> None:
        self._waiting.discard(wait)
        self._deadlines.remove(wait, MAX_WAIT_MS)


class _EndWait:
    """The wait of one request."""

    def __init__(
        self, awaited: dict[Partition, int], on_ready: Callable[[], None], on_end: Callable[["_EndWait"], None]
    ) -> None:
        self._awaited = awaited
        self._open = len(awaited)
        self._on_ready = on_ready
        self._on_end = on_end

    def begin(self) -> None:
        for partition, end_offset in self._awaited.items():
            partition.replica.when_high_watermark_reaches(end_offset, self._reached)

    def _reached(self, _: KafkaError | None) -> None:
        self._open -= 1  # a fault counts as the end of the wait: the answer is made then, and reports it
        if not self._open:
            self._on_end(self)
            self._on_ready()

    def expire(self) -> None:
        """End the wait: the time is over."""
        for partition, end_offset in self._awaited.items():
            partition.replica.cancel_wait(end_offset, self._reached)
        self._on_end(self)
        self._on_ready()
