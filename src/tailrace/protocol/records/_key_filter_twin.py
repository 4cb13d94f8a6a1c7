"""The key-range filter in pure Python: the same bytes and the same errors as `split_by_key` of `_kernels.pyx`."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from tailrace.model.checksum import crc32c
from tailrace.model.key_ranges import SLOT_HASHES, SLOTS, hash_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records._records_twin import (
    _CODEC_MASK,
    _CONTROL,
    _HEADER_SIZE,
    _MAX_LONG,
    _SHORTEST_RECORD,
    _SMALLEST_BATCH_LENGTH,
    _SMALLEST_RECORD,
    _nullable,
    _record_start,
    _Refused,
    _varint,
)
from tailrace.protocol.records.faults import Fault, corrupt
from tailrace.protocol.records.split import SLOT_MAP_BYTES, Split, owners_of

_HEAD: Final = Struct(">qiibIhi")
"""Base offset, length, leader epoch, magic, checksum, attributes, last offset delta."""
_COUNT: Final = Struct(">i")
MAX_INPUT: Final = 2**31 - 1
"""Bytes of batches in one call."""
_LENGTH_AT, _CRC_AT, _ATTRIBUTES_AT, _COUNT_AT = 8, 17, 21, 57
_ALL_SLOTS: Final = bytes([0xFF]) * SLOT_MAP_BYTES


def split_by_key(
    batches: Sequence[tuple[Buffer, Buffer | None]],
    readers: Sequence[Sequence[tuple[int, int]]],
    lend: Callable[[int], bytearray] | None = None,
) -> Split:
    """The part of these batches for each reader, by the ranges of hashes that the reader wants (`model.key_ranges`).

    A batch is given whole, in its stored form; beside a compressed batch its records in plain form. A reader of all
    records gets the stored batch; a reader of no record gets nothing. Otherwise a reader gets the header with other
    length, count and checksum, no compression, and its records byte for byte: their offsets and times are differences
    to fields that stay. Control batches go to every reader. The ranges of one reader are in order and do not overlap;
    the ranges of different readers may.

    `lend` gives a buffer of at least so many bytes; the compiled kernel writes the parts there, and gives views.
    Raises CorruptRecords. Records are checked as far as their keys.
    """
    parts = [bytearray() for _ in readers]
    slot_maps, ends, last_offsets = bytearray(), [-1] * len(parts), [-1] * SLOTS
    if sum(len(stored if plain is None else plain) for stored, plain in batches) > MAX_INPUT:
        raise ValueError(f"more than {MAX_INPUT} bytes of batches in one call")
    for stored, plain in batches:
        stepped = SteppedSplit(stored, plain, readers)
        stepped.step(MAX_INPUT)
        split = stepped.result()
        for part, more in zip(parts, split.parts, strict=True):
            part.extend(more)
        ends = [new if new >= 0 else old for new, old in zip(split.ends, ends, strict=True)]
        slot_maps += split.slot_maps
        last_offsets = [new if new >= 0 else old for new, old in zip(split.last_offsets, last_offsets, strict=True)]
    return Split(tuple(parts), ends, slot_maps, last_offsets)


class _Stored:
    """A batch with its header checked."""

    def __init__(self, data: bytes, plain: bytes | None) -> None:
        self.data = data
        if len(data) < _HEADER_SIZE:
            raise corrupt(Fault.BATCH_LENGTH, -1, -1)
        self.base_offset, length, _, magic, _, self.attributes, self.last_delta = _HEAD.unpack_from(data)
        (self.count,) = _COUNT.unpack_from(data, _COUNT_AT)
        if magic != 2:
            raise corrupt(Fault.MAGIC, self.base_offset, -1)
        if length < _SMALLEST_BATCH_LENGTH or length + 12 != len(data):
            raise corrupt(Fault.BATCH_LENGTH, self.base_offset, -1)
        if self.base_offset < 0 or self.last_delta < 0 or self.base_offset + self.last_delta >= _MAX_LONG:
            raise corrupt(Fault.OFFSETS, self.base_offset, -1)
        self.is_control = self.attributes & _CONTROL != 0
        if not self.is_control and plain is None and self.attributes & _CODEC_MASK:
            raise corrupt(Fault.COMPRESSED, self.base_offset, -1)
        self.section = data[_HEADER_SIZE:] if plain is None else plain
        if not 0 <= self.count <= self.last_delta + 1 or (
            not self.is_control and self.count * _SMALLEST_RECORD > len(self.section)
        ):
            raise corrupt(Fault.COUNT, self.base_offset, -1)

    def with_records(self, records: bytearray, count: int) -> bytearray:
        """The batch with `records` in place of its own records."""
        batch = bytearray(self.data[:_HEADER_SIZE]) + records
        _COUNT.pack_into(batch, _LENGTH_AT, len(batch) - 12)
        batch[_ATTRIBUTES_AT + 1] &= ~_CODEC_MASK
        _COUNT.pack_into(batch, _COUNT_AT, count)
        batch[_CRC_AT:_ATTRIBUTES_AT] = crc32c(memoryview(batch)[_ATTRIBUTES_AT:]).to_bytes(4, "big")
        return batch


class SteppedSplit:
    """The split of one batch, some records at a time: for a batch that would take too long in one go.

    The result and the errors are those of `split_by_key`; for a bad header the constructor raises.
    """

    def __init__(self, stored: Buffer, plain: Buffer | None, readers: Sequence[Sequence[tuple[int, int]]]) -> None:
        self._starts, self._owners = owners_of(tuple(map(tuple, readers)))
        self._batch = _Stored(bytes(stored), None if plain is None else bytes(plain))
        self._kept = [bytearray() for _ in readers]
        self._counts = [0] * len(self._kept)
        self._position, self._previous, self._index = 0, -1, 0
        self._slot_map = bytearray(SLOT_MAP_BYTES)
        self._last_offsets = [-1] * SLOTS

    def step(self, max_records: int) -> bool:
        """Split so many records more, or the rest; returns whether the split is complete."""
        batch = self._batch
        if batch.is_control:
            return True
        section, base_offset = batch.section, batch.base_offset
        position, previous, stop = self._position, self._previous, min(self._index + max_records, batch.count)
        for index in range(self._index, stop):
            start = position
            try:
                position, delta, key_hash = _record(section, position, previous, batch)
            except _Refused as refused:
                raise corrupt(refused.fault, base_offset, index) from None
            slot = key_hash // SLOT_HASHES
            self._slot_map[slot >> 3] |= 1 << (slot & 7)
            self._last_offsets[slot] = base_offset + delta
            previous = delta
            for owner in self._owners[bisect_right(self._starts, key_hash) - 1]:
                self._kept[owner] += section[start:position]
                self._counts[owner] += 1
        self._position, self._previous, self._index = position, previous, stop
        if stop < batch.count:
            return False
        if position != len(section):
            raise corrupt(Fault.BATCH_REST, base_offset, -1)
        return True

    def result(self) -> Split:
        """The split. Must only be called when all records were split."""
        batch = self._batch
        end_offset = batch.base_offset + batch.last_delta + 1
        if batch.is_control:
            parts = tuple(bytearray(batch.data) for _ in self._kept)
            return Split(parts, [end_offset] * len(parts), bytearray(_ALL_SLOTS), [end_offset - 1] * SLOTS)
        parts = tuple(map(self._part, self._kept, self._counts))
        ends = [end_offset if count else -1 for count in self._counts]
        return Split(parts, ends, self._slot_map, self._last_offsets)

    def _part(self, records: bytearray, count: int) -> bytearray:
        batch = self._batch
        if count and count == batch.count:
            return bytearray(batch.data)
        return batch.with_records(records, count) if count else bytearray()


def _record(section: bytes, position: int, previous: int, batch: _Stored) -> tuple[int, int, int]:
    """The end of the record at this position, its offset delta and its hash."""
    length, position = _varint(section, position, len(section), 5)
    if not _SHORTEST_RECORD <= length <= len(section) - position:
        raise _Refused(Fault.RECORD_LENGTH)
    end = position + length
    _, delta, position = _record_start(section, position, end)
    if delta <= previous or delta > batch.last_delta:
        raise _Refused(Fault.OFFSET_DELTA)
    key, _ = _nullable(section, position, end, Fault.KEY_LENGTH)
    return end, delta, hash_of(key, batch.base_offset + delta)
