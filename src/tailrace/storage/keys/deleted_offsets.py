"""The last deleted offset of each slot of one log, as a value with its stored form (KIP-X; decision 0099). Pure.

The value tells for a stretch of offsets, from `known_from` up to `known_to`, which of them were the last records of
their slots when the stretch was deleted. Nothing is known of offsets below `known_from`. The last offsets of an earlier
stretch stay: their records are gone in any case.

The stored form, big-endian: magic, version, hash scheme, `known_from`, `known_to`, `unsplit`, the time of the last
reader, 256 last offsets, and the CRC-32C of the preceding bytes.

A file has the value after a deletion and, behind it, the value before the deletion: after a crash the log may begin at
the old start or at the new start, and then the value of this start holds.
"""

import sys
from array import array
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from tailrace.model.checksum import crc32c
from tailrace.model.key_ranges import SLOTS
from tailrace.protocol.primitives import Buffer

_MAGIC: Final = b"TKDO"
_VERSION: Final = 1
_MURMUR2: Final = 0
_HEAD: Final = Struct(">4sBBxxqqqq")
_CRC: Final = Struct(">I")
STORED_BYTES: Final = _HEAD.size + 8 * SLOTS + _CRC.size
NONE_DELETED: Final = (-1,) * SLOTS


class DeletedOffsets(NamedTuple):
    """The knowledge about the deleted records of one log."""

    known_from: int
    known_to: int
    last_offsets: tuple[int, ...] = NONE_DELETED
    """The last deleted offset of a record of each slot; -1 for none."""
    unsplit: int = -1
    """The last deleted offset of a batch that counts for all slots, and may have had no record of a slot: a control
    batch, or a batch that could not be split. -1 for none."""
    read_ms: int = 0
    """When the log was last read by key, ms since 1970; 0: not known yet."""

    def last_in(self, first_slot: int, last_slot: int) -> int:
        """The last deleted offset of these slots, both included; -1 for none."""
        return max(self.last_offsets[first_slot : last_slot + 1])

    def start_in(self, first_slot: int, last_slot: int) -> int:
        """The offset from which on no record of these slots is known to have been deleted, nor may have been deleted
        unnoticed."""
        return max(self.known_from, self.last_in(first_slot, last_slot) + 1)

    def with_more(self, known_to: int, last_offsets: Iterable[int], unsplit: int) -> "DeletedOffsets":
        """The value after the deletion of everything from `known_to` up to the new `known_to`."""
        together = tuple(map(max, self.last_offsets, last_offsets))
        return self._replace(known_to=known_to, last_offsets=together, unsplit=max(self.unsplit, unsplit))

    def merged(self, other: "DeletedOffsets") -> "DeletedOffsets":
        """The value with the knowledge of another replica of the same log."""
        earlier, later = sorted((self, other), key=lambda known: known.known_to)
        is_joined = later.known_from <= earlier.known_to
        return DeletedOffsets(
            min(earlier.known_from, later.known_from) if is_joined else later.known_from,
            later.known_to,
            tuple(map(max, self.last_offsets, other.last_offsets)),
            max(self.unsplit, other.unsplit),
            max(self.read_ms, other.read_ms),
        )

    def fitted(self, first_offset: int, log_start_offset: int) -> "DeletedOffsets":
        """The value for a log whose files begin at the first offset, and which starts at the log start offset.

        If the files begin later, the value is older than a deletion, and the deleted offsets are not known. If the log
        starts earlier, the deletion was noted and then prevented by a crash: of the slots with such an offset nothing
        is known.
        """
        if self.known_to < first_offset:
            return self._replace(known_from=first_offset, known_to=first_offset)
        if self.known_to <= log_start_offset:
            return self
        kept = tuple(offset if offset < log_start_offset else -1 for offset in self.last_offsets)
        is_same = kept == self.last_offsets and self.known_from <= log_start_offset
        return self._replace(
            known_from=self.known_from if is_same else log_start_offset,
            known_to=log_start_offset,
            last_offsets=kept,
            unsplit=min(self.unsplit, log_start_offset - 1),
        )

    def to_bytes(self) -> bytes:
        """The stored form."""
        numbers = array("q", self.last_offsets)
        if sys.byteorder == "little":
            numbers.byteswap()
        head = _HEAD.pack(_MAGIC, _VERSION, _MURMUR2, self.known_from, self.known_to, self.unsplit, self.read_ms)
        content = head + numbers.tobytes()
        return content + _CRC.pack(crc32c(content))

    @classmethod
    def from_bytes(cls, data: Buffer) -> "DeletedOffsets | None":
        """The inverse of `to_bytes`; None for other bytes."""
        content = bytes(data)
        if len(content) != STORED_BYTES or crc32c(content[: -_CRC.size]) != _CRC.unpack(content[-_CRC.size :])[0]:
            return None
        magic, version, scheme, known_from, known_to, unsplit, read_ms = _HEAD.unpack_from(content)
        numbers = array("q", content[_HEAD.size : -_CRC.size])
        if sys.byteorder == "little":
            numbers.byteswap()
        found = cls(known_from, known_to, tuple(numbers), unsplit, read_ms)
        is_right = (magic, version, scheme) == (_MAGIC, _VERSION, _MURMUR2) and 0 <= known_from <= known_to
        return found if is_right and min(numbers) >= -1 and max(*numbers, unsplit) < known_to else None


def to_file(known: DeletedOffsets, before: DeletedOffsets) -> bytes:
    """The content of a file: a value, and the value that holds as long as the deletion has not happened."""
    return known.to_bytes() + before.to_bytes() if before.known_to < known.known_to else known.to_bytes()


def from_file(content: Buffer, *, first_offset: int, log_start_offset: int) -> DeletedOffsets:
    """The value of a file, for a log whose files begin at the first offset, and which starts at the log start offset.

    Of two values the value that holds for this start. See `DeletedOffsets.fitted` for a file without such a value.
    """
    view = memoryview(content)
    stored = [view[position : position + STORED_BYTES] for position in range(0, len(view), STORED_BYTES)]
    values = [value for value in map(DeletedOffsets.from_bytes, stored) if value is not None]
    if not values:
        return DeletedOffsets(first_offset, first_offset)
    earliest = values[-1]
    fallback = earliest if earliest.known_to > log_start_offset else values[0]
    holding = (value for value in values if first_offset <= value.known_to <= log_start_offset)
    return next(holding, fallback).fitted(first_offset, log_start_offset)
