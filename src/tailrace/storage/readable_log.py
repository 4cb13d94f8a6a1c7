"""The state of a partition's log, and reads: by offset, by time, the aborted transactions."""

from collections.abc import Callable
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.storage.file_system import FileSystem
from tailrace.storage.gaps import Gaps
from tailrace.storage.log_checkpoint import LogCheckpoint
from tailrace.storage.recovery.report import LoadedLog
from tailrace.storage.segment_files.batch_file import Expected, ReadLimits, ReadResult
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.transaction_index import AbortedTxn
from tailrace.storage.segments import Segments


class TimestampOffset(NamedTuple):
    """A record found by its timestamp."""

    timestamp: int
    offset: int
    leader_epoch: int


def _offset_for_timestamp(segments: Segments, timestamp: int, *, log_start_offset: int) -> TimestampOffset | None:
    for segment in segments.from_offset(log_start_offset):
        if segment.max_timestamp >= timestamp:
            segments.keep_loaded(segment)
            found = _find(segment, timestamp, from_offset=log_start_offset)
            if found is not None:
                return found
    return None


def _max_timestamp_offset(segments: Segments, *, log_start_offset: int) -> TimestampOffset | None:
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
    # The record lies below the log start: the other records of its segment decide. Only one segment is searched like
    # this.
    largest, holder = _largest_readable(first, log_start_offset), first
    for segment in later:
        if segment.max_timestamp > largest:
            largest, holder = segment.max_timestamp, segment
    return None if largest < 0 else _find(holder, largest, from_offset=log_start_offset)


def _find(segment: Segment, timestamp: int, *, from_offset: int) -> TimestampOffset | None:
    """The first record at or after `from_offset` with at least this timestamp."""
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
"""The number of segments that one read searches while it finds only empty batches: some milliseconds, if no segment is
in memory."""
_MOST_EMPTY_BYTES: Final = 1 << 16
"""The bytes of empty batches that a read skips to return at least one record: about a thousand batches."""


class ReadableLog:
    """A run of segments, the offsets between which records can be read, and whether the log is in service.

    The parts of a log (`storage.log`) share the object. Bytes on the disk that are no batches put the log offline:
    StorageError.
    """

    __slots__ = (
        "_on_offline",
        "checkpoint",
        "config",
        "directory",
        "epochs",
        "failure",
        "flushed_offset",
        "gaps",
        "good_end_offset",
        "is_changed",
        "is_damaged",
        "is_offline",
        "log_end_offset",
        "log_start_offset",
        "producers",
        "recovery",
        "segments",
        "truncations",
    )

    def __init__(self, directory: str, loaded: LoadedLog, *, files: FileSystem, config: TopicConfig) -> None:
        self.directory = directory
        self.config = config
        self.gaps = Gaps(directory, loaded.gap_bound, files=files)
        self.segments = Segments(directory, loaded.segments, files=files, limits=loaded.limits)
        self.log_start_offset = loaded.log_start_offset
        """The first offset that can be read."""
        self.log_end_offset = loaded.log_end_offset
        """The offset of the next record."""
        self.flushed_offset = loaded.log_end_offset
        """Everything below this offset is durable."""
        self.epochs = loaded.epochs
        self.producers = loaded.producers
        self.recovery = loaded.report
        self.checkpoint: LogCheckpoint | None = None
        """A coordinator's checkpoint; None for other logs."""
        damage = loaded.report.damage
        self.failure = str(damage) if damage is not None else ""
        """The reason why the log is offline; empty in service."""
        self.is_offline = bool(self.failure)
        """Whether a failure or damage has ended this log's service until the next opening."""
        self.is_damaged = damage is not None
        """Whether something that was flushed is known to be lost or unreadable; the log is offline then."""
        self.good_end_offset = loaded.log_end_offset
        """No damage is known below this offset of a damaged log."""
        # After a crash the caches of a clean close are still to be written, even if nothing else happens.
        self.is_changed = not loaded.report.clean and loaded.log_end_offset > loaded.segments[0].base_offset
        """Whether a clean close has files to write."""
        self.truncations = 0
        self._on_offline: Callable[[], None] | None = None

    def when_offline(self, callback: Callable[[], None]) -> None:
        """Call `callback` once if the log goes offline other than by `close`. The call is made inside the method that
        fails."""
        self._on_offline = callback

    def check_online(self) -> None:
        """Raise StorageError, with the reason, if the log is offline."""
        if self.failure:
            raise StorageError(f"the log in {self.directory} is offline: {self.failure}")

    def fail(self, reason: str) -> None:
        """Put the log offline; a second call changes nothing."""
        if not self.failure:
            self.failure, self.is_offline = reason, True
            on_offline, self._on_offline = self._on_offline, None
            if on_offline is not None:
                on_offline()

    def condemn(self, damage: str, *, offset: int = 0) -> None:
        """Put the log offline for damage in its flushed part; everything below `offset` is good."""
        if not self.is_damaged:
            self.good_end_offset = min(max(offset, self.log_start_offset), self.log_end_offset)
        self.is_damaged = True
        self.fail(damage)

    def condemned(self, fault: CorruptRecords, *, offset: int = 0) -> StorageError:
        """The error to raise for damage that a read has found: the log is offline from now on."""
        self.condemn(fault.detail, offset=offset)
        return StorageError(fault.detail)

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start to this offset; the next retention removes what lies below. It never falls.

        Raises OFFSET_OUT_OF_RANGE above the log's end.
        """
        if offset > self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"the log cannot start at {offset}: it ends at {self.log_end_offset} ({self.directory})",
            )
        if offset > self.log_start_offset:
            self.log_start_offset = offset
            self.epochs.truncate_from_start(offset)

    @property
    def size_bytes(self) -> int:
        """Bytes of the batches, indexes not counted."""
        return self.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    @property
    def is_empty(self) -> bool:
        """Whether there is no batch, not even one below the log start."""
        return self.log_start_offset == self.log_end_offset and not self.size_bytes and self.segment_count == 1

    def size_from(self, offset: int) -> int:
        """The bytes of the batches from this offset on. Raises CorruptRecords, StorageError."""
        first, *later = self.segments.from_offset(offset)
        return first.size_bytes - first.locate(offset) + sum(segment.size_bytes for segment in later)

    def read(self, limits: ReadLimits, end_offset: int | None = None) -> ReadResult:
        """Whole batches of one segment below `end_offset`, from the batch that contains the offset on (KIP-74).

        If a compaction has removed that batch, the result begins with the next batch. If all batches of a segment are
        empty, the result has batches of the next segments too, until there is a record: a reader would take a result
        without a record for a batch that is too large.

        With `min_one_message` the first batch is given even if it is larger than `max_bytes`, and so is the first batch
        with a record behind a few empty batches. Empty at the end. Raises StorageError, and OFFSET_OUT_OF_RANGE outside
        the log.
        """
        try:
            return self._read(limits, end_offset)
        except CorruptRecords as fault:
            raise self.condemned(fault, offset=limits.offset) from fault

    def _read(self, limits: ReadLimits, end_offset: int | None) -> ReadResult:
        offset = limits.offset
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not between {self.log_start_offset} and {self.log_end_offset} ({self.directory})",
            )
        if end_offset is None or end_offset > self.log_end_offset:
            end_offset = self.log_end_offset
        if offset >= end_offset:
            return ReadResult([], 0, offset, offset, 0)
        is_compacted = self.config.is_compacted
        gap_limit = self.gaps.limit(is_compacted=True) if is_compacted else self.gaps.bound
        expected = Expected(end_offset, self.log_end_offset, gap_limit, self.epochs)
        result = self.segments.read(limits, expected)
        if result is None:
            self._check_gap(offset, self.log_end_offset)  # the log was truncated into a gap, and ends with the gap
            return ReadResult([], 0, offset, offset, 0)
        if not result.size_bytes:
            return ReadResult([], 0, offset, offset, result.end_position)
        if result.first_offset > offset:
            self._check_gap(offset, result.first_offset)
        may_be_compacted = is_compacted or result.next_offset <= self.gaps.bound
        if may_be_compacted and _is_hollow(result):
            return self._read_on(result, limits, expected)
        return result

    def _read_on(self, result: ReadResult, limits: ReadLimits, expected: Expected) -> ReadResult:
        """The same batches and the batches behind, up to the first batches with a record."""
        chunks, size_bytes, next_offset = list(result.records), result.size_bytes, result.next_offset
        max_bytes = limits.max_bytes
        most_bytes = max(max_bytes, _MOST_EMPTY_BYTES) if limits.min_one_message else max_bytes
        more = result
        for _ in range(MAX_READS - 1):
            if next_offset >= expected.end_offset or size_bytes >= most_bytes or not _is_hollow(more):
                break
            left_bytes = max(max_bytes - size_bytes, 0)
            rest = ReadLimits(next_offset, left_bytes, min_one_message=limits.min_one_message)
            following = self.segments.read(rest, expected)
            if following is None or not following.size_bytes:
                break
            more = following
            if more.first_offset > next_offset:
                self._check_gap(next_offset, more.first_offset)
            chunks += more.records
            size_bytes, next_offset = size_bytes + more.size_bytes, more.next_offset
        return ReadResult(chunks, size_bytes, result.first_offset, next_offset, more.end_position)

    def _check_gap(self, offset: int, next_offset: int) -> None:
        if not self.gaps.is_legal_before(next_offset, is_compacted=self.config.is_compacted):
            raise CorruptRecords(f"{self.directory}: offset {offset} is missing; {next_offset} is the next one")

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with records from `offset` on and below `end_offset`, in the order of their markers.

        A reader of that range leaves their records out. The list is complete below the last stable offset only.
        """
        return self.segments.aborted_transactions(offset, end_offset)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        """The first record, by offset, with at least this timestamp; None without such a record."""
        try:
            return _offset_for_timestamp(self.segments, timestamp, log_start_offset=self.log_start_offset)
        except CorruptRecords as fault:
            raise self.condemned(fault) from fault

    def max_timestamp_offset(self) -> TimestampOffset | None:
        """The first record with the largest timestamp of the log (KIP-734); None without timestamps."""
        try:
            return _max_timestamp_offset(self.segments, log_start_offset=self.log_start_offset)
        except CorruptRecords as fault:
            raise self.condemned(fault) from fault


def _is_hollow(result: ReadResult) -> bool:
    """Whether there is no record in any of the batches."""
    return not any(header.records_count for chunk in result.records for _, header in iter_batches(chunk))
