"""Admission of produced batches by a topic: checks of their records against the topic's settings, and their stored
form.

The rules about the header alone are in `protocol.records.batch.validate_produced`, which comes first. Here each record
is read, as in Kafka: a right checksum does not prove that the sender's bytes make sense. A batch that no reader can
parse is refused. The largest timestamp is taken from the records, not from the header. Offsets within the batch are
made 0 to n - 1.
"""

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.arrow_buffers import Column
from tailrace.protocol.records.batch import (
    CODEC_MASK,
    HEADER_SIZE,
    LENGTH_OFFSET,
    BatchHeader,
    read_header,
    stamp_log_append_time,
    stamp_max_timestamp,
)
from tailrace.protocol.records.compression import (
    MAX_DECOMPRESSED,
    Codec,
    compress,
    compress_in_steps,
    decompress_in_steps,
)
from tailrace.protocol.records.kernels import check_records, records_to_columns, renumber_records
from tailrace.protocol.records.record_times import record_times
from tailrace.protocol.records.spans import batch_of_section

NO_TIMESTAMP: Final = -1
_NO_LIMIT: Final = 2**63 - 1

MOST_NAMED: Final = 100
"""The most records of a batch that its refusal names. A batch of 1 MB may have a million records, and to name them all
would take seconds and a gigabyte."""
INLINE_BYTES: Final = 4 << 20
"""A batch that unfolds to at most so many bytes is unfolded and compressed at once, without steps."""
_STEP_BYTES: Final = 1 << 20
"""The bytes of a step: 5 ms of gzip, the slowest codec."""

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
        """(index in the batch, fault of that record), for the first MOST_NAMED faulty records."""


class Unfolded(NamedTuple):
    """The records of a large batch."""

    plain: Buffer
    codec: int
    """The codec of `stored`."""
    stored: Buffer | None
    """The records in the topic's stored form; None: the batch is stored as it came."""


class LargeBatch(Exception):
    """A batch with more than INLINE_BYTES to unfold or to compress: run its `steps`, a step in each turn, and append
    the batch again."""

    def __init__(self, records: memoryview, header: BatchHeader, codec: int) -> None:
        """`codec` is the codec of the stored batch."""
        super().__init__()
        self._records = records
        self._header = header
        self._codec = codec

    def steps(self) -> Generator[object, None, Unfolded]:
        """Unfold the records in order. If the topic's stored form differs from the form that came, compress the records
        anew.

        Raises InvalidRecords.
        """
        header, codec = self._header, self._codec
        count = header.records_count
        try:
            plain = yield from _unfolding(self._records, header)
            _, _, _, is_in_order = check_records(plain, 0, count, header.base_timestamp)
        except CorruptRecords as fault:
            raise _unreadable(fault) from None
        if is_in_order and codec == header.codec:
            return Unfolded(plain, codec, None)
        section = plain if is_in_order else renumber_records(plain, 0, count)
        stored = yield from compress_in_steps(codec, section, step_bytes=_STEP_BYTES)
        return Unfolded(plain, codec, stored)


class Admission:
    """A topic's rules for produced batches, looked up once per change of its settings and not once per batch."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_codec",
        "_is_compacted",
        "_is_special",
        "_max_bytes",
        "_max_message_bytes",
        "_oldest_ms",
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
        """Whether the records of the topic get the broker's time (message.timestamp.type)."""
        self._is_special = self._is_compacted or self._codec is not None or self.stamps_append_time
        # Kafka's default means no limit, also for a time that lies further back than 64 bits of milliseconds can state.
        self._oldest_ms = self._before_max_ms if self._before_max_ms < _NO_LIMIT else 2 * _NO_LIMIT + 2

    def must_look_at(self, records: memoryview, header: BatchHeader, now_ms: int) -> bool:
        """Whether `admit` has to check or change this batch; mostly False. The fast path of Produce calls this first.

        Raises InvalidRecords as `admit` does.
        """
        if self._is_special or header.attributes & CODEC_MASK or header.batch_length + LENGTH_OFFSET > self._max_bytes:
            return True
        try:
            largest, smallest, _, is_in_order = check_records(
                records, HEADER_SIZE, header.records_count, header.base_timestamp
            )
        except CorruptRecords as fault:
            raise _unreadable(fault) from None
        return (
            not is_in_order
            or largest != header.max_timestamp
            or largest - now_ms > self._after_max_ms
            or now_ms - smallest > self._oldest_ms
        )

    def admit(
        self, records: memoryview, header: BatchHeader, now_ms: int, unfolded: Unfolded | None = None
    ) -> tuple[memoryview, BatchHeader]:
        """The batch in this topic's stored form, which mostly has the same bytes as the batch that came. The batch has
        no offsets yet.

        `unfolded` is the result of the `LargeBatch` that an earlier call raised: a large batch needs `unfolded`.
        Raises KafkaError MESSAGE_TOO_LARGE (10), RECORD_LIST_TOO_LARGE (18), INVALID_TIMESTAMP (32), INVALID_RECORD
        (87). Bytes damaged on the way were refused before: no error here asks a producer to send the batch again.
        """
        if header.batch_length + LENGTH_OFFSET > self._max_bytes:
            self._refuse_size(header)
        section: Buffer = records[HEADER_SIZE:]
        count, base_timestamp, stored_codec = header.records_count, header.base_timestamp, header.codec
        codec = stored_codec if self._codec is None else self._codec
        try:
            if stored_codec:
                section = _unfolded(records, header, codec) if unfolded is None else unfolded.plain
            largest, smallest, all_have_keys, is_in_order = check_records(section, 0, count, base_timestamp)
        except CorruptRecords as fault:
            raise _unreadable(fault) from None
        if (self._is_compacted and not all_have_keys) or self._has_outside(smallest, largest, now_ms):
            self._refuse_faults(section, header, now_ms)
        if codec != stored_codec or not is_in_order:
            if unfolded is not None and unfolded.stored is not None and unfolded.codec == codec:
                stored = unfolded.stored
            else:
                if codec and unfolded is None and len(section) > INLINE_BYTES:
                    raise LargeBatch(records, header, codec)
                if not is_in_order:
                    section = renumber_records(section, 0, count)
                stored = compress(codec, section) if codec else section
            attributes = header.attributes & ~CODEC_MASK | codec
            records = memoryview(batch_of_section(header, stored, attributes=attributes, max_timestamp=largest))
            header = read_header(records)
            if header.size_bytes > self._max_bytes:
                self._refuse_size(header)
        if self.stamps_append_time:
            stamp_log_append_time(records, 0, now_ms)
            header = read_header(records)
        elif largest != header.max_timestamp:
            stamp_max_timestamp(records, 0, largest)
            header = read_header(records)
        return records, header

    def _has_outside(self, smallest: int, largest: int, now_ms: int) -> bool:
        """Whether a record with a time lies outside of the topic's bounds."""
        return not self.stamps_append_time and (
            largest - now_ms > self._after_max_ms or now_ms - smallest > self._oldest_ms
        )

    def _refuse_faults(self, section: Buffer, header: BatchHeader, now_ms: int) -> None:
        """Refuse a batch with faulty records, as Kafka does: faults of timestamps come first."""
        first = list(islice(self._faults(section, header, now_ms), MOST_NAMED + 1))
        count = f"{len(first)}" if len(first) <= MOST_NAMED else f"more than {MOST_NAMED}"
        del first[MOST_NAMED:]
        is_about_time = any(code is ErrorCode.INVALID_TIMESTAMP for _, code, _ in first)
        code = ErrorCode.INVALID_TIMESTAMP if is_about_time else ErrorCode.INVALID_RECORD
        detail = f"{count} of the batch's records are refused; the first: {first[0][2]}"
        raise InvalidRecords(code, detail, tuple((index, what) for index, _, what in first))

    def _faults(self, section: Buffer, header: BatchHeader, now_ms: int) -> Iterator[tuple[int, ErrorCode, str]]:
        plain = batch_of_section(
            header,
            renumber_records(section, 0, header.records_count),
            attributes=header.attributes & ~CODEC_MASK,
            max_timestamp=header.max_timestamp,
        )
        have_keys = _key_bits(plain) if self._is_compacted else None
        times = record_times(plain, read_header(plain), from_offset=0).timestamps
        for index, timestamp in enumerate(times):
            if have_keys is not None and not have_keys[index >> 3] >> (index & 7) & 1:
                yield index, ErrorCode.INVALID_RECORD, "a record of a compacted topic needs a key"
            elif not self.stamps_append_time and self._is_outside(timestamp, now_ms):
                yield index, ErrorCode.INVALID_TIMESTAMP, self._outside(timestamp, now_ms)

    def _is_outside(self, timestamp: int, now_ms: int) -> bool:
        is_inside = -self._oldest_ms <= timestamp - now_ms <= self._after_max_ms
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
    """Takes the place of an `Admission`, and refuses every batch, so that Produce makes no further check."""

    stamps_append_time = False

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def must_look_at(self, records: memoryview, header: BatchHeader, now_ms: int) -> bool:
        """True: `admit` refuses every batch."""
        return True

    def admit(
        self, records: memoryview, header: BatchHeader, now_ms: int, unfolded: Unfolded | None = None
    ) -> tuple[memoryview, BatchHeader]:
        """Raises KafkaError KAFKA_STORAGE_ERROR (56): a producer sends the batch again."""
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._reason)


def _key_bits(plain: Buffer) -> Buffer | None:
    """A bit for each record, lowest first, set for a record with a key; None if every record has a key."""
    columns = records_to_columns([plain], columns=Column.KEY, from_offset=0, until_offset=_NO_LIMIT, in_micros=False)
    assert columns.key is not None
    return columns.key.validity


def _unfolded(records: memoryview, header: BatchHeader, codec: int) -> Buffer:
    """The plain records of a batch that is not large. Raises CorruptRecords, and LargeBatch."""
    steps = _unfolding(records, header)
    for _ in range(INLINE_BYTES // _STEP_BYTES + 1):  # an empty frame is a step, too
        try:
            next(steps)
        except StopIteration as end:
            plain: Buffer = end.value
            return plain
    raise LargeBatch(records, header, codec)


def _unfolding(records: memoryview, header: BatchHeader) -> Generator[object, None, Buffer]:
    """Unfold the records in steps of _STEP_BYTES. Raises CorruptRecords.

    If there is a fault among the first records, only the first records are unfolded.
    """
    section = records[HEADER_SIZE:]
    steps = decompress_in_steps(header.codec, section, max_bytes=MAX_DECOMPRESSED, step_bytes=_STEP_BYTES)
    looked_at = 0
    while True:
        try:
            part = next(steps)
        except StopIteration as end:
            plain: Buffer = end.value
            return plain
        if len(part) >= 2 * looked_at:  # each check begins with the first record
            check_records(part, 0, header.records_count, header.base_timestamp, True)
            looked_at = len(part)
        yield None


def _unreadable(fault: CorruptRecords) -> KafkaError:
    """The refusal of a batch that no reader could parse. The checksum is right, so to send the batch again is of no
    use."""
    if fault.code is not ErrorCode.CORRUPT_MESSAGE:
        return KafkaError(fault.code, fault.detail)
    index = fault.record_index
    errors = () if index is None else ((index, fault.detail),)
    return InvalidRecords(ErrorCode.INVALID_RECORD, fault.detail, errors)
