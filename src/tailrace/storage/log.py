"""One partition on one disk: segments that are appended to at one end and retired at the other.

Invariants:

1. log_start_offset <= flushed_offset <= log_end_offset, and each of them only rises, except by truncation.
2. `log_end_offset` moves after all bytes of an append are written, never before. An append that fails leaves the log,
   its indexes, its producers and its epochs as they were.
3. All below `flushed_offset` survives a power cut: batches, segment names, and the epochs they were written in.
4. A reader owns the bytes it was given. Nothing is overwritten: a new segment is a new inode.
5. After a failure that could not be undone the log is offline: it refuses everything with StorageError until it is
   opened again, which checks the bytes on the disk.

Synchronous and not thread-safe, except `FlushTicket.sync`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.key_ranges import KeyRange
from tailrace.model.topic_config import TopicConfig
from tailrace.storage.batch_file import AppendBatch, ReadLimits, ReadResult
from tailrace.storage.closed_logs import ClosedLog, ClosedSegment, reload
from tailrace.storage.compaction.compaction import Compaction, Compactions
from tailrace.storage.compaction.plan import Cleanable
from tailrace.storage.epoch_cache import LAST_OFFSET
from tailrace.storage.file_system import File, FileSystem, parent
from tailrace.storage.flush import Flushes, FlushTicket
from tailrace.storage.flushed_note import FlushedNote
from tailrace.storage.keys.batch_slots import BatchSlots
from tailrace.storage.keys.key_ends import KeyEnds, Question, StepWork
from tailrace.storage.log_checkpoint import LogCheckpoint
from tailrace.storage.log_producers import LogProducers
from tailrace.storage.readable_log import ReadableLog, TimestampOffset
from tailrace.storage.recovery import Loader
from tailrace.storage.recovery_report import Acknowledged, DamagedLog, LoadedLog
from tailrace.storage.retention import NoSegment, Reason, StoredSegment, expired_segments
from tailrace.storage.scrub import Scrub, ScrubSlice
from tailrace.storage.segment import Segment
from tailrace.storage.segment_limits import SegmentLimits
from tailrace.storage.times.checked import UNCHECKED, CheckedHeaders
from tailrace.storage.times.time_check import TimeCheck, first_doubtful

_STEP_BYTES: Final = 1 << 20


class RetiredSegment(NamedTuple):
    """A segment that retention has removed."""

    base_offset: int
    size_bytes: int
    reason: Reason
    newest_timestamp: int
    """The largest of its records', in ms since 1970; -1 if it has none, or lies below the log start: not looked up."""


class Log(ReadableLog):
    """The log of one partition. Made by `Log.open`."""

    __slots__ = (
        "_checked",
        "_compactions",
        "_failure",
        "_files",
        "_flushes",
        "_is_changed",
        "_key_ends",
        "_limits",
        "_log_producers",
        "_note",
        "_on_offline",
        "_on_write_outcome",
        "_time_check",
        "_writes_fail",
        "checkpoint",
        "first_dirty_offset",
        "flushed_offset",
        "good_end_offset",
        "is_damaged",
        "is_offline",
    )

    def __init__(self, directory: str, loaded: LoadedLog, *, files: FileSystem, config: TopicConfig) -> None:
        super().__init__(directory, loaded, files=files, config=config)
        self._files = files
        self._limits = loaded.limits
        self._log_producers = LogProducers(
            directory,
            loaded.producers,
            files=files,
            segments=self._segments,
            snapshot_offset=loaded.snapshot_offset,
        )
        self.flushed_offset = loaded.log_end_offset
        """All below it is durable."""
        self._compactions = Compactions(
            directory,
            files=files,
            segments=self._segments,
            limits=loaded.limits,
            producers=loaded.producers,
        )
        self.first_dirty_offset = loaded.log_start_offset
        """Everything below it is compacted; the owner writes it to a checkpoint now and then."""
        damage = loaded.report.damage
        self._failure = str(damage) if damage is not None else ""
        self.is_offline = bool(self._failure)
        """Whether a failure or damage has ended this log's service until it is opened again."""
        self.is_damaged = damage is not None
        """Whether something that was flushed is known to be lost or unreadable; the log is offline then."""
        self.good_end_offset = loaded.log_end_offset
        """Of a damaged log: no damage is known below it."""
        self._on_offline: Callable[[], None] | None = None
        self._on_write_outcome: Callable[[StorageError | None], None] | None = None
        self._writes_fail = False
        # After a crash the names may never have been synced; the first flush syncs them.
        is_unsure = damage is None and (loaded.is_new or not loaded.report.clean)
        self._flushes = Flushes(
            files,
            epochs_crc=loaded.epochs_crc,
            unsynced_directories=(directory, parent(directory)) if is_unsure else (),
            unsynced_files=loaded.unsynced_files,
        )
        self._note = FlushedNote(directory, files=files)
        self._checked = CheckedHeaders(self._note, loaded.limits, end_at_open=loaded.log_end_offset)
        self._time_check = TimeCheck()
        self._key_ends: KeyEnds | None = None
        self.checkpoint: LogCheckpoint | None = None
        """Of a coordinator; None for all other logs."""
        if damage is None and not loaded.report.clean and self.flushed_offset > 0:
            self._checked.settle()
            self._note.write(self.flushed_offset, loaded.epochs_crc)  # recovery has made it durable: no flush follows
        # After a crash the caches of a clean close are still to be written, even if nothing else happens.
        self._is_changed = not loaded.report.clean and loaded.log_end_offset > loaded.segments[0].base_offset

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
        """The log in this directory, which is made if it is not there.

        `recovery_point` and `high_watermark` are those that were last made durable outside: below them, and below what
        the log itself has noted as flushed, nothing is ever cut (`storage.recovery`). `leader_epoch` is the partition's
        in the metadata: a batch of a later one is damaged. `clean` says that the log was closed cleanly and nothing has
        to be checked; `first_dirty_offset` is where the last compaction ended. Damage raises DamagedLog, which names
        file and position, or with `allow_damage` gives an offline log whose part before the damage can be read
        (`recovery.damage`), or with `cuts_damage`, if an administrator has accepted the loss, a log that is cut there.
        With `check_from`, the part behind that offset is checked too if it lies below the recovery point, and a segment
        that ends before it is not cut: damage there is DamagedLog again. A bound of gaps that cannot be read is
        CorruptRecords, and with `cuts_damage` all that is missing below the flushed end passes for a gap.
        `recovery.lost_acknowledged` says whether something that was acknowledged is missing. `is_durable=False` is for
        page-cache durability: recovery does not suspect the page cache, and a power cut may cut below the high
        watermark. Nothing that is stored needs `now_ms` today.
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
        log = cls(directory, loaded, files=files, config=config)
        if loaded.report.damage is None and loaded.noted_end_offset > log.log_end_offset:
            log._checked.settle()
            log._note.lower(log.log_end_offset)  # another program has cut it, or an operator has, perhaps to nothing
        if log.log_start_offset < first_dirty_offset <= log.log_end_offset:
            log.first_dirty_offset = first_dirty_offset
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
        """The log that was closed like this: what `open` with `clean` gives, without reading the directory.

        `is_new`: names in the directory, and its own, may not be durable yet, and neither may `unsynced_files`: the
        first flush syncs them. Raises CorruptRecords or StorageError if the files are not those
        that were closed; then `open` must look.
        """
        loaded = reload(
            directory,
            closed,
            files=files,
            limits=SegmentLimits(config, name=directory),
            is_new=is_new,
            unsynced_files=unsynced_files,
        )
        log = cls(directory, loaded, files=files, config=config)
        log.first_dirty_offset = closed.first_dirty_offset
        return log

    def keep_checkpoint(self) -> str:
        """Keep a coordinator's checkpoint beside this log; returns the reason if the one that was there is dropped.

        To be called before anything is appended. Raises StorageError.
        """
        self.checkpoint = LogCheckpoint.open(self._directory, files=self._files)
        contradiction = self.checkpoint.contradiction(
            self.epochs,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            first_dirty_offset=self.first_dirty_offset,
        )
        if contradiction:
            self.checkpoint.drop()
        return contradiction

    @property
    def failure(self) -> str:
        """The reason why the log is offline; empty if it is not."""
        return self._failure

    def when_offline(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the log goes offline other than by `close`: from within what fails."""
        self._on_offline = callback

    def watch_writes(self, callback: Callable[[StorageError | None], None]) -> None:
        """Call `callback` with the fault after an append that has failed, and with None when one succeeds again."""
        self._on_write_outcome = callback

    def condemn(self, damage: str, *, offset: int = 0) -> None:
        """Put the log offline for damage in its flushed part; all below `offset` is good."""
        if not self.is_damaged:
            self.good_end_offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.is_damaged = True
        self._fail(damage)

    @property
    def is_flushed(self) -> bool:
        """Whether a flush now would change nothing."""
        return (
            self.flushed_offset == self.log_end_offset and not self._flushes.has_other_work and not self.epochs.is_dirty
        )

    def read(self, limits: ReadLimits, end_offset: int | None = None) -> ReadResult:
        """As `ReadableLog.read`. Damage puts the log offline: StorageError."""
        try:
            return super().read(limits, end_offset)
        except CorruptRecords as fault:
            self.condemn(fault.detail, offset=limits.offset)
            raise StorageError(fault.detail) from fault

    @property
    def checked_from(self) -> int:
        """The headers of batches below this offset are not known to agree with their records."""
        if not self._limits.has_read_note:
            self._checked.settle()
        return self._limits.checked_from

    @property
    def has_doubtful_times(self) -> bool:
        """Whether a lookup by time may be wrong: some headers were not checked, and their records not looked at yet.

        That is done by `check_times_on`.
        """
        return self.checked_from > self._segments.all[0].base_offset and (
            first_doubtful(self._segments, self.log_start_offset) is not None
        )

    def check_times_on(self, monotonic_ms: Callable[[], int]) -> bool:
        """Look at the records of batches whose headers were not checked: 4 MiB as stored, or 10 ms, and at most one
        batch more.

        Whether there is more to do. The errors are those of `read`.
        """
        if self._failure:
            self.refuse()
        if not self.has_doubtful_times:
            return False
        self._is_changed = True
        try:
            return self._time_check.step(self._segments, StepWork(monotonic_ms), log_start_offset=self.log_start_offset)
        except CorruptRecords as fault:
            self.condemn(fault.detail)
            raise StorageError(fault.detail) from fault

    def awaits_times(self, now_ms: int) -> bool:
        """Whether retention would let the oldest segment go by the times of headers that were not checked, or by that
        of its file. Raises StorageError."""
        segments, config = self._segments.all, self._config
        if len(segments) == 1 or not segments[0].base_offset < self.checked_from or config.retention_ms < 0:
            return False
        oldest, expired_ms = segments[0], now_ms - config.retention_ms
        return (
            "delete" in config.cleanup_policy
            and oldest.has_doubtful_times
            and (oldest.written_ms < expired_ms or oldest.age_timestamp < expired_ms)
        )

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """As `ReadableLog.offset_for_timestamp`, with the errors of `read`."""
        try:
            return super().offset_for_timestamp(timestamp)
        except CorruptRecords as fault:
            self.condemn(fault.detail)
            raise StorageError(fault.detail) from fault

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """As `ReadableLog.max_timestamp_offset`, with the errors of `read`."""
        try:
            return super().max_timestamp_offset()
        except CorruptRecords as fault:
            self.condemn(fault.detail)
            raise StorageError(fault.detail) from fault

    @property
    def _keys(self) -> KeyEnds:
        if self._key_ends is None:
            keeps_files = self._config.key_sharing_index == "auto"
            self._key_ends = KeyEnds(self._segments, files=self._files, keeps_files=keeps_files)
        return self._key_ends

    def key_end(self, first_hash: int, last_hash: int, end_offset: int) -> int | None:
        """1 + the last offset below `end_offset` of a record whose key's hash is from `first_hash` to `last_hash`.

        A control batch, and one that cannot be read, counts as one with all hashes. The log start if there is no such
        record. None if it is not known yet: the work for it is done by `index_keys_on`. Raises StorageError if the log
        is offline.
        """
        if self._failure:
            self.refuse()
        question = Question(KeyRange(first_hash, last_hash), min(end_offset, self.log_end_offset))
        return self._keys.end_of(question, log_start_offset=self.log_start_offset)

    def index_keys_on(self, monotonic_ms: Callable[[], int]) -> bool:
        """Work for the ends that `key_end` did not know: 4 MiB of plain records, or 10 ms, and at most one batch more.

        Whether there is more to do. The errors are those of `read`.
        """
        if self._failure:
            self.refuse()
        if self._key_ends is None:
            return False
        try:
            return self._key_ends.step(
                StepWork(monotonic_ms), log_start_offset=self.log_start_offset, flushed_offset=self.flushed_offset
            )
        except CorruptRecords as fault:
            self.condemn(fault.detail)
            raise StorageError(fault.detail) from fault

    def next_match(self, slots: int, offset: int, end_offset: int) -> int:
        """An offset up to which, from `offset` on, no batch has a record of these slots, bits of a number.

        At most `end_offset`; `offset` itself if that is not known. Reads no batch.
        """
        if self._failure or not self.log_start_offset <= offset < end_offset:
            return offset
        return self._keys.indexes.next_match(slots, offset, end_offset=end_offset)

    def wants_slots(self, offset: int, first_offset: int) -> bool:
        """Whether `note_slots` would take the slots of the batches that end behind `offset`, from `first_offset` on."""
        if self._failure or self._config.key_sharing_index != "auto":
            return False
        return self._keys.indexes.wants(offset, first_offset)

    def note_slots(self, offset: int, slots: BatchSlots) -> None:
        """Take the slots of batches that were read: all that end behind `offset`, up to the last of them."""
        if not self._failure and self._config.key_sharing_index == "auto":
            indexes = self._keys.indexes
            indexes.flushed_offset = self.flushed_offset
            indexes.note(offset, slots)

    def next_scrub_slice(self, scrub: Scrub, *, max_bytes: int) -> ScrubSlice | None:
        """The slice that a scrub of this log reads next, its file pinned; None at the end, or if the log is offline.

        A batch larger than `max_bytes` is read whole.
        """
        if self._failure:
            return None
        try:
            self._checked.settle()
            part = scrub.next_slice(
                self._segments.all,
                flushed_offset=self.flushed_offset,
                gap_limit=self._gaps.limit(is_compacted=self._config.is_compacted),
                epochs=self.epochs,
                generation=self._flushes.generation,
                max_bytes=max_bytes,
            )
            if part is not None:
                part.segment.file.pin()
        except CorruptRecords as fault:
            self.condemn(fault.detail)
            return None
        return part

    def finish_scrub_slice(self, scrub: Scrub, part: ScrubSlice) -> None:
        """Take back a slice that was run. Damage that it has found puts the log offline."""
        part.segment.file.unpin()
        if self._failure:
            return
        damage = scrub.finish_slice(part, self._segments.all, generation=self._flushes.generation)
        if damage is not None:
            self.condemn(damage.detail, offset=part.next_offset)

    def update_config(self, config: TopicConfig) -> None:
        """Take new settings; they hold from the next append, retention and compaction on."""
        if self._config.is_compacted != config.is_compacted and not self._failure:
            self.abort_compaction()
            try:
                if self._must_note_gaps(is_compacted=config.is_compacted):
                    self._gaps.allow(self.flushed_offset)
            except StorageError as fault:
                self._fail(f"it cannot be noted that offsets may be missing: {fault.detail}")
        if self._config.key_sharing_index != config.key_sharing_index:
            if config.key_sharing_index == "none" and not self._failure:
                self._keys.indexes.remove_files()
            self._key_ends = None
        self._config = config
        self._limits.update(config)

    def _must_note_gaps(self, *, is_compacted: bool) -> bool:
        """Whether the gap bound must be on the disk before cleanup.policy changes to this."""
        if self._gaps.is_known:
            return False
        if is_compacted:
            # Old segments that are not durable have no gaps. If one is lost, that must not pass for a gap because the
            # log is compacted from now on. For later segments the next roll does this.
            return self.flushed_offset < self._segments.active.base_offset
        return self.size_bytes > 0  # another program may have compacted this log

    def append(
        self, batches: Sequence[AppendBatch], *, may_have_gaps: bool = False, checked_from: int = UNCHECKED
    ) -> None:
        """Write whole batches, stamped with contiguous offsets from `log_end_offset` on: all of them or none.

        Their sender vouches that the headers of batches from `checked_from` on agree with their records; the times of
        all others are those of their records, which are looked at.

        With `may_have_gaps` they only have to ascend: they come from a leader whose log may have been compacted, under
        settings of an earlier time. In a compacted log they always may.

        Staged producer batches (`producers.stage`) are applied with them, and discarded if the append fails. Raises
        StorageError, also for damage of the log's own files; only a failure that could not be undone puts the log
        offline.
        """
        if self._failure:
            self.refuse()
        if not batches:
            return
        epochs = self.epochs
        saved_epochs = epochs.entries
        active = self._segments.active
        try:
            checked = self._checked
            if not self._limits.has_read_note:
                checked.settle()
            first_offset = batches[0].header.base_offset
            if checked_from > first_offset or self._limits.checked_from > first_offset:
                checked.append(first_offset, checked_from)
            if not active.knows_aborted:
                self._segments.aborted_of(active)  # before anything is written: its file may not be readable
            end_offset = self._check_offsets(batches, may_have_gaps=may_have_gaps)
            if active.count_that_fit(batches) == len(batches):
                active.append(batches)
                self._log_producers.append(active, batches)
            else:
                self._append_across_segments(batches)
        except (StorageError, CorruptRecords) as fault:
            epochs.replace(saved_epochs)
            self.producers.discard_staged()
            self._cut_back()
            self._note_write_outcome(fault)
            if isinstance(fault, CorruptRecords):
                # The sender of the batches must not take them for corrupt.
                raise StorageError(fault.detail) from fault
            raise
        if self._writes_fail:
            self._note_write_outcome(None)
        self._is_changed = True
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
                is_expected = may_have_gaps or self._config.is_compacted
                self._gaps.accept(base_offset, end_offset, is_expected=is_expected, make_durable=self._sync_before_gap)
            epoch = header.partition_leader_epoch
            if epoch != epochs.latest_epoch:
                assert epoch > epochs.latest_epoch, f"{self._directory}: epoch {epoch} after {epochs.latest_epoch}"
                epochs.assign(epoch, base_offset)
            end_offset = base_offset + header.last_offset_delta + 1
        return end_offset

    def _note_that_gaps_are_known(self) -> None:
        """Note the gap bound before a roll: if the old segment, not durable yet, is lost, it must not pass for a gap.

        A directory that another program has filled may have gaps anywhere. Ours have only noted ones.
        """
        if self._config.is_compacted and not self._gaps.is_known:
            self._gaps.allow(self.flushed_offset)

    def _sync_before_gap(self) -> None:
        """Make all appended batches durable, unless they are: under flushed durability a follower's always are."""
        if self.flushed_offset < self.log_end_offset:
            self._sync_below_gaps(self._segments.all)

    def _sync_below_gaps(self, segments: Iterable[Segment]) -> None:
        """Sync these segments and all names: where gaps are legal, a segment that is lost passes for one."""
        try:
            for segment in segments:
                if segment.unsynced_files or segment is self._segments.active:
                    segment.sync()
            self._files.sync_dir(self._directory)
        except StorageError as fault:
            self._fail(f"what lies below a gap could not be synced: {fault.detail}")  # a second try would prove nothing
            raise

    def _append_across_segments(self, batches: Sequence[AppendBatch]) -> None:
        """Append with one roll or more. On a failure everything is undone, or the log goes offline."""
        segments, producers = self._segments, self.producers
        saved_producers = producers.copy_producers()
        segment_count, size_bytes = len(segments), segments.active.size_bytes
        rest = batches
        try:
            while rest:
                count = segments.active.count_that_fit(rest)
                if not count:
                    self._roll(rest[0].header.base_offset)
                    continue
                part, rest = rest[:count], rest[count:]
                segments.active.append(part)
                self._log_producers.apply(segments.active, part)
        except (StorageError, CorruptRecords):
            producers.replace(saved_producers, end_offset=self.log_end_offset)
            self._undo_append(segment_count, size_bytes)
            raise
        producers.discard_staged()

    def _undo_append(self, segment_count: int, size_bytes: int) -> None:
        try:
            self._segments.remove_after(segment_count)
            self._segments.active.cut_to(size_bytes, self.log_end_offset)
            # Other batches will lead to these offsets: the producers' snapshots there would be wrong.
            self._log_producers.remove_snapshots_above(self.log_end_offset)
            self._flushes.forget_removed_files()
            self._files.sync_dir(self._directory)
        except (StorageError, CorruptRecords) as fault:
            self._fail(f"an append failed and could not be undone: {fault.detail}")

    def _cut_back(self) -> None:
        try:
            self._segments.active.cut_back()
        except StorageError as fault:
            self._fail(f"a failed append could not be cut back: {fault.detail}")

    def _fail(self, reason: str) -> None:
        if not self._failure:
            self._failure, self.is_offline = reason, True
            on_offline, self._on_offline = self._on_offline, None
            if on_offline is not None:
                on_offline()

    def refuse(self) -> None:
        """Raise StorageError with the reason why the log is offline."""
        raise StorageError(f"the log in {self._directory} is offline: {self._failure}")

    def _roll(self, base_offset: int, *, retires_old: bool = False) -> None:
        """Begin a new segment at this offset. The next flush syncs its name. `retires_old`: the old one goes at once.

        Until then a power cut may take it back: recovery cuts the log where the old segment is not whole, and a torn
        snapshot has a wrong checksum. Only the first segment's name must be durable: without it the log would begin at
        the new segment, as after retention.
        """
        if len(self._segments) == 1 and self._flushes.has_unsynced_names:
            self._sync_first_name()
        self._note_that_gaps_are_known()
        if self._gaps.is_legal_before(base_offset, is_compacted=self._config.is_compacted):
            # After a truncation below the gap bound, or on a follower: a lost segment would pass for a gap.
            self._sync_below_gaps((self._segments.active,))
        if not retires_old:  # there may be no space for its indexes, which a start after a crash makes anew
            self._segments.active.write_indexes()
        self._flushes.note_new(self._log_producers.begin_snapshot(base_offset), self._directory)
        self._segments.add(base_offset)

    def _sync_first_name(self) -> None:
        try:
            self._files.sync_dir(self._directory)
        except StorageError as fault:
            self._fail(f"the first segment's name could not be synced: {fault.detail}")
            raise

    def note_made_durable(self) -> None:
        """Its owner has made this new log durable with all others, and it was opened before. Once it has been written
        to, or flushed, that says nothing any more."""
        is_untouched = self.log_end_offset == self.log_start_offset and not self._is_changed
        if is_untouched and not self._flushes.is_under_way and not self._failure:
            self._flushes.forget_new_names()

    def begin_flush(self) -> FlushTicket:
        """The files and names to sync so that all appended batches are durable. One flush at a time."""
        if self._failure:
            self.refuse()
        return self._flushes.begin(
            self._directory,
            self._segments,
            self.epochs,
            end_offset=self.log_end_offset,
            has_new_batches=self.flushed_offset < self.log_end_offset,
            others=self._compactions.unsynced_files,
            note=self._note.take_due(),
        )

    def finish_flush(self, ticket: FlushTicket) -> None:
        """Take the result of `ticket.sync`; it is ignored if the log was truncated meanwhile."""
        if self._flushes.finish(ticket, self.epochs):
            self.flushed_offset = max(self.flushed_offset, ticket.end_offset)
            if not self._limits.has_read_note:
                self._checked.settle()
            # After the sync, and before any callback.
            self._note.write(self.flushed_offset, self._flushes.epochs_crc)
        self._compactions.mark_synced(frozenset(ticket.files))

    def flush(self) -> None:
        """Begin, sync and finish in one go, for owners without a flush thread."""
        ticket = self.begin_flush()
        try:
            ticket.sync()
        except StorageError as fault:
            self._fail(f"a flush failed: {fault.detail}")
            raise
        self.finish_flush(ticket)

    def truncate_to(self, offset: int) -> None:
        """Cut the log so that it ends at this offset, or at the start of the batch that contains it.

        The owner must first have made a recovery point of at most `offset` durable: a shorter log is damage otherwise.
        """
        if self._failure:
            self.refuse()
        if offset >= self.log_end_offset:
            return
        assert offset >= self.log_start_offset, f"{self._directory}: truncation to {offset} below the log start"
        self.abort_compaction()
        self._flushes.note_truncation()
        self._key_ends = None
        self._is_changed = True
        try:
            at = self._segments.index_of(offset)
            segment = self._segments.all[at]
            position = segment.locate(offset)
            end_offset = offset
            if position < segment.size_bytes:
                end_offset = min(offset, segment.header_at(position).base_offset)
            self._segments.aborted_of(segment)  # in memory: the file goes
            if end_offset < self.log_start_offset:
                # The log starts inside the batch that goes.
                self.truncate_fully_and_start_at(self.log_start_offset)
                return
            if self.checkpoint is not None:
                self.checkpoint.cut(end_offset)
            self._checked.settle()
            self._note.lower(min(end_offset, self.flushed_offset))
            self._segments.remove_after(at + 1)
            segment.remove_index_files()
            self._log_producers.remove_snapshots_above(end_offset)
            self._flushes.forget_removed_files()
            # Names first: a removed segment that came back after a power cut would be taken for the log.
            self._files.sync_dir(self._directory)
            if end_offset > segment.end_offset_before(position):
                # The log ends in a gap now. A segment that starts there keeps that end, also in a recovery.
                self._segments.add(end_offset)
                self._files.sync_dir(self._directory)
            segment.cut_to(position, end_offset)
            if segment is not self._segments.active and segment.aborted:
                segment.write_aborted()
                self._files.sync_dir(self._directory)
            segment.sync()
            self.log_end_offset = end_offset
            self.first_dirty_offset = min(self.first_dirty_offset, end_offset)
            self.flushed_offset = min(self.flushed_offset, end_offset)
            self.epochs.truncate_from_end(end_offset)
            self._log_producers.reload(end_offset)
        except (StorageError, CorruptRecords) as fault:
            reason = f"a truncation to {offset} failed: {fault.detail}"
            if isinstance(fault, CorruptRecords):
                self.condemn(reason)  # the damage may be in any segment that was read
            else:
                self._fail(reason)
            raise

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything; the log is empty and begins at this offset. For a replica that fell behind its leader.

        The owner must first have lowered the recovery point, durably: a crash meanwhile leaves any part of the old
        segments.
        """
        if self._failure:
            self.refuse()
        self.abort_compaction()
        self._flushes.note_truncation()
        self._key_ends = None
        self._is_changed = True
        try:
            if self.checkpoint is not None:
                self.checkpoint.cut(-1)
            self._checked.settle()
            self._note.lower(0)
            self._log_producers.remove_snapshots_above(-1)
            self._flushes.forget_removed_files()
            self._segments.restart(offset)
        except StorageError as fault:
            self._fail(f"a new start at {offset} failed: {fault.detail}")
            raise
        self.log_start_offset = self.flushed_offset = self.log_end_offset = self.first_dirty_offset = offset
        self.epochs.replace(())
        self.producers.replace({}, end_offset=offset)

    @property
    def is_empty(self) -> bool:
        """Whether there is no batch, not even one below the log start."""
        return self.log_start_offset == self.log_end_offset and not self.size_bytes and self.segment_count == 1

    def begin_within(self, first: AppendBatch, *, checked_from: int = UNCHECKED) -> None:
        """Begin an empty log with this batch, which contains the log start; the start stays. For a replica.

        `checked_from` is as for `append`.

        The batch is durable when this returns, and a crash leaves either the empty log or this one: no recovery point
        has to be lowered. Raises StorageError; if the log is not offline then, it is as it was.
        """
        if self._failure:
            self.refuse()
        header = first.header
        base_offset, end_offset = header.base_offset, header.end_offset
        is_within = self.is_empty and base_offset < self.log_end_offset < end_offset
        assert is_within, f"{self._directory}: batch at {base_offset} begun at {self.log_end_offset}"
        self.abort_compaction()
        self._is_changed = True
        self._checked.settle()
        self._checked.append(base_offset, checked_from)
        self._segments.write_cleaned(first)
        try:
            self._log_producers.remove_snapshots_above(-1)
            self._flushes.forget_removed_files()
            self._segments.swap(base_offset, 1)
            self.producers.replace({}, end_offset=base_offset)
            self._log_producers.apply(self._segments.active, (first,))
        except (StorageError, CorruptRecords) as fault:
            self._fail(f"a log that starts within a batch could not begin with it: {fault.detail}")
            raise
        self.epochs.assign(header.partition_leader_epoch, self.log_start_offset)
        self.log_end_offset = end_offset

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start to this offset; the next retention removes what lies below. It never falls.

        Raises OFFSET_OUT_OF_RANGE above the log's end.
        """
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log cannot start at {offset}: it ends at {self.log_end_offset} ({self._directory})",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    @property
    def next_removal_ms(self) -> int | None:
        """The time (ms since 1970) from which `remove_retired` removes something; None without retired files."""
        return self._segments.next_removal_ms

    def remove_retired(self, now_ms: int | None) -> None:
        """Remove the files of retired segments whose deadline has passed; without a time, all of them."""
        if not self._failure:
            self._segments.unlink_retired(now_ms)

    def apply_retention(
        self, now_ms: int, high_watermark: int, *, only_below_log_start: bool = False, frees_all: bool = False
    ) -> list[RetiredSegment]:
        """Retire the segments that are too old, too many or below the log start; call it now and then.

        `only_below_log_start`: a follower's log begins where its leader's does, whatever the settings say.
        Only whole segments below the high watermark, and the active one only with `frees_all`, for a disk that is short
        of space: an empty one follows it. Their files are renamed at once, and `remove_retired` removes them
        `file.delete.delay.ms` later.
        """
        if self._failure:
            self.refuse()
        self._checked.settle()
        segments = self._segments
        segments.unlink_retired(now_ms)
        kept: Sequence[StoredSegment] = segments.all
        if frees_all and segments.active.size_bytes:
            kept = (*segments.all, NoSegment(self.log_end_offset))
        reasons = expired_segments(
            kept,
            config=self._config,
            now_ms=now_ms,
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
            only_below_log_start=only_below_log_start,
        )
        if not reasons:
            return []
        if len(reasons) == len(segments):
            try:
                self._roll(self.log_end_offset, retires_old=True)
            except StorageError:
                if len(reasons) == 1:
                    raise
                reasons.pop()  # there is no space for the files of another segment: the older ones go all the same
        retired = [
            RetiredSegment(
                segment.base_offset,
                segment.size_bytes,
                reason,
                -1 if reason is Reason.START_OFFSET else segment.max_timestamp,
            )
            for segment, reason in zip(segments.all, reasons, strict=False)
        ]
        self._is_changed = True
        self.abort_compaction()
        start_offset = segments.all[len(reasons)].base_offset
        # The only record, from now on, of the producers there; a roll leaves its sync to the next flush.
        self._log_producers.sync_snapshot(start_offset)
        self.advance_log_start(start_offset)
        segments.retire(len(reasons), deadline_ms=now_ms + self._config.file_delete_delay_ms)
        self._flushes.forget_removed_files()
        return retired

    def cleanable(self, now_ms: int, *, end_offset: int) -> Cleanable:
        """The plan of a compaction now. `end_offset` is the smaller of high watermark and last stable offset."""
        return self._compactions.cleanable(
            self._config,
            now_ms,
            first_dirty_offset=self.first_dirty_offset,
            log_start_offset=self.log_start_offset,
            end_offset=min(end_offset, self._compaction_bound),
        )

    @property
    def _compaction_bound(self) -> int:
        return LAST_OFFSET if self.checkpoint is None else self.checkpoint.compaction_bound

    def begin_compaction(self, now_ms: int, *, end_offset: int, memory_bytes: int) -> Compaction | None:
        """Begin a compaction, which keeps the last record of each key; None if nothing is dirty. One at a time.

        It reads flushed records only: a record goes when the one that replaces it is durable. The caller makes the
        steps, and flushes the log when `needs_sync`; then `finish_compaction`. `memory_bytes` bounds the map of keys:
        keys beyond that are left for the next compaction.
        """
        if self._failure:
            self.refuse()
        return self._compactions.begin(
            self._config,
            now_ms,
            first_dirty_offset=self.first_dirty_offset,
            log_start_offset=self.log_start_offset,
            durable_end=min(end_offset, self.flushed_offset, self._compaction_bound),
            before_swap=self._before_swap,
            on_broken=self._fail,
            memory_bytes=memory_bytes,
        )

    def finish_compaction(self, compaction: Compaction) -> None:
        """Take the result of a compaction that is over."""
        self.first_dirty_offset = max(self.first_dirty_offset, self._compactions.finish(compaction))

    def abort_compaction(self) -> None:
        """Give up the compaction that is under way, if there is one."""
        self.first_dirty_offset = max(self.first_dirty_offset, self._compactions.abort())

    def _before_swap(self, bound: int) -> None:
        self._is_changed = True
        # Records that are not durable yet may be lost, and must not pass for compacted ones then.
        self._gaps.allow(bound if self._gaps.is_known else max(bound, self.flushed_offset))

    def compact(self, now_ms: int, *, end_offset: int, memory_bytes: int = 1 << 27) -> Compaction | None:
        """Begin, make all steps and finish in one go, for owners without an event loop."""
        compaction = self.begin_compaction(now_ms, end_offset=end_offset, memory_bytes=memory_bytes)
        if compaction is None:
            return None
        try:
            while not compaction.is_over:
                if compaction.needs_sync:
                    self.flush()
                compaction.step(_STEP_BYTES)
        finally:
            if compaction.is_over:
                self.finish_compaction(compaction)
            else:
                self.abort_compaction()
        return compaction

    @property
    def closed(self) -> ClosedLog | None:
        """The note that `reopen` needs after a clean close of the log; None if it must be opened from its files."""
        if self.producers and self._log_producers.snapshot_offset != self.log_end_offset:
            return None
        return ClosedLog(
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            first_dirty_offset=max(self.first_dirty_offset, self.log_start_offset),
            gap_bound=self._gaps.bound,
            snapshot_offset=self._log_producers.snapshot_offset,
            has_producers=bool(self.producers),
            segments=tuple(ClosedSegment(segment.base_offset, segment.size_bytes) for segment in self._segments.all),
            # As in recovery: an epoch without a record is begun again by the elected leader.
            epochs=tuple(entry for entry in self.epochs.entries if entry.start_offset < self.log_end_offset),
        )

    def close(self, *, clean: bool = True) -> None:
        """Give all descriptors back. A clean close makes everything durable first, so that the next open can trust it.

        The log must not be used afterwards. Raises StorageError if the clean close fails; then it was not clean.
        """
        try:
            self.abort_compaction()
            if clean and not self._failure and (self._is_changed or not self.is_flushed):
                self._close_cleanly()
            if clean and not self._failure and self._key_ends is not None:
                self._key_ends.indexes.save()
        finally:
            self._segments.close()
            self._note.close()
            for file in self._flushes.unsynced_files:
                file.close()
            self._on_offline = None
            self._fail("it was closed")

    def _close_cleanly(self) -> None:
        assert not self._flushes.is_under_way, f"{self._directory}: a flush is under way"
        if self._segments.active.size_bytes:
            self._segments.active.write_indexes()
        for segment in self._segments.all:
            if segment.unsynced_files:
                segment.sync()
        if self.log_start_offset < self.log_end_offset and self._log_producers.snapshot_offset < self.log_end_offset:
            self._log_producers.write_snapshot(self.log_end_offset)
        self.flush()
        self._segments.unlink_retired(None)
        self._files.sync_dir(self._directory)
        self._is_changed = False
