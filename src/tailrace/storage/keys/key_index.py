"""The key index of one segment: the slots of its batches, and the last offset of each slot (KIP-X). Pure.

Invariants:

1. An index knows a run of batches: every batch that begins at `start_position` or behind it and before `end_position`.
   The run is every batch of the segment from `start_offset` on that begins below `end_offset`.
2. An entry is one batch, or a few small batches together: begun at a position, an entry takes the batches that begin
   within `index.interval.bytes` of the position, so that a segment of 1 GiB has 262,144 entries or so at most. In a
   larger segment an entry takes a 262,144th part of the preceding bytes.
3. The file `.khx` is a cache, of a run that begins with the segment. The file is believed if every byte is right,
   and the last known batch is at the noted place, with the same header, checksum and leader epoch included.

The file, big-endian: a head of `HEAD_SIZE` bytes (magic, version, hash scheme, base offset, end offset, end position,
position of the last batch, count of entries, their CRC-32C, header of the last batch, 256 last offsets, CRC-32C of the
head), and the entries: int32 offsets, relative to the base offset, int32 positions, maps of 32 bytes.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable
from itertools import accumulate
from struct import Struct
from typing import Final, NamedTuple

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import SLOTS
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import HEADER_SIZE, read_header
from tailrace.protocol.records.split import SLOT_MAP_BYTES
from tailrace.storage.keys.batch_slots import BatchSlots

_MAGIC: Final = b"TKHX"
_VERSION: Final = 1
_MURMUR2: Final = 0
_HEAD: Final = Struct(f">4sBBxxqqqqII{HEADER_SIZE}sxxx")
_CRC: Final = Struct(">I")
HEAD_SIZE: Final = _HEAD.size + 8 * SLOTS + _CRC.size
ENTRY_SIZE: Final = 8 + SLOT_MAP_BYTES
_SHARE_BITS: Final = 18
"""An entry spans at least a 2^18th of the preceding bytes."""
STEPS_KEPT: Final = 64
"""The number of latest appends whose last offsets are remembered, 2 KiB per append: for questions that end a little
before the last batch."""


class Entry(NamedTuple):
    """A batch, or a few small batches together."""

    base_offset: int
    position: int
    end_position: int


class KeyIndex:
    """The knowledge of one segment's keys."""

    __slots__ = (
        "_count",
        "_entries_crc",
        "_interval",
        "_last_header",
        "_last_position",
        "_maps",
        "_offsets",
        "_positions",
        "_steps",
        "base_offset",
        "end_offset",
        "end_position",
        "has_entries",
        "is_saved",
        "last_offsets",
        "start_offset",
        "start_position",
    )

    def __init__(self, base_offset: int, *, position: int, end_offset: int, interval_bytes: int) -> None:
        """Begin an empty run here: batches before the position begin below `end_offset`, later batches do not."""
        self.base_offset = base_offset
        self.start_position = self.end_position = position
        self.start_offset = end_offset if position else base_offset
        self.end_offset = end_offset
        self.last_offsets = array("q", [-1]) * SLOTS
        """The last offset of a record of each slot in the run; -1 for a slot without records."""
        self.has_entries = True
        """Whether the entries are in memory, and not in the file alone."""
        self.is_saved = False
        """Whether the file has the same content."""
        self._interval = interval_bytes
        self._offsets = array("I")
        self._positions = array("I")
        self._maps = bytearray()
        self._last_position, self._last_header = -1, b""
        self._entries_crc = self._count = 0
        self._steps: deque[tuple[int, int, array[int]]] = deque(maxlen=STEPS_KEPT)

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._positions) if self.has_entries else self._count

    def append(self, slots: BatchSlots) -> None:
        """Add the batches that follow."""
        if not self._steps:
            self._steps.append((-1, self.end_offset, self.last_offsets))
        headers, sizes = slots.headers, slots.sizes
        first_position, end_position = self.end_position, self.end_position + sum(sizes)
        if not self._positions and first_position:
            self.start_offset = headers[0].base_offset
        positions = list(accumulate(sizes[:-1], initial=first_position))
        least = max(self._interval, end_position >> _SHARE_BITS)
        if min(sizes) >= least and (not self._positions or first_position - self._positions[-1] >= least):
            self._offsets.extend([header.base_offset - self.base_offset for header in headers])
            self._positions.extend(positions)
            self._maps += slots.slot_maps
        else:
            self._append_joined(slots, positions)
        pairs = zip(slots.last_offsets, self.last_offsets, strict=True)
        self.last_offsets = array("q", [new if new >= 0 else old for new, old in pairs])
        self.end_position, self.end_offset = end_position, headers[-1].end_offset
        self._last_position, self._last_header = positions[-1], slots.last_header
        self.is_saved = False
        self._steps.append((headers[0].base_offset, self.end_offset, self.last_offsets))

    def _append_joined(self, slots: BatchSlots, positions: Iterable[int]) -> None:
        """Add entries, of small batches together."""
        starts, maps = self._positions, self._maps
        for number, position in enumerate(positions):
            slot_map = slots.slot_maps[SLOT_MAP_BYTES * number : SLOT_MAP_BYTES * (number + 1)]
            if starts and position - starts[-1] < max(self._interval, starts[-1] >> _SHARE_BITS):
                joined = int.from_bytes(maps[-SLOT_MAP_BYTES:], "little") | int.from_bytes(slot_map, "little")
                maps[-SLOT_MAP_BYTES:] = joined.to_bytes(SLOT_MAP_BYTES, "little")
            else:
                self._offsets.append(slots.headers[number].base_offset - self.base_offset)
                starts.append(position)
                maps += slot_map

    def prepend(self, earlier: "KeyIndex") -> None:
        """Add the batches before the run: the batches of an index that ends where this index starts."""
        assert earlier.end_position == self.start_position
        self._offsets[:0] = earlier._offsets
        self._positions[:0] = earlier._positions
        self._maps[:0] = earlier._maps
        pairs = zip(self.last_offsets, earlier.last_offsets, strict=True)
        self.last_offsets = array("q", [later if later >= 0 else old for later, old in pairs])
        self.start_position, self.start_offset = earlier.start_position, earlier.start_offset
        if self._last_position < 0:
            self._last_position, self._last_header = earlier._last_position, earlier._last_header
        self._steps.clear()

    def last_offsets_below(self, offset: int) -> "array[int] | None":
        """The last offset of each slot in the batches of the run that begin, and so end, below this offset; None: not
        remembered.
        """
        if self.end_offset <= offset:
            return self.last_offsets
        following = -1
        for first, end, last_offsets in reversed(self._steps):
            if end <= offset:
                return last_offsets if following >= offset else None
            following = first
        return None

    def last_with(self, slots: int, offset: int, *, most: int) -> tuple[Entry | None, int]:
        """The last entry that begins below this offset and has any of these slots, which are bits of a number.

        Looks at `most` entries. Without a match: None, and the offset down to which no entry has any of the slots.
        """
        number = bisect_left(self._offsets, offset - self.base_offset) - 1
        for at in range(number, max(number - most, -1), -1):
            if int.from_bytes(self._maps[SLOT_MAP_BYTES * at : SLOT_MAP_BYTES * (at + 1)], "little") & slots:
                end = self._positions[at + 1] if at + 1 < len(self._positions) else self.end_position
                return Entry(self.base_offset + self._offsets[at], self._positions[at], end), offset
        left = number - most + 1
        return None, self.base_offset + self._offsets[left] if left > 0 else self.start_offset

    def next_with(self, slots: int, offset: int, *, most: int) -> int:
        """The first offset from `offset` on at which an entry may have any of these slots; else the end of the run.

        Looks at `most` entries. Returns `offset` itself if it is outside the run.
        """
        if not self.start_offset <= offset < self.end_offset:
            return offset
        number = max(bisect_right(self._offsets, offset - self.base_offset) - 1, 0)
        stop = min(number + most, len(self._offsets))
        for at in range(number, stop):
            if int.from_bytes(self._maps[SLOT_MAP_BYTES * at : SLOT_MAP_BYTES * (at + 1)], "little") & slots:
                return max(offset, self.base_offset + self._offsets[at])
        return self.base_offset + self._offsets[stop] if stop < len(self._offsets) else self.end_offset

    # The file

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return HEAD_SIZE + ENTRY_SIZE * len(self)

    @property
    def last_batch(self) -> tuple[int, bytes]:
        """The position of the last batch, and its stored header."""
        return self._last_position, self._last_header

    def to_bytes(self) -> bytes:
        """The file. The run begins with the segment, and has a batch."""
        assert not self.start_position
        assert self.has_entries
        entries = _big_endian(self._offsets).tobytes() + _big_endian(self._positions).tobytes() + bytes(self._maps)
        self._entries_crc, self._count = crc32c(entries), len(self._positions)
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            _MURMUR2,
            self.base_offset,
            read_header(self._last_header).end_offset,
            self.end_position,
            self._last_position,
            self._count,
            self._entries_crc,
            self._last_header,
        )
        head += _big_endian(self.last_offsets).tobytes()
        return head + _CRC.pack(crc32c(head)) + entries

    @classmethod
    def from_head(cls, data: Buffer, *, base_offset: int, interval_bytes: int) -> "KeyIndex | None":
        """The index without its entries, from the head of its file; None if the head is not right."""
        if len(data) != HEAD_SIZE or crc32c(data[: -_CRC.size]) != _CRC.unpack_from(data, HEAD_SIZE - _CRC.size)[0]:
            return None
        magic, version, scheme, base, end_offset, end_position, last_position, count, crc, header = _HEAD.unpack_from(
            data
        )
        if (magic, version, scheme, base) != (_MAGIC, _VERSION, _MURMUR2, base_offset) or not count:
            return None
        index = cls(base_offset, position=0, end_offset=end_offset, interval_bytes=interval_bytes)
        index.last_offsets = array("q", data[_HEAD.size : -_CRC.size])
        if sys.byteorder == "little":
            index.last_offsets.byteswap()
        index.end_position, index._last_position, index._last_header = end_position, last_position, header
        index._count, index._entries_crc = count, crc
        index.has_entries, index.is_saved = False, True
        return index if index._looks_right() else None

    def _looks_right(self) -> bool:
        """Whether the fields of the head fit each other."""
        try:
            last = read_header(self._last_header)
        except CorruptRecords:
            return False
        return (
            self._last_position >= 0
            and self._count * HEADER_SIZE <= self.end_position
            and self._last_position + last.size_bytes == self.end_position
            and self.base_offset <= last.base_offset
            and last.end_offset == self.end_offset
            and all(offset == -1 or self.base_offset <= offset < self.end_offset for offset in self.last_offsets)
        )

    def take_entries(self, data: Buffer) -> bool:
        """Take the entries from the rest of the file; False for wrong entries."""
        count = self._count
        if len(data) != ENTRY_SIZE * count or crc32c(data) != self._entries_crc:
            return False
        view = memoryview(data)
        offsets, positions = (array("I", bytes(view[4 * count * at : 4 * count * (at + 1)])) for at in range(2))
        if sys.byteorder == "little":
            offsets.byteswap()
            positions.byteswap()
        if not (_rises(offsets) and _rises(positions)) or positions[0] or positions[-1] > self._last_position:
            return False
        if self.base_offset + offsets[-1] >= self.end_offset:
            return False
        self._offsets, self._positions, self._maps = offsets, positions, bytearray(view[8 * count :])
        self.has_entries = True
        return True

    def drop_entries(self) -> None:
        """Free the memory of the entries; the last offsets stay."""
        self._count = len(self)
        self.has_entries = False
        self._offsets, self._positions, self._maps = array("I"), array("I"), bytearray()
        self._steps.clear()


assert array("I").itemsize == 4
assert array("q").itemsize == 8


def _big_endian(numbers: "array[int]") -> "array[int]":
    """A copy in the byte order of the file."""
    numbers = numbers[:]
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _rises(numbers: "array[int]") -> bool:
    """Whether each number is above the number before. To sort sorted numbers is the fastest comparison."""
    values = numbers.tolist()
    return sorted(set(values)) == values
