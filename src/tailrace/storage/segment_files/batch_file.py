"""A file that whole batches tile, and the walks from batch to batch, by the headers."""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, BatchHeader, check_crc, read_header
from tailrace.protocol.records.faults import Walk
from tailrace.protocol.records.kernels import walk_batches
from tailrace.protocol.records.record_times import NO_TIMES, RecordTimes, is_doubtful, largest_time, record_times
from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.file_system import Buffer, File

_SCAN_BYTES: Final = 1 << 20

_SPAN: Final = Struct(">qi11xi")
"""Base offset, batch length and last offset delta: enough for a walk over batches."""
_STORED: Final = Struct(">qiib")
"""Base offset, batch length, leader epoch and magic: what the checksum does not cover."""
_SMALLEST_LENGTH: Final = HEADER_SIZE - LENGTH_OFFSET
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
"""The largest distance of an offset from the base offset of its file, so that an index entry can hold the distance."""
_SPAN_WALK_BYTES: Final = 4096 + HEADER_SIZE
_FIRST_READ_BYTES: Final = 4096
"""The least size of a read that must return its first batch: it saves a second read for most small batches."""
_WALK_BYTES: Final = 65536


class AppendBatch(NamedTuple):
    """A whole batch with its header as stamped: base offset and leader epoch are the stored values."""

    buffer: Buffer
    header: BatchHeader


class ReadLimits:
    """Limits of a read: the first offset and the most bytes. The reader makes the object, and each layer uses its part.

    Frozen for the type checker; plain slots, since a fetch makes an object per partition.
    """

    __slots__ = ("isolation", "leader_epoch", "max_bytes", "min_one_message", "offset")

    def __init__(
        self, offset: int, max_bytes: int, isolation: int = 0, leader_epoch: int = -1, min_one_message: bool = True
    ) -> None:
        """`offset` is the offset of the first wanted record, whose whole batch is given, with `min_one_message`
        even if the batch is larger than `max_bytes` (KIP-74).

        `isolation` is Kafka's level, 0 read_uncommitted or 1 read_committed, from which the partition derives an end
        offset. `leader_epoch` is the epoch in which the reader believes the leader to be (KIP-320); -1: not given.
        """
        self.offset: Final = offset
        self.max_bytes: Final = max_bytes
        self.isolation: Final = isolation
        self.leader_epoch: Final = leader_epoch
        self.min_one_message: Final = min_one_message


class ReadResult:
    """Whole batches of one segment. Empty if the first batch did not fit or there was nothing to read."""

    __slots__ = ("end_position", "first_offset", "next_offset", "records", "size_bytes")

    def __init__(
        self, records: list[Buffer], size_bytes: int, first_offset: int, next_offset: int, end_position: int
    ) -> None:
        self.records: Final = records
        self.size_bytes: Final = size_bytes
        self.first_offset: Final = first_offset
        """Base offset of the first batch, at most the wanted offset."""
        self.next_offset: Final = next_offset
        """The offset after the last batch."""
        self.end_position: Final = end_position
        """The end of the last batch in its segment."""


class Expected:
    """The facts that the log knows about the batches that are read, besides their bytes."""

    __slots__ = ("end_offset", "epochs", "gap_limit", "log_end_offset")

    def __init__(self, end_offset: int, log_end_offset: int, gap_limit: int, epochs: EpochCache) -> None:
        self.end_offset: Final = end_offset
        """Batches from this offset on are not wanted."""
        self.log_end_offset: Final = log_end_offset
        """The end of the log: no batch reaches beyond this offset."""
        self.gap_limit: Final = gap_limit
        """Offsets before this offset may be missing."""
        self.epochs: Final = epochs
        """The leader epoch of each batch."""


class BatchFile:
    """The first `size_bytes` of a file are whole batches, whose offsets rise from `base_offset` on.

    Other bytes raise CorruptRecords, which names file and position.
    """

    __slots__ = ("base_offset", "file", "size_bytes")

    base_offset: int
    file: File
    size_bytes: int

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Every batch from this position on, its header only."""
        while position < self.size_bytes:
            chunk = self.file.pread(min(_WALK_BYTES, self.size_bytes - position), position)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = self._parse(chunk, at, position)
                if position + at + header.size_bytes > self.size_bytes:
                    raise self.corrupt(position + at, "the file ends inside a batch")
                yield position + at, header
                at += header.size_bytes
            if not at:
                raise self.corrupt(position, "the file ends inside a batch")
            position += at

    def batches(self, position: int = 0) -> Iterator[tuple[int, memoryview, BatchHeader]]:
        """Every batch from this position on, whole: its position, bytes and header."""
        while position < self.size_bytes:
            chunk = self.file.pread(min(_WALK_BYTES, self.size_bytes - position), position)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = self._parse(chunk, at, position)
                end = at + header.size_bytes
                if position + end > self.size_bytes:
                    raise self.corrupt(position + at, "the file ends inside a batch")
                if end > len(chunk):
                    if at:
                        break
                    chunk = self.file.pread(end, position)
                yield position + at, memoryview(chunk)[at:end], header
                at = end
            if not at:
                raise self.corrupt(position, "the file ends inside a batch")
            position += at

    def header_at(self, position: int) -> BatchHeader:
        """The header of the batch that starts at this position."""
        return self._parse(self.file.pread(HEADER_SIZE, position), 0, position)

    def largest_time_at(self, position: int, header: BatchHeader) -> int:
        """The largest timestamp of the batch at this position; its records are read only if its header is doubtful."""
        if not is_doubtful(header):
            return header.max_timestamp
        return largest_time(self.file.pread(header.size_bytes, position), header)

    def times_at(self, position: int, header: BatchHeader, *, from_offset: int) -> RecordTimes:
        """The times of a batch's records from this offset on; no times if intact bytes hold no readable records.

        Raises CorruptRecords for changed bytes.
        """
        content = self.file.pread(header.size_bytes, position)
        try:
            check_crc(content, 0, header)
        except CorruptRecords as fault:
            raise self.corrupt(position, fault.detail) from None
        try:
            return record_times(content, header, from_offset=from_offset)
        except CorruptRecords:
            return NO_TIMES  # its sender wrote the batch like this; an append does not unpack batches

    def _walk_to(self, offset: int, position: int, *, first_end: int, gap_limit: int) -> int:
        """The position of the first batch that ends at or after this offset, found by a walk from an earlier position.

        `size_bytes` without such a batch. The batch at `position` ends at offset `first_end` (exclusive); -1 for the
        first batch of the file. Later batches continue each other, or leave offsets out below `gap_limit`.
        """
        size_bytes = self.size_bytes
        next_offset = self.base_offset if first_end < 0 else -1
        while position < size_bytes:
            chunk = self.file.pread(min(_SPAN_WALK_BYTES, size_bytes - position), position)
            at = 0
            while at + _SPAN.size <= len(chunk):
                base_offset, length, delta = _SPAN.unpack_from(chunk, at)
                if length < _SMALLEST_LENGTH or delta < 0:
                    raise self.corrupt(position + at, "no batch starts here")
                if next_offset < 0:
                    if base_offset + delta + 1 != first_end:
                        raise self.corrupt(position + at, "not the batch that the index says")
                elif base_offset != next_offset and not next_offset < base_offset <= gap_limit:
                    raise self.corrupt(position + at, f"offset {base_offset} follows offset {next_offset - 1}")
                next_offset = base_offset + delta + 1
                if base_offset + delta >= offset:
                    return position + at
                at += length + LENGTH_OFFSET
            if not at:
                raise self.corrupt(position, "the file ends inside a batch")
            position += at
        return size_bytes

    def walk_over(self, data: Buffer, position: int, expected: "Expected", next_offset: int) -> tuple[int, int]:
        """The end of the last whole wanted batch in `data`, and its end offset.

        `data` was read at this position, where a batch starts at `next_offset`. Every header is compared with the
        expected header: no checksum covers a batch's place, size and epoch.
        """
        end = 0
        while True:
            epoch, epoch_end = expected.epochs.range_of(next_offset)
            end, next_offset, status = walk_batches(
                data, end, next_offset, expected.end_offset, expected.gap_limit, epoch, epoch_end
            )
            if status == Walk.END:
                return end, next_offset
            header = _STORED.unpack_from(data, end)
            if status != Walk.EPOCH:
                raise self.corrupt(position + end, _words(status, header, next_offset, epoch))
            next_offset = max(next_offset, epoch_end)  # legal: offsets are missing

    def _first_exceeds(self, position: int, max_bytes: int) -> bool:
        """Whether the batch at this position is larger than this."""
        head = self.file.pread(_SPAN.size, position)
        return len(head) == _SPAN.size and _SPAN.unpack(head)[1] + LENGTH_OFFSET > max_bytes

    def read(self, position: int, limits: ReadLimits, expected: "Expected", *, first_offset: int = -1) -> ReadResult:
        """Whole batches from this position on, where the offset of `limits` lies, that end before the expected end.

        `first_offset`: where the batch before this position ends, -1 if the first batch is known to be right. Raises
        CorruptRecords.
        """
        max_bytes, min_one_message = limits.max_bytes, limits.min_one_message
        end_offset = expected.end_offset
        wanted = max_bytes if max_bytes >= _FIRST_READ_BYTES or not min_one_message else _FIRST_READ_BYTES
        rest = self.size_bytes - position
        gap_limit = expected.gap_limit
        if rest <= max_bytes and gap_limit <= first_offset >= 0 and end_offset == expected.log_end_offset:
            # The usual read of a reader that keeps up: all the rest, in which no offset can be missing. If the walk
            # does not reach the end of the data, the steps below find out why.
            data, epochs = self.file.lend(rest, position), expected.epochs.range_of(first_offset)
            end, next_offset, _ = walk_batches(data, 0, first_offset, end_offset, gap_limit, *epochs)
            if end == rest:
                return ReadResult([data], end, first_offset, next_offset, position + end)
        if not min_one_message and _SPAN_WALK_BYTES < wanted < rest and self._first_exceeds(position, max_bytes):
            return ReadResult([], 0, -1, -1, position)
        data = self.file.lend(min(wanted, rest), position)
        if len(data) < _SPAN.size:
            if min_one_message or wanted >= HEADER_SIZE:
                raise self.corrupt(position, "the file ends inside a batch")
            return ReadResult([], 0, -1, -1, position)
        next_offset = first_offset
        first_offset, length, delta = _SPAN.unpack_from(data)
        if next_offset < 0:
            next_offset = first_offset
        size = length + LENGTH_OFFSET
        if length < _SMALLEST_LENGTH or delta < 0 or size > rest:
            raise self.corrupt(position, "no whole batch starts here")
        if first_offset + delta >= expected.log_end_offset:
            raise self.corrupt(position, f"a batch up to offset {first_offset + delta} is beyond the end of the log")
        if first_offset + delta >= end_offset or (size > max_bytes and not min_one_message):
            return ReadResult([], 0, first_offset, first_offset, position)
        if size > len(data):
            data = self.file.lend(size, position)
            if len(data) != size:
                raise self.corrupt(position, "the file ends inside a batch")
        elif len(data) > max_bytes:
            data = data[: max(size, max_bytes)]
        end, next_offset = self.walk_over(data, position, expected, next_offset)
        after = position + end
        if len(data) - end < HEADER_SIZE and after < self.size_bytes:
            # Only if a batch starts there has the last batch the size that its header says.
            header = self.file.pread(HEADER_SIZE, after)
            if len(header) < HEADER_SIZE:
                raise self.corrupt(after, "the file ends inside a batch")
            self.walk_over(header, after, expected, next_offset)
        records = data if end == len(data) else _head(data, end)
        return ReadResult([records], end, first_offset, next_offset, position + end)

    def _parse(self, chunk: bytes, at: int, position: int) -> BatchHeader:
        try:
            header = read_header(chunk, at)
        except CorruptRecords as fault:
            raise self.corrupt(position + at, fault.detail) from None
        # The checksum does not cover the base offset, and no index entry can hold a base offset from elsewhere.
        if header.base_offset < self.base_offset or header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            raise self.corrupt(position + at, f"offset {header.base_offset} is not one of this segment")
        return header

    def corrupt(self, position: int, why: str) -> CorruptRecords:
        """The error for the bytes at this position."""
        return CorruptRecords(f"{self.file.path} at position {position}: {why}")


def _words(status: int, header: tuple[int, int, int, int], next_offset: int, epoch: int) -> str:
    """The fault of a header for which a walk has stopped, in words."""
    base_offset, length, batch_epoch, magic = header
    if status == Walk.LENGTH:
        return f"a batch of {length} bytes is none"
    if status == Walk.MAGIC:
        return f"magic {magic} is not known"
    if status == Walk.OFFSET:
        return f"offset {base_offset} follows offset {next_offset - 1}"
    return f"leader epoch {batch_epoch} in a batch of epoch {epoch}"


def _head(data: Buffer, size_bytes: int) -> Buffer:
    """The first bytes of a read. A small part is copied: a view would hold the whole buffer until the answer goes."""
    return memoryview(data)[:size_bytes] if size_bytes > len(data) // 4 else bytes(memoryview(data)[:size_bytes])


def checked_batches(segment: BatchFile) -> Iterator[tuple[int, BatchHeader]]:
    """Every batch of a segment whose header and checksum are right. Raises CorruptRecords at the first that is not."""
    position = 0
    while position < segment.size_bytes:
        chunk = segment.file.pread(min(_SCAN_BYTES, segment.size_bytes - position), position)
        at = 0
        while len(chunk) - at >= HEADER_SIZE:
            header = read_header(chunk, at)
            if position + at + header.size_bytes > segment.size_bytes:
                raise CorruptRecords("the file ends inside a batch")
            if at + header.size_bytes > len(chunk):
                if at:
                    break
                chunk = segment.file.pread(header.size_bytes, position)
            check_crc(chunk, at, header)
            yield position + at, header
            at += header.size_bytes
        if not at:
            raise CorruptRecords("the file ends inside a batch header")
        position += at
