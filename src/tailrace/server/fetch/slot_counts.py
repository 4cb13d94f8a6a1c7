"""Counts of the records of view partitions between two offsets: the lag of a group of a view, in records (decision
0100).

The offsets of a view partition are those of its partition, so a difference of offsets counts the records of all slots.
To count those of one slot, the log is read in chunks of 4,096 offsets, and the slot of each record is kept, one byte
each. Readers of all slots and all later counts use the same chunks.

1. A count of up to 64 chunks is exact. Of a longer stretch, 64 chunks are read: the first and the last, and chunks at
   equal distances between. All other records are estimated by the share that the slot has in the chunks that were read.
2. A chunk is read up to 2 MiB of stored batches. The rest of a larger chunk is estimated by its start.
3. The work of one request is bounded by the time of its scan. An answer that could be better after more work says so.
   Where nothing was read yet, each slot counts as an equal share.
4. A batch that cannot be unpacked, or is too large to be split, counts as evenly spread over the slots.
"""

import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Final, NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import SLOTS, KeyRange, hash_of_offset, slot_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.arrow_buffers import Column, RecordColumns
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.columns import plain_groups
from tailrace.protocol.records.corrupt_batch import CorruptBatch
from tailrace.protocol.records.kernels import murmur2_column, records_to_columns
from tailrace.replication.outcomes import READ_UNCOMMITTED, UNKNOWN_EPOCH
from tailrace.replication.partition import Partition
from tailrace.server.fetch.key_reads import ScanBudget
from tailrace.storage import ReadLimits
from tailrace.storage.keys.batch_slots import SPLIT_LIMITS

CHUNK: Final = 4_096
"""The offsets of a chunk."""
MOST_CHUNKS: Final = 64
"""The most chunks that a count reads."""
MOST_CHUNK_BYTES: Final = 2 << 20
"""The most stored bytes of a chunk that are read."""
_READ_BYTES: Final = 512 << 10
MOST_KEPT: Final = 2_048
"""The most chunks that are kept, of all partitions: 8 MiB, or three times that with gaps between the offsets."""


class SlotCount(NamedTuple):
    """The number of records of a view partition between two offsets."""

    records: int
    is_exact: bool
    has_more_steps: bool = False
    """Whether the answer to the same question will be better."""


class _Chunk:
    """The slots of the records of a chunk, up to an offset."""

    __slots__ = ("_places", "_slots", "known_to", "read_bytes", "start")

    def __init__(self, start: int) -> None:
        self.start: Final = start
        self.known_to = start
        """Every record from the start up to here is known."""
        self.read_bytes = 0
        self._slots = bytearray()
        self._places: array[int] | None = None
        """The distance of each record from the start; None while there is a record at each offset."""

    @property
    def end(self) -> int:
        return self.start + CHUNK

    def is_known_to(self, offset: int) -> bool:
        """Whether the chunk is known up to this offset, or as far as it will be."""
        return self.known_to >= min(self.end, offset) or self.read_bytes >= MOST_CHUNK_BYTES

    def add(self, slots: bytes, offsets: Sequence[int]) -> None:
        """Add the records that follow, at these offsets."""
        first, last = offsets[0] - self.start, offsets[-1] - self.start
        if self._places is None and (first != len(self._slots) or last - first != len(slots) - 1):
            self._places = array("H", range(len(self._slots)))
        if self._places is not None:
            self._places.extend([offset - self.start for offset in offsets])
        self._slots += slots

    def count(self, others: bytes, start: int, end: int) -> int:
        """The records from `start` up to, not including, `end`, without the records of `others`, which are slots."""
        first, last = max(start - self.start, 0), max(end - self.start, 0)
        if self._places is not None:
            first, last = bisect_left(self._places, first), bisect_left(self._places, last)
        return len(self._slots[first:last].translate(None, others))


class SlotCounts:
    """The counts of all view partitions of this broker."""

    def __init__(self) -> None:
        self._chunks: OrderedDict[Hashable, _Chunk] = OrderedDict()
        """In the order of their last use. A cut or a compaction of a log gives its chunks other keys."""

    def __len__(self) -> int:
        """The number of chunks that are kept."""
        return len(self._chunks)

    def count(
        self, partition: Partition, key_range: KeyRange, start_offset: int, end_offset: int, budget: ScanBudget
    ) -> SlotCount:
        """The records with such hashes, which are whole slots, from `start_offset` up to `end_offset`.

        The end is that of the view partition: its last record is right below. Raises KafkaError as a read of the log.
        """
        start = max(start_offset, partition.log.log_start_offset)
        if start >= end_offset:
            return SlotCount(0, is_exact=True)
        first_slot, last_slot = slot_of(key_range.first), slot_of(key_range.last)
        others = bytes(slot for slot in range(SLOTS) if not first_slot <= slot <= last_slot)
        counted = covered = 0
        has_more_steps = False
        for number in _sample(start // CHUNK, (end_offset - 1) // CHUNK):
            chunk = self._chunk(partition, number, end_offset, budget)
            if chunk is None:
                has_more_steps = True
                continue
            first, last = max(start, chunk.start), min(end_offset, chunk.end, chunk.known_to)
            if first < last:
                counted += chunk.count(others, first, last)
                covered += last - first
        left = end_offset - start - covered
        if not left:
            return SlotCount(counted, is_exact=True)
        share = counted / covered if covered else (last_slot + 1 - first_slot) / SLOTS
        return SlotCount(max(counted + round(share * left), 1), is_exact=False, has_more_steps=has_more_steps)

    def _chunk(self, partition: Partition, number: int, end_offset: int, budget: ScanBudget) -> _Chunk | None:
        """The chunk of this number, known up to the offset; None if there is no time to read it."""
        key = (
            partition.topic_id,
            partition.topic_partition.partition,
            partition.leader_epoch,
            partition.log.segments.changes,
            number,
        )
        chunk = self._chunks.get(key) or _Chunk(number * CHUNK)
        if not chunk.is_known_to(end_offset):
            if budget.is_over:
                return None
            _read_on(partition, chunk)
            self._chunks[key] = chunk
            if len(self._chunks) > MOST_KEPT:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(key)
        return chunk


def _sample(first: int, last: int) -> Iterable[int]:
    """The numbers of the chunks that are read, of those from `first` to `last`.

    A longer stretch has a larger distance between chunks, a power of two: so it has chunks of shorter stretches.
    """
    count = last - first + 1
    if count <= MOST_CHUNKS:
        return range(first, last + 1)
    distance = 1 << (count // MOST_CHUNKS).bit_length()
    between = range((first // distance + 1) * distance, last, distance)
    return (first, *between, last)


def _read_on(partition: Partition, chunk: _Chunk) -> None:
    """Read the records that the chunk has now behind its known records."""
    position = max(chunk.known_to, partition.log.log_start_offset)
    while position < chunk.end and chunk.read_bytes < MOST_CHUNK_BYTES:
        got = partition.read(ReadLimits(position, _READ_BYTES, READ_UNCOMMITTED, UNKNOWN_EPOCH, min_one_message=True))
        if not got.size_bytes:
            break
        end = min(got.next_offset, chunk.end)
        slots = _slots_in(got.records, position, end)
        if slots:
            chunk.add(bytes(slots.values()), list(slots))
        chunk.read_bytes += got.size_bytes
        position = end
    chunk.known_to = max(chunk.known_to, min(position, chunk.end))


def _slots_in(records: Buffer, start: int, end: int) -> dict[int, int]:
    """The slot of each record from `start` up to `end`, by offset, in order."""
    corrupt: list[CorruptBatch] = []
    found: dict[int, int] = {}
    groups = plain_groups(
        (records,),
        from_offset=start,
        until_offset=end,
        max_rows=SPLIT_LIMITS.max_records,
        max_bytes=SPLIT_LIMITS.max_bytes,
        on_corrupt=corrupt.append,
    )
    for group in groups:
        try:
            columns = records_to_columns(
                group, columns=Column.KEY | Column.OFFSET, from_offset=start, until_offset=end, in_micros=False
            )
        except CorruptRecords:
            headers = [header for buffer in group for _, header in iter_batches(memoryview(buffer))]
            found |= _spread(headers[0].base_offset, headers[-1].end_offset, start, end)
        else:
            found |= _slots_of(columns)
    if corrupt:
        for batch in corrupt:
            found |= _spread(batch.offset, batch.next_offset, start, end)
        return dict(sorted(found.items()))
    return found


def _slots_of(columns: RecordColumns) -> dict[int, int]:
    assert columns.key is not None, "asked for"
    assert columns.offset is not None, "asked for"
    offsets = array("q", bytes(columns.offset))
    highest_byte = 3 if sys.byteorder == "little" else 0
    slots = murmur2_column(columns.key, columns.row_count)[highest_byte::4]
    validity = columns.key.validity
    if validity is not None:
        for row, offset in enumerate(offsets):
            if not validity[row >> 3] >> (row & 7) & 1:
                slots[row] = slot_of(hash_of_offset(offset))
    return dict(zip(offsets, slots, strict=True))


def _spread(first: int, end: int, from_offset: int, until_offset: int) -> dict[int, int]:
    """A record of an evenly spread slot at each of these offsets, of a batch whose records are not known."""
    return {offset: offset % SLOTS for offset in range(max(first, from_offset), min(end, until_offset))}
