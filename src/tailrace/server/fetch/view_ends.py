"""The ends of view partitions, by the key index of the partitions that they are parts of (KIP-X; decision 0057).

The end is 1 + the offset of the last record of the view partition, so that a reader that has all of them shows no lag,
whatever else is written to the partition. It is known when the key index is complete. Until then the index is built in
slices between other work, and fetches that wait for the end wake when it is known.
"""

from collections.abc import Iterator

from tailrace.model.errors import KafkaError
from tailrace.model.key_ranges import KeyRange
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.callbacks import run_in_slices
from tailrace.server.fetch.key_reads import ScanBudget
from tailrace.server.ports import Clock


class ViewEnds:
    """The ends of all view partitions of this broker, and the work on indexes that are not complete."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._incomplete: dict[Partition, None] = {}
        """Those whose index is being built, each a step in turn."""

    def end(self, partition: Partition, key_range: KeyRange, end_offset: int, budget: ScanBudget) -> int | None:
        """1 + the offset of the last record with such a hash below `end_offset`, a readable end of the partition.

        The log start if there is none. The index goes on until the time of the budget is over. None: the end is not
        known yet; watchers of the high watermark are notified when the index is complete. Raises KafkaError as a read
        of the log.
        """
        has_more = True
        while has_more:
            found = partition.key_end(key_range.first, key_range.last, end_offset)
            if found is not None:
                return max(found, partition.log.log_start_offset)
            if partition in self._incomplete:
                return None
            if budget.is_over:
                self._complete_later(partition)
                return None
            has_more = partition.index_keys_on()
        found = partition.key_end(key_range.first, key_range.last, end_offset)
        return None if found is None else max(found, partition.log.log_start_offset)

    def _complete_later(self, partition: Partition) -> None:
        is_first = not self._incomplete
        self._incomplete[partition] = None
        if is_first:
            self._clock.call_soon(lambda: run_in_slices(self._steps(), self._clock))

    def _steps(self) -> Iterator[None]:
        while self._incomplete:
            partition = next(iter(self._incomplete))
            del self._incomplete[partition]
            if _goes_on(partition):
                self._incomplete[partition] = None
            else:
                partition.notify(Change.HIGH_WATERMARK)
            yield


def _goes_on(partition: Partition) -> bool:
    """Do one step, and return whether there are more."""
    try:
        return not partition.is_closed and partition.index_keys_on()
    except KafkaError:
        return False  # a reader gets the error of its own read
