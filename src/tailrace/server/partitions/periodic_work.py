"""Regular work on a node's partitions: retention, checkpoints, flushes, forgetting idle producers.

There may be 100,000 partitions: a pass takes a few milliseconds of each turn until its end. Compaction and
scrubbing have schedules of their own (`server.partitions.cleaner`, `server.partitions.scrubber`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tailrace.replication.partition import Partition
from tailrace.server.callbacks import run_in_slices
from tailrace.server.partitions.cleaner import Cleaner, CleanerConfig
from tailrace.server.partitions.log_directory_health import DiskReserve
from tailrace.server.partitions.scrubber import Scrubber, ScrubberConfig
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Disk, Timer


class PartitionPasses:
    """The passes over the partitions of one table. Several may be under way."""

    def __init__(self, table: PartitionTable, *, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._is_retiring = False
        self._unflushed_since_ms: dict[Partition, int] = {}

    def apply_retention(self) -> None:
        """Delete old segments, unless a pass is under way already. Dormant partitions that may have old segments are
        woken."""
        if not self._is_retiring:
            self._is_retiring = True
            run_in_slices(self._retention(), self._clock)

    def expire_producers(self, expiration_ms: int) -> None:
        """Forget idempotent producers that were silent for so long, and idle verifications of transactions."""
        run_in_slices(self._expiration(expiration_ms), self._clock)

    def flush_by_age(self) -> None:
        """Flush the logs whose records have waited for flush.ms: only under page-cache durability records wait for a
        flush."""
        now_ms = self._clock.monotonic_ms()
        waiting: dict[Partition, int] = {}
        for partition in self._table:
            log, flush_ms = partition.log, partition.config.flush_ms
            if log.flushed_offset == log.log_end_offset or flush_ms == _NEVER or log.is_offline:
                continue
            since_ms = self._unflushed_since_ms.get(partition, now_ms)
            if now_ms - since_ms >= flush_ms:
                partition.sync(lambda: None)
            else:
                waiting[partition] = since_ms
        self._unflushed_since_ms = waiting

    def _retention(self) -> Iterator[None]:
        removal = self._table.segment_removal
        try:
            for partition in self._table:
                removal.retire(partition)
                yield
            for topic_partition, dormant in self._table.dormant:
                is_large = removal.is_short and dormant.size_bytes >= _WORTH_WAKING_BYTES
                if dormant.has_old_segments or is_large:
                    woken = self._table.find(*topic_partition)
                    if woken is not None:
                        removal.retire(woken)
                yield
        finally:
            self._is_retiring = False

    def _expiration(self, expiration_ms: int) -> Iterator[None]:
        for partition in self._table:
            if not partition.is_closed:
                partition.log.producers.expire(self._clock.now_ms(), expiration_ms=expiration_ms)
                partition.staging.verifications.forget_idle()
            yield


RETENTION_INITIAL_DELAY_MS = 30_000
DISK_CHECK_INTERVAL_MS = 500
_WORTH_WAKING_BYTES: Final = 1 << 20
"""While the disk is short of space, a dormant log of one segment is opened for retention only from this size on: each
open log costs some kilobytes of memory."""
_NEVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicWorkConfig:
    """The intervals, in ms, with Kafka's names and defaults."""

    log_retention_check_interval_ms: int = 300_000
    replica_high_watermark_checkpoint_interval_ms: int = 5_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    log_flush_start_offset_checkpoint_interval_ms: int = 60_000
    log_flush_scheduler_interval_ms: int = _NEVER
    """The interval of checks for flush.ms: never by default, as in Kafka."""
    log_dir_reserve_bytes: int = 128 << 20
    """A setting of ours: with less free space than this, producers are refused; 0: no reserve."""
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    scrubber: ScrubberConfig = field(default_factory=ScrubberConfig)


class PeriodicWork:
    """The periodic work on one table, from `start` to `stop`."""

    def __init__(
        self,
        table: PartitionTable,
        *,
        clock: Clock,
        config: PeriodicWorkConfig,
        disk: Disk,
        on_short_of_space: Callable[[bool], None],
    ) -> None:
        """`disk` carries out the reads of the scrubber. `on_short_of_space` is called when the disk runs short of
        space, and when the shortage is over."""
        self._clock = clock
        self._cleaner = Cleaner(table, clock=clock, config=config.cleaner)
        passes = PartitionPasses(table, clock=clock)
        self.reserve = DiskReserve(
            table,
            reserve_bytes=config.log_dir_reserve_bytes,
            apply_retention=passes.apply_retention,
            on_change=self._set_short_of_space,
        )
        self._on_short_of_space = on_short_of_space
        table.faults.on_disk_full = self.reserve.report_full
        tasks: list[tuple[int, Callable[[], None]]] = [
            (config.log_retention_check_interval_ms, passes.apply_retention),
            (config.replica_high_watermark_checkpoint_interval_ms, table.checkpoints.write_high_watermarks),
            (config.log_flush_offset_checkpoint_interval_ms, table.checkpoints.write_recovery_points),
            (config.log_flush_start_offset_checkpoint_interval_ms, table.checkpoints.write_log_starts),
            (
                config.producer_id_expiration_check_interval_ms,
                lambda: passes.expire_producers(config.producer_id_expiration_ms),
            ),
        ]
        tasks.append((DISK_CHECK_INTERVAL_MS, self.reserve.check))
        if config.log_flush_scheduler_interval_ms < _NEVER:
            tasks.append((config.log_flush_scheduler_interval_ms, passes.flush_by_age))
        self.scrubber = Scrubber(table, disk=disk, clock=clock, config=config.scrubber)
        """Reads logs slowly in the background to find damage."""
        self._tasks = tuple(tasks)
        self._timers: dict[int, Timer] = {}

    def _set_short_of_space(self, is_short: bool) -> None:
        self._cleaner.set_short_of_space(is_short)
        self._on_short_of_space(is_short)

    def start(self) -> None:
        """Begin; each task first runs one interval from now, retention after 30 s at the latest."""
        self.reserve.check()
        self._cleaner.start()
        self.scrubber.start()
        for task, (interval_ms, _) in enumerate(self._tasks):
            self._plan(task, min(interval_ms, RETENTION_INITIAL_DELAY_MS) if task == 0 else interval_ms)

    def stop(self) -> None:
        """End all periodic work."""
        self._cleaner.stop()
        self.scrubber.stop()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _plan(self, task: int, delay_ms: int) -> None:
        self._timers[task] = self._clock.call_at(self._clock.monotonic_ms() + max(1, delay_ms), lambda: self._run(task))

    def _run(self, task: int) -> None:
        interval_ms, work = self._tasks[task]
        self._plan(task, interval_ms)  # planned before the work, so that a failure does not end the task
        work()
