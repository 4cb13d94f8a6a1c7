"""The check of produced records in pure Python: the part of `_kernels_twin` for a broker that takes a batch."""

from typing import Final

from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records._records_twin import (
    _MAX_LONG,
    _MIN_LONG,
    _SHORTEST_RECORD,
    _SMALLEST_RECORD,
    _nullable,
    _put_varint,
    _record_start,
    _Refused,
    _varint,
)
from tailrace.protocol.records.faults import Fault, corrupt

_NO_TIMESTAMP: Final = -1
_LONGEST_INT: Final = 5


def check_records(
    section: Buffer, at: int, count: int, base_timestamp: int, is_part: bool = False
) -> tuple[int, int, bool, bool]:
    """Walk over the `count` uncompressed records that begin at byte `at`, which must fill the rest of the bytes.

    Returns the largest timestamp (-1 if no record has a timestamp), the smallest timestamp other than -1 (2^63 - 1 if
    there is none), whether every record has a key, and whether the offset deltas are 0 to n - 1. Raises CorruptRecords,
    with the index of the record, for bytes that no reader can parse. With `is_part` the bytes may end anywhere: only
    whole records are checked.
    """
    if not 0 <= at <= len(section):
        raise ValueError("the records begin outside of their bytes")
    data = bytes(section)
    largest, smallest = _NO_TIMESTAMP, _MAX_LONG
    all_have_keys = is_in_order = True
    position = at
    for index in range(count):
        if is_part and _is_cut(data, position):
            return largest, smallest, all_have_keys, is_in_order
        try:
            position, end = _bounds(data, position)
            timestamp_delta, offset_delta, position = _record_start(data, position, end)
            timestamp = base_timestamp + timestamp_delta
            if not _MIN_LONG <= timestamp <= _MAX_LONG:
                raise _Refused(Fault.TIMESTAMP)
            key, position = _nullable(data, position, end, Fault.KEY_LENGTH)
            _, position = _nullable(data, position, end, Fault.VALUE_LENGTH)
            if _skip_headers(data, position, end) != end:
                raise _Refused(Fault.RECORD_REST)
        except _Refused as refused:
            raise corrupt(refused.fault, 0, index) from None
        largest = max(largest, timestamp)
        if timestamp != _NO_TIMESTAMP:
            smallest = min(smallest, timestamp)
        all_have_keys &= key is not None
        is_in_order &= offset_delta == index
        position = end
    if position != len(data):
        raise corrupt(Fault.BATCH_REST, 0, -1)
    return largest, smallest, all_have_keys, is_in_order


def renumber_records(section: Buffer, at: int, count: int) -> bytearray:
    """The records that `check_records` has passed, with the offset deltas 0 to n - 1; other fields stay."""
    if not 0 <= at <= len(section):
        raise ValueError("the records begin outside of their bytes")
    data = bytes(section)
    if not 0 <= count <= (len(data) - at) // _SMALLEST_RECORD:
        raise corrupt(Fault.COUNT, 0, -1)
    made = bytearray()
    position = at
    for index in range(count):
        try:
            start, end = _bounds(data, position)
            _, at_delta = _varint(data, start + 1, end, 10)
            _, position = _varint(data, at_delta, end, 5)
        except _Refused as refused:
            raise corrupt(refused.fault, 0, index) from None
        body = bytearray(data[start:at_delta])
        _put_varint(body, index)
        body += data[position:end]
        _put_varint(made, len(body))
        made += body
        position = end
    if position != len(data):
        raise corrupt(Fault.BATCH_REST, 0, -1)
    return made


def _is_cut(data: bytes, position: int) -> bool:
    """Whether the bytes may end within the record that begins here."""
    if len(data) - position < _LONGEST_INT:
        return True
    try:
        length, position = _varint(data, position, len(data), _LONGEST_INT)
    except _Refused:
        return False
    return length > len(data) - position


def _bounds(data: bytes, position: int) -> tuple[int, int]:
    """Start and end of the record whose length is here."""
    length, position = _varint(data, position, len(data), 5)
    if not _SHORTEST_RECORD <= length <= len(data) - position:
        raise _Refused(Fault.RECORD_LENGTH)
    return position, position + length


def _skip_headers(data: bytes, position: int, end: int) -> int:
    count, position = _varint(data, position, end, 5)
    if not 0 <= count <= (end - position) // 2:
        raise _Refused(Fault.HEADER_COUNT)
    for _ in range(count):
        name, position = _nullable(data, position, end, Fault.HEADER_KEY_LENGTH)
        if name is None:
            raise _Refused(Fault.HEADER_KEY_LENGTH)
        _, position = _nullable(data, position, end, Fault.HEADER_VALUE_LENGTH)
    return position
