"""The smallest pieces of Kafka's wire format: varints, tag sections, and how malformed bytes are refused.

The compiled codecs (decoder, encoder) write the common cases inline and call these functions for the rare cases: a
varint of more than one byte, a tag section that is not empty, bytes that end too early.
"""

from typing import NoReturn

from tailrace.model.errors import MalformedMessage

Buffer = bytes | bytearray | memoryview

UnknownTags = tuple[tuple[int, bytes], ...]
"""Tagged fields that a declaration does not know, ascending by tag: kept and written back (KIP-482)."""

MAX_STRING_BYTES = 0x7FFF
"""Kafka refuses longer strings in every encoding, also where the length is a varint."""

MAX_TAGS = 32
"""Tagged fields that one struct may have: Kafka's have two or three at most."""
MAX_UNKNOWN_TAG_BYTES = 64 * 1024
"""Bytes that all unknown tagged fields of a struct may have together: unknown fields are copied, and live with the
message."""

ONE_BYTE_UVARINTS = tuple(bytes((n,)) for n in range(128))


def uvarint(value: int) -> bytes:
    """An unsigned number in base 128, lowest seven bits first: 1 to 5 bytes for lengths, counts and tags."""
    if value < 128:
        return ONE_BYTE_UVARINTS[value]
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """An unsigned 32-bit varint and the position behind the varint."""
    if position >= len(data):
        too_short("varint", position)
    first = data[position]
    return (first, position + 1) if first < 128 else long_uvarint(data, position + 1, first)


def long_uvarint(data: Buffer, position: int, first: int) -> tuple[int, int]:
    """The rest of a varint whose first byte says that more follow; `position` is that of the second byte."""
    value = first & 127
    for shift in (7, 14, 21, 28):
        if position >= len(data):
            too_short("varint", position)
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > 0xFFFFFFFF:
                break
            return value, position
    raise MalformedMessage(f"the varint that ends at byte {position} does not fit 32 bits")


def varint(value: int) -> bytes:
    """A signed number of up to 64 bits, zigzag: small magnitudes of either sign are short. Used inside records."""
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_varint(data: Buffer, position: int) -> tuple[int, int]:
    """A zigzag number of up to 64 bits and the position behind the number."""
    value = shift = 0
    while shift < 70:
        if position >= len(data):
            too_short("varint", position)
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value >= 1 << 64:
                break
            return (value >> 1) ^ -(value & 1), position
        shift += 7
    raise MalformedMessage(f"the varint that ends at byte {position} does not fit 64 bits")


def too_short(what: str, position: int) -> NoReturn:
    """The bytes end inside `what`, which starts at or before `position`."""
    raise MalformedMessage(f"{what}: the bytes end too early, at or after byte {position}")


def bad_length(what: str, length: int, position: int) -> NoReturn:
    """A length or count that is negative, or null where null is not allowed, or more than can follow."""
    raise MalformedMessage(f"{what}: length {length} is not possible (read before byte {position})")


def read_tag_section(
    data: memoryview, position: int, count: int, budget: int
) -> tuple[dict[int, tuple[int, int]], int, int]:
    """The place of each tagged field, tag -> (start, stop); then the position behind the section, and the budget left.

    `count` is the first byte of the section, not 0. Tags must ascend, so none can appear twice.
    """
    if count > 127:
        count, position = long_uvarint(data, position, count)
    budget -= count
    if budget < 0 or count > MAX_TAGS or count > (len(data) - position) // 2:
        bad_length("tag section", count, position)
    places: dict[int, tuple[int, int]] = {}
    previous = -1
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if tag <= previous:
            raise MalformedMessage(f"tag {tag} follows tag {previous} before byte {position}")
        if size > len(data) - position:
            too_short(f"tag {tag}", position)
        places[tag] = (position, position + size)
        position += size
        previous = tag
    return places, position, budget


def unknown_tags_of(data: memoryview, places: dict[int, tuple[int, int]]) -> UnknownTags:
    """Copies of the tagged fields that the declaration does not know. Raises MalformedMessage if they have too many
    bytes."""
    size = sum(stop - start for start, stop in places.values())
    if size > MAX_UNKNOWN_TAG_BYTES:
        raise MalformedMessage(f"unknown tags of {size} bytes; allowed are {MAX_UNKNOWN_TAG_BYTES}")
    return tuple((tag, bytes(data[start:stop])) for tag, (start, stop) in places.items())


def write_tag_section(known: list[tuple[int, bytes]], unknown: UnknownTags) -> bytes:
    """A whole tag section, ascending by tag. A known field wins over an unknown field with the same tag."""
    fields = {**dict(unknown), **dict(known)}
    parts = [uvarint(len(fields))]
    for tag in sorted(fields):
        parts += (uvarint(tag), uvarint(len(fields[tag])), fields[tag])
    return b"".join(parts)
