"""Faults of the records inside a batch: one list, so that the kernel and its twin have the same texts."""

from enum import IntEnum

from tailrace.model.errors import CorruptRecords


class Fault(IntEnum):
    """Reasons for the refusal of a record or of a batch. `_kernels.pyx` has the same numbers; a test compares both."""

    MAGIC = 1
    BATCH_LENGTH = 2
    OFFSETS = 3
    COUNT = 4
    COMPRESSED = 5
    VARINT = 6
    RECORD_LENGTH = 7
    KEY_LENGTH = 8
    VALUE_LENGTH = 9
    HEADER_COUNT = 10
    HEADER_KEY_LENGTH = 11
    HEADER_VALUE_LENGTH = 12
    RECORD_REST = 13
    BATCH_REST = 14
    OFFSET_DELTA = 15
    TIMESTAMP = 16


class Walk(IntEnum):
    """The end of a walk over stored batches. `_kernels.pyx` has the same numbers; a test compares both."""

    END = 0
    EPOCH = 1
    LENGTH = 2
    MAGIC = 3
    OFFSET = 4
    LEADER_EPOCH = 5


_WORDS = {
    Fault.MAGIC: "the record format is not v2",
    Fault.BATCH_LENGTH: "the batch length is below that of an empty batch",
    Fault.OFFSETS: "base offset and last offset delta are no range of offsets",
    Fault.COUNT: "the record count contradicts the last offset delta or the size of the batch",
    Fault.COMPRESSED: "the batch is still compressed",
    Fault.VARINT: "a varint is too long or cut short",
    Fault.RECORD_LENGTH: "the record's length does not fit into the batch",
    Fault.KEY_LENGTH: "the key's length does not fit into the record",
    Fault.VALUE_LENGTH: "the value's length does not fit into the record",
    Fault.HEADER_COUNT: "the number of headers does not fit into the record",
    Fault.HEADER_KEY_LENGTH: "the length of a header's key does not fit into the record",
    Fault.HEADER_VALUE_LENGTH: "the length of a header's value does not fit into the record",
    Fault.RECORD_REST: "bytes are left over at the end of the record",
    Fault.BATCH_REST: "bytes are left over after the last record",
    Fault.OFFSET_DELTA: "the offset delta does not rise within the batch",
    Fault.TIMESTAMP: "the timestamp does not fit into 64 bits, of milliseconds or of the unit asked for",
}
assert set(_WORDS) == set(Fault)


def corrupt(fault: int, base_offset: int, record_index: int) -> CorruptRecords:
    """The error for a fault in a record, counted from 0, of the batch at `base_offset`; -1: in the batch itself."""
    where = f"batch at offset {base_offset}" + (f", record {record_index}" if record_index >= 0 else "")
    return CorruptRecords(f"{where}: {_WORDS[Fault(fault)]}", record_index=record_index if record_index >= 0 else None)
