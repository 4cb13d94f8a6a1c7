"""Admission of produced batches by a topic, and their stored form: the rules that depend on its settings.

The rules that hold for every topic are in `protocol.records.batch.validate_produced`, which comes first. Records are
looked at only where a setting asks for it (keys in a compacted topic, timestamps that may not be old, another codec),
and to name those at fault.
"""

from collections.abc import Iterator
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

    def __init__(self, code: ErrorCode, detail: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, detail)
        self.record_errors = record_errors
        """(index in the batch, fault of that record)"""


class Admission:
    """A topic's rules for produced batches, looked up once per change of its settings and not once per batch."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_codec",
        "_is_compacted",
        "_is_special",
        "_looks_at_records",
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
        self.stamps_append_time = config.message_timestamp_type == "LogAppendTime"
        """Whether the topic has the broker's time in its records (message.timestamp.type)."""
        # The header tells the largest timestamp and not the smallest.
        has_oldest = self._before_max_ms < _NO_LIMIT and not self.stamps_append_time
        self._looks_at_records = self._is_compacted or has_oldest
        self._is_special = self._looks_at_records or self._codec is not None or self.stamps_append_time

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
        is_too_new = self._is_too_new(header, now_ms)
        if self._looks_at_records or is_too_new:
            self._refuse_faults(records, now_ms)
        if is_too_new:
            raise InvalidRecords(ErrorCode.INVALID_TIMESTAMP, self._outside(header.max_timestamp, now_ms), ())
        if self._codec is not None and self._codec != header.codec:
            records = _compressed_anew(records, header, self._codec)
            header = read_header(records)
            if header.size_bytes > self._max_bytes:
                self._refuse_size(header)
            if self._is_too_new(header, now_ms):  # this header says what the records do
                self._refuse_faults(records, now_ms)
        if self.stamps_append_time:
            stamp_log_append_time(records, 0, now_ms)
            header = read_header(records)
        return records, header

    def _is_too_new(self, header: BatchHeader, now_ms: int) -> bool:
        return not self.stamps_append_time and header.max_timestamp - now_ms > self._after_max_ms

    def _refuse_faults(self, records: memoryview, now_ms: int) -> None:
        """Refuse the batch if any record is at fault, as Kafka does: for its timestamps first."""
        faults = list(self._faults(records, now_ms))
        if faults:
            is_about_time = any(code is ErrorCode.INVALID_TIMESTAMP for _, code, _ in faults)
            code = ErrorCode.INVALID_TIMESTAMP if is_about_time else ErrorCode.INVALID_RECORD
            detail = f"{len(faults)} of the batch's records are refused; the first: {faults[0][2]}"
            raise InvalidRecords(code, detail, tuple((index, what) for index, _, what in faults))

    def _faults(self, records: memoryview, now_ms: int) -> Iterator[tuple[int, ErrorCode, str]]:
        for index, record in enumerate(read_records(records, strict=True)):
            if self._is_compacted and record.key is None:
                yield index, ErrorCode.INVALID_RECORD, "a record of a compacted topic needs a key"
            elif not self.stamps_append_time and self._is_outside(record.timestamp, now_ms):
                yield index, ErrorCode.INVALID_TIMESTAMP, self._outside(record.timestamp, now_ms)

    def _is_outside(self, timestamp: int, now_ms: int) -> bool:
        is_inside = -self._before_max_ms <= timestamp - now_ms <= self._after_max_ms
        return timestamp != NO_TIMESTAMP and not is_inside

    def _outside(self, timestamp: int, now_ms: int) -> str:
        return (
            f"timestamp {timestamp} ms at {now_ms} ms; the topic takes {self._before_max_ms} ms before and "
            f"{self._after_max_ms} ms after now (message.timestamp.before.max.ms, message.timestamp.after.max.ms)"
        )

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


class Refusal:
    """In the place of an `Admission`: refuses every batch, so that Produce makes no further check."""

    stamps_append_time = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def must_look_at(self, header: BatchHeader, now_ms: int) -> bool:
        """Always: every batch is refused."""
        return True

    def admit(self, records: memoryview, header: BatchHeader, now_ms: int) -> tuple[memoryview, BatchHeader]:
        """Raises KafkaError KAFKA_STORAGE_ERROR (56): a producer asks again."""
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._reason)


def _compressed_anew(records: memoryview, header: BatchHeader, codec: Codec) -> memoryview:
    """Raises KafkaError INVALID_TIMESTAMP (32) for times that lie further apart than a batch can say."""
    builder = BatchBuilder(
        codec=codec,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
    )
    try:
        for record in read_records(records, strict=True):
            builder.append(record.timestamp, record.key, record.value, record.headers)
    except OverflowError:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "a record's timestamp is more than 64 bits away from the first record's"
        ) from None
    return memoryview(builder.build())
