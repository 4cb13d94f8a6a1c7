"""The header of a record batch, format v2 (KIP-98): reading, checking and stamping the header without touching the
records.

This is the broker's hot lane. A batch is checked where it was received and patched in place; nothing here copies,
decompresses or looks at a single record: `kernels.check_records` does. Rules that hold:

1. The checksum covers everything from the attributes (byte 21) to the end. Base offset and leader epoch lie before byte
   21, so `stamp` leaves the checksum valid; any other change computes the checksum anew.
2. A produced batch has offsets 0..n-1: record count and last offset delta agree. A stored batch may have gaps
   (compaction, key-range filter): its last offset delta stays, and its count is the number of the records left.
3. A batch is whole or absent: `iter_batches` stops before an incomplete tail.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NoReturn

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.primitives import Buffer

HEADER_SIZE: Final = 61
"""Bytes before the first record."""
LENGTH_OFFSET: Final = 12
"""Bytes that `batch_length` does not count: base offset and the length itself."""
SMALLEST_RECORD: Final = 7
"""Bytes of a record with no key, no value and no headers, its length included."""
MAX_RECORDS_PER_BATCH: Final = 100_000
"""Records that our own producers put into one batch."""
MOST_RECORDS_TAKEN: Final = 1_000_000
"""Records of a batch that is produced: a limit of ours, since small batches can unfold into more. Java's producer fills
a compressed batch of 16 KiB with 400,000 records if a record takes 8 bytes and compresses two-hundredfold; kafkajs puts
all values of one call into one batch."""

MAGIC: Final = 2
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

_HEADER = Struct(">qiibIhiqqqhii")
assert _HEADER.size == HEADER_SIZE
_BASE_OFFSET = Struct(">q")
_LEADER_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_LAST_OFFSET_DELTA = Struct(">i")
_MAX_TIMESTAMP = Struct(">q")
_PRODUCER = Struct(">qhi")

_MAGIC_AT = 16
_LEADER_EPOCH_AT = 12
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_LAST_OFFSET_DELTA_AT = 23
_MAX_TIMESTAMP_AT = 35
_PRODUCER_AT = 43

_SMALLEST_LENGTH = HEADER_SIZE - LENGTH_OFFSET
_ZSTD = 4
_MAX_OFFSET = 2**63 - 1


@dataclass(slots=True)
class BatchHeader:
    """The 61 bytes before the records, field by field, in the order of the wire."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return LENGTH_OFFSET + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def end_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, which wraps from 2^31 - 1 to 0; -1 without sequence numbers."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        """The number of the codec; 5 to 7 mean nothing."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def has_log_append_time(self) -> bool:
        """Whether every record has `max_timestamp`, set by the broker, as its timestamp."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether `base_timestamp` is the time from which compaction may drop the batch's tombstones (KIP-534)."""
        return self.attributes & DELETE_HORIZON != 0

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id > -1

    def to_bytes(self) -> bytes:
        """The 61 bytes of this header, with its stored checksum."""
        return _HEADER.pack(
            self.base_offset,
            self.batch_length,
            self.partition_leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.records_count,
        )


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch that starts at `position`; the records need not be there yet.

    Raises CorruptRecords if the bytes cannot be the start of a batch v2. Does not check the checksum.
    """
    if position < 0 or len(buffer) - position < HEADER_SIZE:
        raise CorruptRecords(f"{max(len(buffer) - position, 0)} bytes are too few for a batch header of {HEADER_SIZE}")
    header = BatchHeader(*_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise CorruptRecords(f"record format v{header.magic} at position {position}; only v2 is read")
    if header.batch_length < _SMALLEST_LENGTH:
        raise CorruptRecords(
            f"batch length {header.batch_length} at position {position} is below {_SMALLEST_LENGTH}, an empty batch"
        )
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset >= _MAX_OFFSET:
        raise CorruptRecords(
            f"batch at position {position} claims offset {header.base_offset} + {header.last_offset_delta}"
        )
    if not 0 <= header.records_count <= header.last_offset_delta + 1:
        raise CorruptRecords(
            f"batch at offset {header.base_offset} claims {header.records_count} records "
            f"for {header.last_offset_delta + 1} offsets"
        )
    return header


def iter_batches(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """The whole batches from `position` on with their positions; an incomplete batch at the end is left out.

    A fetch response may end in the middle of a batch (KIP-74). Raises CorruptRecords as `read_header` does.
    """
    size_bytes = len(buffer)
    while size_bytes - position >= HEADER_SIZE:
        header = read_header(buffer, position)
        end = position + header.size_bytes
        if end > size_bytes:
            return
        yield position, header
        position = end


_BOUNDS = Struct(">qi11xi")
"""Base offset, batch length, last offset delta."""


def iter_ends(buffer: Buffer) -> Iterator[tuple[int, int, int]]:
    """The position after each of these whole batches, with its base offset and its end offset.

    The headers were checked before: no check is repeated here.
    """
    position, size_bytes, unpack = 0, len(buffer), _BOUNDS.unpack_from
    while position < size_bytes:
        base_offset, batch_length, last_offset_delta = unpack(buffer, position)
        position += LENGTH_OFFSET + batch_length
        yield position, base_offset, base_offset + last_offset_delta + 1


def set_end_offset(batch: memoryview, end_offset: int) -> None:
    """Move the end of the batch to this offset, which is behind its last record, and write the new checksum."""
    (base_offset,) = _BASE_OFFSET.unpack_from(batch)
    _LAST_OFFSET_DELTA.pack_into(batch, _LAST_OFFSET_DELTA_AT, end_offset - 1 - base_offset)
    _CRC.pack_into(batch, _CRC_AT, crc32c(batch[_ATTRIBUTES_AT:]))


def crc_is_valid(buffer: Buffer, position: int, header: BatchHeader) -> bool:
    """Whether the whole batch is there and has the checksum that its header states."""
    end = position + header.size_bytes
    return len(buffer) >= end and _checksum(buffer, position, end) == header.crc


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raises CorruptRecords unless the whole batch is there and its checksum is right."""
    end = position + header.size_bytes
    if len(buffer) < end:
        raise CorruptRecords(
            f"batch at offset {header.base_offset} has {header.size_bytes} bytes, {len(buffer) - position} are here"
        )
    computed = _checksum(buffer, position, end)
    if computed != header.crc:
        raise CorruptRecords(
            f"batch at offset {header.base_offset} states checksum {header.crc:#010x}, its bytes have {computed:#010x}"
        )


def validate_produced(buffer: Buffer, *, produce_version: int) -> BatchHeader:
    """The header of the one batch a producer sent for a partition, after every check that needs no topic settings.

    Codes as Kafka's: INVALID_RECORD (87), CORRUPT_MESSAGE (2) for bytes damaged on the way, INVALID_TIMESTAMP (32) for
    a producer that claims the broker's clock, UNSUPPORTED_COMPRESSION_TYPE (76) for zstd below Produce v7 (KIP-110) and
    for unknown codecs. The records themselves are not looked at: that is for the topic's admission.
    """
    size_bytes = len(buffer)
    if size_bytes < HEADER_SIZE:
        _refuse_short(buffer)
    (
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    ) = _HEADER.unpack_from(buffer)
    if magic != MAGIC or batch_length != size_bytes - LENGTH_OFFSET:
        _refuse_framing(magic, batch_length, size_bytes)
    codec = attributes & CODEC_MASK
    if codec >= _ZSTD and (codec > _ZSTD or produce_version < 7):
        _refuse_codec(codec, produce_version)
    if crc32c(memoryview(buffer)[_ATTRIBUTES_AT:]) != crc:
        raise CorruptRecords(
            f"the batch states the checksum {crc:#010x} and its bytes have another; they were damaged on the way"
        )
    if (
        base_offset != 0
        or last_offset_delta < 0
        or records_count != last_offset_delta + 1
        or records_count > MOST_RECORDS_TAKEN
        or (codec == 0 and records_count * SMALLEST_RECORD > size_bytes - HEADER_SIZE)
    ):
        _refuse_counts(base_offset, last_offset_delta, records_count, size_bytes)
    if attributes & ~(CODEC_MASK | TRANSACTIONAL):
        _refuse_attributes(attributes)
    if producer_id > -1:
        if base_sequence < 0 or producer_epoch < 0:
            raise _invalid(
                f"producer id {producer_id} with sequence {base_sequence} and epoch {producer_epoch}; both start at 0"
            )
    elif attributes & TRANSACTIONAL:
        raise _invalid("a transactional batch without a producer id")
    return BatchHeader(
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )


def stamp(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Give the batch at `position` its offsets and its leader's epoch, in place. The checksum stays valid."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + _LEADER_EPOCH_AT, leader_epoch)


def stamp_log_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Give every record of the batch at `position` the broker's time, in place, with a new checksum."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + _ATTRIBUTES_AT)
    _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_AT, now_ms)
    seal(buffer, position)


def stamp_max_timestamp(buffer: bytearray | memoryview, position: int, max_timestamp: int) -> None:
    """State the largest timestamp of the records of the batch at `position`, in place, with a new checksum."""
    _MAX_TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_AT, max_timestamp)
    seal(buffer, position)


def stamp_producer(
    buffer: bytearray | memoryview,
    position: int,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    is_transactional: bool = False,
) -> None:
    """Give the batch at `position` to a producer, or to its transaction, in place, with a new checksum."""
    if is_transactional:
        (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + _ATTRIBUTES_AT)
        _ATTRIBUTES.pack_into(buffer, position + _ATTRIBUTES_AT, attributes | TRANSACTIONAL)
    _PRODUCER.pack_into(buffer, position + _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    seal(buffer, position)


def seal(buffer: bytearray | memoryview, position: int = 0) -> None:
    """Write the checksum of the batch at `position` into its header. The whole batch must be there."""
    (batch_length,) = _LEADER_EPOCH.unpack_from(buffer, position + 8)
    end = position + LENGTH_OFFSET + batch_length
    assert HEADER_SIZE <= end - position <= len(buffer) - position, "a batch to seal is whole"
    _CRC.pack_into(buffer, position + _CRC_AT, _checksum(buffer, position, end))


def _checksum(buffer: Buffer, position: int, end: int) -> int:
    checksum: int = crc32c(memoryview(buffer)[position + _ATTRIBUTES_AT : end])
    return checksum


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, detail)


def _refuse_short(buffer: Buffer) -> NoReturn:
    if len(buffer) > _MAGIC_AT and buffer[_MAGIC_AT] in (0, 1):
        raise _invalid(f"record format v{buffer[_MAGIC_AT]}; a producer must send v2 batches (Kafka 0.11 or later)")
    raise _invalid(f"{len(buffer)} bytes for a partition; a producer must send exactly one whole record batch")


def _refuse_framing(magic: int, batch_length: int, size_bytes: int) -> NoReturn:
    if magic in (0, 1):
        raise _invalid(f"record format v{magic}; a producer must send v2 batches (Kafka 0.11 or later)")
    if magic != MAGIC:
        raise CorruptRecords(f"record format v{magic} does not exist")
    if batch_length < _SMALLEST_LENGTH:
        raise CorruptRecords(f"batch length {batch_length} is below {_SMALLEST_LENGTH}, an empty batch")
    if batch_length > size_bytes - LENGTH_OFFSET:
        raise _invalid(f"the batch claims {LENGTH_OFFSET + batch_length} bytes and {size_bytes} were sent")
    raise _invalid(
        f"{size_bytes - LENGTH_OFFSET - batch_length} bytes after the batch; "
        "a producer must send exactly one batch per partition"
    )


def _refuse_codec(codec: int, produce_version: int) -> NoReturn:
    if codec == _ZSTD:
        detail = f"zstd needs Produce v7 or later, this is v{produce_version}"
    else:
        detail = f"codec {codec} is unknown; known: none, gzip, snappy, lz4, zstd"
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, detail)


def _refuse_counts(base_offset: int, last_offset_delta: int, records_count: int, size_bytes: int) -> NoReturn:
    if base_offset != 0:
        raise _invalid(f"base offset {base_offset}; a producer's batch starts at 0")
    if records_count <= 0 or last_offset_delta < 0 or records_count != last_offset_delta + 1:
        raise _invalid(
            f"{records_count} records with the last offset delta {last_offset_delta}; n records end at n - 1"
        )
    if records_count > MOST_RECORDS_TAKEN:
        raise _invalid(f"{records_count} records in one batch; at most {MOST_RECORDS_TAKEN} are taken")
    raise _invalid(f"{records_count} records cannot fit into {size_bytes - HEADER_SIZE} bytes")


def _refuse_attributes(attributes: int) -> NoReturn:
    if attributes & CONTROL:
        raise _invalid("a control batch; only brokers write those")
    if attributes & LOG_APPEND_TIME:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "timestamp type LogAppendTime is for the broker to set")
    if attributes & DELETE_HORIZON:
        raise _invalid("a delete horizon; only the log cleaner sets one")
    raise _invalid(f"attributes {attributes & 0xFFFF:#06x} have bits that mean nothing in format v2")
