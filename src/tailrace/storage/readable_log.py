"""What of one partition's log is there to be read: by offset, by time, and which transactions were aborted."""

from typing import Final

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches
from tailrace.storage.batch_file import Expected, ReadLimits, ReadResult
from tailrace.storage.files import FileSystem
from tailrace.storage.gaps import Gaps
from tailrace.storage.recovery import LoadedLog
from tailrace.storage.segments import Segments
from tailrace.storage.timestamps import TimestampOffset, max_timestamp_offset, offset_for_timestamp
from tailrace.storage.transaction_index import AbortedTransaction

MAX_READS: Final = 64
"""Segments that one read looks into while it finds empty batches alone: some milliseconds, if none is in memory."""
_MOST_EMPTY_BYTES: Final = 1 << 16
"""How far a read that is to bring a record at any rate goes on over empty batches: about a thousand of them."""


class ReadableLog:
    """A run of segments, and from where to where it can be read. What changes it is in `storage.log`."""

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
        expected = Expected(
            end_offset, self.log_end_offset, self._gaps.limit(is_compacted=self._config.is_compacted), self.epochs
        )
        result = self._segments.read(limits, expected)
        if result is None:
            self._check_gap(offset, self.log_end_offset)  # the log was truncated into a gap, and ends with it
            return ReadResult([], 0, offset, offset, 0)
        if not result.size_bytes:
            return ReadResult([], 0, offset, offset, result.end_position)
        if result.first_offset > offset:
            self._check_gap(offset, result.first_offset)
        may_be_compacted = result.next_offset <= self._gaps.bound or self._config.is_compacted
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

    def aborted_transactions(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions with records from `offset` on and below `end_offset`, in the order of their markers.

        Whoever reads that range leaves their records out. Only of what lies below the last stable offset is all known.
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
