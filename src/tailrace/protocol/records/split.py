"""The result of a split of batches by ranges of key hashes (KIP-X)."""

from typing import Final, NamedTuple

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
