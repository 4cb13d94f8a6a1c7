"""The log of a partition on one disk: segments that are appended to at one end and retired at the other.

Invariants:

1. log_start_offset <= flushed_offset <= log_end_offset, and every offset only rises, except by truncation.
2. `log_end_offset` moves after all bytes of an append are written, never before. An append that fails leaves the log,
   its indexes, its producers and its epochs as they were.
3. Everything below `flushed_offset` survives a power cut: batches, segment names, and the epochs they were written in.
4. A reader owns the bytes it was given. Nothing is overwritten: a new segment is a new inode.
5. After a failure that could not be undone the log is offline: the log refuses everything with StorageError until it is
   opened again, which checks the bytes on the disk.

Synchronous and not thread-safe, except `FlushTicket.sync`.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.model.errors import CorruptRecords, KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage.across_segments import AcrossSegments
from tailrace.storage.compaction.compactions import Compactions
from tailrace.storage.file_system import File, FileSystem, parent
from tailrace.storage.flush import Flushes
from tailrace.storage.flushed_note import FlushedNote
from tailrace.storage.keys.log_keys import LogKeys
from tailrace.storage.log_checkpoint import LogCheckpoint
from tailrace.storage.log_producers import LogProducers
from tailrace.storage.log_times import UNCHECKED, LogTimes
from tailrace.storage.readable_log import ReadableLog
from tailrace.storage.recovery.closed_logs import ClosedLog, ClosedSegment, reload
from tailrace.storage.recovery.loader import Loader
from tailrace.storage.recovery.report import Acknowledged, DamagedLog, LoadedLog
from tailrace.storage.retention import LogRetention
from tailrace.storage.scrub import Scrub
from tailrace.storage.segment_files.batch_file import AppendBatch
from tailrace.storage.segment_files.segment_limits import SegmentLimits


class Log(ReadableLog):
    """The log of one partition. Made by `Log.open`."""

    __slots__ = (
        "_across",
        "_files",
        "_limits",
        "_log_producers",
        "_note",
        "_on_write_outcome",
        "_writes_fail",
        "compactions",
        "flushes",
        "keys",
        "retention",
        "times",
    )

    def __init__(
        self, directory: str, loaded: LoadedLog, *, files: FileSystem, config: TopicConfig, first_dirty_offset: int
    ) -> None:
        super().__init__(directory, loaded, files=files, config=config)
        limits, report = loaded.limits, loaded.report
        self._files = files
        self._limits = limits
        self._note = FlushedNote(directory, files=files)
        self.times: Final = LogTimes(self, note=self._note, limits=limits)
        self.keys: Final = LogKeys(self, files=files)
        self.compactions: Final = Compactions(self, files=files, limits=limits, first_dirty_offset=first_dirty_offset)
        # After a crash the names may never have been synced; the first flush syncs the names.
        is_unsure = report.damage is None and (loaded.is_new or not report.clean)
        self.flushes: Final = Flushes(
            self,
            files=files,
            note=self._note,
            times=self.times,
            compactions=self.compactions,
            epochs_crc=loaded.epochs_crc,
            unsynced_directories=(directory, parent(directory)) if is_unsure else (),
            unsynced_files=loaded.unsynced_files,
        )
        producers = self._log_producers = LogProducers(
            directory, loaded.producers, files=files, segments=self.segments, snapshot_offset=loaded.snapshot_offset
        )
        self._across: Final = AcrossSegments(self, files=files, producers=producers, flushes=self.flushes)
        self.retention: Final = LogRetention(
            self, across=self._across, compactions=self.compactions, times=self.times, keys=self.keys
        )
        self._on_write_outcome: Callable[[StorageError | None], None] | None = None
        self._writes_fail = False

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        files: FileSystem,
        config: TopicConfig,
        now_ms: int,
        recovery_point: int = 0,
        high_watermark: int = 0,
        leader_epoch: int | None = None,
        log_start_offset: int = 0,
        first_dirty_offset: int = 0,
        clean: bool = False,
        allow_damage: bool = False,
        cuts_damage: bool = False,
        check_from: int | None = None,
        is_durable: bool = True,
    ) -> "Log":
        """Opens the log in this directory, which is made if need be.

        `recovery_point` and `high_watermark` are the values that were last made durable outside: below these values,
        and below the flushed end in the log's own note, nothing is ever cut (`recovery.loader`). `leader_epoch` is the
        partition's in the metadata: a batch of a later epoch is damaged. `clean`: the log was closed cleanly and
        nothing has to be checked; `first_dirty_offset` is where the last compaction ended. Damage raises DamagedLog,
        which names file and position, or with `allow_damage` gives an offline log whose part before the damage can be
        read (`recovery.damage`), or with `cuts_damage`, if an administrator has accepted the loss, a log that is cut
        there. With `check_from`, the part behind that offset is checked too if it lies below the recovery point. A
        segment that ends before `check_from` is not cut: damage in such a segment is DamagedLog again. A bound of gaps
        that cannot be read is CorruptRecords, and with `cuts_damage` everything missing below the flushed end passes
        for a gap. `recovery.lost_acknowledged` says whether something that was acknowledged is missing.
        `is_durable=False` is for page-cache durability: recovery does not suspect the page cache, and a power cut may
        cut below the high watermark. Nothing that is stored needs `now_ms` today.
        """
        if not files.exists(directory):
            files.make_dirs(directory)
        loader = Loader(
            directory,
            files=files,
            limits=SegmentLimits(config, name=directory),
            acknowledged=Acknowledged(recovery_point, high_watermark, leader_epoch),
            log_start_offset=log_start_offset,
            clean=clean,
            is_compacted=config.is_compacted,
            is_durable=is_durable,
            cuts_damage=cuts_damage,
            check_from=check_from,
        )
        loaded = loader.load()
        if loaded.report.damage is not None and not allow_damage:
            raise DamagedLog(loaded.report.damage)
        log = cls(directory, loaded, files=files, config=config, first_dirty_offset=first_dirty_offset)
        log._note_recovered(loaded)
        return log

    @classmethod
    def reopen(
        cls,
        directory: str,
        closed: ClosedLog,
        *,
        files: FileSystem,
        config: TopicConfig,
        is_new: bool = False,
        unsynced_files: tuple[File, ...] = (),
    ) -> "Log":
        """Opens the log that was closed with this note: the same log as `open` with `clean` gives, without reading the
        directory.

        `is_new`: the names in the directory, and the directory's own name, may not be durable yet. Neither may
        `unsynced_files`. The first flush syncs the names and files. Raises CorruptRecords or StorageError if the closed
        files have changed; then `open` must look.
        """
        loaded = reload(
            directory,
            closed,
            files=files,
            limits=SegmentLimits(config, name=directory),
            is_new=is_new,
            unsynced_files=unsynced_files,
        )
        return cls(directory, loaded, files=files, config=config, first_dirty_offset=closed.first_dirty_offset)

    def _note_recovered(self, loaded: LoadedLog) -> None:
        """Note the flushed end that recovery has made durable: no flush may follow, or the log may have become
        shorter."""
        if loaded.report.damage is not None:
            return
        if not loaded.report.clean and self.flushed_offset > 0:
            self.times.read_note()
            self._note.write(self.flushed_offset, loaded.epochs_crc)
        if loaded.noted_end_offset > self.log_end_offset:
            self.times.read_note()
            self._note.lower(self.log_end_offset)  # another program, or an operator, has cut the log

    def keep_checkpoint(self) -> str:
        """Keep a coordinator's checkpoint beside this log; returns the reason if a checkpoint is dropped.

        To be called before anything is appended. Raises StorageError.
        """
        self.checkpoint = LogCheckpoint.open(self.directory, files=self._files)
        return self.checkpoint.drop_if_contradicted(
            self.epochs,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            first_dirty_offset=self.compactions.first_dirty_offset,
        )

    def watch_writes(self, callback: Callable[[StorageError | None], None]) -> None:
        """Call `callback` with the fault after an append that has failed, and with None when an append succeeds
        again."""
        self._on_write_outcome = callback

    def begin_scrub(self, *, mends: bool) -> Scrub:
        """A pass over this log that compares its files with the written bytes; `mends` as in `Scrub`."""
        self.times.read_note()  # the note tells which headers the index files are made of
        return Scrub(self, mends=mends)

    def update_config(self, config: TopicConfig) -> None:
        """Take new settings; they hold from the next append, retention and compaction on."""
        if self.config.is_compacted != config.is_compacted and not self.failure:
            self.compactions.abort()
            self._across.prepare_policy(is_compacted=config.is_compacted)
        if self.config.key_ranges_index != config.key_ranges_index:
            if config.key_ranges_index == "none" and not self.failure:
                self.keys.remove_files()
            self.keys.forget()
        self.config = config
        self._limits.update(config)

    def append(
        self, batches: Sequence[AppendBatch], *, may_have_gaps: bool = False, checked_from: int = UNCHECKED
    ) -> None:
        """Write whole batches, stamped with contiguous offsets from `log_end_offset` on: all batches or no batch.

        The sender of the batches vouches that the headers of batches from `checked_from` on agree with their records;
        the times of the other batches are read from their records.

        With `may_have_gaps` offsets only have to ascend: the batches come from a leader whose log may have been
        compacted, under settings of an earlier time. In a compacted log offsets may always be missing.

        Staged producer batches (`producers.stage`) are applied with the batches, and discarded if the append fails.
        Raises StorageError, also for damage of the log's own files; only a failure that could not be undone puts the
        log offline.
        """
        if self.failure:
            self.check_online()
        if not batches:
            return
        epochs = self.epochs
        saved_epochs = epochs.entries
        active = self.segments.active
        try:
            first_offset, limits = batches[0].header.base_offset, self._limits
            if checked_from > first_offset or limits.checked_from > first_offset or not limits.has_read_note:
                self.times.append(first_offset, checked_from)
            if not active.knows_aborted:
                self.segments.aborted_of(active)  # before anything is written: the note may not be readable
            end_offset = self._check_offsets(batches, may_have_gaps=may_have_gaps)
            if active.count_that_fit(batches) == len(batches):
                active.append(batches)
                self._log_producers.append(active, batches)
            else:
                self._across.append(batches)
        except (StorageError, CorruptRecords) as fault:
            epochs.replace(saved_epochs)
            self.producers.discard_staged()
            self._across.cut_back()
            self._note_write_outcome(fault)
            if isinstance(fault, CorruptRecords):
                # # The sender must not take its batches for corrupt.
                raise StorageError(fault.detail) from fault
            raise
        if self._writes_fail:
            self._note_write_outcome(None)
        self.is_changed = True
        self.log_end_offset = end_offset

    def _note_write_outcome(self, fault: KafkaError | None) -> None:
        self._writes_fail = fault is not None
        if self._on_write_outcome is not None and not isinstance(fault, CorruptRecords):
            assert fault is None or isinstance(fault, StorageError)
            self._on_write_outcome(fault)

    def _check_offsets(self, batches: Sequence[AppendBatch], *, may_have_gaps: bool) -> int:
        """The log's end after these batches. Enters their epochs."""
        end_offset = self.log_end_offset
        epochs = self.epochs
        for _, header in batches:
            base_offset = header.base_offset
            if base_offset != end_offset:
                is_expected = may_have_gaps or self.config.is_compacted
                self.gaps.accept(
                    base_offset, end_offset, is_expected=is_expected, make_durable=self._across.sync_before_gap
                )
            epoch = header.partition_leader_epoch
            if epoch != epochs.latest_epoch:
                assert epoch > epochs.latest_epoch, f"{self.directory}: epoch {epoch} after {epochs.latest_epoch}"
                epochs.assign(epoch, base_offset)
            end_offset = base_offset + header.last_offset_delta + 1
        return end_offset

    def flush(self) -> None:
        """Begin, sync and finish a flush in one go, for owners without a flush thread."""
        self.flushes.run()

    def truncate_to(self, offset: int) -> None:
        """Cut the log so that it ends at this offset, or at the start of the batch that contains it.

        The owner must first have made a recovery point of at most `offset` durable: a shorter log is damage otherwise.
        """
        self.check_online()
        if offset >= self.log_end_offset:
            return
        assert offset >= self.log_start_offset, f"{self.directory}: truncation to {offset} below the log start"
        self._begin_truncation()
        try:
            segment = self.segments.all[self.segments.index_of(offset)]
            position = segment.locate(offset)
            end_offset = offset
            if position < segment.size_bytes:
                end_offset = min(offset, segment.header_at(position).base_offset)
            self.segments.aborted_of(segment)  # loaded into memory before the file is removed
            if end_offset < self.log_start_offset:
                # The log starts inside the batch that goes.
                self.truncate_fully_and_start_at(self.log_start_offset)
                return
            self._lower(end_offset, min(end_offset, self.flushed_offset))
            self._across.cut(segment, position, end_offset)
            self.log_end_offset = end_offset
            self.compactions.restart(min(self.compactions.first_dirty_offset, end_offset))
            self.flushed_offset = min(self.flushed_offset, end_offset)
            self.epochs.truncate_from_end(end_offset)
            self._log_producers.reload(end_offset)
        except (StorageError, CorruptRecords) as fault:
            reason = f"a truncation to {offset} failed: {fault.detail}"
            if isinstance(fault, CorruptRecords):
                self.condemn(reason)  # the damage may be in any of the segments that were read
            else:
                self.fail(reason)
            raise

    def _begin_truncation(self) -> None:
        self.compactions.abort()
        self.truncations += 1
        self.keys.forget()
        self.is_changed = True

    def _lower(self, end_offset: int, flushed_offset: int) -> None:
        """Lower the checkpoint and the note, durably, before anything is cut."""
        if self.checkpoint is not None:
            self.checkpoint.cut(end_offset)
        self.times.read_note()
        self._note.lower(flushed_offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log is empty and begins at this offset. For a replica that fell behind its leader.

        The owner must first have lowered the recovery point, durably: a crash meanwhile leaves any part of the old
        segments.
        """
        self.check_online()
        self._begin_truncation()
        try:
            self._lower(-1, 0)
            self._across.restart(offset)
        except StorageError as fault:
            self.fail(f"a new start at {offset} failed: {fault.detail}")
            raise
        self.log_start_offset = self.flushed_offset = self.log_end_offset = offset
        self.compactions.restart(offset)
        self.epochs.replace(())
        self.producers.replace({}, end_offset=offset)
        self.keys.begin_anew(offset)

    def begin_within(self, first: AppendBatch, *, checked_from: int = UNCHECKED) -> None:
        """Begin an empty log with this batch, which contains the log start; the start stays. For a replica.

        `checked_from` is as for `append`. The batch is durable when this returns, and a crash leaves either the empty
        log or this log: no recovery point has to be lowered. Raises StorageError; if the log is not offline then, the
        log is as it was.
        """
        self.check_online()
        base_offset, end_offset = first.header.base_offset, first.header.end_offset
        is_within = self.is_empty and base_offset < self.log_end_offset < end_offset
        assert is_within, f"{self.directory}: batch at {base_offset} begun at {self.log_end_offset}"
        self.compactions.abort()
        self.is_changed = True
        self.times.append(base_offset, checked_from)
        self.segments.write_cleaned(first)
        try:
            self._across.begin_with(first)
        except (StorageError, CorruptRecords) as fault:
            self.fail(f"a log that starts within a batch could not begin with it: {fault.detail}")
            raise
        self.epochs.assign(first.header.partition_leader_epoch, self.log_start_offset)
        self.log_end_offset = end_offset

    @property
    def closed(self) -> ClosedLog | None:
        """The note that `reopen` needs after a clean close; None if the log must be opened from its files."""
        if self.producers and self._log_producers.snapshot_offset != self.log_end_offset:
            return None
        return ClosedLog(
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            first_dirty_offset=max(self.compactions.first_dirty_offset, self.log_start_offset),
            gap_bound=self.gaps.bound,
            snapshot_offset=self._log_producers.snapshot_offset,
            has_producers=bool(self.producers),
            segments=tuple(ClosedSegment(segment.base_offset, segment.size_bytes) for segment in self.segments.all),
            # As in recovery, an epoch without a record is left out: the elected leader begins the epoch again.
            epochs=tuple(entry for entry in self.epochs.entries if entry.start_offset < self.log_end_offset),
        )

    def close(self, *, clean: bool = True) -> None:
        """Give all descriptors back. A clean close makes everything durable first, so that the next open trusts the
        files.

        The log must not be used afterwards. Raises StorageError if the clean close fails; then the close was not clean.
        """
        try:
            self.compactions.abort()
            if clean and not self.failure and (self.is_changed or self.flushes.has_work):
                self._close_cleanly()
            if clean and not self.failure:
                self.keys.save()
        finally:
            self.segments.close()
            self._note.close()
            self.flushes.close()
            self._on_offline = None
            self.fail("it was closed")

    def _close_cleanly(self) -> None:
        assert not self.flushes.is_under_way, f"{self.directory}: a flush is under way"
        if self.segments.active.size_bytes:
            self.segments.active.write_indexes()
        for segment in self.segments.all:
            if segment.unsynced_files:
                segment.sync()
        if self.log_start_offset < self.log_end_offset and self._log_producers.snapshot_offset < self.log_end_offset:
            self._log_producers.write_snapshot(self.log_end_offset)
        self.flush()
        self.segments.unlink_retired(None)
        self._files.sync_dir(self.directory)
        self.is_changed = False
