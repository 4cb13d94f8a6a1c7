"""A `.log` file with its indexes: a run of whole batches whose offsets rise from the segment's base offset.

Invariants:

1. The first `size_bytes` of the file are whole batches that tile the file. The bytes of a failed write behind them are
   cut off before the next write.
2. Only the last segment of a log, the active segment, is appended to. Its indexes live in memory; the files `.index`
   and `.timeindex` are written when the segment is rolled or closed, and are a cache: a missing or wrong file is made
   anew from the batches.
3. `.txnindex` is a cache too, but earlier segments are needed for a rebuild, and a segment without abort markers has
   none, so a missing file proves nothing. The file is durable before the segment is trusted.
"""

import errno
from collections.abc import Collection, Sequence

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, BatchHeader
from tailrace.protocol.records.record_times import largest_time
from tailrace.storage.epoch_cache import LAST_OFFSET
from tailrace.storage.file_system import Buffer, File, FileSystem, append_all
from tailrace.storage.segment_files.batch_file import MAX_RELATIVE_OFFSET, AppendBatch, BatchFile
from tailrace.storage.segment_files.file_names import SegmentPaths, segment_name
from tailrace.storage.segment_files.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, Indexes, OffsetIndex, TimeIndex
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from tailrace.storage.segment_files.transaction_index import TransactionIndex


class Segment(BatchFile, SegmentPaths):
    """A segment. The file opens at the first use, the indexes load at their first use."""

    __slots__ = (
        "_aborted",
        "_bytes_since_entry",
        "_files",
        "_first_timestamp",
        "_indexes",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_stem",
        "_suffix",
        "has_true_times",
        "limits",
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

        `size_bytes` is the size of the batches, if known; else the size of the file is used.
        """
        self._suffix = suffix
        self._stem = f"{directory}/{segment_name(base_offset)}"
        self._files = files
        self.limits = limits
        self.base_offset = base_offset
        self.file: File = files.open(self.log_path, create=create)
        self.size_bytes = 0 if create else size_bytes if size_bytes >= 0 else files.size_of(self.log_path)
        self._indexes: Indexes | None = None
        self._aborted: TransactionIndex | None = TransactionIndex() if create else None
        self._max_timestamp = -1
        self._max_timestamp_offset = -1
        self._first_timestamp = -1
        self._bytes_since_entry = 0
        self.has_true_times = create
        """Whether the time index is made of the times of the records, also where the headers were not checked."""
        self.unsynced_files: tuple[File, ...] = ()
        """The files of a rolled segment that are still to be synced."""

    @property
    def aborted(self) -> TransactionIndex:
        """The aborted transactions whose markers are in this segment. Raises CorruptRecords if their file is
        damaged."""
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

    @property
    def knows_aborted(self) -> bool:
        """Whether `aborted` is in memory: then it cannot fail."""
        return self._aborted is not None

    def take_aborted(self, aborted: TransactionIndex) -> None:
        """Replace the aborted transactions; the file is rewritten."""
        self._aborted = aborted
        aborted.is_dirty = True

    @property
    def has_doubtful_times(self) -> bool:
        """Whether some of the segment's times come from unchecked headers: such times must not decide about records."""
        return self.base_offset < self.limits.checked_from and not self.has_true_times

    def largest_time_at(self, position: int, header: BatchHeader) -> int:
        limits = self.limits
        if header.base_offset >= limits.checked_from and limits.has_read_note:
            return header.max_timestamp
        if header.base_offset >= limits.checked_from or self.has_doubtful_times:
            return super().largest_time_at(position, header)
        return largest_time(self.file.pread(header.size_bytes, position), header)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of all records, -1 if there is none."""
        self._load_max_timestamp()
        return self._max_timestamp

    @property
    def age_timestamp(self) -> int:
        """The time for retention: the largest timestamp or, without timestamps, the time of the last write."""
        timestamp = self.max_timestamp
        return timestamp if timestamp >= 0 else self.written_ms

    @property
    def written_ms(self) -> int:
        """The time of the last write, by the file."""
        return self._files.modified_ms(self.log_path)

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 if there is none."""
        self._load_max_timestamp()
        return self._first_timestamp

    @property
    def index_entries(self) -> int:
        """The number of entries of the longer index, from memory or the sizes of the files; an upper bound."""
        if self._indexes is not None:
            return max(len(self._indexes.offsets), len(self._indexes.times) + 1)
        sizes = [self._files.size_of(path) if self._files.exists(path) else None for path in self.index_paths]
        if sizes[0] is None or sizes[1] is None:
            return self.size_bytes // max(self.limits.index_interval_bytes, HEADER_SIZE) + 1
        return max(sizes[0] // OFFSET_ENTRY_SIZE, sizes[1] // TIME_ENTRY_SIZE)

    def _load_max_timestamp(self) -> None:
        if self._indexes is None and self._max_timestamp < 0:
            self._load_indexes()
            # Retention reads this for every old segment: the two numbers stay in memory; the indexes would fill the
            # memory.
            self.forget_indexes()

    def count_that_fit(self, batches: Sequence[AppendBatch]) -> int:
        """The number of these batches that fit into this segment by Kafka's roll rules."""
        indexes = self._indexes or self._load_indexes()
        return self.limits.count_that_fit(
            batches, indexes, self.size_bytes, self._first_timestamp, self.base_offset + MAX_RELATIVE_OFFSET
        )

    def append(self, batches: Sequence[AppendBatch]) -> None:
        """Write the batches in one call. The batches must fit (`count_that_fit`).

        Raises StorageError unless all bytes were written; the caller then has to `cut_back`.
        """
        total = 0
        buffers = []
        for buffer, _ in batches:
            buffers.append(buffer)
            total += len(buffer)
        written = self.file.writev(buffers)
        if written != total:
            fault = f"{self.log_path}: only {written} of {total} bytes were written; the disk may be full"
            raise StorageError(fault, errno.ENOSPC)
        position = self.size_bytes
        for buffer, header in batches:
            self.note(position, header, buffer)
            position += len(buffer)
        self.size_bytes = position

    def cut_back(self) -> None:
        """Remove, durably, the bytes of a failed append."""
        self.file.truncate(self.size_bytes)
        # Batches of an append that was answered with an error must not come back after other batches have been written.
        self.file.sync()

    def note(self, position: int, header: BatchHeader, batch: Buffer | None = None) -> None:
        """Add a batch at this position to the loaded indexes. A given `batch` saves reading the file."""
        last_offset = header.base_offset + header.last_offset_delta
        timestamp = self.largest_time_at(position, header) if batch is None else self.limits.time_to_be(batch, header)
        if timestamp > self._max_timestamp and header.records_count:  # a compaction may have left none
            self._max_timestamp = timestamp
            self._max_timestamp_offset = last_offset
        if not position:
            self._first_timestamp = timestamp
        if self._bytes_since_entry > self.limits.index_interval_bytes:
            assert self._indexes is not None
            self._indexes.offsets.append(last_offset - self.base_offset, position)
            self._note_max_timestamp(self._indexes)
            self._bytes_since_entry = 0
        self._bytes_since_entry += header.batch_length + LENGTH_OFFSET

    def _note_max_timestamp(self, indexes: Indexes) -> None:
        if self._max_timestamp >= 0:
            indexes.times.append(self._max_timestamp, self._max_timestamp_offset - self.base_offset)

    def cut_to(self, size_bytes: int, end_offset: int) -> None:
        """Cut the file at this position; the batches that stay end at this offset.

        The caller removes the index files, after it has loaded `aborted`.
        """
        indexes = self._load_indexes()
        self.file.truncate(size_bytes)
        self.size_bytes = size_bytes
        indexes.offsets.truncate(position=size_bytes)
        indexes.times.truncate(relative_offset=end_offset - self.base_offset)
        if self._aborted is not None:
            self._aborted.truncate(end_offset)
        self._bytes_since_entry = 0
        try:
            self._load_timestamps(indexes)
        except CorruptRecords:
            self.rebuild_indexes()  # the last remaining entry is wrong: rebuild from the batches

    def _load_indexes(self) -> Indexes:
        """The indexes, from memory, from their files or, if the files are wrong, from the batches."""
        indexes = self._indexes
        if indexes is not None:
            return indexes
        indexes = self._indexes = self.read_indexes()
        if indexes is not None:
            try:
                self._load_timestamps(indexes, is_whole=self.has_true_times)
                return indexes
            except CorruptRecords:
                pass  # An entry leads into the middle of a batch, or the batches are damaged: the rebuild finds out.
        return self.rebuild_indexes()

    def read_indexes(self) -> Indexes | None:
        """The content of the index files; None for a file that cannot be right. On any thread."""
        offset_path, time_path = self.index_paths
        if not (self.size_bytes and self._files.exists(offset_path) and self._files.exists(time_path)):
            return None
        offsets = OffsetIndex.from_bytes(self._files.read_bytes(offset_path), log_size_bytes=self.size_bytes)
        times = TimeIndex.from_bytes(self._files.read_bytes(time_path))
        return None if offsets is None or times is None else Indexes(offsets, times)

    def take_indexes(self, indexes: Indexes, *, is_sealed: bool = True) -> None:
        """Replace wrong indexes by `indexes`; a sealed segment writes its files, which are still to be synced."""
        self.has_true_times = True
        self._indexes = indexes
        self._load_timestamps(indexes, is_whole=True)
        if is_sealed:
            self.write_indexes()

    def confirm_times(self) -> None:
        """Take the index files for indexes of the records' times: every batch was compared with its records."""
        if not self.has_true_times:
            self.has_true_times = True
            if self._indexes is None:
                self._max_timestamp = -1  # read again at the next use
            else:
                self._load_timestamps(self._indexes, is_whole=True)

    def rebuild_indexes(self) -> Indexes:
        """Make both indexes anew from the batches."""
        indexes = self.start_indexes()
        for position, header in self.headers():
            self.note(position, header)
        return indexes

    def start_indexes(self) -> Indexes:
        """Begin with empty indexes, for a caller that will `note` every batch."""
        self._indexes = Indexes(OffsetIndex(), TimeIndex())
        self._max_timestamp = self._max_timestamp_offset = self._first_timestamp = -1
        self._bytes_since_entry = 0
        return self._indexes

    def _load_timestamps(self, indexes: Indexes, *, is_whole: bool = False) -> None:
        """The first and the largest timestamp, from the time index and the batches behind its last entry.

        `is_whole`: the last entry is known to have the largest timestamp of the segment.
        """
        self._max_timestamp = self._max_timestamp_offset = self._first_timestamp = -1
        if not self.size_bytes:
            return
        self._first_timestamp = self.largest_time_at(0, self.header_at(0))
        last = indexes.times.last
        position = 0
        if last is not None:
            if not self._is_time_of(*last):
                raise CorruptRecords(f"{self.index_paths[1]}: the last entry is not of a batch")
            self._max_timestamp, relative_offset = last
            self._max_timestamp_offset = self.base_offset + relative_offset
            position, _ = indexes.offsets.floor(relative_offset)
        for at, header in self.headers(self.size_bytes if is_whole else position):
            timestamp = self.largest_time_at(at, header)
            if timestamp > self._max_timestamp and header.records_count:
                self._max_timestamp = timestamp
                self._max_timestamp_offset = header.last_offset

    def last_indexed_position(self) -> int:
        """The start of the batch of the last index entry, 0 without entries."""
        return self._load_indexes().offsets.floor(MAX_RELATIVE_OFFSET)[0]

    def write_indexes(self) -> None:
        """Write the index files, as new files that are still to be synced."""
        indexes = self._load_indexes()
        self._note_max_timestamp(indexes)
        if self.unsynced_files:
            self.aborted.is_dirty = True  # the file may be among the files still to be synced
        self._close_index_files()
        contents = indexes.offsets.to_bytes(), indexes.times.to_bytes()
        for path, content in zip(self.index_paths, contents, strict=True):
            file = self._files.open(path, create=True)
            self.unsynced_files = (*(self.unsynced_files or (self.file,)), file)
            append_all(file, content)
        self.write_aborted()

    def write_aborted(self) -> None:
        """Write the `.txnindex` file if memory differs; the file is still to be synced then."""
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
        """Make the batches durable although an earlier sync, from the recovery point on, may have failed."""
        position = self.locate(recovery_point)
        if position < self.size_bytes:
            self.file.rewrite(position)
        self.sync()

    def sync(self) -> None:
        """Sync the batches, and the index files that were written since the last time."""
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
        self._indexes = None
        if self._aborted and not self._aborted.is_dirty:
            self._aborted = None

    def locate(self, offset: int, *, gap_limit: int = LAST_OFFSET) -> int:
        """The position of the first batch that ends at or after this offset; `size_bytes` if there is no such batch.

        Raises CorruptRecords if a batch on the way does not continue the batch before, except for gaps below
        `gap_limit`.
        """
        position, last = self._load_indexes().offsets.floor(max(offset - self.base_offset, 0))
        first_end = -1 if last < 0 else self.base_offset + last + 1
        try:
            return self._walk_to(offset, position, first_end=first_end, gap_limit=gap_limit)
        except CorruptRecords:
            if last < 0:
                raise
        # Either the index or the log is wrong: rebuild from the batches.
        self.rebuild_indexes()
        return self._walk_to(offset, 0, first_end=-1, gap_limit=gap_limit)

    def floor_of_time(self, timestamp: int) -> int:
        """An offset below which every timestamp is lower than this."""
        entry = self._load_indexes().times.below(timestamp)
        if entry is not None and not self._is_time_of(*entry):
            entry = self.rebuild_indexes().times.below(timestamp)
        return self.base_offset + (0 if entry is None else entry[1])

    def _is_time_of(self, timestamp: int, relative_offset: int) -> bool:
        """Whether the batch with this offset has this largest timestamp, as an entry of the time index says."""
        offset = self.base_offset + relative_offset
        position = self.locate(offset)
        if position >= self.size_bytes:
            return False
        header = self.header_at(position)
        return header.base_offset <= offset and self.largest_time_at(position, header) == timestamp

    def boundary_before(self, position: int) -> int:
        """The start of a batch at or before this position, by the index; 0 if the index has no such batch."""
        return self._load_indexes().offsets.boundary_below(relative_end=MAX_RELATIVE_OFFSET, position=position)

    def end_offset_before(self, position: int) -> int:
        """The end offset of the batches before this position; the base offset if there is no batch."""
        end_offset = self.base_offset
        for at, header in self.headers(self.boundary_before(position)):
            if at >= position:
                break
            end_offset = header.end_offset
        return end_offset

    def remove_index_files(self) -> None:
        """Remove the index files, which are out of date; the indexes in memory stay."""
        self._close_index_files()
        if self._aborted is not None:
            self._aborted.is_dirty = True
        for path in (*self.index_paths, self.transaction_index_path, self.key_index_path):
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
