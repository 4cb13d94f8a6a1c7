"""The ends of key ranges in one log, found in steps with the key indexes of the log's segments (KIP-X).

The end of a range is the offset behind the last record of its hashes. A question is answered from the last offsets of
the slots, segment by segment from the end of the log back. Where an index does not reach, a step extends the index:
forward from the last known batch, or back from the first known batch. If the range does not consist of whole slots, or
the question ends within the known batches, the records of a batch are read again.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import SLOT_HASHES, KeyRange, slot_of, slots_of
from tailrace.storage.file_system import FileSystem
from tailrace.storage.keys.batch_slots import BatchGroup, last_match
from tailrace.storage.keys.key_index import HEAD_SIZE, STEPS_KEPT, Entry, KeyIndex
from tailrace.storage.keys.key_indexes import MOST_ENTRIES, KeyIndexes, new_index
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segments import Segments

STEP_BYTES: Final = 4 << 20
"""Plain bytes for one step, not counting the batch that exceeds the limit."""
STEP_MS: Final = 10
"""The time after which a step begins nothing more."""
MAX_QUESTIONS: Final = 1_024
"""The most waiting questions of a log, and the most answers that are kept."""
_BACK_BYTES: Final = 256 << 10
"""The stored bytes by which an index is extended back in one go."""
_FORWARD_BYTES: Final = 16 << 20
"""If an index ends more than this before the end of its segment, a new index, back from the end of the question,
answers most questions sooner."""


_MOST_LOOKUPS: Final = 4
"""The files that are read without a step: a log may have thousands of segments, and a file for every segment."""


class Question(NamedTuple):
    """The end of this range below this offset."""

    wanted: KeyRange
    end_offset: int

    @property
    def slots(self) -> tuple[int, int]:
        """The first and the last slot."""
        return slot_of(self.wanted.first), slot_of(self.wanted.last)

    @property
    def has_whole_slots(self) -> bool:
        return self.wanted.first % SLOT_HASHES == 0 and (self.wanted.last + 1) % SLOT_HASHES == 0


class StepWork:
    """The work that one step may do. A step does at least one piece of work."""

    __slots__ = ("_end_ms", "_has_begun", "_left_bytes", "_monotonic_ms")

    def __init__(self, monotonic_ms: Callable[[], int], *, max_bytes: int = STEP_BYTES) -> None:
        """`max_bytes` are plain bytes."""
        self._monotonic_ms = monotonic_ms
        self._end_ms = monotonic_ms() + STEP_MS
        self._left_bytes = max_bytes
        self._has_begun = False

    def spend(self, size_bytes: int) -> None:
        """Note that so many plain bytes were looked at."""
        self._has_begun = True
        self._left_bytes -= size_bytes

    @property
    def is_spent(self) -> bool:
        return self._has_begun and (self._left_bytes <= 0 or self._monotonic_ms() >= self._end_ms)


class _BackwardRun(NamedTuple):
    """A run of an index that grows back: these batches come before the index."""

    segment: Segment
    batches: KeyIndex
    stop: int
    """The position where these batches are to end, the start of the index."""


class KeyEnds:
    """The key indexes of one log, and the waiting questions. A truncation of the log forgets the object."""

    __slots__ = (
        "_answers",
        "_changes",
        "_empty_below",
        "_reached",
        "_rebuilt",
        "_run",
        "_segments",
        "_waiting",
        "indexes",
    )

    def __init__(self, segments: Segments, *, files: FileSystem, keeps_files: bool) -> None:
        """`keeps_files` is whether key.ranges.index is auto."""
        self.indexes: Final = KeyIndexes(segments, files=files, keeps_files=keeps_files)
        self._segments = segments
        self._changes = segments.changes
        self._run: _BackwardRun | None = None
        self._rebuilt: Segment | None = None
        """The segment whose offset index was found wrong, and made anew."""
        self._waiting: OrderedDict[Question, None] = OrderedDict()
        self._reached: dict[Question, int] = {}
        """The offset down to which there is no record of the range, by waiting question."""
        self._answers: OrderedDict[Question, int] = OrderedDict()
        self._empty_below: dict[KeyRange, int] = {}
        """The offset below which the range has no readable record, by range. A log may have thousands of segments."""

    def end_of(self, question: Question, *, log_start_offset: int) -> int | None:
        """1 + the last offset below the end with a record of the range; the log start if there is no record.

        None: the answer is not known yet, and the question waits for steps.
        """
        self._forget_removed()
        answer = self._answers.get(question)
        if answer is None:
            answer = self._look(question, log_start_offset, None)
        if answer is None:
            self._waiting[question] = None
            if len(self._waiting) > MAX_QUESTIONS:
                self._stop_waiting(next(iter(self._waiting)))
            return None
        return max(answer, log_start_offset)

    def step(self, work: StepWork, *, log_start_offset: int, flushed_offset: int) -> bool:
        """Work for the questions that wait. Returns whether a question is left. Raises StorageError, and CorruptRecords
        for damage."""
        self._forget_removed()
        self.indexes.flushed_offset = flushed_offset
        while self._waiting and not work.is_spent:
            question = next(iter(self._waiting))
            answer = self._look(question, log_start_offset, work)
            if answer is not None:
                self._stop_waiting(question)
                self._answers[question] = answer
                if len(self._answers) > MAX_QUESTIONS:
                    self._answers.popitem(last=False)
        if self._waiting and self._run is None:
            self._waiting.move_to_end(next(iter(self._waiting)))  # other questions may be quicker
        self.indexes.save_sealed()
        return bool(self._waiting)

    def _stop_waiting(self, question: Question) -> None:
        del self._waiting[question]
        self._reached.pop(question, None)

    def _forget_removed(self) -> None:
        self.indexes.forget_removed()
        if self._changes != self._segments.changes:
            self._changes = self._segments.changes
            self._answers.clear()  # a compaction may have removed the last record
            if self._run is not None and self._run.segment not in self._segments.all:
                self._run = None

    # The look

    def _look(self, question: Question, log_start_offset: int, work: StepWork | None) -> int | None:
        """The answer; None if the answer needs more work than is allowed."""
        below = self._reached.get(question, question.end_offset)
        empty_below = max(log_start_offset, self._empty_below.get(question.wanted, 0))
        lookups = 0
        while below > empty_below:
            segment = self.indexes.holder_of(below - 1)
            if segment.base_offset >= below:
                break
            if not self.indexes.knows(segment):
                if work is None:
                    lookups += 1
                    if lookups > _MOST_LOOKUPS:
                        return None
                elif work.is_spent:
                    return None
                else:
                    work.spend(HEAD_SIZE)
            index = self.indexes.find(segment)
            if not segment.size_bytes:
                below = segment.base_offset
            elif index is None or not _covers(index, segment, below):
                if work is None or work.is_spent:
                    return None
                self._extend(segment, index, below, work)
            else:
                answer, reached = self._look_into(segment, index, question, below, work)
                if answer is None and reached == below:
                    return None
                if answer is not None:
                    return answer
                below = reached
            if work is not None:
                self._reached[question] = below
        if len(self._empty_below) >= MAX_QUESTIONS:
            self._empty_below.clear()
        self._empty_below[question.wanted] = max(question.end_offset, self._empty_below.get(question.wanted, 0))
        return log_start_offset

    def _look_into(
        self, segment: Segment, index: KeyIndex, question: Question, below: int, work: StepWork | None
    ) -> tuple[int | None, int]:
        """The answer if the record is in the run of this index; and the offset from which up to `below` there is no
        record.

        The offset is `below` itself if there must be more work first.
        """
        first, last = question.slots
        last_offsets = index.last_offsets_below(below)
        if last_offsets is not None:
            found = max(last_offsets[first : last + 1])
            if found < 0:
                return None, index.start_offset
            if question.has_whole_slots:
                return found + 1, below
            if found + 1 < below:
                return None, found + 1
        if work is None or work.is_spent:
            return None, below
        if not index.has_entries and not self.indexes.load_entries(segment, index):
            self._extend(segment, None, below, work)
            return None, below
        self.indexes.use(segment)
        work.spend(0)
        entry, reached = index.last_with(slots_of((question.wanted,)), below, most=MOST_ENTRIES)
        if entry is None:
            return None, reached
        found = self._last_match(segment, entry, question, below, work)
        return (found + 1, below) if found >= 0 else (None, entry.base_offset)

    def _last_match(self, segment: Segment, entry: Entry, question: Question, below: int, work: StepWork) -> int:
        """The last offset of a record of the range in the batches of this entry; -1 if there is none."""
        found = -1
        for position, stored, header in segment.batches(entry.position):
            if position >= entry.end_position or header.base_offset >= below:
                break
            found = max(found, last_match(stored, header, question.wanted, below))
            work.spend(header.size_bytes)
        return found

    # The growth of an index

    def _extend(self, segment: Segment, index: KeyIndex | None, below: int, work: StepWork) -> None:
        """Extend the index of a segment towards the batches that begin right below this offset."""
        work.spend(0)
        if index is not None and segment.size_bytes - index.end_position > _FORWARD_BYTES and index.end_offset < below:
            index = None
        if index is None:
            self._segments.keep_loaded(segment)
            index = self.indexes.begin(segment, *_place_below(segment, below))
        elif not index.has_entries and not self.indexes.load_entries(segment, index):
            return  # the next step begins the index anew
        self.indexes.use(segment)
        if index.end_position < segment.size_bytes and index.end_offset < below:
            _extend_forward(segment, index, below, work)
        elif index.start_position:
            self._extend_back(segment, index, work)

    def _extend_back(self, segment: Segment, index: KeyIndex, work: StepWork) -> None:
        run, stop = self._run, index.start_position
        if run is None or run.segment is not segment or run.stop != stop:
            self._segments.keep_loaded(segment)
            start = segment.boundary_before(max(stop - _BACK_BYTES, 0))
            run = self._run = _BackwardRun(segment, new_index(segment, start, segment.base_offset), stop)
        try:
            _extend_up_to(segment, run.batches, stop, work)
            if run.batches.end_position == stop:
                self._run = None
                if run.batches.end_offset > index.start_offset:
                    raise segment.corrupt(stop, f"offset {run.batches.end_offset - 1} comes before it")
                index.prepend(run.batches)
        except CorruptRecords:
            self._run = None
            if not run.batches.start_position or self._rebuilt is segment:
                raise
            self._rebuilt = segment
            segment.rebuild_indexes()  # the offset index may have led into the middle of a batch


def _covers(index: KeyIndex, segment: Segment, below: int) -> bool:
    """Whether the run has the last batch that begins below this offset, if there is such a batch."""
    reaches_end = index.end_position == segment.size_bytes or index.end_offset >= below
    return reaches_end and (not index.start_position or index.start_offset < below)


def _place_below(segment: Segment, below: int) -> tuple[int, int]:
    """The end of the last batch that begins below this offset: its position, and an offset that no batch before that
    position goes beyond."""
    position = segment.locate(below)
    if position == segment.size_bytes:
        return position, below
    header = segment.header_at(position)
    if header.base_offset >= below:
        return position, below
    return position + header.size_bytes, header.end_offset


def _extend_forward(segment: Segment, index: KeyIndex, below: int, work: StepWork) -> None:
    """Add the batches that follow, up to this offset in one go or two, and some batches behind it singly: the next
    questions end a little further on, and the index remembers the last offsets after each of its latest appends.
    """
    group, end_offset, beyond = BatchGroup(), index.end_offset, 0
    for position, stored, header in segment.batches(index.end_position):
        if header.base_offset < end_offset:
            raise segment.corrupt(position, f"offset {header.base_offset} follows offset {end_offset - 1}")
        is_beyond = header.base_offset >= below
        if len(group) and (group.is_full or is_beyond):
            _append(index, group, work)
            if work.is_spent:
                return
            group = BatchGroup()
        beyond += is_beyond
        if beyond == STEPS_KEPT - 1:
            return
        group.add(stored, header)
        end_offset = header.end_offset
    if len(group):
        _append(index, group, work)


def _extend_up_to(segment: Segment, index: KeyIndex, stop: int, work: StepWork) -> None:
    """Add the batches that follow, up to this position. Raises CorruptRecords if no batch ends at this position."""
    group, end_offset = BatchGroup(), index.end_offset
    for position, stored, header in segment.batches(index.end_position):
        end = position + header.size_bytes
        if end > stop or header.base_offset < end_offset:
            raise segment.corrupt(position, f"offset {header.base_offset} does not follow offset {end_offset - 1}")
        end_offset = header.end_offset
        group.add(stored, header)
        if group.is_full or end == stop:
            _append(index, group, work)
            if end == stop or work.is_spent:
                return
            group = BatchGroup()


def _append(index: KeyIndex, group: BatchGroup, work: StepWork) -> None:
    index.append(group.slots())
    work.spend(group.size_bytes)
