"""The bounds of the frames of zstd data and the sizes they can unfold to, read from their headers (RFC 8878).

The library decodes one frame into a buffer of a given size. Walking the block headers first, one step per 128 KiB,
says whether the data is whole, and bounds that size by what the blocks can hold instead of by what the frame claims.

The library also takes memory for the history that a frame states, up to 128 MiB for a frame of ten bytes. A frame
cannot refer to more history than it has content, so `narrowed` states no larger window than the content needs.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.primitives import Buffer

_MAGIC = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50
_MAX_BLOCK = 128 << 10
_RAW, _RUN, _RESERVED = 0, 1, 3
_ORDINARY_WINDOW = 8 << 20
"""The largest window of ordinary levels: `narrowed` leaves frames with this window unchanged."""
_DICTIONARY_ID_SIZES = (0, 1, 2, 4)
_CONTENT_SIZE_SIZES = (0, 2, 4, 8)


class ZstdFrame(NamedTuple):
    """A frame: its place in the data, the bytes of history it needs and the most it can unfold to."""

    start: int
    end: int
    window_size: int
    content_size: int | None
    """The content size that the frame states."""
    max_size: int
    window_at: int
    """The place of the byte that states the window; -1 where the window is the content itself."""


class _FrameHeader(NamedTuple):
    end: int
    window_at: int
    window_size: int
    content_size: int | None
    has_checksum: bool


def split_frames(data: memoryview) -> Iterator[ZstdFrame]:
    """The frames in order, without skippable frames. Raises CorruptRecords if the data is not zstd or is cut short."""
    position = 0
    while position < len(data):
        magic = _little(data, position, 4)
        if magic & 0xFFFFFFF0 == _SKIPPABLE_MAGIC:
            position += 8 + _little(data, position + 4, 4)
            if position > len(data):
                raise CorruptRecords("zstd data is cut short in a skippable frame")
            continue
        if magic != _MAGIC:
            raise CorruptRecords(f"not zstd data: a frame starts with {magic:#010x}")
        frame = _read_frame(data, position)
        yield frame
        position = frame.end


def narrowed(data: memoryview, frame: ZstdFrame, most: int) -> Buffer:
    """The frame's bytes, for a reader of at most `most` bytes of content: a larger window than the reader needs is made
    smaller.

    The library does so itself where the frame states its content size.
    """
    # The decoder may be two blocks ahead of its reader.
    needed = min(frame.max_size, most + 2 * _MAX_BLOCK)
    if frame.window_size <= max(needed, _ORDINARY_WINDOW) or frame.content_size is not None:
        return data[frame.start : frame.end]
    own = bytearray(data[frame.start : frame.end])
    own[frame.window_at - frame.start] = _window_byte(max(needed, _MAX_BLOCK))
    return own


def _window_byte(size: int) -> int:
    """The byte for the smallest window of at least this size: a power of two, plus up to seven eighths of the power."""
    exponent = size.bit_length() - 1
    eighths = -(-(size - (1 << exponent)) >> (exponent - 3))
    return (exponent - 10 << 3) + eighths  # eight eighths are the next power of two


def _little(data: memoryview, position: int, size: int) -> int:
    if position + size > len(data):
        raise CorruptRecords("zstd data is cut short")
    return int.from_bytes(data[position : position + size], "little")


def _read_frame(data: memoryview, start: int) -> ZstdFrame:
    header = _read_frame_header(data, start + 4)
    end, blocks_size = _walk_blocks(data, header.end, min(_MAX_BLOCK, max(header.window_size, 1)))
    if header.has_checksum:
        end += 4
        if end > len(data):
            raise CorruptRecords("zstd data is cut short in the checksum of a frame")
    if header.content_size is None:
        return ZstdFrame(start, end, header.window_size, None, blocks_size, header.window_at)
    if header.content_size > blocks_size:
        raise CorruptRecords(f"a zstd frame claims {header.content_size} bytes, its blocks hold at most {blocks_size}")
    if header.content_size == 0 and blocks_size:
        raise CorruptRecords("a zstd frame claims to be empty and has blocks that are not")
    return ZstdFrame(start, end, header.window_size, header.content_size, header.content_size, header.window_at)


def _read_frame_header(data: memoryview, position: int) -> _FrameHeader:
    descriptor = _little(data, position, 1)
    position += 1
    if descriptor & 0x08:
        raise CorruptRecords("not zstd data: a reserved bit of a frame header is set")
    is_single_segment = bool(descriptor & 0x20)
    window_at, window_size = -1, 0
    if not is_single_segment:
        window_byte, window_at = _little(data, position, 1), position
        position += 1
        base = 1 << (10 + (window_byte >> 3))
        window_size = base + (base >> 3) * (window_byte & 7)
    dictionary = _little(data, position, _DICTIONARY_ID_SIZES[descriptor & 3])
    if dictionary:
        raise CorruptRecords(f"zstd data with dictionary {dictionary}, which is not part of it")
    position += _DICTIONARY_ID_SIZES[descriptor & 3]
    size_of_size = _CONTENT_SIZE_SIZES[descriptor >> 6] or int(is_single_segment)
    content_size = None
    if size_of_size:
        content_size = _little(data, position, size_of_size) + (256 if size_of_size == 2 else 0)
        position += size_of_size
    if is_single_segment:
        # The window is the content itself: nothing beyond the output is held.
        window_size = content_size or 0
    return _FrameHeader(position, window_at, window_size, content_size, bool(descriptor & 0x04))


def _walk_blocks(data: memoryview, position: int, largest_block: int) -> tuple[int, int]:
    """The end of the last block, and the most that all blocks can unfold to."""
    max_size = 0
    while True:
        block = _little(data, position, 3)
        kind, size = block >> 1 & 3, block >> 3
        if kind == _RESERVED or size > _MAX_BLOCK:
            raise CorruptRecords(f"not zstd data: a block of kind {kind} with {size} bytes")
        max_size += size if kind in (_RAW, _RUN) else largest_block
        position += 3 + (1 if kind == _RUN else size)
        if position > len(data):
            raise CorruptRecords("zstd data is cut short in a block")
        if block & 1:
            return position, max_size
