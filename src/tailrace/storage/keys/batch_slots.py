"""Slots of batches: the parts, of 256, of the hash space that hold the hashes of a batch's keys (KIP-X). Pure.

An unreadable batch counts as a batch with records of every hash at every offset: its checksum is wrong, its records
contradict its header, its codec is not known, or the batch is too large to be split while other work waits. Control
batches are for all readers and count in the same way. So no reader misses a record because of such a batch.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import SLOTS, KeyRange
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, BatchHeader, crc_is_valid, read_header
from tailrace.protocol.records.compression import Codec, decompress
from tailrace.protocol.records.kernels import KERNEL, split_by_key
from tailrace.protocol.records.record import read_records
from tailrace.protocol.records.split import SLOT_MAP_BYTES

IS_COMPILED: Final = KERNEL == "C"


class BatchLimits(NamedTuple):
    """The largest batch that is split."""

    max_bytes: int
    """The bytes of the batch in plain form."""
    max_records: int


SPLIT_LIMITS: Final = BatchLimits(4 << 20, 100_000) if IS_COMPILED else BatchLimits(1 << 20, 2_000)
"""Larger batches are left to readers that can filter records, and are split in steps for the other readers."""
GROUP_BYTES: Final = 256 << 10 if IS_COMPILED else 16 << 10
"""The plain bytes of batches whose records are read in one go; a single batch may have more."""
GROUP_BATCHES: Final = 128

ALL_SLOTS: Final = bytes([0xFF]) * SLOT_MAP_BYTES


class PlainBatch(NamedTuple):
    """A batch as stored, and its records in plain form if the batch is compressed."""

    header: BatchHeader
    stored: Buffer
    plain: Buffer | None
    size_bytes: int
    """The bytes of the batch in plain form."""


def plain_batch(stored: Buffer, header: BatchHeader) -> PlainBatch:
    """The batch for `split_by_key`. Raises CorruptRecords if the batch cannot be unpacked, or is too large to be
    split."""
    max_bytes, max_records = SPLIT_LIMITS
    if header.codec == Codec.GZIP:
        max_bytes //= 2  # the slowest codec to unpack
    plain: Buffer | None = None
    if header.codec and not header.is_control:
        section = memoryview(stored)[HEADER_SIZE:]
        plain = decompress(header.codec, section, max_bytes=max_bytes) if header.records_count else b""
    size_bytes = header.size_bytes if plain is None else HEADER_SIZE + len(plain)
    if size_bytes > max_bytes or header.records_count > max_records:
        raise CorruptRecords(f"the batch at offset {header.base_offset} is too large to be split")
    return PlainBatch(header, stored, plain, size_bytes)


class BatchSlots(NamedTuple):
    """Some batches that follow each other in a segment, and their slots."""

    headers: Sequence[BatchHeader]
    slot_maps: Buffer
    """`SLOT_MAP_BYTES` for each batch; slot n is bit n % 8 of byte n // 8."""
    last_offsets: Sequence[int]
    """The last offset of a record of each slot; -1 for a slot without records."""
    last_header: bytes
    """The stored header of the last batch, `HEADER_SIZE` bytes."""

    @property
    def sizes(self) -> list[int]:
        """The bytes of each batch, as stored."""
        return [header.batch_length + LENGTH_OFFSET for header in self.headers]


class BatchGroup:
    """Collects batches whose records are to be read in one go."""

    __slots__ = ("_batches", "_headers", "_readable", "size_bytes")

    def __init__(self) -> None:
        self._headers: list[BatchHeader] = []
        self._batches: list[Buffer] = []
        self._readable: list[PlainBatch | None] = []
        self.size_bytes = 0
        """The bytes of all batches in plain form."""

    def __len__(self) -> int:
        return len(self._headers)

    @property
    def is_full(self) -> bool:
        return self.size_bytes >= GROUP_BYTES or len(self._headers) >= GROUP_BATCHES

    def add(self, stored: Buffer, header: BatchHeader) -> None:
        """Add a batch, and unpack the batch now."""
        self._headers.append(header)
        self._batches.append(stored)
        batch = readable_batch(stored, header)
        self._readable.append(batch)
        self.size_bytes += header.size_bytes if batch is None else batch.size_bytes

    def slots(self) -> BatchSlots:
        """The slots of all batches. Call it only with at least one batch."""
        last_header = bytes(memoryview(self._batches[-1])[:HEADER_SIZE])
        batches = [(batch.stored, batch.plain) for batch in self._readable if batch is not None]
        if len(batches) == len(self._headers):
            try:
                split = split_by_key(batches, ())
                return BatchSlots(self._headers, split.slot_maps, split.last_offsets, last_header)
            except CorruptRecords:  # a batch of the group is corrupt
                pass
        slot_maps, last_offsets = bytearray(), [-1] * SLOTS
        for header, batch in zip(self._headers, self._readable, strict=True):
            found = _slots_of_one(header, batch)
            slot_maps += found[0]
            last_offsets = [new if new >= 0 else old for new, old in zip(found[1], last_offsets, strict=True)]
        return BatchSlots(self._headers, slot_maps, last_offsets, last_header)


def last_match(stored: Buffer, header: BatchHeader, wanted: KeyRange, end_offset: int) -> int:
    """The last offset of this batch, below `end_offset`, with a record of these hashes; -1 if there is none."""
    batch = None if header.is_control else readable_batch(stored, header)
    if batch is not None:
        try:
            return _last_match(batch, wanted, end_offset)
        except CorruptRecords:
            pass
    offset = min(header.last_offset, end_offset - 1)
    return offset if offset >= header.base_offset else -1


def _last_match(batch: PlainBatch, wanted: KeyRange, end_offset: int) -> int:
    split = split_by_key([(batch.stored, batch.plain)], [[wanted]])
    part, header = split.parts[0], batch.header
    if not part:
        return -1
    if header.end_offset > end_offset:
        return max((record.offset for record in read_records(part) if record.offset < end_offset), default=-1)
    if read_header(part).records_count < header.records_count:
        split = split_by_key([(part, None)], ())
    return max(split.last_offsets)


def readable_batch(stored: Buffer, header: BatchHeader) -> PlainBatch | None:
    """The batch for `split_by_key`; None if the batch cannot be read, or is too large to be split."""
    if header.size_bytes > SPLIT_LIMITS.max_bytes or not crc_is_valid(stored, 0, header):
        return None
    try:
        return plain_batch(stored, header)
    except CorruptRecords:
        return None


def _slots_of_one(header: BatchHeader, batch: PlainBatch | None) -> tuple[Buffer, Sequence[int]]:
    if batch is not None:
        try:
            split = split_by_key([(batch.stored, batch.plain)], ())
            return split.slot_maps, split.last_offsets
        except CorruptRecords:
            pass
    return ALL_SLOTS, [header.last_offset] * SLOTS
