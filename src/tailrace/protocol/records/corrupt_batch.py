"""Stored batches that a reader cannot decode: their place, so that the reader can go on behind the batch."""

from struct import Struct
from typing import NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET

_START = Struct(">qi")
"""Base offset and batch length."""
_DELTA = Struct(">i")
_DELTA_AT = 23
_MAX_OFFSET = 2**63 - 1


class CorruptBatch(NamedTuple):
    """A batch that cannot be decoded, with its offsets as far as its header can be believed."""

    offset: int
    """The first offset of the batch."""
    next_offset: int
    """The first offset behind the batch."""
    size_bytes: int
    fault: CorruptRecords


def stored_end(buffer: Buffer, position: int) -> int | None:
    """The end of the batch at `position` by its length alone; None if the batch is not whole, or its length is
    impossible."""
    if len(buffer) - position < HEADER_SIZE:
        return None
    _, length = _START.unpack_from(buffer, position)
    end: int = position + LENGTH_OFFSET + length
    return end if length >= HEADER_SIZE - LENGTH_OFFSET and end <= len(buffer) else None


def corrupt_batch(
    buffer: Buffer, position: int, end: int, fault: CorruptRecords, *, least_offset: int = 0
) -> CorruptBatch:
    """The batch from `position` to `end`, which cannot be decoded and does not begin below `least_offset`.

    The batch ends at the offset that its header says, but not behind the base offset of the next batch in the buffer.
    """
    offset, _ = _START.unpack_from(buffer, position)
    (delta,) = _DELTA.unpack_from(buffer, position + _DELTA_AT)
    first = min(max(offset, least_offset), _MAX_OFFSET - 1)
    next_offset = min(max(offset + max(delta, 0), first) + 1, _MAX_OFFSET)
    if stored_end(buffer, end) is not None:
        follower, _ = _START.unpack_from(buffer, end)
        if first < follower < next_offset:
            next_offset = follower
    return CorruptBatch(first, next_offset, end - position, fault)
