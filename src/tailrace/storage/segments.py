"""The segments of one log, oldest first: found by offset, added at the end, retired at the start.

The last segment is active. Of the older segments, only the few that were read last keep their indexes in memory. Files
of retired segments are renamed to `.deleted` and removed some time later.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.storage.checkpoints import replace_file
from tailrace.storage.file_system import FileSystem
from tailrace.storage.producers.snapshots import rebuild_aborted, snapshot_path
from tailrace.storage.segment_files.batch_file import AppendBatch, Expected, ReadLimits, ReadResult
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from tailrace.storage.segment_files.swap import CLEANED_SUFFIX, remove_cleaned, swap_in
from tailrace.storage.segment_files.transaction_index import AbortedTxn, TransactionIndex

DELETED_SUFFIX: Final = ".deleted"

_BASE_OFFSET = attrgetter("base_offset")
_MAX_READ_HINTS: Final = 16
_MAX_LOADED_INDEXES: Final = 4


class Segments:
    """At least one segment, in the order of their offsets."""

    __slots__ = (
        "_directory",
        "_files",
        "_hints",
        "_limits",
        "_loaded",
        "_older_bytes",
        "_retired",
        "_segments",
        "active",
        "changes",
    )

    def __init__(self, directory: str, segments: list[Segment], *, files: FileSystem, limits: SegmentLimits) -> None:
        self._directory = directory
        self._files = files
        self._limits = limits
        self._segments = segments
        self.active = segments[-1]
        """The last segment, which is appended to."""
        self._older_bytes = sum(segment.size_bytes for segment in segments[:-1])
        self._hints: dict[int, tuple[Segment, int]] | None = None
        self._loaded: tuple[Segment, ...] = ()
        self._retired: tuple[tuple[int, str], ...] = ()
        self.changes = 0
        """The number of times that segments were removed or replaced."""

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def all(self) -> Sequence[Segment]:
        """The segments, oldest first. Do not change the sequence."""
        return self._segments

    @property
    def size_bytes(self) -> int:
        return self._older_bytes + self.active.size_bytes

    def read(self, limits: ReadLimits, expected: Expected) -> ReadResult | None:
        """Whole batches from the batch that holds the offset, or the next batch where offsets are missing; None at the
        end.

        Raises CorruptRecords for batches that are not as expected.
        """
        offset, hints = limits.offset, self._hints
        if hints is None:
            hints = self._hints = {}
        place, first_offset = hints.get(offset), offset
        if place is None or place[1] >= place[0].size_bytes:
            place, first_offset = self._locate(offset, expected.gap_limit), -1
            if place is None:
                return None
        segment, position = place
        if segment is not self.active:
            self.keep_loaded(segment)
        result = segment.read(position, limits, expected, first_offset=first_offset)
        if result.size_bytes:
            # A reader comes back for the next batches: then no index is searched.
            if len(hints) >= _MAX_READ_HINTS:
                del hints[next(iter(hints))]
            hints[result.next_offset] = (segment, result.end_position)
        return result

    def index_of(self, offset: int) -> int:
        """The index of the segment that holds this offset; the first segment for an offset before the log."""
        return max(bisect_right(self._segments, offset, key=_BASE_OFFSET) - 1, 0)

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """The segment that holds this offset, and every later segment."""
        return self._segments[self.index_of(offset) :]

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records from `offset` on and below `end_offset`, by their markers.

        A marker may stand in a later segment than its records.
        """
        found: list[AbortedTxn] = []
        for segment in self.from_offset(offset):
            aborted = self.aborted_of(segment)
            if aborted:
                self.keep_loaded(segment)
                of_segment, is_complete = aborted.collect(offset, end_offset=end_offset)
                found += of_segment
                if is_complete:
                    break
        return found

    def aborted_of(self, segment: Segment) -> TransactionIndex:
        """The segment's aborted transactions; a damaged file is made anew."""
        try:
            return segment.aborted
        except CorruptRecords:
            rebuild_aborted(self._files, self._directory, self._segments, segment)
            aborted = segment.aborted
            if segment is not self.active:
                # The whole file is taken or nothing of it: the segment is not read again.
                replace_file(self._files, segment.transaction_index_path, aborted.to_bytes())
                aborted.is_dirty = False
            return aborted

    def _locate(self, offset: int, gap_limit: int) -> tuple[Segment, int] | None:
        """The segment and position of the first batch that ends at or after this offset, None without such a batch."""
        for segment in self.from_offset(offset):
            position = segment.locate(offset, gap_limit=gap_limit)
            if position < segment.size_bytes:
                return segment, position
        return None

    def keep_loaded(self, segment: Segment) -> None:
        """Keep this segment's indexes in memory; beyond the limit, drop the indexes of the segment read longest ago."""
        if segment is self.active or (self._loaded and segment is self._loaded[-1]):
            return
        others = [other for other in self._loaded if other is not segment]
        while len(others) >= _MAX_LOADED_INDEXES:
            others.pop(0).forget_indexes()
        self._loaded = (*others, segment)

    def add(self, base_offset: int) -> None:
        """Begin a new segment, with a new file, behind the active segment."""
        old = self.active
        new = Segment(self._directory, base_offset, files=self._files, limits=self._limits, create=True)
        self._segments.append(new)
        self.active = new
        self._older_bytes += old.size_bytes
        self.keep_loaded(old)

    def remove_after(self, count: int) -> None:
        """Remove all segments but the first `count`, the last segment first; `active` is another segment then."""
        for segment in reversed(self._segments[count:]):
            segment.remove()
        del self._segments[count:]
        self._settle()

    def restart(self, base_offset: int) -> None:
        """Remove all segments, durably, and begin with an empty segment."""
        self.unlink_retired(None)
        for segment in reversed(self._segments):
            segment.remove()
        self._files.sync_dir(self._directory)
        self._segments = [Segment(self._directory, base_offset, files=self._files, limits=self._limits, create=True)]
        self._files.sync_dir(self._directory)
        self._settle()

    def _settle(self) -> None:
        segments = self._segments
        self._hints = None
        self.changes += 1
        if segments:
            self.active = segments[-1]
            self._loaded = tuple(segment for segment in self._loaded if segment in segments[:-1])
            self._older_bytes = sum(segment.size_bytes for segment in segments[:-1])

    def retire(self, count: int, *, deadline_ms: int) -> None:
        """Take the first `count` segments out of the log: their files are renamed now, and removed at the deadline."""
        going = self._segments[:count]
        self._segments = self._segments[count:]
        self._settle()
        # The names of the segments that stay must be durable before older segments go.
        self._files.sync_dir(self._directory)
        renamed: list[tuple[int, str]] = []
        try:
            # Without the newest of them the older segments are gone too, for the next opening. So after a crash the log
            # begins at the old start or at the new start.
            for segment in reversed(going):
                segment.close()
                snapshot = snapshot_path(self._directory, segment.base_offset)
                indexes = *segment.index_paths, segment.transaction_index_path, segment.key_index_path
                for path in (segment.log_path, *indexes, snapshot):
                    if self._files.exists(path):
                        self._files.rename(path, path + DELETED_SUFFIX)
                        renamed.append((deadline_ms, path + DELETED_SUFFIX))
                if segment is going[-1] and count > 1:
                    self._files.sync_dir(self._directory)
        finally:
            self._retired = (*self._retired, *renamed)
        self._files.sync_dir(self._directory)

    def write_cleaned(self, batch: AppendBatch) -> None:
        """Write a segment with this batch alone, durably, as `.cleaned`. If that fails, nothing is left."""
        base_offset = batch.header.base_offset
        segment = Segment(
            self._directory, base_offset, files=self._files, limits=self._limits, create=True, suffix=CLEANED_SUFFIX
        )
        try:
            segment.start_indexes()
            segment.append((batch,))
            segment.write_indexes()
            segment.sync()
        except StorageError:
            segment.close()
            remove_cleaned(self._files, self._directory, base_offset)
            raise
        segment.close()

    def swap(self, base_offset: int, count: int) -> None:
        """Replace `count` segments from this offset on, or from the log's start, by the `.cleaned` segment."""
        at = self.index_of(base_offset)  # 0 if the new segment begins before every segment
        going = self._segments[at : at + count]
        for segment in going:
            segment.close()
        swap_in(self._files, self._directory, base_offset, [segment.base_offset for segment in going])
        swapped = Segment(self._directory, base_offset, files=self._files, limits=self._limits)
        swapped.has_true_times = True  # each batch was noted as it was written
        self._segments[at : at + count] = [swapped]
        self._settle()

    def unlink_retired(self, now_ms: int | None) -> None:
        """Remove the retired files whose deadline has passed; without a time, every retired file."""
        due = [item for item in self._retired if now_ms is None or item[0] <= now_ms]
        if due:
            self._retired = tuple(item for item in self._retired if now_ms is not None and item[0] > now_ms)
            for _, path in due:
                self._files.unlink(path)

    @property
    def next_removal_ms(self) -> int | None:
        """The earliest deadline of a retired file; None without retired files."""
        return min((deadline_ms for deadline_ms, _ in self._retired), default=None)

    def close(self) -> None:
        """Give all descriptors back."""
        for segment in self._segments:
            segment.close()
