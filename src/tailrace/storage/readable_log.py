"""What of one partition's log is there to be read: by offset, by time, and which transactions were aborted."""

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage.batch_file import ReadResult
from tailrace.storage.files import FileSystem
from tailrace.storage.gaps import Gaps
from tailrace.storage.recovery import LoadedLog
from tailrace.storage.segments import Segments
from tailrace.storage.timestamps import TimestampOffset, max_timestamp_offset, offset_for_timestamp
from tailrace.storage.transaction_index import AbortedTransaction


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

    def read(
        self, offset: int, *, max_bytes: int, end_offset: int | None = None, min_one_message: bool = True
    ) -> ReadResult:
        """Whole batches from the one that contains `offset`, all below `end_offset`, from one segment (KIP-74).

        If a compaction has removed that one, from the next one on.

        With `min_one_message` the first batch is given even if it is larger than `max_bytes`. Empty at the end. Raises
        OFFSET_OUT_OF_RANGE outside the log, CorruptRecords for bytes on the disk that are no batches.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not between {self.log_start_offset} and {self.log_end_offset} ({self._directory})",
            )
        if end_offset is None or end_offset > self.log_end_offset:
            end_offset = self.log_end_offset
        if offset >= end_offset:
            return ReadResult([], 0, offset, offset, 0)
        result = self._segments.read(
            offset, max_bytes=max_bytes, end_offset=end_offset, min_one_message=min_one_message
        )
        if result is None:
            self._check_gap(offset, self.log_end_offset)  # the log was truncated into a gap, and ends with it
            return ReadResult([], 0, offset, offset, 0)
        if not result.size_bytes:
            return ReadResult([], 0, offset, offset, result.end_position)
        if result.first_offset > offset:
            self._check_gap(offset, result.first_offset)
        return result

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
