"""The parts of chunks that were split for key ranges, and wait for their readers (KIP-X; decision 0054). Pure.

When the first reader reaches a chunk, the chunk is split for all ranges that are being read of the partition. A part is
kept until its reader asks for an offset behind the part, or until the parts exceed their bytes; then the partition that
was read least recently loses its oldest parts.

Work and memory are bounded, whatever ranges are asked for: besides the reader that has reached the chunk, a chunk is
split for at most four readers of the same slot, and for at most 1,024 ranges. A reader that was left out splits the
chunk again.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.model.key_ranges import KeyRange, slots_of
from tailrace.protocol.primitives import Buffer

Ranges = tuple[KeyRange, ...]
"""The ranges of one reader, joined: equal sets of ranges have equal tuples."""

READ_WITHIN_MS: Final = 60_000
"""The time without a fetch after which ranges are not being read any more."""
MOST_READERS: Final = 256
"""The most sets of ranges that are remembered for one partition."""
MOST_REMEMBERED: Final = 100_000
"""The most ranges that are remembered, for all partitions together."""
MOST_READERS_OF_SLOT: Final = 4
"""The most readers beside its own that a chunk is split for in the same slot: no record is copied more often."""
MOST_RANGES: Final = 1_024
"""The most ranges of other readers for which a chunk is split."""
_PART_BYTES: Final = 200
"""The memory of a part beside its batches."""
_MOST_DROPPED: Final = 16
"""The most partitions that are forgotten in one step, because they are not read any more."""


class Part(NamedTuple):
    """The records of some ranges at the offsets from `start` up to, not including, `end`."""

    start: int
    end: int
    batches: Buffer
    """Whole batches; empty without such records."""
    records_end: int = -1
    """The end offset of the last batch; -1 without a batch."""


@dataclass(slots=True)
class DroppedParts:
    """Parts that were dropped before their readers came, since the start of the broker."""

    parts: int = 0
    size_bytes: int = 0

    def add(self, part: Part) -> None:
        """Count a part."""
        self.parts += 1
        self.size_bytes += _size(part)


class _Reader:
    """The ranges of one reader, and its parts."""

    __slots__ = ("offset", "parts", "read_ms", "slots")

    def __init__(self, ranges: Ranges) -> None:
        self.offset = 0
        """The offset of the reader's last fetch: parts before this offset are not needed any more."""
        self.read_ms = 0
        """The time of its last fetch."""
        self.slots = slots_of(ranges)
        self.parts: list[Part] = []
        """The parts in order, without overlaps."""


class KeySplits:
    """The parts of all partitions. The key of a partition changes when its log is cut or made anew
    (`key_reads.key_of`)."""

    def __init__(self, *, max_bytes: int) -> None:
        """`max_bytes` is max.bytes.key.range.hashing."""
        self._max_bytes = max_bytes
        self._partitions: OrderedDict[Hashable, OrderedDict[Ranges, _Reader]] = OrderedDict()
        """Partitions and their readers, both in the order of the last fetch."""
        self._holders: OrderedDict[Hashable, None] = OrderedDict()
        """The partitions with parts, in the same order."""
        self.kept_parts = self.kept_bytes = 0
        self.displaced: Final = DroppedParts()
        """The parts that were dropped for lack of room."""
        self.unread: Final = DroppedParts()
        """The parts that were dropped since their readers had gone, or their log had been cut."""
        self.remembered_ranges = 0

    def __len__(self) -> int:
        """The number of partitions that are being read."""
        return len(self._partitions)

    def being_read(self, partition: Hashable, ranges: Ranges, offset: int, now_ms: int) -> None:
        """Note that a fetch has named these ranges, at this offset."""
        readers = self._partitions.get(partition)
        if readers is None:
            self._drop_unread(now_ms)
            readers = self._partitions[partition] = OrderedDict()
        reader = readers.get(ranges)
        if reader is None:
            reader = readers[ranges] = _Reader(ranges)
            self.remembered_ranges += len(ranges)
        reader.offset, reader.read_ms = offset, now_ms
        readers.move_to_end(ranges)
        self._partitions.move_to_end(partition)
        if partition in self._holders:
            self._holders.move_to_end(partition)
        while len(readers) > MOST_READERS or next(iter(readers.values())).read_ms < now_ms - READ_WITHIN_MS:
            self._forget(*readers.popitem(last=False))
        while self.remembered_ranges > MOST_REMEMBERED:
            self._forget_oldest()

    def wanted(self, partition: Hashable, ranges: Ranges, end: int) -> list[Ranges]:
        """The sets of ranges for which a chunk with this end offset is split: first the set of this reader, then the
        sets that were read last."""
        if not self._max_bytes:
            return [ranges]
        wanted, count = [ranges], 0
        depths = [0] * MOST_READERS_OF_SLOT
        """The slots that at least 1, 2, ... other readers have."""
        for other, reader in reversed(self._readers(partition).items()):
            if other == ranges or reader.offset >= end:
                continue
            if depths[-1] & reader.slots or count + len(other) > MOST_RANGES:
                continue
            wanted.append(other)
            count += len(other)
            if depths[0] & reader.slots:
                for depth in range(MOST_READERS_OF_SLOT - 1, 0, -1):
                    depths[depth] |= depths[depth - 1] & reader.slots
            depths[0] |= reader.slots
        return wanted

    def find(self, partition: Hashable, ranges: Ranges, offset: int) -> Part | None:
        """The part with this offset. The reader has read the parts before the offset, so they are dropped."""
        reader = self._readers(partition).get(ranges)
        parts = [] if reader is None else reader.parts
        while parts and parts[0].end <= offset:
            self._remove(parts.pop(0))
        return parts[0] if parts and parts[0].start <= offset else None

    def keep(self, partition: Hashable, ranges: Ranges, part: Part) -> None:
        """Keep a part for its reader, unless the ranges are not read any more, or have a part with its first offset."""
        reader = self._readers(partition).get(ranges)
        if reader is None or reader.offset >= part.end:
            return
        parts = reader.parts
        place = bisect_right(parts, part.start, key=_start_of)
        if place and parts[place - 1].end > part.start:
            return
        if place and parts[place - 1].end == part.start and not part.batches and not parts[place - 1].batches:
            parts[place - 1] = parts[place - 1]._replace(end=part.end)  # adjacent stretches without records are joined
            return
        parts.insert(place, part)
        self._holders[partition] = None
        self.kept_parts, self.kept_bytes = self.kept_parts + 1, self.kept_bytes + _size(part)
        while self.kept_bytes > self._max_bytes:
            self._make_room()

    def forget(self, partition: Hashable) -> None:
        """Forget a partition's readers and parts: its log was cut, or begins anew."""
        for ranges, reader in self._readers(partition).items():
            self._forget(ranges, reader)
        self._partitions.pop(partition, None)
        self._holders.pop(partition, None)

    def _readers(self, partition: Hashable) -> OrderedDict[Ranges, _Reader]:
        readers = self._partitions.get(partition)
        return OrderedDict() if readers is None else readers

    def _remove(self, part: Part) -> None:
        self.kept_parts, self.kept_bytes = self.kept_parts - 1, self.kept_bytes - _size(part)

    def _make_room(self) -> None:
        """Remove a part of the partition that was read least recently."""
        partition = next(iter(self._holders))
        for reader in self._partitions[partition].values():
            if reader.parts:
                part = reader.parts.pop(0)
                self._remove(part)
                self.displaced.add(part)
                return
        del self._holders[partition]

    def _drop_unread(self, now_ms: int) -> None:
        """Forget some of the partitions that are not being read any more."""
        for _ in range(min(_MOST_DROPPED, len(self._partitions))):
            partition, readers = next(iter(self._partitions.items()))
            if next(reversed(readers.values())).read_ms >= now_ms - READ_WITHIN_MS:
                return
            self.forget(partition)

    def _forget_oldest(self) -> None:
        """Forget the first reader of the partition that was read least recently."""
        partition, readers = next(iter(self._partitions.items()))
        self._forget(*readers.popitem(last=False))
        if not readers:
            self.forget(partition)

    def _forget(self, ranges: Ranges, reader: _Reader) -> None:
        self.remembered_ranges -= len(ranges)
        for part in reader.parts:
            self._remove(part)
            self.unread.add(part)
        reader.parts.clear()


def _start_of(part: Part) -> int:
    return part.start


def _size(part: Part) -> int:
    return _PART_BYTES + len(part.batches)
