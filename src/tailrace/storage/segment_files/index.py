"""The sparse indexes of one segment in memory: offset -> position, and timestamp -> offset. Their files are Kafka's.

Invariants:

1. An offset entry holds the *last* offset of a batch, relative to the segment, and the position where that batch
   starts. Both rise strictly.
2. A time entry says: no record before this relative offset has a timestamp above this timestamp, and the batch that
   ends there has this timestamp. Both rise strictly in timestamp.
3. An index is a cache. A reader that follows an entry checks the bytes there and rebuilds the index if an entry is
   wrong.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final, NamedTuple

OFFSET_ENTRY_SIZE: Final = 8
TIME_ENTRY_SIZE: Final = 12

assert array("I").itemsize == 4
assert array("q").itemsize == 8


def _swap(numbers: "array[int]") -> "array[int]":
    """Convert between the machine's byte order and Kafka's, which is big-endian."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


class OffsetIndex:
    """The start positions of batches, a position per `index.interval.bytes` or so."""

    __slots__ = ("_offsets", "_positions")

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    def append(self, relative_offset: int, position: int) -> None:
        """Note the batch that ends with this offset. Ignored unless the batch lies after every noted batch."""
        if not self._offsets or (relative_offset > self._offsets[-1] and position > self._positions[-1]):
            self._offsets.append(relative_offset)
            self._positions.append(position)

    def floor(self, relative_offset: int) -> tuple[int, int]:
        """A position at or before the batch that holds this offset, and the last offset of the batch that starts there.

        (0, -1) if nothing better is known.
        """
        at = bisect_right(self._offsets, relative_offset)
        return (self._positions[at - 1], self._offsets[at - 1]) if at else (0, -1)

    def entry(self, number: int) -> tuple[int, int] | None:
        """The relative offset and position of one entry, None behind the last."""
        return (self._offsets[number], self._positions[number]) if number < len(self._offsets) else None

    def boundary_below(self, *, relative_end: int, position: int) -> int:
        """The start of a batch that ends before `relative_end` and at or before `position`; 0: no such batch is known.

        Saves a reader from walking over every batch header of a large read.
        """
        # One entry further back than the last entry that starts before the bounds: then the whole batch of the entry
        # lies before both bounds.
        at = min(bisect_left(self._offsets, relative_end), bisect_right(self._positions, position)) - 2
        return self._positions[at] if at >= 0 else 0

    def truncate(self, *, position: int) -> None:
        """Forget all batches that start at this position or later."""
        at = bisect_left(self._positions, position)
        del self._offsets[at:]
        del self._positions[at:]

    def to_bytes(self) -> bytes:
        """The `.index` file: pairs of int32."""
        pairs = array("I", bytes(OFFSET_ENTRY_SIZE * len(self)))
        pairs[0::2] = self._offsets
        pairs[1::2] = self._positions
        return _swap(pairs).tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, *, log_size_bytes: int) -> "OffsetIndex | None":
        """The index that `to_bytes` wrote; None for bytes that cannot be the index of a log of that size."""
        if len(data) % OFFSET_ENTRY_SIZE:
            return None
        pairs = array("I")
        pairs.frombytes(data)
        _swap(pairs)
        index = cls()
        index._offsets, index._positions = pairs[0::2], pairs[1::2]
        if index._positions and (index._positions[-1] >= log_size_bytes or not index._looks_sorted()):
            return None
        return index

    def _looks_sorted(self) -> bool:
        """Whether some entries rise, and the last entries lie highest: a torn file ends in zeros."""
        step = max(1, len(self) // 64)
        for numbers in (self._offsets, self._positions):
            sample = [*numbers[::step], numbers[-1]] if (len(self) - 1) % step else numbers[::step]
            if any(low >= high for low, high in pairwise(sample)):
                return False
        return True


class TimeIndex:
    """The time index of a segment: the largest timestamp so far, and the offset of its record."""

    __slots__ = ("_offsets", "_timestamps")

    def __init__(self) -> None:
        self._timestamps = array("q")
        self._offsets = array("I")

    def __len__(self) -> int:
        return len(self._offsets)

    def entry(self, number: int) -> tuple[int, int] | None:
        """The timestamp and relative offset of one entry, None behind the last."""
        return (self._timestamps[number], self._offsets[number]) if number < len(self._offsets) else None

    @property
    def last(self) -> tuple[int, int] | None:
        """The largest timestamp with its relative offset, or None while nothing is known."""
        return (self._timestamps[-1], self._offsets[-1]) if self._offsets else None

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Note the largest timestamp so far. A smaller or equal timestamp is ignored."""
        if not self._timestamps or timestamp > self._timestamps[-1]:
            self._timestamps.append(timestamp)
            self._offsets.append(relative_offset)

    def below(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry that is earlier than `timestamp`: no record up to its relative offset has this timestamp or a
        later timestamp."""
        at = bisect_left(self._timestamps, timestamp)
        return self.entry(at - 1) if at else None

    def truncate(self, *, relative_offset: int) -> None:
        """Forget this offset and every later offset."""
        at = bisect_left(self._offsets, relative_offset)
        del self._timestamps[at:]
        del self._offsets[at:]

    def to_bytes(self) -> bytes:
        """The `.timeindex` file: int64 and int32, alternating."""
        timestamps = _swap(self._timestamps[:]).tobytes()
        offsets = _swap(self._offsets[:]).tobytes()
        data = bytearray(TIME_ENTRY_SIZE * len(self))
        for byte in range(8):
            data[byte::TIME_ENTRY_SIZE] = timestamps[byte::8]
        for byte in range(4):
            data[8 + byte :: TIME_ENTRY_SIZE] = offsets[byte::4]
        return bytes(data)

    @classmethod
    def from_bytes(cls, data: bytes) -> "TimeIndex | None":
        """The index that `to_bytes` wrote, or None for bytes that are no index."""
        if len(data) % TIME_ENTRY_SIZE:
            return None
        count = len(data) // TIME_ENTRY_SIZE
        timestamps, offsets = bytearray(8 * count), bytearray(4 * count)
        for byte in range(8):
            timestamps[byte::8] = data[byte::TIME_ENTRY_SIZE]
        for byte in range(4):
            offsets[byte::4] = data[8 + byte :: TIME_ENTRY_SIZE]
        index = cls()
        index._timestamps.frombytes(bytes(timestamps))
        index._offsets.frombytes(bytes(offsets))
        _swap(index._timestamps)
        _swap(index._offsets)
        if count > 1 and index._timestamps[-1] <= index._timestamps[0]:
            return None
        return index


class Indexes(NamedTuple):
    """Both indexes of one segment."""

    offsets: OffsetIndex
    times: TimeIndex
