"""The kernels in pure Python: the same results and the same errors as `_kernels.pyx`, a hundred times slower.

The twin runs where there was no C compiler, and is the specification that property tests hold the C code to.
Foreign bytes are read under two rules: no length is used before it was checked against the bytes that are left, and
the checks run in the order of the bytes, so that both kernels meet the same fault first.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tailrace.model.key_hash import murmur2
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records._checking_twin import check_records, renumber_records
from tailrace.protocol.records._key_filter_twin import SteppedSplit, split_by_key
from tailrace.protocol.records._records_twin import (
    _CODEC_MASK,
    _CONTROL,
    _HEADER_SIZE,
    _LOG_APPEND_TIME,
    _MAX_LONG,
    _MIN_LONG,
    _PLAIN_HEADER,
    _SHORTEST_RECORD,
    _SMALLEST_BATCH_LENGTH,
    _SMALLEST_RECORD,
    _headers,
    _nullable,
    _put_record,
    _record_start,
    _Refused,
    _varint,
    append_record,
    parse_records,
    walk_batches,
)
from tailrace.protocol.records.arrow_buffers import (
    BinaryBuffers,
    Column,
    EncodedRows,
    HeaderBuffers,
    LongBuffers,
    RecordColumns,
)
from tailrace.protocol.records.faults import Fault, corrupt

KERNEL = "python"

MAX_INPUT: Final = 2**31 - 1
"""Bytes of batches in one call: so no column can outgrow its 32-bit offsets."""

__all__ = (
    "KERNEL",
    "MAX_INPUT",
    "SteppedSplit",
    "append_record",
    "check_records",
    "encode_columns",
    "murmur2_column",
    "murmur64_column",
    "parse_records",
    "records_to_columns",
    "renumber_records",
    "split_by_key",
    "walk_batches",
)


class _Batch(NamedTuple):
    """An uncompressed batch whose header has been checked, and where its records are."""

    data: bytes
    start: int
    end: int
    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    append_time: int | None
    records_count: int


def records_to_columns(
    batches: Sequence[Buffer], *, columns: int, from_offset: int, until_offset: int, in_micros: bool
) -> RecordColumns:
    """The records with from_offset <= offset < until_offset of all batches in these buffers, as columns.

    Each buffer holds uncompressed batches, one after the other; an incomplete batch at its end is left out. Control
    batches are passed over. Checksums are not checked here. Timestamps are in ms, or in microseconds if `in_micros`.
    Records are checked as far as the columns ask for: with HEADERS every record. Raises CorruptRecords, and
    ValueError for more than `MAX_INPUT` bytes.
    """
    if sum(len(buffer) for buffer in batches) > MAX_INPUT:
        raise ValueError(f"more than {MAX_INPUT} bytes of batches in one call")
    rows = _Rows(columns, in_micros)
    for batch in [batch for buffer in batches for batch in _plain_batches(bytes(buffer))]:
        if batch.base_offset < until_offset and batch.base_offset + batch.last_offset_delta >= from_offset:
            _walk(batch, from_offset, until_offset, rows)
    return rows.finish()


def _plain_batches(data: bytes) -> Iterator[_Batch]:
    position = 0
    while len(data) - position >= _HEADER_SIZE:
        base_offset, length, magic, attributes, last_delta, base_timestamp, max_timestamp, count = (
            _PLAIN_HEADER.unpack_from(data, position)
        )
        start, position = position + _HEADER_SIZE, position + 12 + length
        if magic != 2:
            raise corrupt(Fault.MAGIC, base_offset, -1)
        if length < _SMALLEST_BATCH_LENGTH:
            raise corrupt(Fault.BATCH_LENGTH, base_offset, -1)
        if position > len(data):
            return
        if base_offset < 0 or last_delta < 0 or base_offset + last_delta >= _MAX_LONG:
            raise corrupt(Fault.OFFSETS, base_offset, -1)
        if attributes & _CONTROL:
            continue
        if attributes & _CODEC_MASK:
            raise corrupt(Fault.COMPRESSED, base_offset, -1)
        if not 0 <= count <= last_delta + 1 or count * _SMALLEST_RECORD > position - start:
            raise corrupt(Fault.COUNT, base_offset, -1)
        append_time = max_timestamp if attributes & _LOG_APPEND_TIME else None
        yield _Batch(data, start, position, base_offset, last_delta, base_timestamp, append_time, count)


def _walk(batch: _Batch, from_offset: int, until_offset: int, rows: "_Rows") -> None:
    data, position, previous = batch.data, batch.start, -1
    for index in range(batch.records_count):
        try:
            length, position = _varint(data, position, batch.end, 5)
            if not _SHORTEST_RECORD <= length <= batch.end - position:
                raise _Refused(Fault.RECORD_LENGTH)
            end = position + length
            timestamp_delta, offset_delta, position = _record_start(data, position, end)
            if offset_delta <= previous or offset_delta > batch.last_offset_delta:
                raise _Refused(Fault.OFFSET_DELTA)
            offset = batch.base_offset + offset_delta
            if offset >= until_offset:
                return
            if offset >= from_offset:
                rows.add(batch, data, position, end, offset, timestamp_delta)
        except _Refused as refused:
            raise corrupt(refused.fault, batch.base_offset, index) from None
        position, previous = end, offset_delta
    if position != batch.end:
        raise corrupt(Fault.BATCH_REST, batch.base_offset, -1)


class _Bytes:
    """A growing column of nullable bytes."""

    def __init__(self) -> None:
        self.validity = bytearray()
        self.offsets = array("i", (0,))
        self.data = bytearray()
        self.has_nulls = False

    def add(self, content: bytes | None) -> None:
        _put_bit(self.validity, len(self.offsets) - 1, content is not None)
        if content is None:
            self.has_nulls = True
        else:
            self.data += content
        self.offsets.append(len(self.data))

    def finish(self) -> BinaryBuffers:
        return BinaryBuffers(self.validity if self.has_nulls else None, bytearray(self.offsets), self.data)


class _Rows:
    """The growing columns of one call."""

    def __init__(self, columns: int, in_micros: bool) -> None:
        self.columns = columns
        self.in_micros = in_micros
        self.count = 0
        self.keys, self.values = _Bytes(), _Bytes()
        self.offsets, self.timestamps, self.timestamp_types = array("q"), array("q"), array("i")
        self.header_validity = bytearray()
        self.header_offsets = array("i", (0,))
        self.header_keys, self.header_values = _Bytes(), _Bytes()
        self.has_headerless = False

    def add(self, batch: _Batch, data: bytes, position: int, end: int, offset: int, timestamp_delta: int) -> None:
        """Take one record, of which the key begins at `position`."""
        columns = self.columns
        if columns & Column.TIMESTAMP:
            self.timestamps.append(self._timestamp(batch, timestamp_delta))
        if columns & (Column.KEY | Column.VALUE | Column.HEADERS):
            key, position = _nullable(data, position, end, Fault.KEY_LENGTH)
            if columns & Column.KEY:
                self.keys.add(key)
        if columns & (Column.VALUE | Column.HEADERS):
            value, position = _nullable(data, position, end, Fault.VALUE_LENGTH)
            if columns & Column.VALUE:
                self.values.add(value)
        if columns & Column.HEADERS:
            headers, position = _headers(data, position, end)
            if position != end:
                raise _Refused(Fault.RECORD_REST)
            self._add_headers(headers)
        if columns & Column.OFFSET:
            self.offsets.append(offset)
        if columns & Column.TIMESTAMP_TYPE:
            self.timestamp_types.append(0 if batch.append_time is None else 1)
        self.count += 1

    def _timestamp(self, batch: _Batch, timestamp_delta: int) -> int:
        timestamp = batch.base_timestamp + timestamp_delta if batch.append_time is None else batch.append_time
        in_unit = timestamp * 1000 if self.in_micros else timestamp
        if not (_MIN_LONG <= timestamp <= _MAX_LONG and _MIN_LONG <= in_unit <= _MAX_LONG):
            raise _Refused(Fault.TIMESTAMP)
        return in_unit

    def _add_headers(self, headers: tuple[tuple[str, bytes | None], ...]) -> None:
        _put_bit(self.header_validity, len(self.header_offsets) - 1, bool(headers))
        self.has_headerless |= not headers
        for name, content in headers:
            self.header_keys.add(name.encode())
            self.header_values.add(content)
        self.header_offsets.append(len(self.header_keys.offsets) - 1)

    def finish(self) -> RecordColumns:
        columns = self.columns
        return RecordColumns(
            self.count,
            self.keys.finish() if columns & Column.KEY else None,
            self.values.finish() if columns & Column.VALUE else None,
            bytearray(self.offsets) if columns & Column.OFFSET else None,
            bytearray(self.timestamps) if columns & Column.TIMESTAMP else None,
            bytearray(self.timestamp_types) if columns & Column.TIMESTAMP_TYPE else None,
            self._finish_headers() if columns & Column.HEADERS else None,
        )

    def _finish_headers(self) -> HeaderBuffers:
        return HeaderBuffers(
            self.header_validity if self.has_headerless else None,
            bytearray(self.header_offsets),
            self.header_keys.finish(),
            self.header_values.finish(),
        )


def _put_bit(bitmap: bytearray, index: int, is_set: bool) -> None:
    if index >> 3 == len(bitmap):
        bitmap.append(0)
    if is_set:
        bitmap[index >> 3] |= 1 << (index & 7)


def encode_columns(
    key: BinaryBuffers | None,
    value: BinaryBuffers | None,
    headers: HeaderBuffers | None,
    timestamps: LongBuffers | None,
    *,
    default_timestamp: int,
    rows: Buffer | None,
    start: int,
    stop: int,
    max_bytes: int,
    max_records: int,
) -> EncodedRows:
    """The rows from `start` (below `stop`) as records, as many as fit into a batch of `max_bytes`, and at least one
    row.

    `rows` holds 64-bit row numbers to take, in order, and `start` and `stop` then count in `rows`. A column that is
    None stands for nulls; a null timestamp for `default_timestamp`; a null list of headers for no headers. Raises
    ValueError for a row that its column does not have, or buffers that contradict each other.
    """
    batch = bytearray(_HEADER_SIZE)
    if not 0 <= start < stop:
        raise ValueError(f"no rows from {start} to {stop}")
    numbers = None if rows is None else _longs(rows)
    if numbers is not None and stop > len(numbers):
        raise ValueError(f"row {stop - 1} of {len(numbers)}")
    base_timestamp = max_timestamp = count = 0
    for index in range(start, min(stop, start + max_records)):
        row = index if numbers is None else numbers[index]
        timestamp = _long_at(timestamps, row, default_timestamp)
        if count == 0:
            base_timestamp = max_timestamp = timestamp
        size_before = len(batch)
        _put_record(
            batch,
            count,
            timestamp - base_timestamp,
            _bytes_at(key, row),
            _bytes_at(value, row),
            _headers_at(headers, row),
        )
        if count and len(batch) > max_bytes:
            del batch[size_before:]
            break
        max_timestamp = max(max_timestamp, timestamp)
        count += 1
    return EncodedRows(batch, count, base_timestamp, max_timestamp)


def murmur2_column(column: BinaryBuffers, count: int) -> bytearray:
    """The murmur2 hash of each of the first `count` rows, 32-bit integers; 0 for null."""
    hashes = array("i")
    for row in range(count):
        content = _bytes_at(column, row)
        hashes.append(0 if content is None else murmur2(bytes(content)))
    return bytearray(hashes)


_MULTIPLIER: Final = 0xC6A4A7935BD1E995
_HASH_SEED: Final = 0x9E3779B97F4A7C15
_HASH_MASK: Final = 0xFFFFFFFFFFFFFFFF
_HASH_SHIFT: Final = 47


def murmur64(content: bytes) -> int:
    """A hash of 64 bits, unsigned, to compare contents: MurmurHash64A with a fixed seed.

    Not safe against an adversary: it is easy to make two contents with the same hash.
    """
    length = len(content)
    h = _HASH_SEED ^ ((length * _MULTIPLIER) & _HASH_MASK)
    body = length & ~7
    for i in range(0, body, 8):
        k = (int.from_bytes(content[i : i + 8], "little") * _MULTIPLIER) & _HASH_MASK
        k ^= k >> _HASH_SHIFT
        h = ((h ^ ((k * _MULTIPLIER) & _HASH_MASK)) * _MULTIPLIER) & _HASH_MASK
    if body != length:
        h = ((h ^ int.from_bytes(content[body:], "little")) * _MULTIPLIER) & _HASH_MASK
    h ^= h >> _HASH_SHIFT
    h = (h * _MULTIPLIER) & _HASH_MASK
    return h ^ (h >> _HASH_SHIFT)


def murmur64_column(column: BinaryBuffers, count: int) -> bytearray:
    """The `murmur64` hash of each of the first `count` rows, unsigned 64-bit integers; 0 for null."""
    hashes = array("Q")
    for row in range(count):
        content = _bytes_at(column, row)
        hashes.append(0 if content is None else murmur64(bytes(content)))
    return bytearray(hashes)


def _outside(row: int) -> ValueError:
    return ValueError(f"row {row} lies outside its column")


def _place_of(row: int, first: int, places: int) -> int:
    """The place of a row in buffers for this many rows."""
    if first < 0:
        raise ValueError(f"a column cannot begin at row {first}")
    if row < 0 or first + row >= places:
        raise _outside(row)
    return first + row


def _is_null(validity: Buffer | None, place: int, row: int) -> bool:
    if validity is None:
        return False
    if place >> 3 >= len(validity):
        raise _outside(row)
    return not validity[place >> 3] >> (place & 7) & 1


def _longs(data: Buffer) -> memoryview:
    return memoryview(data)[: len(data) & ~7].cast("q")


def _span_at(offsets: Buffer, place: int, most: int, row: int) -> tuple[int, int]:
    start, stop = memoryview(offsets)[4 * place : 4 * place + 8].cast("i")
    if not 0 <= start <= stop <= most:
        raise _outside(row)
    return start, stop


def _bytes_at(column: BinaryBuffers | None, row: int) -> Buffer | None:
    if column is None:
        return None
    place = _place_of(row, column.first, (len(column.offsets) >> 2) - 1)
    if _is_null(column.validity, place, row):
        return None
    start, stop = _span_at(column.offsets, place, len(column.data), row)
    return memoryview(column.data)[start:stop]


def _long_at(column: LongBuffers | None, row: int, default: int) -> int:
    if column is None:
        return default
    place = _place_of(row, column.first, len(column.data) >> 3)
    value: int = _longs(column.data)[place]
    return default if _is_null(column.validity, place, row) else value


def _headers_at(column: HeaderBuffers | None, row: int) -> list[tuple[Buffer, Buffer | None]]:
    if column is None:
        return []
    place = _place_of(row, column.first, (len(column.offsets) >> 2) - 1)
    if _is_null(column.validity, place, row):
        return []
    start, stop = _span_at(column.offsets, place, _MAX_LONG, row)
    headers = []
    for entry in range(start, stop):
        name = _bytes_at(column.keys, entry)
        if name is None:
            raise ValueError(f"row {row} has a header without a key")
        headers.append((name, _bytes_at(column.values, entry)))
    return headers
