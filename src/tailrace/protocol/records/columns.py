"""Record batches to columns and back: the code around the kernels' loops.

Reading: `plain_groups` checks and decompresses, `kernels.records_to_columns` decodes. Writing: the kernel encodes rows
and `columns_to_batch` puts the header around the rows.
"""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.arrow_buffers import BinaryBuffers, EncodedRows, HeaderBuffers, LongBuffers
from tailrace.protocol.records.batch import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LENGTH_OFFSET,
    MAGIC,
    MAX_RECORDS_PER_BATCH,
    TRANSACTIONAL,
    BatchHeader,
    check_crc,
    read_header,
    seal,
)
from tailrace.protocol.records.compression import Codec, compress, decompress
from tailrace.protocol.records.corrupt_batch import CorruptBatch, corrupt_batch, stored_end
from tailrace.protocol.records.kernels import encode_columns

_SCANNED = Struct(">qi4xbIhi30xi")
"""Base offset, batch length, magic, checksum, attributes, last offset delta, record count: 61 bytes."""
_LENGTH = Struct(">i")
_ATTRIBUTES = Struct(">h")

OnCorrupt = Callable[[CorruptBatch], None]
"""A function that is called with a batch that cannot be decoded: if it does not raise, the batch is left out."""


def raise_fault(corrupt: CorruptBatch) -> None:
    """Raise the fault of the batch."""
    raise corrupt.fault


def plain_groups(
    chunks: Iterable[Buffer],
    *,
    from_offset: int,
    until_offset: int,
    max_rows: int,
    max_bytes: int | None = None,
    max_group_bytes: int = 2 << 20,
    on_corrupt: OnCorrupt = raise_fault,
) -> Iterator[list[Buffer]]:
    """The batches that touch from_offset <= offset < until_offset, checked and uncompressed, in groups for the kernel.

    A chunk is what one fetch gave for the partition: batches, and perhaps a piece of another. A group has at most
    `max_rows` records and `max_group_bytes` bytes unless a single batch has more. Adjacent batches that were not
    compressed are one view into their chunk; the checksum of a decompressed batch is void. `max_bytes` limits what one
    batch may unfold to. Control batches are left out, and so are corrupt batches that `on_corrupt` lets pass; the
    default raises CorruptRecords.
    """
    group: list[Buffer] = []
    rows = size = 0
    for chunk in chunks:
        view = memoryview(chunk)
        start = end = 0  # of the batches that are not in the group yet
        for position, next_position, codec, count in _checked_batches(view, from_offset, until_offset, on_corrupt):
            if rows and (rows + count > max_rows or size + next_position - position > max_group_bytes):
                if end > start:
                    group.append(view[start:end])
                yield group
                group, rows, size = [], 0, 0
                start = end = position
            if codec or position != end:
                if end > start:
                    group.append(view[start:end])
                start = position
            end = next_position
            rows += count
            size += next_position - position
            if codec:
                try:
                    group.append(_unfolded(view[start:end], max_bytes))
                    size += len(group[-1])
                except CorruptRecords as fault:
                    rows -= count
                    on_corrupt(corrupt_batch(view, start, end, fault))
                start = end
        if end > start:
            group.append(view[start:end])
    if group:
        yield group


def _checked_batches(
    view: memoryview, from_offset: int, until_offset: int, on_corrupt: OnCorrupt
) -> Iterator[tuple[int, int, int, int]]:
    """Position, next position, codec and record count of each whole batch in the range whose checksum is right.

    One unpack per batch and no object: a fetch of small batches spends more time here than in the kernel.
    """
    position, stop = 0, len(view)
    while stop - position >= HEADER_SIZE:
        base_offset, length, magic, crc, attributes, last_offset_delta, count = _SCANNED.unpack_from(view, position)
        if magic != MAGIC or length < HEADER_SIZE - LENGTH_OFFSET or last_offset_delta < 0 or count < 0:
            position = _end_of_corrupt(view, position, from_offset, until_offset, on_corrupt)
            continue
        next_position = position + LENGTH_OFFSET + length
        if next_position > stop:
            return
        if count and base_offset < until_offset and base_offset + last_offset_delta >= from_offset:
            if crc32c(view[position + 21 : next_position]) != crc:
                position = _end_of_corrupt(view, position, from_offset, until_offset, on_corrupt)
                continue
            if not attributes & CONTROL:
                yield position, next_position, attributes & CODEC_MASK, count
        position = next_position


def _end_of_corrupt(view: memoryview, position: int, from_offset: int, until_offset: int, on_corrupt: OnCorrupt) -> int:
    """The end of a batch whose header or checksum is wrong. Raises CorruptRecords if the end cannot be found."""
    try:
        check_crc(view, position, read_header(view, position))
    except CorruptRecords as fault:
        end = stored_end(view, position)
        if end is None:
            raise
        corrupt = corrupt_batch(view, position, end, fault)
        if corrupt.offset < until_offset and corrupt.next_offset > from_offset:
            on_corrupt(corrupt)
        return end
    raise AssertionError("the batch has a fault")


def _unfolded(batch: memoryview, max_bytes: int | None) -> bytearray:
    header = read_header(batch)
    section = decompress(header.codec, batch[HEADER_SIZE:], max_bytes=max_bytes)
    plain = bytearray(batch[:HEADER_SIZE])
    _LENGTH.pack_into(plain, 8, HEADER_SIZE - LENGTH_OFFSET + len(section))
    _ATTRIBUTES.pack_into(plain, 21, header.attributes & ~CODEC_MASK)
    plain += section
    return plain


class ColumnBatch(NamedTuple):
    """A sealed batch made of rows, ready to be sent."""

    batch: bytearray
    row_count: int


def columns_to_batch(
    key: BinaryBuffers | None,
    value: BinaryBuffers | None,
    *,
    start: int,
    stop: int,
    rows: Buffer | None = None,
    headers: HeaderBuffers | None = None,
    timestamps: LongBuffers | None = None,
    default_timestamp: int,
    max_bytes: int,
    max_records: int = MAX_RECORDS_PER_BATCH,
    codec: int = Codec.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
) -> ColumnBatch:
    """A batch of as many rows from `start` (below `stop`) as fit into `max_bytes` before compression, one row at least.

    `rows` picks rows by number, 64 bits per number; `start` and `stop` then count in `rows`. Timestamps in ms, nulls
    are `default_timestamp`. A column that is None is null in every record.
    """
    encoded: EncodedRows = encode_columns(
        key,
        value,
        headers,
        timestamps,
        default_timestamp=default_timestamp,
        rows=rows,
        start=start,
        stop=stop,
        max_bytes=max_bytes,
        max_records=max_records,
    )
    batch = encoded.batch
    if codec != Codec.NONE:
        with memoryview(batch) as view:
            batch = bytearray(HEADER_SIZE) + compress(codec, view[HEADER_SIZE:], level)
    batch[:HEADER_SIZE] = BatchHeader(
        base_offset=0,
        batch_length=len(batch) - LENGTH_OFFSET,
        partition_leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=codec | (TRANSACTIONAL if is_transactional else 0),
        last_offset_delta=encoded.row_count - 1,
        base_timestamp=encoded.base_timestamp,
        max_timestamp=encoded.max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=encoded.row_count,
    ).to_bytes()
    seal(batch)
    return ColumnBatch(batch, encoded.row_count)
