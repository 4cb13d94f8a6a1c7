"""Changes of a log that reach beyond one segment: rolls, appends with a roll, and cuts; a failure is undone."""

from collections.abc import Iterable, Sequence

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.storage.file_system import FileSystem
from tailrace.storage.flush import Flushes
from tailrace.storage.log_producers import LogProducers
from tailrace.storage.readable_log import ReadableLog
from tailrace.storage.segment_files.batch_file import AppendBatch
from tailrace.storage.segment_files.segment import Segment


class AcrossSegments:
    """The changes of one log's segments, with their producers' snapshots and the syncs that must come first."""

    __slots__ = ("_files", "_flushes", "_log", "_producers")

    def __init__(self, log: ReadableLog, *, files: FileSystem, producers: LogProducers, flushes: Flushes) -> None:
        self._log = log
        self._files = files
        self._producers = producers
        self._flushes = flushes

    def append(self, batches: Sequence[AppendBatch]) -> None:
        """Append with one roll or more. On a failure everything is undone, or the log goes offline."""
        log, segments, producers = self._log, self._log.segments, self._log.producers
        saved_producers = producers.copy_producers()
        segment_count, size_bytes = len(segments), segments.active.size_bytes
        rest = batches
        try:
            while rest:
                count = segments.active.count_that_fit(rest)
                if not count:
                    self.roll(rest[0].header.base_offset)
                    continue
                part, rest = rest[:count], rest[count:]
                segments.active.append(part)
                self._producers.apply(segments.active, part)
        except (StorageError, CorruptRecords):
            producers.replace(saved_producers, end_offset=log.log_end_offset)
            self._undo_append(segment_count, size_bytes)
            raise
        producers.discard_staged()

    def _undo_append(self, segment_count: int, size_bytes: int) -> None:
        log = self._log
        try:
            log.segments.remove_after(segment_count)
            log.segments.active.cut_to(size_bytes, log.log_end_offset)
            # Other batches will lead to these offsets: the producers' snapshots there would be wrong.
            self._producers.remove_snapshots_above(log.log_end_offset)
            self._flushes.forget_removed_files()
            self._files.sync_dir(log.directory)
        except (StorageError, CorruptRecords) as fault:
            log.fail(f"an append failed and could not be undone: {fault.detail}")

    def cut_back(self) -> None:
        """Remove the bytes of a failed append."""
        try:
            self._log.segments.active.cut_back()
        except StorageError as fault:
            self._log.fail(f"a failed append could not be cut back: {fault.detail}")

    def roll(self, base_offset: int, *, retires_old: bool = False) -> None:
        """Begin a new segment at this offset. The next flush syncs its name. `retires_old`: the old segment is retired
        at once.

        Before that flush a power cut may take the new segment back: recovery cuts the log where the old segment is not
        whole, and a torn snapshot has a wrong checksum. Only the first segment's name must be durable: without it the
        log would begin at the new segment, as after retention.
        """
        log, segments = self._log, self._log.segments
        if len(segments) == 1 and self._flushes.has_unsynced_names:
            self._sync_first_name()
        if log.config.is_compacted and not log.gaps.is_known:
            # If the old segment, not durable yet, is lost, the loss must not pass for a gap. A directory that another
            # program has filled may have gaps anywhere. A directory of ours has only noted gaps.
            log.gaps.allow(log.flushed_offset)
        if log.gaps.is_legal_before(base_offset, is_compacted=log.config.is_compacted):
            # After a truncation below the gap bound, or on a follower: a lost segment would pass for a gap.
            self._sync_below_gaps((segments.active,))
        if not retires_old:  # there may be no space for index files; a start after a crash makes them anew
            segments.active.write_indexes()
        self._flushes.note_new(self._producers.begin_snapshot(base_offset), log.directory)
        segments.add(base_offset)

    def _sync_first_name(self) -> None:
        try:
            self._files.sync_dir(self._log.directory)
        except StorageError as fault:
            self._log.fail(f"the first segment's name could not be synced: {fault.detail}")
            raise

    def prepare_policy(self, *, is_compacted: bool) -> None:
        """Note the gap bound, if the bound must be on the disk before cleanup.policy changes to `is_compacted`."""
        log = self._log
        if log.gaps.is_known:
            return
        if is_compacted:
            # Old segments that are not durable have no gaps. A lost segment must not pass for a gap because the log is
            # compacted from now on. For later segments the next roll does this.
            must_note = log.flushed_offset < log.segments.active.base_offset
        else:
            must_note = log.size_bytes > 0  # another program may have compacted this log
        try:
            if must_note:
                log.gaps.allow(log.flushed_offset)
        except StorageError as fault:
            log.fail(f"it cannot be noted that offsets may be missing: {fault.detail}")

    def sync_before_gap(self) -> None:
        """Make all appended batches durable. Under flushed durability a follower's batches always are durable."""
        if self._log.flushed_offset < self._log.log_end_offset:
            self._sync_below_gaps(self._log.segments.all)

    def _sync_below_gaps(self, segments: Iterable[Segment]) -> None:
        """Sync these segments and all names: where gaps are legal, a lost segment passes for a gap."""
        log = self._log
        try:
            for segment in segments:
                if segment.unsynced_files or segment is log.segments.active:
                    segment.sync()
            self._files.sync_dir(log.directory)
        except StorageError as fault:
            log.fail(f"what lies below a gap could not be synced: {fault.detail}")  # a second sync would prove nothing
            raise

    def cut(self, segment: Segment, position: int, end_offset: int) -> None:
        """Cut the log at this position of a segment, durably; the log then ends at this offset. The caller has lowered
        the log's note and checkpoint before. Raises StorageError and CorruptRecords."""
        log, segments = self._log, self._log.segments
        segments.remove_after(segments.index_of(segment.base_offset) + 1)
        segment.remove_index_files()
        self._producers.remove_snapshots_above(end_offset)
        self._flushes.forget_removed_files()
        # Names first: a removed segment that came back after a power cut would be taken for the log.
        self._files.sync_dir(log.directory)
        if end_offset > segment.end_offset_before(position):
            # The log ends in a gap now. A segment that starts there keeps that end, also in a recovery.
            segments.add(end_offset)
            self._files.sync_dir(log.directory)
        segment.cut_to(position, end_offset)
        if segment is not segments.active and segment.aborted:
            segment.write_aborted()
            self._files.sync_dir(log.directory)
        segment.sync()

    def retire(self, count: int, *, deadline_ms: int) -> None:
        """Take the first `count` segments out of the log, as `Segments.retire`; the log then starts later."""
        log = self._log
        start_offset = log.segments.all[count].base_offset
        # From now on the snapshot is the only record of the producers at the new start; a roll leaves the snapshot's
        # sync to the next flush.
        self._producers.sync_snapshot(start_offset)
        log.advance_log_start(start_offset)
        log.segments.retire(count, deadline_ms=deadline_ms)
        self._flushes.forget_removed_files()

    def restart(self, base_offset: int) -> None:
        """Remove all segments, durably, and begin with an empty segment. Raises StorageError."""
        self._producers.remove_snapshots_above(-1)
        self._flushes.forget_removed_files()
        self._log.segments.restart(base_offset)

    def begin_with(self, first: AppendBatch) -> None:
        """Put the segment of this batch, written before, in the place of the empty segment. Raises StorageError
        and CorruptRecords."""
        base_offset, segments = first.header.base_offset, self._log.segments
        self._producers.remove_snapshots_above(-1)
        self._flushes.forget_removed_files()
        segments.swap(base_offset, 1)
        self._log.producers.replace({}, end_offset=base_offset)
        self._producers.apply(segments.active, (first,))
