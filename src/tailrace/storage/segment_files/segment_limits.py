"""The limits of segments: when a segment is full, by its topic's settings, and which batches count as checked."""

from collections.abc import Sequence
from typing import Final

from tailrace.model.checksum import crc32c
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader
from tailrace.protocol.records.record_times import largest_time
from tailrace.storage.file_system import Buffer
from tailrace.storage.segment_files.batch_file import AppendBatch
from tailrace.storage.segment_files.index import OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, Indexes

_MAX_POSITION: Final = 2**31 - 1


class SegmentLimits:
    """Decides when a segment is full. One object per log, shared by its segments and changed in place."""

    __slots__ = (
        "_jitter_seed",
        "checked_from",
        "has_read_note",
        "index_entries",
        "index_interval_bytes",
        "segment_bytes",
        "segment_ms",
        "time_index_entries",
    )

    def __init__(self, config: TopicConfig, *, name: str) -> None:
        """`name` is the log's name. The log's share of segment.jitter.ms is derived from the name, so that it is the
        same after each start."""
        self._jitter_seed = crc32c(name.encode())
        self.checked_from = 0
        """The headers of batches below this offset were not compared with their records (`storage.log_times`)."""
        self.has_read_note = False
        """Whether `checked_from` comes from the log's note, and is not a guess before the note is read."""
        self.update(config)

    def time_to_be(self, batch: Buffer, header: BatchHeader) -> int:
        """The largest time of a batch that is about to be appended."""
        return header.max_timestamp if header.base_offset >= self.checked_from else largest_time(batch, header)

    def count_that_fit(
        self,
        batches: Sequence[AppendBatch],
        indexes: Indexes,
        size_bytes: int,
        first_timestamp: int,
        last_possible: int,
    ) -> int:
        """The number of these batches that fit, by Kafka's roll rules, into a segment of this size.

        `first_timestamp` is the timestamp of the segment's first batch, `last_possible` the largest offset that the
        segment can hold.
        """
        size = size_bytes
        if size and (len(indexes.offsets) >= self.index_entries or len(indexes.times) >= self.time_index_entries):
            return 0
        count = 0
        for buffer, header in batches:
            if header.base_offset + header.last_offset_delta > last_possible:
                return count
            timestamp = self.time_to_be(buffer, header)
            if not size:
                first_timestamp = timestamp
            elif size + len(buffer) > self.segment_bytes or (
                first_timestamp >= 0 and timestamp - first_timestamp > self.segment_ms
            ):
                return count
            size += len(buffer)
            count += 1
        return count

    def update(self, config: TopicConfig) -> None:
        """Use the limits of these settings from now on."""
        self.segment_bytes = min(config.segment_bytes, _MAX_POSITION)
        # The active segment is not compacted: a record must leave the active segment in time (KIP-354).
        segment_ms = min(config.segment_ms, config.max_compaction_lag_ms) if config.is_compacted else config.segment_ms
        jitter_ms = min(config.segment_jitter_ms, segment_ms)
        self.segment_ms = segment_ms - self._jitter_seed % jitter_ms if jitter_ms else segment_ms
        self.index_interval_bytes = config.index_interval_bytes
        self.index_entries = config.segment_index_bytes // OFFSET_ENTRY_SIZE
        # One entry is kept free for the largest timestamp, which is noted when the segment is rolled.
        self.time_index_entries = config.segment_index_bytes // TIME_ENTRY_SIZE - 1
