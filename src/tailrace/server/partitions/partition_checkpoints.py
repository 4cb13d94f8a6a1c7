"""Entries of the awake partitions in the checkpoints of a log directory.

The entries of dormant partitions are right already. A walk over 100,000 partitions takes several turns, unless the
caller names the changed partitions. No promise depends on a checkpoint, except after a write with a callback: the
callback runs when the entries are durable.
"""

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import run_in_slices
from tailrace.server.partitions.directory_work import DirectoryWork, OnWritten
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.partition_maps import AwakePartitions
from tailrace.server.ports import Clock
from tailrace.storage.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

_BOUNDS: Final = (HIGH_WATERMARKS, RECOVERY_POINTS)
"""The checkpoints that recovery compares with the end of a log: a log that ends below such an entry is damaged."""
AT_ONCE: Final = 500
"""The number of partitions that are examined before the first look at the clock."""

_logger = logging.getLogger("tailrace.server")


class PartitionCheckpoints:
    """The checkpoints of a table."""

    def __init__(self, directory: LogDirectory, work: DirectoryWork, *, awake: AwakePartitions, clock: Clock) -> None:
        self._directory = directory
        self._work = work
        self._awake = awake
        self._clock = clock

    def update(self, name: str) -> None:
        """Set the present offsets of all awake partitions, for the next write."""
        self._update(name, self._awake)

    def _update(self, name: str, partitions: Iterable[Partition]) -> None:
        self._directory.checkpoint(name).update(_offsets(name, partitions))

    def _update_open(self, name: str, partitions: Iterable[Partition]) -> None:
        """Update the entries of partitions that were not deleted meanwhile: with an entry, the next start would report
        a deleted log as missing."""
        self._update(name, (partition for partition in partitions if not partition.is_closed))

    def write_all(self, name: str, on_written: OnWritten | None = None) -> None:
        """Write a checkpoint of all awake partitions, in slices; then call `on_written`."""
        run_in_slices(self._writing_all(name, on_written), self._clock)

    def _writing_all(self, name: str, on_written: OnWritten | None) -> Iterator[None]:
        partitions = iter(self._awake)
        while some := list(islice(partitions, AT_ONCE)):
            self._update_open(name, some)
            yield
        self.write(name, on_written, of=())

    def write(self, name: str, on_written: OnWritten | None = None, *, of: Iterable[Partition]) -> None:
        """Write a checkpoint with the present offsets of these partitions; then call `on_written`."""
        self._update_open(name, of)

        def written(fault: KafkaError | None) -> None:
            if fault is not None:
                _logger.warning("event=checkpoint-failed name=%s fault=%s", name, fault)
            if on_written is not None:
                on_written(fault)

        self._work.write_checkpoint(name, written)

    def write_high_watermarks(self) -> None:
        """Write the high watermarks: a restarted follower has no other local source of its high watermark."""
        self.write_all(HIGH_WATERMARKS)

    def write_recovery_points(self) -> None:
        """Write the flushed offsets: recovery after a crash starts there."""
        self.write_all(RECOVERY_POINTS)

    def write_log_starts(self, on_written: OnWritten | None = None, *, of: Iterable[Partition] | None = None) -> None:
        """Write the first readable offsets, which may lie within a segment; then call `on_written`.

        `of`: the partitions whose first offset has changed, if known.
        """
        if of is None:
            self.write_all(LOG_STARTS, on_written)
        else:
            self.write(LOG_STARTS, on_written, of=of)

    def write_cleaner_offsets(self) -> None:
        """Write the first dirty offsets of the logs."""
        self.write_all(CLEANER_OFFSETS)

    def lower_recovery_point(self, partition: Partition, offset: int, on_lowered: OnWritten) -> None:
        """Before a cut, note durably that the log may end at this offset; then call `on_lowered`.

        Until the log is cut, or the partition has another role, no recovery point and no high watermark on the disk is
        above the offset: recovery takes a log that ends below its recovery point or high watermark for damaged.
        """
        partition.following.recovery_bound = offset
        if offset >= partition.log.log_start_offset:
            self._lower_recovery_point(partition, on_lowered)
            return

        def start_is_lowered(fault: KafkaError | None) -> None:
            if fault is None:
                self._lower_recovery_point(partition, on_lowered)
            else:
                on_lowered(fault)

        self.write(LOG_STARTS, start_is_lowered, of=(partition,))  # recovery drops the part below the start

    def _lower_recovery_point(self, partition: Partition, on_lowered: OnWritten) -> None:
        outcomes: list[KafkaError | None] = []

        def lowered(fault: KafkaError | None) -> None:
            outcomes.append(fault)
            if len(outcomes) == len(_BOUNDS):
                on_lowered(next((fault for fault in outcomes if fault is not None), None))

        for name in _BOUNDS:  # written in one go
            self.write(name, lowered, of=(partition,))


def _offsets(name: str, partitions: Iterable[Partition]) -> Iterator[tuple[TopicPartition, int]]:
    for partition in partitions:
        log = partition.log
        if name == HIGH_WATERMARKS:
            bound = partition.following.recovery_bound  # the log is about to be cut there
            high_watermark = partition.high_watermark
            yield partition.topic_partition, high_watermark if bound is None else min(high_watermark, bound)
        elif name == RECOVERY_POINTS:
            yield partition.topic_partition, partition.following.recovery_point
        elif name == LOG_STARTS:
            bound = partition.following.recovery_bound  # where the log is about to begin, if that is earlier
            yield partition.topic_partition, log.log_start_offset if bound is None else min(log.log_start_offset, bound)
        else:
            is_known = log.compactions.first_dirty_offset > log.log_start_offset
            yield partition.topic_partition, log.compactions.first_dirty_offset if is_known else 0
