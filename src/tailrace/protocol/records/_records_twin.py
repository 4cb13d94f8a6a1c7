"""Single records, in pure Python: the half of `_kernels_twin` that knows nothing of columns."""

from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import TypeVar

from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.faults import Fault, Walk, corrupt

_SHORTEST_RECORD = 6
_SMALLEST_RECORD = 7
_HEADER_SIZE = 61
_SMALLEST_BATCH_LENGTH = 49
_CODEC_MASK, _LOG_APPEND_TIME, _CONTROL = 0x07, 0x08, 0x20
_MIN_LONG, _MAX_LONG = -(2**63), 2**63 - 1
_PLAIN_HEADER = Struct(">qi4xb4xhiqq14xi")
_STORED_HEADER = Struct(">qiib6xi")

Row = TypeVar("Row")


class _Refused(Exception):
    """A fault in the record at hand; the walk over the batch adds its place."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def append_record(
    into: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Iterable[tuple[str, Buffer | None]],
) -> None:
    """Write one record, length first, at the end of `into`. Raises OverflowError for a delta beyond 64 bits."""
    _put_record(
        into, offset_delta, timestamp_delta, key, value, [(name.encode(), content) for name, content in headers]
    )


def parse_records(
    section: Buffer,
    make: Callable[[tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]], Row],
    *,
    count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_time: int | None,
    dense: bool,
) -> list[Row]:
    """`make((offset, timestamp, key, value, headers))` of each record in the uncompressed records of one batch.

    `append_time` replaces the timestamps unless None; `dense` demands the offset deltas 0..n-1. The whole section
    must be used up. Raises CorruptRecords.
    """
    data = bytes(section)
    rows: list[Row] = []
    position, previous = 0, -1
    for index in range(count):
        try:
            length, position = _varint(data, position, len(data), 5)
            if not _SHORTEST_RECORD <= length <= len(data) - position:
                raise _Refused(Fault.RECORD_LENGTH)
            end = position + length
            timestamp_delta, offset_delta, position = _record_start(data, position, end)
            if offset_delta <= previous or offset_delta > last_offset_delta or (dense and offset_delta != index):
                raise _Refused(Fault.OFFSET_DELTA)
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            if not _MIN_LONG <= timestamp <= _MAX_LONG:
                raise _Refused(Fault.TIMESTAMP)
            key, position = _nullable(data, position, end, Fault.KEY_LENGTH)
            value, position = _nullable(data, position, end, Fault.VALUE_LENGTH)
            headers, position = _headers(data, position, end)
            if position != end:
                raise _Refused(Fault.RECORD_REST)
        except _Refused as refused:
            raise corrupt(refused.fault, base_offset, index) from None
        rows.append(make((base_offset + offset_delta, timestamp, key, value, headers)))
        previous = offset_delta
    if position != len(data):
        raise corrupt(Fault.BATCH_REST, base_offset, -1)
    return rows


def walk_batches(
    data: Buffer, at: int, next_offset: int, until_offset: int, gap_limit: int, epoch: int, epoch_end: int
) -> tuple[int, int, int]:
    """Walk over stored batches from the position `at` and check the fields that no checksum covers.

    Each batch begins between `next_offset` and `gap_limit`, has this leader `epoch` (-1: any) and magic 2. Returns the
    end of the last whole batch that ends below `until_offset`, the offset after that batch, and a `Walk`: END, EPOCH if
    the next batch does not begin below `epoch_end`, or its fault.
    """
    if at < 0:
        raise ValueError("a walk begins at position 0 or above it")
    last = len(data) - _HEADER_SIZE
    unpack = _STORED_HEADER.unpack_from
    while at <= last:
        base_offset, length, batch_epoch, magic, delta = unpack(data, at)
        if length < _SMALLEST_BATCH_LENGTH:
            return at, next_offset, Walk.LENGTH
        if magic != 2:
            return at, next_offset, Walk.MAGIC
        if base_offset != next_offset and not next_offset < base_offset <= gap_limit:
            return at, next_offset, Walk.OFFSET
        if delta < 0 or base_offset >= _MAX_LONG - delta:
            return at, next_offset, Walk.OFFSET
        if base_offset >= epoch_end:
            return at, next_offset, Walk.EPOCH
        if batch_epoch != epoch and epoch >= 0:
            return at, next_offset, Walk.LEADER_EPOCH
        after = at + 12 + length
        if after > last + _HEADER_SIZE or base_offset + delta >= until_offset:
            break
        at, next_offset = after, base_offset + delta + 1
    return at, next_offset, Walk.END


def _put_record(
    into: bytearray,
    offset_delta: int,
    timestamp_delta: int,
    key: Buffer | None,
    value: Buffer | None,
    headers: Sequence[tuple[Buffer, Buffer | None]],
) -> None:
    if not _MIN_LONG <= timestamp_delta <= _MAX_LONG:
        raise OverflowError("a timestamp delta needs more than 64 bits")
    body = bytearray(1)
    _put_varint(body, timestamp_delta)
    _put_varint(body, offset_delta)
    _put_bytes(body, key)
    _put_bytes(body, value)
    _put_varint(body, len(headers))
    for name, content in headers:
        _put_bytes(body, name)
        _put_bytes(body, content)
    _put_varint(into, len(body))
    into += body


def _put_varint(into: bytearray, value: int) -> None:
    rest = value << 1 if value >= 0 else (-value << 1) - 1
    while rest > 0x7F:
        into.append(rest & 0x7F | 0x80)
        rest >>= 7
    into.append(rest)


def _put_bytes(into: bytearray, content: Buffer | None) -> None:
    if content is None:
        into.append(1)
    else:
        _put_varint(into, len(content))
        into += content


def _varint(data: bytes, position: int, end: int, most: int) -> tuple[int, int]:
    """A zigzag varint of at most 5 (32 bits) or 10 (64 bits) bytes, and the position after the varint."""
    value = shift = 0
    last_bits = 0x0F if most == 5 else 0x01
    for used in range(1, most + 1):
        if position >= end:
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if used == most and byte > last_bits:
                break
            return value >> 1 ^ -(value & 1), position
        shift += 7
    raise _Refused(Fault.VARINT)


def _record_start(data: bytes, position: int, end: int) -> tuple[int, int, int]:
    """Timestamp delta, offset delta and the position of the key. The attributes mean nothing in v2."""
    timestamp_delta, position = _varint(data, position + 1, end, 10)
    offset_delta, position = _varint(data, position, end, 5)
    return timestamp_delta, offset_delta, position


def _nullable(data: bytes, position: int, end: int, fault: Fault) -> tuple[bytes | None, int]:
    length, position = _varint(data, position, end, 5)
    if length == -1:
        return None, position
    if not 0 <= length <= end - position:
        raise _Refused(fault)
    return data[position : position + length], position + length


def _headers(data: bytes, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = _varint(data, position, end, 5)
    if not 0 <= count <= (end - position) // 2:
        raise _Refused(Fault.HEADER_COUNT)
    headers = []
    for _ in range(count):
        name, position = _nullable(data, position, end, Fault.HEADER_KEY_LENGTH)
        if name is None:
            raise _Refused(Fault.HEADER_KEY_LENGTH)
        content, position = _nullable(data, position, end, Fault.HEADER_VALUE_LENGTH)
        # As Kafka's own client: a key that is not UTF-8 must not make the partition unreadable.
        headers.append((name.decode("utf-8", "replace"), content))
    return tuple(headers), position
