"""The times of a log's batches: which headers were compared with their records, and the walk over the other batches.

A leader compares each produced batch with its records before it stores it (`replication.admission`), and vouches for
the batch to its followers (decision 0069). Batches of an older release, of a directory that another program has filled,
and of a leader that does not vouch were not compared. The offset from which on headers are known to agree is kept in
the note of the flushed end, which each log has from its first flush on; without a note, every batch present when the
log was opened counts as not compared.

A step of the walk reads some batches, oldest segment first; the records decide, and a segment's index is replaced when
the walk reaches its end. The owner takes steps between other work. Segments that change meanwhile are walked again.
"""

from collections.abc import Callable
from typing import Final

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.storage.epoch_cache import LAST_OFFSET
from tailrace.storage.flushed_note import FlushedNote
from tailrace.storage.keys.key_ends import StepWork
from tailrace.storage.readable_log import ReadableLog
from tailrace.storage.scrub import IndexCheck
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits

UNCHECKED: Final = LAST_OFFSET
"""The value in place of an offset if no batch is known to have been checked."""


class LogTimes:
    """The times of one log: the segments find the offset of checked headers in their limits."""

    __slots__ = ("_changes", "_end_at_open", "_index", "_limits", "_log", "_note", "_position", "_segment")

    def __init__(self, log: ReadableLog, *, note: FlushedNote, limits: SegmentLimits) -> None:
        self._log = log
        self._note = note
        self._limits = limits
        self._end_at_open = log.log_end_offset
        self._segment: Segment | None = None
        """The segment that the walk is in."""
        self._index: IndexCheck | None = None
        self._position = 0
        self._changes = -1

    @property
    def checked_from(self) -> int:
        """The offset from which on the headers of batches are known to agree with their records."""
        self.read_note()
        return self._limits.checked_from

    def read_note(self) -> None:
        """Read the note, once, at the first use: a node that starts reads none of 100,000 notes.

        A note that cannot be read is ignored.
        """
        if not self._limits.has_read_note:
            try:
                noted = self._note.read_checked_from()
            except StorageError:
                noted = None
            self._set(self._end_at_open if noted is None else min(noted, self._end_at_open))
            self._limits.has_read_note = True

    def append(self, first_offset: int, vouched_from: int) -> None:
        """Note that batches from `first_offset` on are about to be appended, whose sender vouches for batches from
        `vouched_from` on. Raises StorageError.
        """
        limits = self._limits
        if not limits.has_read_note:
            self.read_note()
        if vouched_from > first_offset:
            if limits.checked_from != UNCHECKED:
                self._note.doubt()
                limits.checked_from = UNCHECKED
        elif limits.checked_from > first_offset:
            self._set(first_offset)

    def _set(self, offset: int) -> None:
        self._limits.checked_from = self._note.checked_from = offset

    @property
    def are_doubtful(self) -> bool:
        """Whether a lookup by time may be wrong: some headers were not checked, and the records of these batches are
        not read yet.

        `check_on` reads the records.
        """
        return self.checked_from > self._log.segments.all[0].base_offset and self._first_doubtful() is not None

    def _first_doubtful(self) -> Segment | None:
        """The oldest segment with doubtful times, None if there is none."""
        segments = self._log.segments
        if segments.all[0].base_offset >= self._limits.checked_from:
            return None
        readable = segments.from_offset(self._log.log_start_offset)
        return next((segment for segment in readable if segment.has_doubtful_times), None)

    def await_check(self, now_ms: int) -> bool:
        """Whether retention would remove the oldest segment by the times of headers that were not checked, or by the
        time of its file. Raises StorageError."""
        segments, config = self._log.segments.all, self._log.config
        if len(segments) == 1 or not segments[0].base_offset < self.checked_from or config.retention_ms < 0:
            return False
        oldest, expired_ms = segments[0], now_ms - config.retention_ms
        return (
            "delete" in config.cleanup_policy
            and oldest.has_doubtful_times
            and (oldest.written_ms < expired_ms or oldest.age_timestamp < expired_ms)
        )

    def check_on(self, monotonic_ms: Callable[[], int]) -> bool:
        """Look at the records of batches whose headers were not checked: 4 MiB as stored, or 10 ms, and at most one
        batch more.

        Returns whether there is more to do. Raises StorageError; damage puts the log offline.
        """
        log = self._log
        log.check_online()
        if not self.are_doubtful:
            return False
        log.is_changed = True
        work = StepWork(monotonic_ms)
        try:
            while not work.is_spent:
                segment = self._first_doubtful()
                if segment is None:
                    self._segment = self._index = None
                    return False
                self._walk(segment, work)
        except CorruptRecords as fault:
            raise log.condemned(fault) from fault
        return self._first_doubtful() is not None

    def _walk(self, segment: Segment, work: StepWork) -> None:
        segments = self._log.segments
        is_other = segment is not self._segment or segments.changes != self._changes
        if self._index is None or is_other or self._position > segment.size_bytes:
            self._segment, self._changes, self._position = segment, segments.changes, 0
            self._index = IndexCheck(segment)
            self._index.is_right = False  # the files are replaced in any case, so they are not read
        index = self._index
        for position, batch, header in segment.batches(self._position):
            index.note(position, batch)
            self._position = position + header.size_bytes
            work.spend(header.size_bytes)
            if work.is_spent:
                return
        work.spend(0)
        index.finish()
        is_sealed = segment is not segments.active
        segment.take_indexes(index.fresh, is_sealed=is_sealed)
        if is_sealed:
            segments.keep_loaded(segment)
        self._segment = self._index = None
