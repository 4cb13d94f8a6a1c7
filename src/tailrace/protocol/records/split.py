"""A split of batches by ranges of key hashes (KIP-X): its readers and its result, for both kernels."""

from functools import lru_cache
from typing import Final, NamedTuple

from tailrace.model.key_ranges import HASH_SPACE
from tailrace.protocol.primitives import Buffer

SLOT_MAP_BYTES: Final = 32
"""A bit per slot, for 256 slots; slot n is bit n % 8 of byte n // 8."""


class Split(NamedTuple):
    """The parts of some batches, and the slots of which the batches have records."""

    parts: tuple[Buffer, ...]
    """Whole batches for each reader, one after the other; empty if the reader wants no record."""
    ends: list[int]
    """The end offset of the last batch of each part; -1 for an empty part."""
    slot_maps: bytearray
    """`SLOT_MAP_BYTES` for each batch. A control batch has all slots: every reader gets the batch."""
    last_offsets: list[int]
    """The last offset of a record of each slot; -1 for a slot without records."""


@lru_cache(maxsize=64)
def owners_of(readers: tuple[tuple[tuple[int, int], ...], ...]) -> tuple[list[int], list[tuple[int, ...]]]:
    """The stretches of hashes with the same readers: the first hash of each stretch, and the readers that want its
    records."""
    changes: dict[int, list[int]] = {0: []}
    """The readers that begin or cease to want the records, by the first hash of the change."""
    for number, ranges in enumerate(readers):
        for first, last in ranges:
            changes.setdefault(first, []).append(number)
            changes.setdefault(last + 1, []).append(number)
    changes.pop(HASH_SPACE, None)
    starts = sorted(changes)
    owners: list[tuple[int, ...]] = []
    now: set[int] = set()
    for start in starts:
        for number in changes[start]:
            now ^= {number}
        owners.append(tuple(sorted(now)))
    return starts, owners
