"""Which produced batches a topic takes, and in which form it stores them: the rules that depend on its settings.

The rules that hold for every topic are in `protocol.records.batch.validate_produced`, which comes first. Records are
looked at only where a setting asks for it: for keys in a compacted topic, and to compress anew.
"""

from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import LENGTH_OFFSET, BatchHeader, read_header, stamp_log_append_time
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import BatchBuilder, read_records

NO_TIMESTAMP: Final = -1
_NO_LIMIT: Final = 2**63 - 1

_CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


class InvalidRecords(KafkaError):
    """A batch refused for some of its records; Produce v8 and later name them (KIP-467)."""

    def __init__(self, detail: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, detail)
        self.record_errors = record_errors
        """(index in the batch, what is wrong with that record)"""


class Admission:
    """A topic's rules for produced batches, looked up once per change of its settings and not once per batch."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_codec",
        "_is_compacted",
        "_is_special",
        "_looks_into_batches",
        "_max_bytes",
        "_max_message_bytes",
        "stamps_append_time",
    )

    def __init__(self, config: TopicConfig) -> None:
        self._max_message_bytes = config.max_message_bytes
        self._max_bytes = min(config.max_message_bytes, config.segment_bytes)
        self._before_max_ms = config.message_timestamp_before_max_ms
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._is_compacted = config.is_compacted
        self._codec = _CODECS.get(config.compression_type)
        self._looks_into_batches = self._is_compacted or self._codec is not None
        self._is_special = (
            self._looks_into_batches
            or config.message_timestamp_type != "CreateTime"
            or config.message_timestamp_before_max_ms < _NO_LIMIT
        )
        self.stamps_append_time = config.message_timestamp_type == "LogAppendTime"
        """Whether the topic has the broker's time in its records (message.timestamp.type)."""

    def must_look_at(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether `admit` has anything to do with this batch. The hot lane's question: mostly it has not."""
        return (
            self._is_special
            or header.batch_length + LENGTH_OFFSET > self._max_bytes
            or header.max_timestamp - now_ms > self._after_max_ms
        )

    def admit(self, records: memoryview, header: BatchHeader, now_ms: int) -> tuple[memoryview, BatchHeader]:
        """The batch as this topic stores it; mostly the very bytes that came. Offsets are not given yet.

        Raises KafkaError MESSAGE_TOO_LARGE (10), RECORD_LIST_TOO_LARGE (18), INVALID_TIMESTAMP (32), INVALID_RECORD
        (87).
        """
        if header.batch_length + LENGTH_OFFSET > self._max_bytes:
            self._refuse_size(header)
        if self._looks_into_batches:
            records, header = self._look_into(records, header)
        if self.stamps_append_time:
            stamp_log_append_time(records, 0, now_ms)
            return records, read_header(records)
        if header.max_timestamp - now_ms > self._after_max_ms or (
            now_ms - header.base_timestamp > self._before_max_ms and header.base_timestamp != NO_TIMESTAMP
        ):
            self._refuse_timestamps(header, now_ms)
        return records, header

    def _look_into(self, records: memoryview, header: BatchHeader) -> tuple[memoryview, BatchHeader]:
        if self._is_compacted:
            _refuse_missing_keys(records)
        if self._codec is None or self._codec == header.codec:
            return records, header
        rebuilt = _compressed_anew(records, header, self._codec)
        header = read_header(rebuilt)
        if header.size_bytes > self._max_bytes:
            self._refuse_size(header)
        return rebuilt, header

    def _refuse_size(self, header: BatchHeader) -> None:
        size_bytes = header.size_bytes
        if size_bytes > self._max_message_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size_bytes} bytes; max.message.bytes of the topic is {self._max_message_bytes}",
            )
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {size_bytes} bytes is larger than a segment; segment.bytes of the topic is {self._max_bytes}",
        )

    def _refuse_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamps from {header.base_timestamp} to {header.max_timestamp} ms at {now_ms} ms; the topic takes "
            f"{self._before_max_ms} ms before and {self._after_max_ms} ms after now (message.timestamp.before.max.ms, "
            "message.timestamp.after.max.ms)",
        )


class Refusal:
    """In the place of an `Admission`: nothing is taken for now. The hot lane has one question to ask, and asks it."""

    stamps_append_time = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def must_look_at(self, header: BatchHeader, now_ms: int) -> bool:
        """Always: every batch is refused."""
        return True

    def admit(self, records: memoryview, header: BatchHeader, now_ms: int) -> tuple[memoryview, BatchHeader]:
        """Raises KafkaError KAFKA_STORAGE_ERROR (56): a producer asks again."""
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._reason)


def _refuse_missing_keys(records: memoryview) -> None:
    without_key = tuple(
        (index, "a record of a compacted topic needs a key")
        for index, record in enumerate(read_records(records, strict=True))
        if record.key is None
    )
    if without_key:
        raise InvalidRecords(
            f"{len(without_key)} of the batch's records have no key; a compacted topic keeps the last record per key",
            without_key,
        )


def _compressed_anew(records: memoryview, header: BatchHeader, codec: Codec) -> memoryview:
    builder = BatchBuilder(
        codec=codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )
    for record in read_records(records, strict=True):
        builder.append(record.timestamp, record.key, record.value, record.headers)
    return memoryview(builder.build())
