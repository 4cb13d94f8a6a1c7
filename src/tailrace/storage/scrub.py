"""Looks through a log at rest, a little at a time: whether its files still hold the written bytes.

The checks of every batch below the flushed end: checksum, offset, length, leader epoch, and that batches and segments
tile. The index files of sealed segments are compared with the batches; a wrong file is made anew.

The log's owner asks for a slice, carries it out (`ScrubSlice.run`, on any thread: it reads files and nothing else), and
hands it back. Batches that the log has lost or changed meanwhile, by a truncation, a compaction or retention, are
not counted as damage.
"""

from struct import Struct
from typing import Final

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords, KafkaError, StorageError
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, read_header
from tailrace.protocol.records.record_times import largest_time
from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.file_system import Buffer
from tailrace.storage.readable_log import ReadableLog
from tailrace.storage.segment_files.batch_file import Expected
from tailrace.storage.segment_files.index import Indexes, OffsetIndex, TimeIndex
from tailrace.storage.segment_files.segment import Segment

_CHECKED: Final = Struct(">qi5xI")
"""Base offset, length and checksum."""
_CRC_START: Final = 21
"""The checksum covers the bytes of a batch from this position on."""


class IndexCheck:
    """The index files of a sealed segment, compared with its batches during the walk."""

    __slots__ = (
        "_at_offset",
        "_at_time",
        "_checked_from",
        "_interval",
        "_largest",
        "_segment",
        "_since_entry",
        "_stored",
        "fresh",
        "is_right",
    )

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._interval = segment.limits.index_interval_bytes
        self._checked_from = segment.limits.checked_from
        self._stored: Indexes | None = None
        self._at_offset = self._at_time = 0
        self._largest = (-1, 0)
        self._since_entry = 0
        self.is_right = True
        """Whether no fault was found in the index files so far."""
        self.fresh = Indexes(OffsetIndex(), TimeIndex())
        """The right content of the index files, as far as the segment was walked over."""

    def load(self) -> None:
        """Read the files. On any thread, before the first `note`. A file that cannot be read is wrong.

        Raises StorageError if descriptors or memory are short.
        """
        try:
            self._stored = self._segment.read_indexes()
        except StorageError as fault:
            if fault.is_shortage:
                raise
        self.is_right = self._stored is not None

    def note(self, position: int, batch: Buffer) -> None:
        """Take the next batch, whole. Its records are read if its header was not checked."""
        header = read_header(batch)
        relative = header.last_offset - self._segment.base_offset
        is_checked = header.base_offset >= self._checked_from
        timestamp = -1
        if header.records_count:
            timestamp = header.max_timestamp if is_checked else largest_time(batch, header)
        if timestamp > self._largest[0]:
            self._largest = timestamp, relative
        if self.is_right:
            self._hold(position, relative)
        if self._since_entry > self._interval:
            self.fresh.offsets.append(relative, position)
            if self._largest[0] >= 0:
                self.fresh.times.append(*self._largest)
            self._since_entry = 0
        self._since_entry += header.size_bytes

    def _hold(self, position: int, relative: int) -> None:
        """Compare the next entries with this batch. Entries lead to batches in order: an entry that was passed over is
        wrong."""
        stored = self._stored
        assert stored is not None
        entry = stored.offsets.entry(self._at_offset)
        if entry is not None and entry[1] <= position:
            self.is_right = entry == (relative, position)
            self._at_offset += 1
        entry = stored.times.entry(self._at_time)
        if entry is not None and entry[1] <= relative:
            self.is_right = self.is_right and entry == (self._largest[0], relative) and self._largest[1] == relative
            self._at_time += 1

    def finish(self) -> None:
        """Finish the comparison at the segment's end: an entry that fits no batch is wrong."""
        if self._largest[0] >= 0:
            self.fresh.times.append(*self._largest)
        if self._stored is not None and self.is_right:
            self.is_right = (self._at_offset, self._at_time) == (len(self._stored.offsets), len(self._stored.times))


class ScrubSlice:
    """A few batches of one segment: their place, and the result of the read."""

    __slots__ = (
        "_expected",
        "_index",
        "_max_bytes",
        "end",
        "fault",
        "next_offset",
        "position",
        "segment",
        "size_bytes",
    )

    def __init__(
        self,
        segment: Segment,
        position: int,
        next_offset: int,
        expected: Expected,
        *,
        max_bytes: int,
        index: IndexCheck | None,
    ) -> None:
        self.segment = segment
        self.position = position
        self.size_bytes = segment.size_bytes
        """Bytes of the segment when the slice was made."""
        self.next_offset = next_offset
        self.end = position
        """The end of the checked part without a fault."""
        self.fault: KafkaError | None = None
        """The fault at that end; None without a fault."""
        self._expected = expected
        self._max_bytes = max_bytes
        self._index = index

    def run(self) -> None:
        """Read and check. Raises nothing: a file that cannot be read is a fault too."""
        try:
            self._check()
        except KafkaError as fault:
            self.fault = fault

    def _check(self) -> None:
        segment, start = self.segment, self.position
        data: Buffer = segment.file.pread(min(max(self._max_bytes, HEADER_SIZE), self.size_bytes - start), start)
        if len(data) >= HEADER_SIZE:
            size = _CHECKED.unpack_from(data)[1] + LENGTH_OFFSET
            if len(data) < size <= self.size_bytes - start:
                data = segment.file.pread(size, start)
        if len(data) < HEADER_SIZE:
            raise segment.corrupt(start, "the file ends inside a batch")
        if self._index is not None and not start:
            self._index.load()
        end, self.next_offset = segment.walk_over(data, start, self._expected, self.next_offset)
        if not end:
            if _CHECKED.unpack_from(data)[0] < self._expected.end_offset:
                raise segment.corrupt(start, "no whole batch starts here")
            self.next_offset = self._expected.end_offset  # the rest is not flushed
        view, at = memoryview(data), 0
        while at < end:
            base_offset, length, crc = _CHECKED.unpack_from(data, at)
            after = at + length + LENGTH_OFFSET
            if crc32c(view[at + _CRC_START : after]) != crc:
                self.next_offset = base_offset
                raise segment.corrupt(start + at, f"the batch at offset {base_offset} does not match its checksum")
            if self._index is not None:
                self._index.note(start + at, view[at:after])
            at = after
            self.end = start + at


class Scrub:
    """A pass over one log. Made by `Log.begin_scrub`; for the owner of the log."""

    __slots__ = (
        "_base_offset",
        "_index",
        "_log",
        "_next_offset",
        "_position",
        "_sealed_end",
        "_segment",
        "_truncations",
        "bytes_read",
        "failure",
        "has_wrong_index",
        "indexes_rebuilt",
        "mends",
    )

    def __init__(self, log: ReadableLog, *, mends: bool) -> None:
        self._log = log
        self.mends = mends
        """Whether a wrong index is made anew."""
        self.has_wrong_index = False
        """Whether a wrong index was found and not made anew."""
        self._segment: Segment | None = None
        self._base_offset = -1
        """The base offset of the present segment."""
        self._position = 0
        self._next_offset = -1
        self._sealed_end = -1
        """The end offset of the previous segment; -1: not known."""
        self._truncations = -1
        self._index: IndexCheck | None = None
        self.bytes_read = 0
        self.indexes_rebuilt = 0
        self.failure = ""
        """The reason why the rest of the log was not checked, without a known fault; empty if everything was
        checked."""

    def next_slice(self, *, max_bytes: int) -> ScrubSlice | None:
        """The slice to read next, its file pinned; None at the end, or if the log is offline.

        A batch larger than `max_bytes` is read whole.
        """
        if self.failure or self._log.failure:
            return None
        try:
            part = self._next_slice(max_bytes)
            if part is not None:
                part.segment.file.pin()
        except CorruptRecords as fault:
            self._log.condemn(fault.detail)
            return None
        return part

    def _next_slice(self, max_bytes: int) -> ScrubSlice | None:
        """The slice to read next, None at the end. Raises CorruptRecords where a segment is missing."""
        log = self._log
        segments, flushed_offset = log.segments.all, log.flushed_offset
        gap_limit = log.gaps.limit(is_compacted=log.config.is_compacted)
        if log.truncations != self._truncations:
            # The log was cut since the last slice: the batches at the position of the next slice may be gone.
            self._truncations, self._segment, self._sealed_end = log.truncations, None, -1
        at = next(
            (at for at, segment in enumerate(segments) if segment.base_offset >= self._base_offset), len(segments)
        )
        while at < len(segments):
            segment, is_last = segments[at], at == len(segments) - 1
            if segment is not self._segment:
                self._begin(segment, gap_limit, is_sealed=not is_last)
            if self._next_offset >= flushed_offset:
                return None
            if self._position < segment.size_bytes:
                expected = Expected(flushed_offset, flushed_offset, gap_limit, EpochCache(log.epochs.entries))
                return ScrubSlice(
                    segment, self._position, self._next_offset, expected, max_bytes=max_bytes, index=self._index
                )
            self._finish(segment)
            self._base_offset += 1
            at += 1
        return None

    def _begin(self, segment: Segment, gap_limit: int, *, is_sealed: bool) -> None:
        base_offset, next_offset = segment.base_offset, self._sealed_end
        self._sealed_end = -1
        if next_offset >= 0 and base_offset != next_offset and not next_offset < base_offset <= gap_limit:
            raise segment.corrupt(0, f"the segment before it ends at offset {next_offset}")
        self._segment = segment
        self._base_offset = self._next_offset = base_offset
        self._position = 0
        self._index = IndexCheck(segment) if is_sealed else None

    def _finish(self, segment: Segment) -> None:
        index, self._index = self._index, None
        self._sealed_end = self._next_offset
        if index is not None:
            index.finish()
            if not index.is_right and not self.mends:
                self.has_wrong_index = True
            elif not index.is_right:
                segment.take_indexes(index.fresh)
                self.indexes_rebuilt += 1
            if index.is_right:
                segment.confirm_times()

    def finish_slice(self, done: ScrubSlice) -> None:
        """Take a finished slice back. Damage in the slice puts the log offline, unless the log has changed since."""
        segment, log = done.segment, self._log
        segment.file.unpin()
        if log.failure:
            return
        if log.truncations != self._truncations or not any(present is segment for present in log.segments.all):
            # The segment was cut, compacted or removed. Go on with the present segments.
            self._segment = None
            return
        self.bytes_read += done.end - done.position
        self._position, self._next_offset = done.end, done.next_offset
        fault = done.fault
        if isinstance(fault, StorageError) and fault.is_shortage:
            self.failure = fault.detail
        elif fault is not None:
            log.condemn(fault.detail, offset=done.next_offset)
