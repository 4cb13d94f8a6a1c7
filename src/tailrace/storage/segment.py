"""One `.log` file with its indexes: a run of whole batches whose offsets rise from the segment's base offset.

Invariants:

1. The first `size_bytes` of the file are whole batches that tile it. What a failed write left behind them is cut off
   before anything else is written.
2. Only the last segment of a log, the active one, is appended to. Its indexes live in memory; the files `.index` and
   `.timeindex` are written when the segment is rolled or closed, and are a cache: a missing or wrong one is made anew
   from the batches.
3. So is `.txnindex`, but it takes the batches before the segment to make it anew, and there is none for a segment
   without abort markers: that a file is missing tells nothing. It is durable before anything trusts the segment.
"""

from collections.abc import Collection, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.protocol.records.batch import HEADER_SIZE, BatchHeader, read_header
from tailrace.protocol.records.record import read_records
from tailrace.storage.files import Buffer, File, FileSystem, append_all
from tailrace.storage.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from tailrace.storage.segment_limits import SegmentLimits
from tailrace.storage.transaction_index import AbortedTransaction, TransactionIndex
from tailrace.storage.transactions import CompletedTransaction

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"

_SPAN: Final = Struct(">qi11xi")
"""Base offset, batch length and last offset delta: all that a walk over batches needs."""
_LENGTH_OFFSET: Final = 12
_SMALLEST_LENGTH: Final = HEADER_SIZE - _LENGTH_OFFSET
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
_LOCATE_BYTES: Final = 4096 + HEADER_SIZE
_WALK_BYTES: Final = 65536


class AppendBatch(NamedTuple):
    """One whole batch with its header as stamped: base offset and leader epoch are those it is stored with."""

    buffer: Buffer
    header: BatchHeader


class ReadResult(NamedTuple):
    """Whole batches of one segment. Empty if the first did not fit or there was nothing to read."""

    records: list[Buffer]
    size_bytes: int
    first_offset: int
    """Base offset of the first batch, at most the offset that was asked for."""
    next_offset: int
    """The offset after the last batch."""
    end_position: int
    """Where the last batch ends in its segment."""


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


def segment_name(base_offset: int) -> str:
    """The 20 digits that name a segment's files."""
    return f"{base_offset:020d}"


class Segment:
    """One segment. Its file opens at the first use, its indexes load when they are needed."""

    __slots__ = (
        "_aborted",
        "_bytes_since_entry",
        "_files",
        "_first_timestamp",
        "_limits",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_offset_index",
        "_stem",
        "_suffix",
        "_time_index",
        "base_offset",
        "file",
        "size_bytes",
        "unsynced_files",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        files: FileSystem,
        limits: SegmentLimits,
        create: bool = False,
        size_bytes: int = -1,
        suffix: str = "",
    ) -> None:
        """`suffix` comes after the usual names, for a segment that does not belong to its log yet.

        `size_bytes` is that of the batches if it is known; otherwise the file is asked.
        """
        self._suffix = suffix
        self._stem = f"{directory}/{segment_name(base_offset)}"
        self._files = files
        self._limits = limits
        self.base_offset = base_offset
        self.file: File = files.open(self.log_path, create=create)
        self.size_bytes = 0 if create else size_bytes if size_bytes >= 0 else files.size_of(self.log_path)
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._aborted: TransactionIndex | None = TransactionIndex() if create else None
        self._max_timestamp = -1
        self._max_timestamp_offset = -1
        self._first_timestamp = -1
        self._bytes_since_entry = 0
        self.unsynced_files: tuple[File, ...] = ()
        """The files of a rolled segment that are still to be synced."""

    @property
    def log_path(self) -> str:
        return self._stem + LOG_SUFFIX + self._suffix

    @property
    def index_paths(self) -> tuple[str, str]:
        return self._stem + INDEX_SUFFIX + self._suffix, self._stem + TIME_INDEX_SUFFIX + self._suffix

    @property
    def transaction_index_path(self) -> str:
        return self._stem + TRANSACTION_INDEX_SUFFIX + self._suffix

    @property
    def aborted(self) -> TransactionIndex:
        """The aborted transactions whose markers are here. Raises CorruptRecords if their file is damaged."""
        aborted = self._aborted
        if aborted is None:
            path = self.transaction_index_path
            data = self._files.read_bytes(path) if self._files.exists(path) else b""
            try:
                aborted = TransactionIndex.from_bytes(data, base_offset=self.base_offset)
            except CorruptRecords as fault:
                raise CorruptRecords(f"{path}: {fault.detail}") from None
            self._aborted = aborted
        return aborted

    def note_aborted(self, completed: CompletedTransaction) -> None:
        """Note a transaction whose abort marker lies behind all others of the segment."""
        self.aborted.append(
            AbortedTransaction(
                completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
            )
        )

    def start_aborted(self) -> None:
        """Begin with no aborted transaction, for a caller that will append all."""
        self._aborted = TransactionIndex()
        self._aborted.is_dirty = True

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all records, -1 if there is none."""
        self._load_max_timestamp()
        return self._max_timestamp

    @property
    def age_timestamp(self) -> int:
        """What retention goes by: the largest timestamp or, if no record has one, when the file was last written."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self._files.modified_ms(self.log_path)

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the batch with the largest timestamp, -1 if there is none."""
        self._load_max_timestamp()
        return self._max_timestamp_offset

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 if there is none."""
        self._load_max_timestamp()
        return self._first_timestamp

    @property
    def index_entries(self) -> int:
        """How many entries the longer index has, from what is in memory or the sizes of the files; at most."""
        if self._offset_index is not None and self._time_index is not None:
            return max(len(self._offset_index), len(self._time_index) + 1)
        sizes = [self._files.size_of(path) if self._files.exists(path) else None for path in self.index_paths]
        if sizes[0] is None or sizes[1] is None:
            return self.size_bytes // max(self._limits.index_interval_bytes, HEADER_SIZE) + 1
        return max(sizes[0] // OFFSET_ENTRY_SIZE, sizes[1] // TIME_ENTRY_SIZE)

    def _load_max_timestamp(self) -> None:
        if self._offset_index is None and self._max_timestamp < 0:
            self._load_indexes()
            # Retention asks every old segment: the two numbers stay, the indexes would fill the memory.
            self.forget_indexes()

    def count_that_fit(self, batches: Sequence[AppendBatch]) -> int:
        """How many of these batches go into this segment before the next one must begin (Kafka's roll rules)."""
        limits = self._limits
        if self._offset_index is None:
            self._load_indexes()
        size = self.size_bytes
        if size and self._indexes_are_full():
            return 0
        first_timestamp = self._first_timestamp
        last_possible = self.base_offset + MAX_RELATIVE_OFFSET
        count = 0
        for buffer, header in batches:
            if header.base_offset + header.last_offset_delta > last_possible:
                return count
            if size:
                if size + len(buffer) > limits.segment_bytes or (
                    first_timestamp >= 0 and header.max_timestamp - first_timestamp > limits.segment_ms
                ):
                    return count
            else:
                first_timestamp = header.max_timestamp
            size += len(buffer)
            count += 1
        return count

    def _indexes_are_full(self) -> bool:
        assert self._offset_index is not None
        assert self._time_index is not None
        limits = self._limits
        return len(self._offset_index) >= limits.index_entries or len(self._time_index) >= limits.time_index_entries

    def append(self, batches: Sequence[AppendBatch]) -> None:
        """Write the batches in one call. `count_that_fit` must have been asked before.

        Raises StorageError unless all bytes were written; the caller then has to `cut_back` what was.
        """
        total = 0
        buffers = []
        for buffer, _ in batches:
            buffers.append(buffer)
            total += len(buffer)
        written = self.file.writev(buffers)
        if written != total:
            raise StorageError(f"{self.log_path}: only {written} of {total} bytes were written; the disk may be full")
        position = self.size_bytes
        for buffer, header in batches:
            self.note(position, header)
            position += len(buffer)
        self.size_bytes = position

    def cut_back(self) -> None:
        """Remove, durably, what a failed append has left behind the last batch."""
        self.file.truncate(self.size_bytes)
        # Batches of an append that was answered with an error must not come back after others have been written there.
        self.file.sync()

    def note(self, position: int, header: BatchHeader) -> None:
        """Enter a batch that lies at this position into the indexes, which are loaded."""
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = header.max_timestamp
        if timestamp > self._max_timestamp and header.records_count:  # a compaction may have left none
            self._max_timestamp = timestamp
            self._max_timestamp_offset = last_offset
        if not position:
            self._first_timestamp = timestamp
        if self._bytes_since_entry > self._limits.index_interval_bytes:
            self._offset_index.append(last_offset - self.base_offset, position)  # type: ignore[union-attr]
            self._note_max_timestamp()
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.batch_length + _LENGTH_OFFSET

    def _note_max_timestamp(self) -> None:
        assert self._time_index is not None
        if self._max_timestamp >= 0:
            self._time_index.append(self._max_timestamp, self._max_timestamp_offset - self.base_offset)

    def cut_to(self, size_bytes: int, end_offset: int) -> None:
        """Drop what lies from this position on, batches or the remains of some; what stays ends at this offset.

        Index files are the caller's to remove, who has `aborted` loaded before.
        """
        self._load_indexes()
        assert self._offset_index is not None
        assert self._time_index is not None
        self.file.truncate(size_bytes)
        self.size_bytes = size_bytes
        self._offset_index.truncate(position=size_bytes)
        self._time_index.truncate(relative_offset=end_offset - self.base_offset)
        if self._aborted is not None:
            self._aborted.truncate(end_offset)
        self._bytes_since_entry = 0
        self._load_timestamps()

    def _load_indexes(self) -> None:
        """Have both indexes in memory, from their files or, if those are not right, from the batches."""
        if self._offset_index is not None:
            return
        offset_path, time_path = self.index_paths
        offset_index = time_index = None
        if self.size_bytes and self._files.exists(offset_path) and self._files.exists(time_path):
            offset_index = OffsetIndex.from_bytes(self._files.read_bytes(offset_path), log_size_bytes=self.size_bytes)
            time_index = TimeIndex.from_bytes(self._files.read_bytes(time_path))
        if offset_index is not None and time_index is not None:
            self._offset_index, self._time_index = offset_index, time_index
            try:
                self._load_timestamps()
                return
            except CorruptRecords:
                pass  # An entry leads into the middle of a batch, or the batches are wrong: the next walk tells.
        self.rebuild_indexes()

    def rebuild_indexes(self) -> None:
        """Make both indexes anew from the batches."""
        self.start_indexes()
        for position, header in self.headers():
            self.note(position, header)

    def start_indexes(self) -> None:
        """Begin with empty indexes, for a caller that will `note` every batch."""
        self._offset_index, self._time_index = OffsetIndex(), TimeIndex()
        self._max_timestamp = self._max_timestamp_offset = self._first_timestamp = -1
        self._bytes_since_entry = 0

    def _load_timestamps(self) -> None:
        """The first and the largest timestamp, from the time index and the batches behind its last entry."""
        assert self._offset_index is not None
        assert self._time_index is not None
        self._max_timestamp = self._max_timestamp_offset = self._first_timestamp = -1
        if not self.size_bytes:
            return
        self._first_timestamp = self._header_at(0).max_timestamp
        last = self._time_index.last
        position = 0
        if last is not None:
            self._max_timestamp, relative_offset = last
            self._max_timestamp_offset = self.base_offset + relative_offset
            position = self._offset_index.floor(relative_offset)
        for _, header in self.headers(position):
            if header.max_timestamp > self._max_timestamp and header.records_count:
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = header.last_offset

    def last_indexed_position(self) -> int:
        """Where the batch of the last index entry starts, 0 without entries."""
        self._load_indexes()
        return self._offset_index.floor(MAX_RELATIVE_OFFSET)  # type: ignore[union-attr]

    def write_indexes(self) -> None:
        """Write the index files, as new files that are still to be synced."""
        self._load_indexes()
        assert self._offset_index is not None
        assert self._time_index is not None
        self._note_max_timestamp()
        if self.unsynced_files:
            self.aborted.is_dirty = True  # its file may be one of those that are still to be synced
        self._close_index_files()
        contents = self._offset_index.to_bytes(), self._time_index.to_bytes()
        for path, content in zip(self.index_paths, contents, strict=True):
            file = self._files.open(path, create=True)
            self.unsynced_files = (*(self.unsynced_files or (self.file,)), file)
            append_all(file, content)
        self.write_aborted()

    def write_aborted(self) -> None:
        """Write the `.txnindex` file if it does not say what is in memory; it is still to be synced then."""
        aborted = self._aborted
        if aborted is None or not aborted.is_dirty:
            return
        path = self.transaction_index_path
        if aborted:
            file = self._files.open(path, create=True)
            self.unsynced_files = (*(self.unsynced_files or (self.file,)), file)
            append_all(file, aborted.to_bytes())
        elif self._files.exists(path):
            self._files.unlink(path)
        aborted.is_dirty = False

    def sync_unsure(self, recovery_point: int) -> None:
        """Have the batches durable although a sync of those from the recovery point on may have failed before."""
        position = self.locate(recovery_point)
        if position < self.size_bytes:
            self.file.rewrite(position)
        self.sync()

    def sync(self) -> None:
        """Have the batches durable, and the index files if they were written since the last time."""
        files = self.unsynced_files or (self.file,)
        for file in files:
            file.sync()
        self.mark_synced(files)

    def mark_synced(self, files: Collection[File]) -> None:
        """Note that these files are durable."""
        if all(file in files for file in self.unsynced_files):
            self._close_index_files()

    def _close_index_files(self) -> None:
        for file in self.unsynced_files[1:]:
            file.close()
        self.unsynced_files = ()

    def forget_indexes(self) -> None:
        """Free the memory of the indexes, whose files are written."""
        self._offset_index = self._time_index = None
        if self._aborted and not self._aborted.is_dirty:
            self._aborted = None

    def locate(self, offset: int) -> int:
        """The position of the first batch that ends at or after this offset; `size_bytes` if there is none."""
        self._load_indexes()
        position = self._offset_index.floor(max(offset - self.base_offset, 0))  # type: ignore[union-attr]
        try:
            return self._walk_to(offset, position)
        except CorruptRecords:
            if not position:
                raise
        # Either the index or the log is wrong; the batches themselves decide.
        self.rebuild_indexes()
        return self._walk_to(offset, 0)

    def _walk_to(self, offset: int, position: int) -> int:
        size_bytes = self.size_bytes
        is_first = position > 0
        while position < size_bytes:
            chunk = self.file.pread(min(_LOCATE_BYTES, size_bytes - position), position)
            at = 0
            while at + _SPAN.size <= len(chunk):
                base_offset, length, delta = _SPAN.unpack_from(chunk, at)
                if length < _SMALLEST_LENGTH or delta < 0 or (is_first and base_offset > offset):
                    raise self._corrupt(position + at, "no batch starts here")
                is_first = False
                if base_offset + delta >= offset:
                    return position + at
                at += length + _LENGTH_OFFSET
            if not at:
                raise self._corrupt(position, "the file ends inside a batch")
            position += at
        return size_bytes

    def read(self, position: int, *, max_bytes: int, end_offset: int, min_one_message: bool) -> ReadResult:
        """Whole batches from this position on that end before `end_offset` and fit into `max_bytes`.

        With `min_one_message` the first one is given however large it is (KIP-74).
        """
        wanted = max_bytes if max_bytes >= HEADER_SIZE or not min_one_message else HEADER_SIZE
        if not min_one_message and wanted > _LOCATE_BYTES and self._first_exceeds(position, max_bytes):
            return ReadResult([], 0, -1, -1, position)
        data = self.file.lend(min(wanted, self.size_bytes - position), position)
        if len(data) < _SPAN.size:
            if min_one_message or wanted >= HEADER_SIZE:
                raise self._corrupt(position, "the file ends inside a batch")
            return ReadResult([], 0, -1, -1, position)
        first_offset, length, delta = _SPAN.unpack_from(data)
        size = length + _LENGTH_OFFSET
        if length < _SMALLEST_LENGTH or delta < 0 or position + size > self.size_bytes:
            raise self._corrupt(position, "no whole batch starts here")
        next_offset = first_offset + delta + 1
        if next_offset > end_offset or (size > max_bytes and not min_one_message):
            return ReadResult([], 0, first_offset, first_offset, position)
        if size > len(data):
            data = self.file.lend(size, position)
            if len(data) != size:
                raise self._corrupt(position, "the file ends inside a batch")
            return ReadResult([data], size, first_offset, next_offset, position + size)
        end, next_offset = self._whole_batches(
            data, position, end_offset=end_offset, size=size, next_offset=next_offset
        )
        return ReadResult([_head(data, end)], end, first_offset, next_offset, position + end)

    def _first_exceeds(self, position: int, max_bytes: int) -> bool:
        """Whether the first batch is too large for what is left of an answer, as most are once it is nearly full.

        Asked before a large read: it would read what fills the rest, of each partition that follows, for nothing.
        """
        head = self.file.pread(_SPAN.size, position)
        return len(head) == _SPAN.size and _SPAN.unpack(head)[1] + _LENGTH_OFFSET > max_bytes

    def _whole_batches(
        self, data: Buffer, position: int, *, end_offset: int, size: int, next_offset: int
    ) -> tuple[int, int]:
        """Where the last whole batch before `end_offset` ends in `data`, and its end offset; `size` ends the first."""
        start = size
        if len(data) - size > 2 * self._limits.index_interval_bytes:
            self._load_indexes()
            boundary = self._offset_index.boundary_below(  # type: ignore[union-attr]
                relative_end=end_offset - self.base_offset, position=position + len(data)
            )
            start = max(start, boundary - position)
        try:
            return self._walk_whole(data, position, start, end_offset=end_offset, next_offset=next_offset)
        except CorruptRecords:
            if start == size:
                raise
        # Either the index or the log is wrong; the batches themselves decide.
        self.rebuild_indexes()
        return self._walk_whole(data, position, size, end_offset=end_offset, next_offset=next_offset)

    def _walk_whole(
        self, data: Buffer, position: int, end: int, *, end_offset: int, next_offset: int
    ) -> tuple[int, int]:
        unpack, last_start = _SPAN.unpack_from, len(data) - HEADER_SIZE
        while end <= last_start:
            base_offset, length, delta = unpack(data, end)
            if length < _SMALLEST_LENGTH or delta < 0 or base_offset < next_offset:
                raise self._corrupt(position + end, "no batch starts here")
            after = end + length + _LENGTH_OFFSET
            if after > len(data) or base_offset + delta >= end_offset:
                break
            end = after
            next_offset = base_offset + delta + 1
        return end, next_offset

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Every batch from this position on, its header only. Raises CorruptRecords that names file and position."""
        while position < self.size_bytes:
            chunk = self.file.pread(min(_WALK_BYTES, self.size_bytes - position), position)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = self._parse(chunk, at, position)
                if position + at + header.size_bytes > self.size_bytes:
                    raise self._corrupt(position + at, "the file ends inside a batch")
                yield position + at, header
                at += header.size_bytes
            if not at:
                raise self._corrupt(position, "the file ends inside a batch")
            position += at

    def batches(self, position: int = 0) -> Iterator[tuple[int, memoryview, BatchHeader]]:
        """Every batch from this position on, whole: its position, bytes and header. Raises CorruptRecords."""
        while position < self.size_bytes:
            chunk = self.file.pread(min(_WALK_BYTES, self.size_bytes - position), position)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = self._parse(chunk, at, position)
                end = at + header.size_bytes
                if position + end > self.size_bytes:
                    raise self._corrupt(position + at, "the file ends inside a batch")
                if end > len(chunk):
                    if at:
                        break
                    chunk = self.file.pread(end, position)
                yield position + at, memoryview(chunk)[at:end], header
                at = end
            if not at:
                raise self._corrupt(position, "the file ends inside a batch")
            position += at

    def _parse(self, chunk: bytes, at: int, position: int) -> BatchHeader:
        try:
            header = read_header(chunk, at)
        except CorruptRecords as fault:
            raise self._corrupt(position + at, fault.detail) from None
        # The checksum does not cover the base offset, and no index entry can hold one from elsewhere.
        if header.base_offset < self.base_offset or header.last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            raise self._corrupt(position + at, f"offset {header.base_offset} is not one of this segment")
        return header

    def offset_at(self, position: int) -> int:
        """The base offset of the batch that starts at this position."""
        return self._header_at(position).base_offset

    def _header_at(self, position: int) -> BatchHeader:
        return self._parse(self.file.pread(HEADER_SIZE, position), 0, position)

    def end_offset_before(self, position: int) -> int:
        """Where the batches before this position end; the base offset if there are none."""
        end_offset = self.base_offset
        self._load_indexes()
        for at, header in self.headers(
            self._offset_index.boundary_below(  # type: ignore[union-attr]
                relative_end=MAX_RELATIVE_OFFSET, position=position
            )
        ):
            if at >= position:
                break
            end_offset = header.end_offset
        return end_offset

    def find_timestamp(self, timestamp: int, *, from_offset: int) -> TimestampOffset | None:
        """The first record at or after `from_offset` whose timestamp is at least this one."""
        self._load_indexes()
        assert self._time_index is not None
        offset = max(self._time_index.floor(timestamp) + self.base_offset, from_offset)
        for position, header in self.headers(self.locate(offset)):
            if header.max_timestamp < timestamp or header.last_offset < from_offset:
                continue
            for record in read_records(self.file.pread(header.size_bytes, position)):
                if record.timestamp >= timestamp and record.offset >= from_offset:
                    return TimestampOffset(record.timestamp, record.offset, header.partition_leader_epoch)
        return None

    def _corrupt(self, position: int, why: str) -> CorruptRecords:
        return CorruptRecords(f"{self.log_path} at position {position}: {why}")

    def remove_index_files(self) -> None:
        """Remove the index files, which no longer say the truth; those in memory stay."""
        self._close_index_files()
        if self._aborted is not None:
            self._aborted.is_dirty = True
        for path in (*self.index_paths, self.transaction_index_path):
            if self._files.exists(path):
                self._files.unlink(path)

    def remove(self) -> None:
        """Remove all files of the segment."""
        self.close()
        self.remove_index_files()
        self._files.unlink(self.log_path)

    def close(self) -> None:
        """Give the descriptors back."""
        self._close_index_files()
        self.file.close()


def _head(data: Buffer, size_bytes: int) -> Buffer:
    """The first bytes of what was read. A small part is copied: a view would hold all of it until it is sent."""
    if size_bytes == len(data):
        return data
    return memoryview(data)[:size_bytes] if size_bytes > len(data) // 4 else bytes(memoryview(data)[:size_bytes])
