"""The records of a batch as spans of bytes: compaction's input, and the batches that it writes.

A record that stays is copied byte for byte. Only where a batch gets another base timestamp (a delete horizon, KIP-534)
is the timestamp delta of each record written anew; key, value, headers and offset are the same bytes.
"""

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple, TypeVar

from tailrace.model.errors import CorruptRecords, MalformedMessage
from tailrace.protocol.primitives import Buffer, read_varint, varint
from tailrace.protocol.records import batch as batches
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, BatchHeader, seal
from tailrace.protocol.records.compression import MAX_DECOMPRESSED, compress_in_steps, decompress_in_steps

T = TypeVar("T")

Steps = Generator[object, None, T]
"""Work in steps that has a result."""

STEP_RECORDS: Final = 256
"""Records of a step: about a millisecond."""
_STEP_BYTES: Final = 1 << 20
NO_TIMESTAMP: Final = -1


class RecordSpan(NamedTuple):
    """The place of one record in the uncompressed records of its batch."""

    start: int
    """The place of the record's length."""
    body: int
    """The place after the record's length."""
    rest: int
    """The place after the timestamp delta."""
    end: int
    offset: int
    timestamp_delta: int
    key: bytes | None
    has_value: bool


class BatchRecords(NamedTuple):
    """The uncompressed records of one batch."""

    header: BatchHeader
    section: bytes
    spans: list[RecordSpan]


def spans_in_steps(buffer: Buffer, header: BatchHeader) -> Steps[BatchRecords]:
    """The records of this batch, which `buffer` starts with and whose checksum is right; a million take seconds.

    Raises CorruptRecords.
    """
    section: Buffer = memoryview(buffer)[HEADER_SIZE : header.size_bytes]
    if header.records_count and header.codec:
        unfolding = decompress_in_steps(header.codec, section, max_bytes=MAX_DECOMPRESSED, step_bytes=_STEP_BYTES)
        section = yield from unfolding
    data = bytes(section)
    try:
        return BatchRecords(header, data, (yield from _spans(data, header)))
    except MalformedMessage as fault:
        raise CorruptRecords(f"batch at offset {header.base_offset}: {fault.detail}") from None


def _spans(data: bytes, header: BatchHeader) -> Steps[list[RecordSpan]]:
    spans: list[RecordSpan] = []
    position, previous = 0, -1
    for number in range(1, header.records_count + 1):
        if not number % STEP_RECORDS:
            yield None
        start = position
        length, body = read_varint(data, position)
        end = body + length
        if length < 0 or end > len(data):
            raise MalformedMessage(f"the record at byte {start} has {length} bytes")
        timestamp_delta, rest = read_varint(data, body + 1)
        offset_delta, position = read_varint(data, rest)
        if not previous < offset_delta <= header.last_offset_delta:
            raise MalformedMessage(f"offset delta {offset_delta} follows {previous}")
        if not _fits_long(header.base_timestamp + timestamp_delta):
            raise MalformedMessage(f"timestamp delta {timestamp_delta} leads beyond all times")
        key_length, position = read_varint(data, position)
        key = None
        if key_length >= 0:
            key = data[position : position + key_length]
            position += key_length
        value_length, position = read_varint(data, position)
        if key_length < -1 or value_length < -1 or position + max(value_length, 0) > end:
            raise MalformedMessage(f"the record at byte {start} is longer than it says")
        offset = header.base_offset + offset_delta
        spans.append(RecordSpan(start, body, rest, end, offset, timestamp_delta, key, value_length >= 0))
        previous, position = offset_delta, end
    if position != len(data):
        raise MalformedMessage(f"{len(data) - position} bytes after the last record")
    return spans


def batch_in_steps(
    records: BatchRecords, kept: Sequence[RecordSpan], *, delete_horizon_ms: int | None = None
) -> Steps[bytearray]:
    """The batch with the `kept` records, which are not empty: same offsets, producer, sequence and codec, new checksum.

    A delete horizon becomes the base timestamp (KIP-534); the records' own timestamps stay. Raises OverflowError if the
    format cannot hold the distance of the timestamps from the horizon.
    """
    header, section = records.header, records.section
    base_timestamp, attributes = header.base_timestamp, header.attributes
    if delete_horizon_ms is not None:
        base_timestamp, attributes = delete_horizon_ms, attributes | batches.DELETE_HORIZON
    shift = header.base_timestamp - base_timestamp
    content = bytearray()
    for number, span in enumerate(kept, 1):
        if not number % STEP_RECORDS:
            yield None
        if not shift:
            content += section[span.start : span.end]
            continue
        if not _fits_long(span.timestamp_delta + shift):
            raise OverflowError(f"a timestamp delta of {span.timestamp_delta + shift} ms")
        body = section[span.body : span.body + 1] + varint(span.timestamp_delta + shift) + section[span.rest : span.end]
        content += varint(len(body)) + body
    if header.has_log_append_time:
        max_timestamp = header.max_timestamp
    else:
        # As at Produce: a time before 1970 is not taken for the largest, -1 stands for "no record has a time".
        max_timestamp = max(NO_TIMESTAMP, header.base_timestamp + max(span.timestamp_delta for span in kept))
    stored = yield from compress_in_steps(header.codec, content, step_bytes=_STEP_BYTES)
    return _sealed(header, stored, attributes, base_timestamp, max_timestamp, len(kept))


def batch_of_section(header: BatchHeader, stored: Buffer, *, attributes: int, max_timestamp: int) -> bytearray:
    """The batch with its records stored otherwise, in the codec of these attributes, and a new checksum."""
    return _sealed(header, stored, attributes, header.base_timestamp, max_timestamp, header.records_count)


def _fits_long(number: int) -> bool:
    return -(2**63) <= number < 2**63


def emptied(header: BatchHeader) -> bytearray:
    """The batch without its records: it keeps the offsets and the producer's sequence number."""
    return _sealed(
        header,
        b"",
        header.attributes & ~(batches.CODEC_MASK | batches.DELETE_HORIZON),
        NO_TIMESTAMP,
        header.max_timestamp,
        0,
    )


def _sealed(
    header: BatchHeader, stored: Buffer, attributes: int, base_timestamp: int, max_timestamp: int, count: int
) -> bytearray:
    changed = BatchHeader(
        base_offset=header.base_offset,
        batch_length=HEADER_SIZE - LENGTH_OFFSET + len(stored),
        partition_leader_epoch=header.partition_leader_epoch,
        magic=header.magic,
        crc=0,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        records_count=count,
    )
    batch = bytearray(changed.to_bytes())
    batch += stored
    seal(batch)
    return batch
