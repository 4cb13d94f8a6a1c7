"""The walk over segments whose time indexes are made of headers that were not checked: the records decide anew.

A step reads some batches, oldest segment first; a segment's index is replaced when it was walked to its end. The owner
takes steps between other work. Segments that change meanwhile are walked again.
"""

from tailrace.storage.keys.key_ends import StepWork
from tailrace.storage.scrub import IndexCheck
from tailrace.storage.segment import Segment
from tailrace.storage.segments import Segments


class TimeCheck:
    """The walk over one log."""

    __slots__ = ("_changes", "_index", "_position", "_segment")

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._index: IndexCheck | None = None
        self._position = 0
        self._changes = -1

    def step(self, segments: Segments, work: StepWork, *, log_start_offset: int) -> bool:
        """Do that much work; whether there is more to do. Raises CorruptRecords and StorageError."""
        while not work.is_spent:
            segment = first_doubtful(segments, log_start_offset)
            if segment is None:
                self._segment = self._index = None
                return False
            self._walk(segment, segments, work)
        return first_doubtful(segments, log_start_offset) is not None

    def _walk(self, segment: Segment, segments: Segments, work: StepWork) -> None:
        is_other = segment is not self._segment or segments.changes != self._changes
        if self._index is None or is_other or self._position > segment.size_bytes:
            self._segment, self._changes, self._position = segment, segments.changes, 0
            self._index = IndexCheck(segment)
            self._index.is_right = False  # its files are not read: they are replaced in any case
        index = self._index
        for position, batch, header in segment.batches(self._position):
            index.note(position, batch)
            self._position = position + header.size_bytes
            work.spend(header.size_bytes)
            if work.is_spent:
                return
        work.spend(0)
        index.finish()
        segment.take_indexes(*index.fresh, is_sealed=segment is not segments.active)
        if segment is not segments.active:
            segments.keep_loaded(segment)
        self._segment = self._index = None


def first_doubtful(segments: Segments, log_start_offset: int) -> Segment | None:
    """The oldest segment with doubtful times, None if there is none."""
    first = segments.all[0]
    if first.base_offset >= first.checked_from:
        return None
    return next((segment for segment in segments.from_offset(log_start_offset) if segment.has_doubtful_times), None)
