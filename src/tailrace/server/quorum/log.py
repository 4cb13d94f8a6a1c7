"""The log of a quorum on a real disk, with its snapshots: the view and the operations of the Raft machine.

1. The recovery point covers committed records only, as the smaller of flushed offset and high watermark. A replica
   cuts its log above the high watermark only, so a log that ends below the recovery point is always damaged.
2. A snapshot holds committed records. If snapshot and end of the log disagree, the snapshot replaces the log. If the
   power fails after the rename of the snapshot and before the log is replaced, the next start replaces the log.
3. Work that waits for the disk is an object with a method for the disk's thread, begun and finished here:
   `QuorumFlush.sync`, `Publication.step`, `Removal`. The disk runs these works one after the other, in the order in
   which they were begun (`server.ports.Disk.carry_out`).
4. After a StorageError the host passes StorageFailed to the machine. A CorruptRecords of `open` names file and
   position; a node with such a log does not start.

The records of the log are values of the state machine's records. A snapshot ends where a batch of the log ends.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import OffsetAndEpoch, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, check_crc, iter_batches, read_header
from tailrace.protocol.records.control import build_control_batch
from tailrace.protocol.records.record import BatchBuilder
from tailrace.raft.effects import AppendAsLeader, AppendFetched, WriteSnapshotPart
from tailrace.raft.events import AppendRejected, LogAppended, SnapshotInstalled, SnapshotRejected, SnapshotWritten
from tailrace.raft.ports import SnapshotFile
from tailrace.raft.rpc import LogEnd, SnapshotId
from tailrace.raft.voters import VotersAt, VoterSet
from tailrace.server.quorum.metadata_directory import RECOVERY_POINT_INTERVAL, Checkpoints, QuorumFlush
from tailrace.server.quorum.records import (
    control_value,
    snapshot_control,
    voters_of_batch,
    voters_of_snapshot,
)
from tailrace.server.quorum.start import (
    check_damaged,
    check_snapshots,
    check_stored_batch,
    forget_stale_epochs,
    log_end_of,
    start_of,
    takes_the_logs_place,
)
from tailrace.storage import AppendBatch, Buffer, FileSystem, Log, ReadLimits
from tailrace.storage.file_system import parent
from tailrace.storage.snapshots.format import SnapshotHeader
from tailrace.storage.snapshots.store import Removal, SnapshotReader, SnapshotStore, StoredSnapshot
from tailrace.storage.snapshots.writer import Publication, SnapshotWriter

_READ_BYTES: Final = 1 << 20

_logger = logging.getLogger("tailrace.server")


class QuorumLog:
    """A `raft.ports.LogView` on files. Made by `QuorumLog.open`."""

    def __init__(self, log: Log, store: SnapshotStore, checkpoints: Checkpoints) -> None:
        self._log = log
        self._store = store
        self._checkpoints = checkpoints
        self._is_installing = False
        self._wall_ahead_ms = 0
        self._voters_in_log: list[VotersAt] = []
        self._snapshots: tuple[SnapshotFile, ...] = ()
        self._take_snapshots()
        newest_end = self._snapshots[-1].id.end_offset if self._snapshots else 0
        self.high_watermark = max(checkpoints.recovery_point, newest_end)
        """A lower bound of the high watermark, which rises with `commit`."""

    @classmethod
    def open(
        cls, directory: str, partition: TopicPartition, *, files: FileSystem, config: TopicConfig, now_ms: int
    ) -> "QuorumLog":
        """The log in this directory, created if missing, and repaired after a crash (KIP-630).

        A damaged snapshot is renamed if the log still has its records. Raises CorruptRecords that names the file if the
        log does not have these records, if the log is damaged below its recovery point, or if log and snapshots
        contradict each other: a node with such files neither votes nor leads until its repair.
        """
        files.make_dirs(directory)
        store = SnapshotStore.open(directory, files=files, keeps_damaged=True)
        checkpoints = Checkpoints(directory, partition, files=files)
        newest = store.newest
        if newest is not None:
            forget_stale_epochs(files, directory, newest.id)
        log = Log.open(
            directory,
            files=files,
            config=replace(config, retention_ms=-1, retention_bytes=-1),
            now_ms=now_ms,
            recovery_point=checkpoints.recovery_point,
            log_start_offset=start_of(store, checkpoints.log_start_offset),
        )
        opened = cls(log, store, checkpoints)
        check_damaged(store.damaged, opened)
        if newest is not None and takes_the_logs_place(newest.id, opened, checkpoints.recovery_point):
            if store.damaged:  # the log does not belong to the newest whole snapshot
                raise next(iter(store.damaged.values()))
            checkpoints.forget_recovery_point()
            log.truncate_fully_and_start_at(newest.id.offset)
        check_snapshots(opened, directory)
        opened._voters_in_log = opened._check_log()
        opened._rename_damaged()
        opened._drop_old_snapshots()
        log.flush()
        # A killed process may have left directory entries that were never synced.
        files.sync_dir(directory)
        files.sync_dir(parent(directory))
        return opened

    def _rename_damaged(self) -> None:
        """Rename the damaged snapshots: the log has been read, and has their records."""
        if self._store.damaged:
            self._checkpoints.lower_log_start(self.log_start_offset)
        for snapshot_id in list(self._store.damaged):
            self.high_watermark = max(self.high_watermark, snapshot_id.offset)  # its records were committed
            path = self._store.rename_damaged(snapshot_id)
            _logger.warning("event=metadata-snapshot-damaged path=%s action=use-the-log", path)

    def _drop_old_snapshots(self) -> None:
        start = self.log_start_offset
        self.delete_snapshots([snapshot.id for snapshot in self._snapshots if snapshot.id.end_offset < start])
        removal = self.take_removal()
        if removal is not None:
            removal()

    # raft.ports.LogView

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; for an empty log, the epoch of the snapshot at its start, or 0."""
        return log_end_of(self).epoch

    def end_offset_for_epoch(self, epoch: int) -> LogEnd | None:
        """The largest epoch up to `epoch` with records in the log, and the end of these records. None if there is no
        such epoch."""
        found, end = None, self.end_offset
        for entry in reversed(self._log.epochs.entries):
            if entry.start_offset >= self.end_offset:
                continue  # the epoch has begun, but has no record yet
            if entry.epoch <= epoch:
                found = LogEnd(entry.epoch, end)
                break
            end = entry.start_offset
        return found

    @property
    def snapshots(self) -> Sequence[SnapshotFile]:
        return self._snapshots

    def set_clock_offset(self, *, wall_ahead_ms: int) -> None:
        """Convert the times in `snapshots` from now on to the monotonic clock, by its distance from the wall clock."""
        self._wall_ahead_ms = wall_ahead_ms
        self._take_snapshots()

    def _take_snapshots(self) -> None:
        self._snapshots = tuple(
            SnapshotFile(
                SnapshotId(*stored.id), stored.size_bytes, stored.header.last_contained_ms - self._wall_ahead_ms
            )
            for stored in self._store.snapshots
            if stored.id.offset > 0  # Kafka's bootstrap snapshot holds no record
        )

    # The log

    def append_as_leader(self, batch: AppendAsLeader, *, now_ms: int) -> None:
        """Append one batch: control records, or values of the state machine's records. Raises StorageError."""
        assert batch.base_offset == self.end_offset, f"{batch.base_offset} is not the end {self.end_offset}"
        if batch.control:
            built = build_control_batch(
                [control_value(record) for record in batch.control],
                timestamp=now_ms,
                base_offset=batch.base_offset,
                leader_epoch=batch.leader_epoch,
            )
        else:
            assert isinstance(batch.records, tuple), f"records of a quorum are values, not {type(batch.records)}"
            builder = BatchBuilder(base_offset=batch.base_offset, leader_epoch=batch.leader_epoch)
            for value in batch.records:
                builder.append(now_ms, None, value)
            built = builder.build()
        self._log.append([AppendBatch(built, read_header(built))], checked_from=0)

    def append_fetched(self, fetched: AppendFetched) -> LogAppended | AppendRejected:
        """Check and append records of a leader. Raises StorageError; records that do not fit are rejected."""
        assert fetched.base_offset == self.end_offset, f"{fetched.base_offset} is not the end {self.end_offset}"
        records = fetched.records
        assert isinstance(records, bytes | bytearray | memoryview), f"fetched records are bytes, not {type(records)}"
        try:
            batches = list(self._checked(records, fetched.leader_epoch))
            voters = [
                stated
                for _, position, header in batches
                if header.is_control
                for stated in voters_of_batch(records, position)
            ]
            if not batches:
                raise CorruptRecords("no whole batch was sent")
        except CorruptRecords as fault:
            return AppendRejected(fault.detail)
        self._log.append([batch for batch, _, _ in batches], checked_from=0)
        return LogAppended(self.end_offset, self.last_epoch, tuple(voters))

    def _checked(self, records: Buffer, leader_epoch: int) -> Iterator[tuple[AppendBatch, int, BatchHeader]]:
        """The whole batches, each checked; the last batch may be incomplete, as in any answer to Fetch (KIP-74)."""
        end_offset, epoch = self.end_offset, self.last_epoch
        view = memoryview(records)
        for position, header in iter_batches(records):
            check_crc(records, position, header)
            if header.base_offset != end_offset or header.records_count != header.last_offset_delta + 1:
                raise CorruptRecords(
                    f"{header.records_count} records for the offsets {header.base_offset} to {header.last_offset} came"
                    f" where {end_offset} is next"
                )
            if not epoch <= header.partition_leader_epoch <= leader_epoch:
                raise CorruptRecords(
                    f"leader epoch {header.partition_leader_epoch} at offset {end_offset} is not between {epoch} and"
                    f" the leader's {leader_epoch}"
                )
            end_offset, epoch = header.end_offset, header.partition_leader_epoch
            yield AppendBatch(view[position : position + header.size_bytes], header), position, header

    def truncate(self, end_offset: int) -> None:
        """Cut the log so that it ends here. Raises StorageError."""
        assert end_offset >= self.high_watermark, f"{end_offset} is committed: up to {self.high_watermark}"
        self._log.truncate_to(end_offset)
        assert self.end_offset == end_offset, f"{end_offset} is inside of a batch"

    def commit(self, high_watermark: int) -> None:
        """Note that every record below this high watermark is committed."""
        self.high_watermark = max(self.high_watermark, high_watermark)

    def begin_flush(self) -> QuorumFlush:
        """Begin a flush of the present log, with the files and names to be synced. Only one flush at a time."""
        return self._begin_flush(RECOVERY_POINT_INTERVAL)

    def _begin_flush(self, interval: int) -> QuorumFlush:
        ticket = self._log.flushes.begin()
        point = min(ticket.end_offset, self.high_watermark)
        # While a snapshot is being installed no recovery point is written: the snapshot replaces the log, which may
        # then be shorter.
        offsets = self._checkpoints.due(
            log_start_offset=self.log_start_offset,
            recovery_point=0 if self._is_installing else point,
            interval=interval,
        )
        return QuorumFlush(ticket, self._checkpoints, offsets)

    def finish_flush(self, flush: QuorumFlush) -> None:
        """Note the outcome of `sync`."""
        self._log.flushes.finish(flush.ticket)

    def read(self, offset: int, *, max_bytes: int, end_offset: int | None = None) -> list[Buffer]:
        """Whole batches, from the batch with this offset on; empty only at the end of the log. Raises
        CorruptRecords."""
        return self._log.read(ReadLimits(offset, max_bytes), end_offset).records

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start; a snapshot holds the records below. `retire_segments` removes their segments."""
        assert self._snapshots, f"no snapshot stands for the records below {offset}"
        assert self._snapshots[-1].id.end_offset >= offset, f"the newest snapshot ends before {offset}"
        self._log.advance_log_start(offset)

    def retire_segments(self, now_ms: int) -> None:
        """Retire the segments below the log start, and remove segments that were retired some time ago."""
        self._log.retention.apply(now_ms, self.high_watermark)

    @property
    def voters_in_log(self) -> Sequence[VotersAt]:
        """The sets of voters that the newest snapshot and the log behind the snapshot stated when the log was
        opened."""
        return self._voters_in_log

    @property
    def founding_voters(self) -> VoterSet | None:
        """The founders of the quorum, if this replica was a founder: the voters in the empty snapshot (KIP-853)."""
        first = next((stored for stored in self._store.snapshots if stored.id.offset == 0), None)
        return None if first is None else voters_of_snapshot(first.header.control)

    def found(self, voters: VoterSet, *, now_ms: int) -> None:
        """Write the founders of the quorum durably, in Kafka's form: a snapshot without records. Only for a log that
        has never stated any voters. Raises StorageError."""
        assert not self._voters_in_log, f"the log states its voters: {self._voters_in_log}"
        writer = self.begin_snapshot(SnapshotId(0, 0), last_contained_ms=now_ms, voters=voters)
        writer.seal()
        publication = Publication(writer.part)
        publication.carry_out()
        self._store.finish(publication)

    def _check_log(self) -> list[VotersAt]:
        """Read the whole log once: recovery skips segments far below the recovery point, but a voter must check every
        segment.

        Returns the sets of voters in the log. Raises CorruptRecords.
        """
        found: list[VotersAt] = []
        newest = self._store.newest
        covered = 0 if newest is None else newest.id.offset
        if covered and newest is not None and (voters := voters_of_snapshot(newest.header.control)) is not None:
            found.append(VotersAt(covered - 1, voters))
        end_offset = -1
        try:
            for chunk in self._chunks(self.log_start_offset, self.end_offset):
                for position, header in iter_batches(chunk):
                    check_stored_batch(self._log, chunk, position, header, end_offset)
                    end_offset = header.end_offset
                    if header.is_control:
                        found += (stated for stated in voters_of_batch(chunk, position) if stated.offset >= covered)
        except StorageError as fault:
            if self._log.is_damaged:  # the bytes on the disk are wrong, and a later read would not help
                raise CorruptRecords(fault.detail) from fault
            raise
        return found

    def _chunks(self, offset: int, end_offset: int) -> Iterator[Buffer]:
        """The log between these offsets, in chunks of about a MiB. Raises CorruptRecords."""
        while offset < end_offset:
            begun_at = offset
            for content in self.read(offset, max_bytes=_READ_BYTES, end_offset=end_offset):
                for _, header in iter_batches(content):
                    offset = header.end_offset
                yield content
            if offset <= begun_at:  # a batch in the middle of a segment has a wrong header
                raise CorruptRecords(f"the log in {self._log.directory} cannot be read at offset {begun_at}")

    # Snapshots

    def open_snapshot(self, snapshot_id: SnapshotId) -> SnapshotReader:
        """A reader of a whole snapshot. Raises SNAPSHOT_NOT_FOUND."""
        return self._store.open_reader(_stored_id(snapshot_id))

    def read_snapshot(self, snapshot_id: SnapshotId, position: int, max_bytes: int) -> Buffer:
        """Bytes for FetchSnapshot. Raises SNAPSHOT_NOT_FOUND, POSITION_OUT_OF_RANGE, StorageError."""
        return self._store.read(_stored_id(snapshot_id), position, max_bytes)

    def begin_snapshot(
        self, snapshot_id: SnapshotId, *, last_contained_ms: int, voters: VoterSet | None
    ) -> SnapshotWriter:
        """Write a snapshot of this node's own, which `RaftNode.snapshot_fault` must allow. Raises StorageError.

        `last_contained_ms` is the timestamp of the last record below the end of the snapshot; `voters` are
        `RaftNode.voters_at` this end.
        """
        header = SnapshotHeader(last_contained_ms, snapshot_control(voters))
        return self._store.begin_writing(_stored_id(snapshot_id), header)

    def abandon_snapshot(self, writer: SnapshotWriter) -> None:
        """Give up a snapshot that is being written, after a StorageError for example."""
        self._store.abandon(writer.part)

    def finish_snapshot(self, publication: Publication) -> SnapshotWritten:
        """Take over a snapshot of this node's own. Raises CorruptRecords if the file differs from the written bytes."""
        stored = self._store.finish(publication)
        self._take_snapshots()
        return SnapshotWritten(SnapshotId(*stored.id))

    def write_part(self, part: WriteSnapshotPart) -> None:
        """Write fetched bytes of a snapshot. Raises StorageError after removing the part file."""
        self._store.write_part(_stored_id(part.snapshot_id), part.position, part.data)

    def discard_part(self, snapshot_id: SnapshotId) -> None:
        """Remove a part that is not needed any more."""
        self._store.discard_part(_stored_id(snapshot_id))

    def begin_install(self, snapshot_id: SnapshotId) -> Publication:
        """Begin to check and publish a complete part; then `finish_install`. No appends meanwhile."""
        part = self._store.part(_stored_id(snapshot_id))
        assert part is not None, f"there is no part of {snapshot_id}"
        self._is_installing = True
        return Publication(part, after=self._checkpoints.forget_recovery_point)

    def finish_install(self, publication: Publication) -> SnapshotInstalled | SnapshotRejected:
        """Replace the log by the snapshot, unless the snapshot is damaged; durable on return. Raises StorageError."""
        self._is_installing = False
        snapshot_id = SnapshotId(*publication.part.id)
        try:
            voters = self._install(publication)
        except CorruptRecords as fault:
            return SnapshotRejected(snapshot_id, fault.detail)
        return SnapshotInstalled(snapshot_id, voters)

    def _install(self, publication: Publication) -> VoterSet | None:
        stored: StoredSnapshot = self._store.finish(publication)
        self._take_snapshots()
        self._log.truncate_fully_and_start_at(stored.id.offset)
        self.commit(stored.id.offset)
        return voters_of_snapshot(stored.header.control)

    def delete_snapshots(self, snapshot_ids: Sequence[SnapshotId]) -> None:
        """Remove these snapshots from the list. The files are removed by `take_removal`, or after the last read of a
        reader."""
        self._store.delete(map(_stored_id, snapshot_ids))
        self._take_snapshots()

    def take_removal(self) -> Removal | None:
        """The removal of the deleted files, for the disk's thread; None if there is nothing to remove."""
        return self._store.take_removal()

    def close(self) -> None:
        """Make everything durable and close all files. Raises StorageError."""
        flush = self._begin_flush(1)
        flush.sync()
        self.finish_flush(flush)
        self._store.close()
        self._log.close()


def _stored_id(snapshot_id: SnapshotId) -> OffsetAndEpoch:
    return OffsetAndEpoch(snapshot_id.end_offset, LeaderEpoch(snapshot_id.epoch))
