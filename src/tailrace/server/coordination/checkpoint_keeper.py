"""Writes checkpoints beside the logs of coordinators, on leaders and followers alike, so that a coordinator takes over
without reading the whole log.

A checkpoint is made from the log and from the checkpoint before it, not from the coordinator's state: so a follower,
which has no coordinator, has a checkpoint too. A checkpoint has committed records only. The keeper makes one checkpoint
after the other, each when the log has grown so much since the last checkpoint that reading it would take long. The work
is done in slices of a few milliseconds, each with a pause of the same length after it; the disk's thread checks, syncs
and renames the file.

A failure costs load time, and is logged. After a failure the checkpoint before is removed too, since it limits
compactions; the next try comes `retry_ms` later.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch, TopicPartition
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import run_slice
from tailrace.server.coordination.latest_records import LatestRecords
from tailrace.server.coordination.log_batches import (
    CommittedBatches,
    SavedRecords,
    drop_checkpoint,
    log_of_checkpoint,
)
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Disk, Timer
from tailrace.storage.log_checkpoint import LogCheckpoint
from tailrace.storage.snapshots.format import SnapshotHeader
from tailrace.storage.snapshots.writer import Publication, SnapshotWriter

_SLICE_MS: Final = 4
_READ_BYTES: Final = 16 << 10
_WRITE_RECORDS: Final = 32

_logger = logging.getLogger("tailrace.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """The conditions under which a checkpoint is due. Only tests change these values."""

    min_log_bytes: int = 4 << 20
    """The least bytes appended since the last checkpoint: so many bytes load in about half a second."""
    min_size_ratio: float = 0.5
    """The least bytes appended since the last checkpoint, as a multiple of its size: so a large state is not written
    again for a few changes."""
    look_interval_ms: int = 1_000
    retry_ms: int = 60_000


class CheckpointCounts(NamedTuple):
    """The work of a keeper since the start."""

    written: int = 0
    failed: int = 0


class _Void(Exception):
    """Raised when the log was cut, or is not in use any more: the checkpoint that is being made is useless."""


class _Making:
    """A checkpoint that is being made: its records are read, written and published."""

    def __init__(self, partition: Partition, checkpoint: LogCheckpoint, clock: Clock) -> None:
        self.partition = partition
        self.checkpoint = checkpoint
        self.begun_ms = clock.monotonic_ms()
        self.writer: SnapshotWriter | None = None
        self._end_offset = partition.high_watermark
        self._log = log_of_checkpoint(partition)
        # If the value of a key was read, a compaction must not remove the key's tombstone before it is read, too. A
        # compaction waits for seconds.
        self._draft = checkpoint.begin(self._log.log_start_offset)

    def check(self) -> None:
        """Raises _Void if the checkpoint has become useless."""
        partition = self.partition
        is_used = not partition.is_closed and not partition.log.is_offline
        if not is_used or self._draft.is_void or log_of_checkpoint(partition) != self._log:
            raise _Void

    def steps(self) -> Iterator[None]:
        """Read the records and write the checkpoint. Raises _Void, StorageError, and KafkaError for damage or for a
        record that is too large."""
        latest = LatestRecords()
        saved = SavedRecords(self.partition)
        try:
            is_whole = yield from saved.read(latest)
            if not is_whole:
                latest = LatestRecords()
            batches = CommittedBatches(self.partition, saved.end_offset if is_whole else self._log.log_start_offset)
            yield from self._read_log(batches, latest)
        finally:
            saved.close()
        yield from self._write(batches, latest)

    def _read_log(self, batches: CommittedBatches, latest: LatestRecords) -> Iterator[None]:
        while batches.offset < self._end_offset:
            self.check()
            before = batches.offset
            batches.read(_READ_BYTES, latest)
            if batches.offset == before:
                raise _Void  # a follower that was cut has a lower high watermark
            yield

    def _write(self, batches: CommittedBatches, latest: LatestRecords) -> Iterator[None]:
        self.check()
        epoch = LeaderEpoch(self.partition.log.epochs.epoch_of(batches.offset - 1))
        checkpoint_id = OffsetAndEpoch(batches.offset, epoch)
        header = SnapshotHeader(batches.max_timestamp, log=self._log)
        writer = self.writer = self.checkpoint.begin_writing(checkpoint_id, header)
        records = latest.records()
        while part := tuple(islice(records, _WRITE_RECORDS)):
            self.check()
            writer.append_records(part)
            yield
        self.check()
        writer.seal()

    def finish(self) -> OffsetAndEpoch | None:
        """Take over the published checkpoint, unless the log was cut meanwhile. Returns the former checkpoint, whose
        file the caller removes."""
        assert self.writer is not None, f"{self.partition.topic_partition}: nothing was written"
        return self.checkpoint.finish(self._draft, self.writer.part)

    def give_up(self) -> None:
        """Remove the part file, renamed or not."""
        self.checkpoint.abandon()
        if self.writer is not None:
            try:
                self.writer.part.discard()
                if self.writer.part.id != self.checkpoint.id:
                    self.checkpoint.remove_file(self.writer.part.id)  # perhaps renamed, and not durable
            except StorageError as fault:
                _logger.warning("event=checkpoint-part-not-removed fault=%s", fault)


class _Publishing:
    """The last steps of a checkpoint, on the disk's thread. A failure here concerns only the checkpoint, not the
    disk."""

    def __init__(self, publication: Publication) -> None:
        self._publication = publication
        self.fault: KafkaError | None = None

    @property
    def is_over(self) -> bool:
        return self._publication.is_over or self.fault is not None

    def step(self) -> None:
        """Check some megabytes of the file, or sync and rename the file."""
        try:
            self._publication.step()
        except StorageError as fault:
            self.fault = fault
        self.fault = self.fault or self._publication.fault


class CheckpointKeeper:
    """Works from `start` to `stop`."""

    def __init__(
        self,
        table: PartitionTable,
        *,
        names: Callable[[], Iterable[TopicPartition]],
        disk: Disk,
        clock: Clock,
        config: CheckpointConfig | None = None,
    ) -> None:
        """`names` returns the partitions of coordinators, also partitions without a replica here. `disk` must sync,
        whatever log.durability says."""
        self._table = table
        self._names = names
        self._disk = disk
        self._clock = clock
        self._config = config or CheckpointConfig()
        self._timer: Timer | None = None
        self._making: _Making | None = None
        self._known_ends: dict[TopicPartition, tuple[int, int]] = {}
        """For each partition, the log end and the high watermark at the last check without a due checkpoint."""
        self._put_off: dict[TopicPartition, int] = {}
        """For each partition, the time before which no checkpoint is tried."""
        self._is_stopped = True
        self.counts = CheckpointCounts()

    def start(self) -> None:
        """Begin to make checkpoints; the first check is one interval from now."""
        self._is_stopped = False
        self._look_later()

    def stop(self) -> None:
        """Begin no further checkpoint. The next start of the node removes an incomplete part file."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._making is not None:
            self._making.checkpoint.abandon()

    def _after(self, delay_ms: int, work: Callable[[], None]) -> None:
        if not self._is_stopped:
            self._timer = self._clock.call_at(self._clock.monotonic_ms() + max(1, delay_ms), work)

    def _look_later(self) -> None:
        self._after(self._config.look_interval_ms, self._look)

    def _look(self) -> None:
        for partition in self._candidates():
            try:
                is_due = self._is_due(partition)
            except KafkaError as fault:
                self._failed(partition, fault)
                continue
            checkpoint = partition.log.checkpoint
            if is_due and checkpoint is not None:
                making = self._making = _Making(partition, checkpoint, self._clock)
                self._slice(making, making.steps())
                return
        self._look_later()

    def _candidates(self) -> Iterator[Partition]:
        """The partitions whose log has changed since the last check."""
        now_ms = self._clock.monotonic_ms()
        for name in self._names():
            partition = self._table.awake(*name)
            if partition is None or partition.is_closed or partition.log.is_offline:
                continue
            is_unchanged = self._known_ends.get(name) == _ends_of(partition)
            if not is_unchanged and self._put_off.get(name, now_ms) <= now_ms:
                yield partition

    def _is_due(self, partition: Partition) -> bool:
        log, checkpoint, config = partition.log, partition.log.checkpoint, self._config
        if checkpoint is None:
            return False
        begin = log.log_start_offset if checkpoint.id is None else checkpoint.id.offset
        needed = max(config.min_log_bytes, config.min_size_ratio * checkpoint.size_bytes)
        end = partition.high_watermark
        if begin < end and log.size_from(begin) - log.size_from(end) >= needed:
            return True
        self._known_ends[partition.topic_partition] = _ends_of(partition)
        return False

    def _slice(self, making: _Making, steps: Iterator[None]) -> None:
        if self._is_stopped:
            return
        begun_ms = self._clock.monotonic_ms()
        try:
            is_over = run_slice(steps, self._clock, slice_ms=_SLICE_MS)
        except _Void:
            self._void(making)
        except KafkaError as fault:
            self._give_up(making, fault)
        else:
            if is_over:
                # The records below the end of the checkpoint must be as durable as the checkpoint.
                making.partition.sync(lambda: self._publish(making))
            else:
                self._after(self._clock.monotonic_ms() - begun_ms, lambda: self._slice(making, steps))

    def _publish(self, making: _Making) -> None:
        if self._is_stopped:
            return
        try:
            making.check()
        except _Void:
            self._void(making)
            return
        assert making.writer is not None, "it is written"
        publishing = _Publishing(Publication(making.writer.part))

        def stepped() -> None:
            if publishing.fault is not None:
                self._give_up(making, publishing.fault)
            elif publishing.is_over:
                self._published(making)
            else:
                self._disk.carry_out(publishing.step, stepped)

        self._disk.carry_out(publishing.step, stepped)

    def _published(self, making: _Making) -> None:
        self._making = None
        writer, name = making.writer, making.partition.topic_partition
        assert writer is not None, "it is written"
        try:
            former = making.finish()
        except StorageError as fault:
            self._failed(making.partition, fault)
            self._look_later()
            return
        self.counts = self.counts._replace(written=self.counts.written + 1)
        _logger.info(
            "event=checkpoint-written partition=%s offset=%d records=%d bytes=%d ms=%d",
            name,
            writer.part.id.offset,
            writer.records_count,
            writer.part.size_bytes,
            self._clock.monotonic_ms() - making.begun_ms,
        )
        if former is not None:
            self._disk.carry_out(lambda: _remove(making.checkpoint, former), lambda: None)
        self._after(1, self._look)

    def _void(self, making: _Making) -> None:
        self._making = None
        making.give_up()
        self._look_later()

    def _give_up(self, making: _Making, fault: KafkaError) -> None:
        self._making = None
        making.give_up()
        self._failed(making.partition, fault)
        self._look_later()

    def _failed(self, partition: Partition, fault: KafkaError) -> None:
        name = partition.topic_partition
        self.counts = self.counts._replace(failed=self.counts.failed + 1)
        self._put_off[name] = self._clock.monotonic_ms() + self._config.retry_ms
        _logger.warning("event=checkpoint-failed partition=%s fault=%s action=load-from-log", name, fault)
        if fault.code is not ErrorCode.NOT_LEADER_OR_FOLLOWER and not partition.is_closed:
            drop_checkpoint(partition, "it bounds compactions, and no newer one could be written")


def _ends_of(partition: Partition) -> tuple[int, int]:
    return partition.log.log_end_offset, partition.high_watermark


def _remove(checkpoint: LogCheckpoint, former: OffsetAndEpoch) -> None:
    """Remove the file of a former checkpoint; if that fails, the next opening of the log removes the file."""
    try:
        checkpoint.remove_file(former)
    except StorageError as fault:
        _logger.warning("event=checkpoint-not-removed fault=%s", fault)
