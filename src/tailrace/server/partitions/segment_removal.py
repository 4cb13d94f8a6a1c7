"""The removal of old segments: segments are retired by a topic's settings or by DeleteRecords, and their files are
removed at a deadline.

The files of a retired segment are renamed at once, and removed when file.delete.delay.ms is over, whatever the interval
of retention is. While the disk is short of space the files are removed at once, and an active segment whose records may
all go is retired too: producers are refused then, so no record would begin the next segment.
"""

import logging
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.replication.partition import Partition
from tailrace.server.bounded_lines import BoundedLines
from tailrace.server.callbacks import Alarm, Rotation, run_in_slices
from tailrace.server.partition_work import PartitionWork
from tailrace.server.partitions.deletion_log import DeletionLog
from tailrace.server.ports import Clock

_logger = logging.getLogger("tailrace.server")


class SegmentRemoval:
    """The old segments of one table's partitions."""

    def __init__(self, clock: Clock, time_checks: PartitionWork) -> None:
        self._clock = clock
        self._time_checks = time_checks
        self._deletions = DeletionLog(clock)
        self._failures = BoundedLines("retention-failed", clock=clock, level=logging.WARNING)
        """Lines about failures of retention. With a full disk there are two passes over all partitions in a second, and
        each pass may fail."""
        self._examinations = Rotation(clock, self._examines, self.retire)
        """The partitions that are read by key, and whose old segments are examined before they are retired."""
        self._retired: dict[Partition, None] = {}
        """The partitions with renamed files that are not removed yet."""
        self._alarm: Final = Alarm(clock, self._remove_due)
        self.is_short = False
        """Whether the disk is short of space."""

    def set_short(self, is_short: bool) -> None:
        """Set whether the disk is short of space. While space is short, renamed files are removed at once."""
        self.is_short = is_short
        if is_short:
            self._alarm.set(self._clock.monotonic_ms())

    def close(self) -> None:
        """Remove nothing any more: a log removes its files at its clean close, or its next opening."""
        self._alarm.cancel()
        self._retired.clear()

    def retire(self, partition: Partition) -> None:
        """Retire the segments of a partition that its settings do not keep. A fault is logged, and not raised.

        If unchecked headers would decide, the records are examined first, and the segments are retired after that. The
        keys of a log that is read by key are examined first, too (decision 0099).
        """
        try:
            if not partition.is_closed:
                log_start_offset = partition.log.log_start_offset
                retired = partition.apply_retention(self._clock.now_ms(), frees_all=self.is_short)
                self._deletions.retired(partition, log_start_offset, retired)
                if partition.log.keys.awaits_removal:
                    self._examinations.add(partition)
                if partition.is_leader and partition.log.times.await_check(self._clock.now_ms()):
                    self._time_checks.begin(partition, lambda: self._retire_checked(partition))
        except KafkaError as fault:
            self._failures.write("partition=%s fault=%s", partition.topic_partition, fault)
        self._note(partition)

    def _examines(self, partition: Partition) -> bool:
        """Do a step, and return whether there are more steps."""
        return not partition.is_closed and partition.log.keys.examine_on(self._clock.monotonic_ms)

    def _retire_checked(self, partition: Partition) -> None:
        if not partition.is_closed and not partition.log.is_offline and not partition.log.times.are_doubtful:
            self.retire(partition)

    def _note(self, partition: Partition) -> None:
        due_ms = None if partition.is_closed else partition.log.retention.next_removal_ms
        if due_ms is None:
            self._retired.pop(partition, None)
            return
        self._retired[partition] = None
        left_ms = 0 if self.is_short else max(0, due_ms - self._clock.now_ms())
        self._alarm.set(self._clock.monotonic_ms() + left_ms)

    def _remove_due(self) -> None:
        run_in_slices(map(self._remove, tuple(self._retired)), self._clock)

    def _remove(self, partition: Partition) -> None:
        try:
            if not partition.is_closed:
                partition.log.retention.remove_retired(None if self.is_short else self._clock.now_ms())
        except KafkaError as fault:  # the files that are left are removed when the log is opened again
            _logger.warning("event=removal-failed partition=%s fault=%s", partition.topic_partition, fault)
            self._retired.pop(partition, None)
            return
        self._note(partition)


def new_time_checks(clock: Clock) -> PartitionWork:
    """The examinations of records in batches with unchecked headers, before a lookup or retention uses their times.

    Logs of older releases, and batches of leaders that do not vouch for headers, have the headers as producers wrote
    them (decision 0069). A log is examined once after its opening, when the first lookup by time or the first retention
    needs it. A lookup waits for the examination; after `partition_work.MAX_WAIT_MS` its answer is OFFSET_NOT_AVAILABLE
    (78).
    """

    def step(partition: Partition) -> bool:
        return partition.log.times.check_on(clock.monotonic_ms)

    return PartitionWork(clock, step, _are_doubtful)


def _are_doubtful(partition: Partition) -> bool:
    return not partition.log.is_offline and partition.log.times.are_doubtful
