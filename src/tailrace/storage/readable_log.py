"""Reads of one partition's log: by offset, by time, the aborted transactions, and the offsets that may be missing."""

from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.storage.batch_file import Expected, ReadLimits, ReadResult
from tailrace.storage.checkpoints import write_gap_bound
from tailrace.storage.epoch_cache import LAST_OFFSET
from tailrace.storage.file_system import FileSystem
from tailrace.storage.recovery_report import UNKNOWN_GAPS, LoadedLog
from tailrace.storage.segment import Segment
from tailrace.storage.segments import Segments
from tailrace.storage.transaction_index import AbortedTxn


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


def offset_for_timestamp(segments: Segments, timestamp: int, *, log_start_offset: int) -> TimestampOffset | None:
    """The first record, by offset, whose timestamp is at least this one; None if there is none."""
    for segment in segments.from_offset(log_start_offset):
        if segment.max_timestamp >= timestamp:
            segments.keep_loaded(segment)
            found = _find(segment, timestamp, from_offset=log_start_offset)
            if found is not None:
                return found
    return None


def max_timestamp_offset(segments: Segments, *, log_start_offset: int) -> TimestampOffset | None:
    """The first record with the largest timestamp of the log (KIP-734); None without timestamps."""
    first, *later = segments.from_offset(log_start_offset)
    largest, holder = max(
        ((segment.max_timestamp, segment) for segment in (first, *later)), key=lambda candidate: candidate[0]
    )
    if largest < 0:
        return None
    segments.keep_loaded(holder)
    found = _find(holder, largest, from_offset=log_start_offset)
    if found is not None or holder is not first:
        return found
    # It lies below the log start: the other records of that segment decide. Only one segment is ever searched.
    largest, holder = _largest_readable(first, log_start_offset), first
    for segment in later:
        if segment.max_timestamp > largest:
            largest, holder = segment.max_timestamp, segment
    return None if largest < 0 else _find(holder, largest, from_offset=log_start_offset)


def _find(segment: Segment, timestamp: int, *, from_offset: int) -> TimestampOffset | None:
    """The first record at or after `from_offset` whose timestamp is at least this one."""
    offset = max(segment.floor_of_time(timestamp), from_offset)
    for position, header in segment.headers(segment.locate(offset)):
        if header.last_offset < from_offset or segment.largest_time_at(position, header) < timestamp:
            continue
        found = segment.times_at(position, header, from_offset=from_offset).first_at_least(timestamp)
        if found is not None:
            return TimestampOffset(*found, header.partition_leader_epoch)
    return None


def _largest_readable(segment: Segment, log_start_offset: int) -> int:
    """The largest timestamp from this offset on, -1 for none."""
    largest = -1
    for position, header in segment.headers(segment.locate(log_start_offset)):
        if header.base_offset >= log_start_offset:
            timestamp = segment.largest_time_at(position, header) if header.records_count else -1
        else:
            timestamp = segment.times_at(position, header, from_offset=log_start_offset).largest
        largest = max(largest, timestamp)
    return largest


MAX_READS: Final = 64
"""Segments that one read looks into while it finds empty batches alone: some milliseconds, if none is in memory."""
_MOST_EMPTY_BYTES: Final = 1 << 16
"""Bytes of empty batches that a read skips which is to return a record at any rate: about a thousand of them."""


class ReadableLog:
    """A run of segments, and the offsets between which it can be read. Changes of it are in `storage.log`."""

    __slots__ = (
        "_config",
        "_directory",
        "_gaps",
        "_segments",
        "epochs",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "recovery",
    )

    def __init__(self, directory: str, loaded: LoadedLog, *, files: FileSystem, config: TopicConfig) -> None:
        self._directory = directory
        self._config = config
        self._gaps = Gaps(directory, loaded.gap_bound, files=files)
        self._segments = Segments(directory, loaded.segments, files=files, limits=loaded.limits)
        self.log_start_offset = loaded.log_start_offset
        """The first offset that can be read."""
        self.log_end_offset = loaded.log_end_offset
        """The offset of the next record."""
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.recovery = loaded.report

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def config(self) -> TopicConfig:
        return self._config

    @property
    def size_bytes(self) -> int:
        """All batches, indexes not counted."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    def size_from(self, offset: int) -> int:
        """The bytes of the batches from the one with this offset on. Raises CorruptRecords, StorageError."""
        first, *later = self._segments.from_offset(offset)
        return first.size_bytes - first.locate(offset) + sum(segment.size_bytes for segment in later)

    def read(self, limits: ReadLimits, end_offset: int | None = None) -> ReadResult:
        """Whole batches from the one that contains the offset, all below `end_offset`, from one segment (KIP-74).

        If a compaction has removed that one, from the next one on. If all of a segment's are empty, those of the next
        segments too, until there is a record: readers take an answer without one for a batch that is too large.

        With `min_one_message` the first batch is given even if it is larger than `max_bytes`, and so is the first one
        with a record behind a few empty ones. Empty at the end. Raises OFFSET_OUT_OF_RANGE outside the log,
        CorruptRecords for bytes on the disk that are no batches.
        """
        offset = limits.offset
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not between {self.log_start_offset} and {self.log_end_offset} ({self._directory})",
            )
        if end_offset is None or end_offset > self.log_end_offset:
            end_offset = self.log_end_offset
        if offset >= end_offset:
            return ReadResult([], 0, offset, offset, 0)
        is_compacted = self._config.is_compacted
        gap_limit = self._gaps.limit(is_compacted=True) if is_compacted else self._gaps.bound
        expected = Expected(end_offset, self.log_end_offset, gap_limit, self.epochs)
        result = self._segments.read(limits, expected)
        if result is None:
            self._check_gap(offset, self.log_end_offset)  # the log was truncated into a gap, and ends with it
            return ReadResult([], 0, offset, offset, 0)
        if not result.size_bytes:
            return ReadResult([], 0, offset, offset, result.end_position)
        if result.first_offset > offset:
            self._check_gap(offset, result.first_offset)
        may_be_compacted = is_compacted or result.next_offset <= self._gaps.bound
        if may_be_compacted and _is_hollow(result):
            return self._read_on(result, limits, expected)
        return result

    def _read_on(self, result: ReadResult, limits: ReadLimits, expected: Expected) -> ReadResult:
        """The same and what follows it, up to the first batches with a record."""
        chunks, size_bytes, next_offset = list(result.records), result.size_bytes, result.next_offset
        max_bytes = limits.max_bytes
        most_bytes = max(max_bytes, _MOST_EMPTY_BYTES) if limits.min_one_message else max_bytes
        more = result
        for _ in range(MAX_READS - 1):
            if next_offset >= expected.end_offset or size_bytes >= most_bytes or not _is_hollow(more):
                break
            left_bytes = max(max_bytes - size_bytes, 0)
            rest = ReadLimits(next_offset, left_bytes, min_one_message=limits.min_one_message)
            following = self._segments.read(rest, expected)
            if following is None or not following.size_bytes:
                break
            more = following
            if more.first_offset > next_offset:
                self._check_gap(next_offset, more.first_offset)
            chunks += more.records
            size_bytes, next_offset = size_bytes + more.size_bytes, more.next_offset
        return ReadResult(chunks, size_bytes, result.first_offset, next_offset, more.end_position)

    def _check_gap(self, offset: int, next_offset: int) -> None:
        if not self._gaps.is_legal_before(next_offset, is_compacted=self._config.is_compacted):
            raise CorruptRecords(f"{self._directory}: offset {offset} is missing; {next_offset} is the next one")

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records from `offset` on and below `end_offset`, in the order of their markers.

        A reader of that range leaves their records out. The list is complete below the last stable offset only.
        """
        return self._segments.aborted_transactions(offset, end_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record, by offset, whose timestamp is at least this one; None if there is none."""
        return offset_for_timestamp(self._segments, timestamp, log_start_offset=self.log_start_offset)

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log (KIP-734); None without timestamps."""
        return max_timestamp_offset(self._segments, log_start_offset=self.log_start_offset)


def _is_hollow(result: ReadResult) -> bool:
    """Whether there is no record in any of the batches."""
    return not any(header.records_count for chunk in result.records for _, header in iter_batches(chunk))


_MARGIN: Final = 1 << 20
"""Offsets by which a follower notes ahead that gaps are legal: a note for each batch would cost a sync each."""


class Gaps:
    """The bound of one log.

    A compaction removes records, and with them offsets. Elsewhere a missing offset is damage. One bound, in
    a file of the log's directory, separates the two: below it there may be gaps, whatever the topic's settings are now.
    """

    __slots__ = ("_directory", "_files", "bound")

    def __init__(self, directory: str, bound: int, *, files: FileSystem) -> None:
        self._directory = directory
        self._files = files
        self.bound = bound
        """UNKNOWN_GAPS if nothing is noted: then a compacted log may have them anywhere."""

    @property
    def is_known(self) -> bool:
        return self.bound != UNKNOWN_GAPS

    def allow(self, bound: int) -> None:
        """Have gaps below this offset taken for legal from now on, also by a recovery under other settings."""
        if bound > self.bound:
            write_gap_bound(self._files, self._directory, bound)
            self.bound = bound

    def accept(self, base_offset: int, end_offset: int, *, is_expected: bool, make_durable: Callable[[], None]) -> None:
        """A follower gets a batch that does not continue its log. That offsets are missing must be known for good.

        `is_expected`: this log is compacted, or its leader's may have been. `make_durable` is called before gaps are
        legal further up, for the present batches: if a part of them is lost, it must not pass for a gap.
        """
        is_legal = base_offset > end_offset and (is_expected or base_offset <= self.bound)
        assert is_legal, f"{self._directory}: batch at offset {base_offset} appended at {end_offset}"
        if base_offset > self.bound:
            make_durable()
            self.allow(base_offset + _MARGIN)

    def limit(self, *, is_compacted: bool) -> int:
        """Offsets before this one, or one below it, may be missing."""
        return LAST_OFFSET if is_compacted and not self.is_known else self.bound

    def is_legal_before(self, next_offset: int, *, is_compacted: bool) -> bool:
        """Whether offsets before this one may be missing."""
        return next_offset <= self.limit(is_compacted=is_compacted)
