"""Ranges of key hashes (KIP-X): which records of a partition a reader wants, or has done.

The hash space is [0, 2^32). A key's hash is Kafka's murmur2, read unsigned, even if the producer has chosen the
partition by another hash. Records without a key have no order: the hash of such a record is the hash of its offset's
block of 64 offsets, so that the records spread evenly, and most batches of such records belong to one reader as a
whole. A partition is split by the highest bits of the hash, never by the remainder of a division: the remainder has
chosen the partition. The highest 8 bits are the slot.

Ranges are inclusive at both ends, as on the wire.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tailrace.model.key_hash import murmur2

HASH_SPACE: Final = 1 << 32
"""The number of hashes."""
SLOTS: Final = 256
SLOT_HASHES: Final = HASH_SPACE // SLOTS
NULL_KEY_BLOCK_BITS: Final = 6
"""The number of low bits of an offset that do not count in the hash of a record without a key."""

_MASK: Final = HASH_SPACE - 1


class KeyRange(NamedTuple):
    """The hashes from `first` to `last`."""

    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


WHOLE: Final = KeyRange(0, HASH_SPACE - 1)


def hash_of(key: bytes | None, offset: int) -> int:
    """The hash of a record: 0 <= h < 2^32. An empty key is a key."""
    return hash_of_offset(offset) if key is None else murmur2(key) & _MASK


def hash_of_offset(offset: int) -> int:
    """The hash of a record without a key: the final mix of murmur3 of the number of its block."""
    h = (offset >> NULL_KEY_BLOCK_BITS) & _MASK
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & _MASK
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & _MASK
    return h ^ (h >> 16)


def slot_of(key_hash: int) -> int:
    """The slot of a hash: 0 to 255."""
    return key_hash // SLOT_HASHES


def of_slots(first: int, last: int) -> KeyRange:
    """The range of these slots, both included."""
    return KeyRange(first * SLOT_HASHES, (last + 1) * SLOT_HASHES - 1)


def slots_of(ranges: Iterable[KeyRange]) -> int:
    """The slots that have hashes of these ranges, as bits of a number."""
    slots = 0
    for first, last in ranges:
        slots |= (1 << slot_of(last) + 1) - (1 << slot_of(first))
    return slots


def fault_of(ranges: Iterable[KeyRange]) -> str | None:
    """The fault of these ranges, or None: a range is empty or outside of the hash space, or two overlap."""
    in_order = sorted(ranges)
    for first, last in in_order:
        if not 0 <= first <= last < HASH_SPACE:
            return f"{first}-{last} is no range of key hashes: 0 <= first <= last < {HASH_SPACE}"
    for earlier, other in pairwise(in_order):
        if other.first <= earlier.last:
            return f"the ranges {earlier} and {other} overlap"
    return None


def joined(ranges: Iterable[KeyRange]) -> tuple[KeyRange, ...]:
    """The fewest ranges with the same hashes, in order. The given ranges may overlap."""
    found: list[KeyRange] = []
    for key_range in sorted(ranges):
        if found and key_range.first <= found[-1].last + 1:
            found[-1] = KeyRange(found[-1].first, max(found[-1].last, key_range.last))
        else:
            found.append(key_range)
    return tuple(found)


def contains(ranges: Sequence[KeyRange], key_hash: int) -> bool:
    """Whether any of these ranges has the hash."""
    return any(first <= key_hash <= last for first, last in ranges)
