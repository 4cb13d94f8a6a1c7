"""The committed ranges of OffsetFetch (KIP-X): a group's progress beyond its offset, for readers of key ranges."""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, fault_of, joined
from tailrace.protocol.messages.fetch import WireKeyRange
from tailrace.protocol.messages.offsets import WireRectangle

MOST_RECTANGLES: Final = 100_000
"""The most ranges in an answer to OffsetFetch, about 3.5 MB: 4 bytes of a request can name a partition with 150 KB of
ranges."""
MOST_KEY_RANGES: Final = 1_024
"""The most key ranges of one reader."""


class RangeRoom:
    """The room for ranges in one answer, for all its groups together."""

    def __init__(self) -> None:
        self.left = MOST_RECTANGLES


class WantedRanges:
    """The committed ranges of one group that a request wants to see."""

    def __init__(self, ranged: RangedOffsets, key_ranges: Sequence[WireKeyRange], room: RangeRoom) -> None:
        """`key_ranges` are the reader's; empty: every hash. Raises KafkaError INVALID_REQUEST (42) for bad ranges."""
        self._ranged = ranged
        self._room = room
        if len(key_ranges) > MOST_KEY_RANGES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(key_ranges)} key ranges; {MOST_KEY_RANGES} at most")
        hashes = [KeyRange(wire.first, wire.last) for wire in key_ranges]
        fault = fault_of(hashes)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
        self._hashes = joined(hashes)

    def of(self, value: OffsetCommitValue) -> tuple[tuple[WireRectangle, ...] | None, int]:
        """The ranges of this value, or None if the answer already has too many ranges; and the state epoch of the
        value."""
        committed, state_epoch = self._ranged.progress(value)
        self._room.left -= committed.rectangle_count
        if self._room.left < 0:
            return None, state_epoch
        return (
            tuple(
                WireRectangle(
                    first_offset=rectangle.first_offset,
                    last_offset=rectangle.last_offset,
                    first_hash=rectangle.first_hash,
                    last_hash=rectangle.last_hash,
                )
                for rectangle in committed.rectangles()
                if self._is_wanted(rectangle)
            ),
            state_epoch,
        )

    def _is_wanted(self, rectangle: Rectangle) -> bool:
        if not self._hashes:
            return True
        place = bisect_left(self._hashes, rectangle.first_hash, key=_last_of)
        return place < len(self._hashes) and self._hashes[place].first <= rectangle.last_hash


_last_of: Final = attrgetter("last")
