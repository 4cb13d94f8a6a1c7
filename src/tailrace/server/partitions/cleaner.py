"""The log cleaner: compacts the logs of a table, a log at a time, in slices between all other work (decision 0011).

Every `log.cleaner.backoff.ms` the cleaner compacts the logs that are due, the largest dirty share first; every second
while the disk is short of space, since an operator may have changed settings to make room. A slice takes
a few milliseconds, and a pause at least as long follows: clients get half of the event loop or more, and
`log.cleaner.io.max.bytes.per.second` may leave them a larger share.

A log with damaged bytes is skipped until the node restarts. After any other failure, such as a full disk, the cleaner
tries a log again when no other log is due. A compaction may leave a log as dirty as before, if a transaction that
begins in the dirty part ends in the active segment: then the log is tried again when more of it may be compacted.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tailrace.model.errors import CorruptRecords, KafkaError
from tailrace.model.ids import TopicId
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import run_slice
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Timer
from tailrace.storage import Compaction

_SLICE_MS: Final = 4
_SLICE_BYTES: Final = 1 << 20
_STEP_BYTES: Final = 32 << 10
_SHORT_BACKOFF_MS: Final = 1_000

_logger = logging.getLogger("tailrace.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The settings of the cleaner, with Kafka's names and defaults."""

    log_cleaner_enable: bool = True
    log_cleaner_backoff_ms: int = 15_000
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    """Memory for the keys of one log; records whose keys do not fit are compacted in another pass."""
    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308
    """The most bytes that the cleaner reads and writes together in a second."""


class Cleaner:
    """Works from `start` to `stop`."""

    def __init__(self, table: PartitionTable, *, clock: Clock, config: CleanerConfig) -> None:
        self._table = table
        self._clock = clock
        self._config = config
        self._timer: Timer | None = None
        self._running: tuple[Partition, Compaction] | None = None
        self._uncleanable: set[tuple[TopicId, int]] = set()
        self._put_off: set[tuple[TopicId, int]] = set()
        self._in_vain: dict[tuple[TopicId, int], tuple[int, int]] = {}
        """The first and the last offset, by log, of the last compaction that made no part of the log clean."""
        self._is_stopped = True
        self._is_short = False
        self._is_resting = False
        self._next_ms = 0
        """The time before which log.cleaner.io.max.bytes.per.second permits no further byte."""
        self.compactions = 0
        """The number of compactions completed since the start."""

    def start(self) -> None:
        """Begin; the first check is one backoff from now."""
        if self._config.log_cleaner_enable:
            self._is_stopped = False
            self._rest()

    def stop(self) -> None:
        """Abort the compaction that is under way, and begin no further compaction."""
        self._is_stopped = True
        self._is_resting = False
        if self._timer is not None:
            self._timer.cancel()
        if self._running is not None:
            self._running[0].log.compactions.abort()
            self._running = None

    def set_short_of_space(self, is_short: bool) -> None:
        """Set whether the disk is short of space. While space is short, the pause of the cleaner ends within a
        second."""
        self._is_short = is_short
        if is_short and self._is_resting and self._timer is not None:
            self._timer.cancel()
            self._rest()

    def _rest(self) -> None:
        backoff_ms = self._config.log_cleaner_backoff_ms
        if self._is_short and not self._put_off:  # a compaction that has failed for lack of space is not hurried
            backoff_ms = min(backoff_ms, _SHORT_BACKOFF_MS)
        self._after(max(1, backoff_ms))
        self._is_resting = True

    def _after(self, delay_ms: int) -> None:
        now_ms = self._clock.monotonic_ms()
        self._timer = self._clock.call_at(now_ms + delay_ms, self._look if self._running is None else self._slice)

    def _look(self) -> None:
        self._is_resting = False
        partition = self._dirtiest()
        if partition is None and self._put_off:
            self._put_off.clear()
            partition = self._dirtiest()
        if partition is None:
            self._rest()
        else:
            # Records must be durable before a compaction; under page-cache durability only this flush makes them
            # durable.
            partition.sync(lambda: self._begin(partition))

    def _dirtiest(self) -> Partition | None:
        """The due partition with the largest dirty share."""
        now_ms = self._clock.now_ms()
        found, largest = None, -1.0
        self._wake_sleepers()
        for partition in self._table:
            if not partition.config.is_compacted or partition.log.is_offline or self._is_left_out(partition):
                continue
            try:
                cleanable = partition.log.compactions.cleanable(now_ms, end_offset=partition.last_stable_offset)
            except KafkaError as fault:
                self._failed(partition, fault)
                continue
            if self._in_vain.get(_name(partition)) == (cleanable.first_dirty_offset, cleanable.end_offset):
                continue
            if cleanable.is_worth_it(partition.config) and cleanable.dirty_ratio > largest:
                found, largest = partition, cleanable.dirty_ratio
        return found

    def _is_left_out(self, partition: Partition) -> bool:
        name = _name(partition)
        return name in self._uncleanable or name in self._put_off

    def _wake_sleepers(self) -> None:
        """Wake the dormant partitions whose topics are compacted: the dirty share is known only of an open log."""
        for name, dormant in self._table.dormant:
            if dormant.config.is_compacted and dormant.has_old_segments:
                self._table.find(*name)

    def _begin(self, partition: Partition) -> None:
        if self._is_stopped:
            return
        compaction = None
        if not partition.is_closed:
            try:
                compaction = partition.log.compactions.begin(
                    self._clock.now_ms(),
                    end_offset=partition.last_stable_offset,
                    memory_bytes=self._config.log_cleaner_dedupe_buffer_size,
                )
            except KafkaError as fault:
                self._failed(partition, fault)
        if compaction is None:
            self._rest()
            return
        self._running = partition, compaction
        self._slice()

    def _slice(self) -> None:
        """Compact for a few milliseconds, unless the compaction has ended meanwhile."""
        if self._running is None or self._is_stopped:
            return
        partition, compaction = self._running
        if partition.log.is_offline:
            partition.log.compactions.abort()
        started_ms = self._clock.monotonic_ms()
        if started_ms < self._next_ms:
            self._after(self._next_ms - started_ms)
            return
        before = compaction.bytes_read + compaction.bytes_written
        try:
            run_slice(_steps(compaction), self._clock, slice_ms=_SLICE_MS)
        except KafkaError as fault:
            self._finish(partition, compaction)
            self._failed(partition, fault)
            self._rest()
            return
        moved = compaction.bytes_read + compaction.bytes_written - before
        self._next_ms = started_ms + round(moved * 1000 / self._config.log_cleaner_io_max_bytes_per_second)
        if not compaction.is_over:
            if compaction.needs_sync:
                partition.sync(self._slice)
            else:
                self._after(max(1, self._clock.monotonic_ms() - started_ms))
        elif self._finish(partition, compaction):
            self._after(1)
        else:
            self._rest()

    def _finish(self, partition: Partition, compaction: Compaction) -> bool:
        """End the compaction; returns whether more of the log is clean now. If not, another compaction now would not
        help either."""
        self._running = None
        first_dirty_offset = partition.log.compactions.first_dirty_offset
        partition.log.compactions.finish(compaction)
        if not compaction.is_complete:
            return False
        self.compactions += 1
        _logger.info(
            "event=log-compacted partition=%s end_offset=%d bytes_read=%d bytes_written=%d segments_made=%d",
            partition.topic_partition,
            compaction.end_offset,
            compaction.bytes_read,
            compaction.bytes_written,
            compaction.swaps,
        )
        self._table.checkpoints.write_cleaner_offsets()
        has_brought = partition.log.compactions.first_dirty_offset > first_dirty_offset
        if has_brought:
            self._in_vain.pop(_name(partition), None)
        else:
            self._in_vain[_name(partition)] = compaction.planned
        return has_brought

    def _failed(self, partition: Partition, fault: KafkaError) -> None:
        (self._uncleanable if isinstance(fault, CorruptRecords) else self._put_off).add(_name(partition))
        _logger.warning("event=compaction-failed partition=%s fault=%s", partition.topic_partition, fault)


def _steps(compaction: Compaction) -> Iterator[None]:
    """The steps of one slice. The slice may end before its last step, when its time is over."""
    done = 0
    while done < _SLICE_BYTES and not compaction.needs_sync and not compaction.is_over:
        done += max(1, compaction.step(_STEP_BYTES))
        yield


def _name(partition: Partition) -> tuple[TopicId, int]:
    return partition.topic_id, partition.topic_partition.partition
