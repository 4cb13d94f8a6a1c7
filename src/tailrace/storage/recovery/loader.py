"""Recovery of a log from its files: the parts to trust, to check and to cut.

1. After a clean stop everything is trusted; only the batches behind the last index entry are walked over.
2. Otherwise every batch is checked from the segment that holds the recovery point on: checksum, offsets that continue
   the batch before, leader epochs as in the metadata and in `leader-epoch-checkpoint`, batches that tile the
   file, nothing behind the last batch.
3. Below the *flushed end* a fault is damage: nothing is cut, and the log is neither written to nor used as a shorter
   log. The flushed end is the largest of the recovery point, the log's own note (`storage.flushed_note`) and, where a
   high watermark is never above the flushed offset (log.durability=flushed), the last noted watermark.
4. A fault at or above the flushed end is a write that was never reported as flushed, which a power cut may tear in any
   order: the log is cut there, whatever follows, and the report names the cut.
5. Under page-cache durability a power cut may take records below the high watermark. Such a log is cut and can be used,
   and the report has `lost_acknowledged`.
6. A log start above the end is accepted where the end may have been lost: the log begins there, empty. With
   log.durability=flushed a log start is never above the flushed end: if every flushed batch is there, the checkpoint,
   which has no checksum, is wrong, and the log begins with its first segment.
7. Recovery may be cut short itself: doing it again gives the same log. Recovery never makes a log longer.
"""

from dataclasses import dataclass, field
from typing import Final

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords
from tailrace.storage.checkpoints import GAP_BOUND, LEADER_EPOCHS, read_gap_bound, replace_file, write_gap_bound
from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.file_system import FileSystem, join, parent
from tailrace.storage.flushed_note import FLUSHED_OFFSET, read_note
from tailrace.storage.gaps import UNKNOWN_GAPS
from tailrace.storage.producers.snapshots import load_producers, rebuild_aborted, snapshot_offsets, snapshot_path
from tailrace.storage.producers.state import ProducerState
from tailrace.storage.recovery.epochs import FoundEpoch, RecoveredEpochs
from tailrace.storage.recovery.report import Acknowledged, Damage, LoadedLog, RecoveryReport
from tailrace.storage.recovery.stale_files import remove_stale_files
from tailrace.storage.segment_files.batch_file import MAX_RELATIVE_OFFSET, checked_batches
from tailrace.storage.segment_files.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_in_name,
    segment_name,
)
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from tailrace.storage.segment_files.swap import finish_swaps

_SMALL_BYTES: Final = 1 << 16
_EVERYTHING: Final = 2**63 - 1


@dataclass(slots=True)
class _Scan:
    """The good part of a segment."""

    valid_bytes: int = 0
    end_offset: int = 0
    fault: str = ""
    epochs: list[FoundEpoch] = field(default_factory=list)


class Loader:
    """Loads one partition's directory. Used once."""

    def __init__(
        self,
        directory: str,
        *,
        files: FileSystem,
        limits: SegmentLimits,
        acknowledged: Acknowledged,
        log_start_offset: int,
        clean: bool,
        is_compacted: bool,
        is_durable: bool,
        cuts_damage: bool,
        check_from: int | None,
    ) -> None:
        self._directory = directory
        self._files = files
        self._limits = limits
        self._recovery_point = acknowledged.recovery_point
        self._flushed_end = max(acknowledged.recovery_point, acknowledged.high_watermark if is_durable else 0)
        self._epochs = RecoveredEpochs(acknowledged.leader_epoch)
        self._synced_end = acknowledged.recovery_point
        self._cuts_damage = cuts_damage
        self._cuts_from = 0 if check_from is None else check_from
        self._check_from = acknowledged.recovery_point
        if check_from is not None:
            self._check_from = min(check_from, self._check_from)
        self._log_start_offset = log_start_offset
        self._is_compacted = is_compacted
        self._gap_bound = UNKNOWN_GAPS
        self._is_durable = is_durable
        self._names: set[str] = set()
        self._segments: list[Segment] = []
        self._is_new = False
        self._noted_end = 0
        self._report = RecoveryReport(
            clean=clean, acknowledged_end_offset=max(acknowledged.recovery_point, acknowledged.high_watermark)
        )

    def load(self) -> LoadedLog:
        """The log; of a damaged log, the part before the damage (`report.damage`)."""
        finish_swaps(self._files, self._directory, limits=self._limits)
        self._names = remove_stale_files(self._files, self._directory, limits=self._limits)
        self._read_notes()
        has_gap_bound = self._read_gap_bound()
        bases = sorted(base for name in self._names if (base := offset_in_name(name, LOG_SUFFIX)) is not None)
        self._segments = [Segment(self._directory, base, files=self._files, limits=self._limits) for base in bases]
        if not self._segments:
            self._start_empty()
            end_offset, checked_from = self._segments[0].base_offset, 0
        else:
            end_offset, checked_from = self._find_end()
        if end_offset < self._flushed_end and not self._cuts_damage and not self._report.damaged:
            active = self._segments[-1]
            self._report.damage = Damage(
                active.log_path,
                active.size_bytes,
                f"the log ends at offset {end_offset} but was flushed up to {self._flushed_end}",
                end_offset,
                self._flushed_end,
            )
        producers, snapshot_offset = ProducerState(), -1
        if not self._report.damaged:
            self._judge_log_start(end_offset)
            end_offset = self._settle(end_offset, checked_from)
            if not has_gap_bound:
                self._gap_bound = min(self._gap_bound, end_offset)
                write_gap_bound(self._files, self._directory, self._gap_bound)
            producers, snapshot_offset = self._producers(end_offset, checked_from)
            self._settle_aborted(checked_from)
            for segment in self._segments[checked_from:-1]:
                segment.forget_indexes()  # otherwise the indexes of the whole log would stay in memory
        log_start_offset = min(max(self._log_start_offset, self._segments[0].base_offset), end_offset)
        epochs = self._recovered_epochs(log_start_offset, end_offset, checked_from)
        if epochs.is_dirty and not self._report.clean and not self._report.damaged:
            # The log will be noted as flushed; the next recovery may not read these batches again.
            self._epochs.content = epochs.to_bytes()
            replace_file(self._files, join(self._directory, LEADER_EPOCHS), self._epochs.content)
            epochs.is_dirty = False
        self._report.end_offset = end_offset
        return LoadedLog(
            segments=self._segments,
            limits=self._limits,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            epochs=epochs,
            producers=producers,
            snapshot_offset=snapshot_offset,
            gap_bound=self._gap_bound,
            is_new=self._is_new,
            report=self._report,
            noted_end_offset=self._noted_end,
            epochs_crc=None if self._epochs.content is None else crc32c(self._epochs.content),
        )

    def _read_gap_bound(self) -> bool:
        """Read the gap bound. Returns False if the bound must be written again. Raises CorruptRecords."""
        if GAP_BOUND not in self._names:
            return True
        try:
            self._gap_bound = read_gap_bound(self._files, self._directory)
        except CorruptRecords:
            if not self._cuts_damage:
                raise
            # The file shows that there may be gaps. At or above the flushed end a gap is a torn write.
            self._gap_bound = self._flushed_end
            return False
        return True

    def _read_notes(self) -> None:
        """Read the directory's own notes of the flushed offset and the leader epochs."""
        if LEADER_EPOCHS in self._names:
            self._epochs.content = self._files.read_bytes(join(self._directory, LEADER_EPOCHS))
        note = read_note(self._files, self._directory) if FLUSHED_OFFSET in self._names else None
        if note is None:
            return
        self._noted_end = note.offset
        report = self._report
        if not report.clean:
            # After a clean stop the recovery point holds; another program may have cut the log since the note.
            self._synced_end = max(self._synced_end, note.offset)
            self._flushed_end = max(self._flushed_end, note.offset)
            report.acknowledged_end_offset = max(report.acknowledged_end_offset, note.offset)
        self._epochs.compare(note.epochs_crc)

    def _start_empty(self) -> None:
        start = self._log_start_offset
        self._is_new = True
        self._segments = [Segment(self._directory, start, files=self._files, limits=self._limits, create=True)]

    def _find_end(self) -> tuple[int, int]:
        """The log's end offset and the index of the first checked segment; the count of segments if unchecked."""
        if self._report.clean:
            try:
                return self._clean_end(), len(self._segments)
            except CorruptRecords:
                # A cleanly closed log was flushed whole, so any fault of the scan is damage.
                self._report.clean = False
                self._flushed_end = _EVERYTHING
                first = len(self._segments) - 1
        else:
            bases = [segment.base_offset for segment in self._segments]
            first = max(sum(base <= self._check_from for base in bases) - 1, 0)
        end_offset = self._scan_from(first)
        if self._flushed_end == _EVERYTHING:
            self._flushed_end = self._recovery_point = end_offset
        return end_offset, first

    def _clean_end(self) -> int:
        active = self._segments[-1]
        end_offset = active.base_offset
        # A small segment is walked over faster than its index files are read.
        start = active.last_indexed_position() if active.size_bytes > _SMALL_BYTES else 0
        for position, header in active.headers(start):
            # The end of the batch before the last index entry is not known here; no checksum covers an offset.
            is_known = position > start or not start
            if is_known and not self._continues(header.base_offset, end_offset):
                raise CorruptRecords(f"offset {header.base_offset} follows offset {end_offset - 1}")
            self._epochs.check(header, durable_end=self._synced_end)
            end_offset = header.end_offset
        return end_offset

    def _scan_from(self, first: int) -> int:
        """Check this segment and all later segments, and cut the log at the first fault. Returns the log's end
        offset."""
        end_offset = previous_end = self._segments[first].base_offset
        epoch = -1
        for at in range(first, len(self._segments)):
            segment = self._segments[at]
            if not self._continues(segment.base_offset, end_offset):
                scan = _Scan(0, end_offset, f"the segment before it ends at offset {end_offset}")
            else:
                scan = self._scan(segment, max(end_offset, segment.base_offset), previous_end, epoch)
            self._epochs.found += scan.epochs
            if scan.epochs:
                epoch = scan.epochs[-1].epoch
            end_offset = scan.end_offset
            if scan.valid_bytes:
                previous_end = end_offset
            if scan.fault:
                self._cut(at, scan)
                break
        return end_offset

    def _continues(self, base_offset: int, end_offset: int) -> bool:
        may_have_gap = base_offset <= self._gap_bound or (self._is_compacted and self._gap_bound == UNKNOWN_GAPS)
        return base_offset == end_offset or (base_offset > end_offset and may_have_gap)

    def _scan(self, segment: Segment, end_offset: int, previous_end: int, epoch: int) -> _Scan:
        """Check every batch of a segment and build its indexes anew.

        The batch before the segment, of this `epoch`, ends at `previous_end`: far below `end_offset`, where this
        segment may begin, if a compaction has left no batch of the segments between.
        """
        scan = _Scan(0, end_offset)
        report = self._report
        report.segments_checked += 1
        report.indexes_rebuilt += 1
        segment.start_indexes()
        try:
            for position, header in checked_batches(segment):
                if not self._continues(header.base_offset, scan.end_offset):
                    raise CorruptRecords(f"offset {header.base_offset} follows offset {scan.end_offset - 1}")
                if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                    raise CorruptRecords(f"offset {header.last_offset} is too far from {segment.base_offset}")
                self._epochs.check(header, durable_end=self._synced_end)
                if header.partition_leader_epoch < epoch:
                    raise CorruptRecords(f"leader epoch {header.partition_leader_epoch} follows {epoch}")
                if header.partition_leader_epoch > epoch:
                    epoch = header.partition_leader_epoch
                    scan.epochs.append(FoundEpoch(epoch, header.base_offset, previous_end))
                segment.note(position, header)
                report.batches_checked += 1
                report.records_checked += header.records_count
                scan.valid_bytes = position + header.size_bytes
                scan.end_offset = previous_end = header.end_offset
        except CorruptRecords as fault:
            scan.fault = fault.detail
        return scan

    def _cut(self, at: int, scan: _Scan) -> None:
        """Cut the log where the scan of segment `at` ended. If the rest was flushed, report damage instead."""
        segment, later = self._segments[at], self._segments[at + 1 :]
        # A segment that does not continue its predecessor goes whole, but a log keeps at least one segment.
        is_misplaced = at > 0 and not self._continues(segment.base_offset, scan.end_offset) and not scan.valid_bytes
        if scan.end_offset < self._flushed_end and not self._is_given_up(at):
            bound = self._synced_end if self._flushed_end == _EVERYTHING else self._flushed_end
            self._report.damage = Damage(
                segment.log_path, scan.valid_bytes, scan.fault, scan.end_offset, max(bound, scan.end_offset)
            )
            # The part before the damage can still be read.
            segment.size_bytes = scan.valid_bytes
            self._segments = self._segments[: at if is_misplaced else at + 1]
            return
        report = self._report
        report.cut_reason = f"{segment.log_path} at position {scan.valid_bytes}: {scan.fault}"
        report.bytes_cut += segment.size_bytes - scan.valid_bytes + sum(other.size_bytes for other in later)
        for other in reversed([segment, *later] if is_misplaced else later):
            other.remove()
            report.segments_removed += 1
        if is_misplaced:
            self._segments = self._segments[:at]
        else:
            self._segments = self._segments[: at + 1]
            segment.remove_index_files()
            segment.cut_to(scan.valid_bytes, scan.end_offset)

    def _is_given_up(self, at: int) -> bool:
        """Whether an operator has chosen to lose the damaged part of this segment.

        A segment before the segment that holds `check_from` is not given up: its damage was not known to the operator,
        and no record of it was copied.
        """
        is_last = at + 1 == len(self._segments)
        return self._cuts_damage and (is_last or self._segments[at + 1].base_offset > self._cuts_from)

    def _judge_log_start(self, end_offset: int) -> None:
        """Ignore a log start above the flushed end if every flushed batch is there: rule 6."""
        base_offset = self._segments[0].base_offset
        # Before a log is dropped to begin anew, its flushed offset is lowered, to its base offset or below.
        is_whole = base_offset < self._synced_end <= end_offset
        if self._is_durable and is_whole and end_offset < self._log_start_offset:
            self._report.ignored_log_start = self._log_start_offset
            self._log_start_offset = base_offset

    def _settle(self, end_offset: int, checked_from: int) -> int:
        """Make the recovered log durable and complete: indexes, files, names. Returns its end offset."""
        segments = self._segments
        if end_offset < self._log_start_offset:
            # Records below the log start cannot be read any more; the log begins at its start.
            for segment in reversed(segments):
                self._report.bytes_cut += segment.size_bytes
                segment.remove()
            self._start_empty()
            return self._settle_names(self._log_start_offset)
        for segment in segments[checked_from:-1]:
            segment.write_indexes()
        for segment in segments[: min(checked_from, len(segments) - 1)]:
            stem = segment_name(segment.base_offset)
            if not {stem + INDEX_SUFFIX, stem + TIME_INDEX_SUFFIX} <= self._names:
                segment.rebuild_indexes()
                segment.write_indexes()
                segment.forget_indexes()
                self._report.indexes_rebuilt += 1
        if not self._report.clean and (end_offset > self._recovery_point or self._report.cut_reason):
            for segment in segments[checked_from:]:
                # The last process may have stopped because a sync failed.
                if self._is_durable:
                    segment.sync_unsure(self._recovery_point)
                else:
                    segment.sync()
            self._settle_names(end_offset)
        for segment in segments:
            if segment.unsynced_files:
                segment.sync()
        return end_offset

    def _settle_names(self, end_offset: int) -> int:
        for offset in snapshot_offsets(self._names):
            if offset > end_offset:
                self._files.unlink(snapshot_path(self._directory, offset))
                self._names.discard(segment_name(offset) + SNAPSHOT_SUFFIX)
                self._report.snapshots_discarded += 1
        self._files.sync_dir(self._directory)
        self._files.sync_dir(parent(self._directory))
        return end_offset

    def _recovered_epochs(self, log_start_offset: int, end_offset: int, checked_from: int) -> EpochCache:
        """The epochs of the checkpoint file below the checked part, and the epochs of the batches from there on."""
        report = self._report
        return self._epochs.settle(
            self._segments,
            checked_from,
            # An epoch is durable with its first batch: unflushed batches may have other epochs.
            known_end=end_offset if report.clean else self._synced_end,
            log_start_offset=log_start_offset,
            log_end_offset=end_offset,
            # The log start may have come back lower than the epochs' own, or their file is lost.
            may_lack_first=not report.clean or report.ignored_log_start is not None,
        )

    def _producers(self, end_offset: int, checked_from: int) -> tuple[ProducerState, int]:
        """The producers at the log's end, and the offset of the newest snapshot."""
        segments = self._segments
        # Replaying the whole checked part remembers five batches per producer there, a snapshot only the newest batch.
        latest = end_offset if checked_from >= len(segments) else segments[checked_from].base_offset
        offsets = snapshot_offsets(self._names)
        state, newest, discarded = load_producers(
            self._files,
            self._directory,
            segments,
            offsets,
            end_offset=end_offset,
            latest_snapshot=latest,
            index_anew=frozenset(segments[checked_from:]),
        )
        self._report.snapshots_discarded += discarded
        return state, newest

    def _settle_aborted(self, checked_from: int) -> None:
        """Write and sync the aborted transactions of all segments but the active segment.

        The active segment's index files are removed: the files may be from the roll, and name more batches than a power
        cut has left. The next clean close trusts the `.txnindex` of an empty segment.
        """
        segments, is_written = self._segments, False
        if checked_from < len(segments) and not self._names.isdisjoint(segments[-1].index_names):
            segments[-1].remove_index_files()
            is_written = True
        written_from = checked_from
        if 0 < checked_from < len(segments) and segments[checked_from].base_offset >= self._recovery_point:
            # Nothing was flushed since the roll: the segment before is durable, except for the files of the roll.
            written_from -= 1
            rebuild_aborted(self._files, self._directory, segments, segments[written_from])
        for segment in segments[written_from:-1]:
            segment.write_aborted()
            if segment.unsynced_files:
                segment.sync()
                is_written = True
        if is_written:
            self._files.sync_dir(self._directory)
