"""The codecs of record batches, in the framing Kafka's clients use, with a cap on what may come out.

The codec covers the records of a batch, never its header. gzip: concatenated members; snappy: xerial's framing (what
Java writes) or one raw block (what librdkafka writes); lz4: the frame format with independent blocks, the only ones
Java reads; zstd: concatenated frames with a window of at most 8 MiB.

A kilobyte of zstd can unfold to 32 MB, so a reader states how much it is ready to hold, and no decoder here allocates
more than that plus one block. The libraries are imported at first use: a broker passes batches on as they are and need
not pay for them in start-up time and memory.
"""

import zlib
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.zstd_frames import ZstdFrame, split_frames

if TYPE_CHECKING:
    from zstandard import ZstdCompressor, ZstdDecompressor


class Codec(IntEnum):
    """The numbers of the codecs in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


MAX_DECOMPRESSED: Final = 64 << 20
"""The size that one batch may unfold to, whatever its ratio."""
ALWAYS_ALLOWED: Final = 16 << 20
"""The size that one batch may unfold to at any ratio: equal lines compress a thousandfold and are legitimate."""
MAX_RATIO: Final = 200
"""Beyond `ALWAYS_ALLOWED`, how many bytes one compressed byte may become."""
MAX_ZSTD_WINDOW: Final = 8 << 20

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK = 32 << 10
_SNAPPY_MAX_RATIO = 22
"""No snappy block unfolds further: its densest element is 3 bytes that stand for 64."""
_GZIP_BITS = 31
_MAX_MEMBERS = 1000
"""Concatenated gzip members or lz4 frames: the libraries copy the rest after each one."""

# A zstd context takes longer to make than to use on 16 KiB, and serves one thread at a time. `pop` and `append` are
# atomic, so these shelves need no lock.
_spare_compressors: dict[int, list["ZstdCompressor"]] = {}
_spare_decompressors: list["ZstdDecompressor"] = []


def default_limit(compressed_size: int) -> int:
    """The size in bytes that a batch with this many compressed bytes may unfold to by default."""
    return min(MAX_DECOMPRESSED, max(ALWAYS_ALLOWED, MAX_RATIO * compressed_size))


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """The data in this codec; `level` is the codec's own scale (gzip 1-9, zstd 1-22, lz4 0-16), None its default."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            deflate = zlib.compressobj(
                zlib.Z_DEFAULT_COMPRESSION if level is None else level, zlib.DEFLATED, _GZIP_BITS
            )
            return deflate.compress(data) + deflate.flush()
        case Codec.SNAPPY:
            return _compress_snappy(data)
        case Codec.LZ4:
            return _compress_lz4(data, level or 0)
        case Codec.ZSTD:
            return _compress_zstd(data, 3 if level is None else level)
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec} is unknown")


def decompress(codec: int, data: Buffer, *, max_bytes: int | None = None) -> Buffer:
    """The data as it was before `compress`; `max_bytes` defaults to `default_limit`.

    Raises CorruptRecords for bytes that are not in the codec, are cut short or unfold to more than `max_bytes`, and
    CorruptRecords with the code UNSUPPORTED_COMPRESSION_TYPE for an unknown codec. Without a codec, `data` itself.
    """
    limit = default_limit(len(data)) if max_bytes is None else max_bytes
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return _decompress_gzip(data, limit)
        case Codec.SNAPPY:
            return _decompress_snappy(memoryview(data), limit)
        case Codec.LZ4:
            return _decompress_lz4(data, limit)
        case Codec.ZSTD:
            return _decompress_zstd(memoryview(data), limit)
    raise CorruptRecords(f"codec {codec} is unknown", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def _too_large(codec: str, limit: int) -> CorruptRecords:
    return CorruptRecords(f"{codec} data unfolds to more than {limit} bytes; raise max_bytes if it is legitimate")


def _joined(parts: Sequence[bytes | bytearray]) -> bytes | bytearray:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_gzip(data: Buffer, limit: int) -> Buffer:
    parts: list[bytes] = []
    left = limit
    rest: Buffer = data
    for _ in range(_MAX_MEMBERS):
        inflate = zlib.decompressobj(_GZIP_BITS)
        try:
            part = inflate.decompress(rest, left + 1)
        except zlib.error as error:
            raise CorruptRecords(f"not gzip data: {error}") from error
        if len(part) > left:
            raise _too_large("gzip", limit)
        if not inflate.eof:
            raise CorruptRecords("gzip data is cut short")
        parts.append(part)
        left -= len(part)
        rest = inflate.unused_data
        if not rest:
            return _joined(parts)
    raise CorruptRecords(f"gzip data of more than {_MAX_MEMBERS} members")


def _compress_snappy(data: Buffer) -> bytes:
    from cramjam import snappy

    out = bytearray(_XERIAL_HEADER)
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _decompress_snappy(view: memoryview, limit: int) -> Buffer:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit, limit)
    parts: list[bytearray] = []
    left = limit
    position = 0
    while position < len(view):
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Java's stream may start anew in the middle, with a header of its own.
            position += len(_XERIAL_HEADER)
            if position > len(view):
                raise CorruptRecords("snappy data is cut short in xerial's header")
            continue
        length = int.from_bytes(view[position : position + 4], "big")
        start, position = position + 4, position + 4 + length
        if start > len(view) or position > len(view):
            raise CorruptRecords("snappy data is cut short in a block")
        parts.append(_decompress_snappy_block(view[start:position], left, limit))
        left -= len(parts[-1])
    return _joined(parts)


def _decompress_snappy_block(block: memoryview, left: int, limit: int) -> bytearray:
    import cramjam

    try:
        size = cramjam.snappy.decompress_raw_len(block)
        if size > left:
            raise _too_large("snappy", limit)
        if size > len(block) * _SNAPPY_MAX_RATIO:
            raise CorruptRecords(f"{len(block)} bytes of snappy claim to unfold to {size}")
        plain = bytearray(size)
        cramjam.snappy.decompress_raw_into(block, plain)
        return plain
    except cramjam.DecompressionError as error:
        raise CorruptRecords(f"not snappy data: {error}") from error


def _compress_lz4(data: Buffer, level: int) -> bytes:
    import lz4.frame

    compressed: bytes = lz4.frame.compress(
        data, compression_level=level, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False
    )
    return compressed


def _decompress_lz4(data: Buffer, limit: int) -> Buffer:
    import lz4.frame

    parts: list[bytes] = []
    left = limit
    rest: Buffer = data
    for _ in range(_MAX_MEMBERS):
        frame = lz4.frame.LZ4FrameDecompressor()
        try:
            part = frame.decompress(rest, left + 1)
        except RuntimeError as error:
            raise CorruptRecords(f"not lz4 data: {error}") from error
        if len(part) > left:
            raise _too_large("lz4", limit)
        if not frame.eof:
            raise CorruptRecords("lz4 data is cut short")
        parts.append(part)
        left -= len(part)
        rest = frame.unused_data
        if not rest:
            return _joined(parts)
    raise CorruptRecords(f"lz4 data of more than {_MAX_MEMBERS} frames")


def _compress_zstd(data: Buffer, level: int) -> bytes:
    import zstandard

    spare = _spare_compressors.setdefault(level, [])
    compressor = spare.pop() if spare else zstandard.ZstdCompressor(level=level)
    compressed = compressor.compress(data)
    spare.append(compressor)
    return compressed


def _decompress_zstd(view: memoryview, limit: int) -> Buffer:
    import zstandard

    if not view:
        raise CorruptRecords("zstd data is cut short")
    decompressor = (
        _spare_decompressors.pop()
        if _spare_decompressors
        else zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW)
    )
    parts: list[bytes] = []
    left = limit
    for frame in split_frames(view):
        if frame.window_size > MAX_ZSTD_WINDOW:
            raise CorruptRecords(
                f"zstd data needs a window of {frame.window_size} bytes; {MAX_ZSTD_WINDOW} is the limit"
            )
        parts.append(_decompress_zstd_frame(decompressor, view, frame, left, limit))
        left -= len(parts[-1])
    _spare_decompressors.append(decompressor)
    return _joined(parts)


def _decompress_zstd_frame(
    decompressor: "ZstdDecompressor", view: memoryview, frame: ZstdFrame, left: int, limit: int
) -> bytes:
    import zstandard

    if frame.max_size == 0:
        return b""
    if frame.content_size is not None and frame.content_size > left:
        raise _too_large("zstd", limit)
    try:
        # One byte more than the limit leaves tells "exactly full" from "too large"; zstandard reads 0 as "no limit".
        part = decompressor.decompress(view[frame.start : frame.end], max_output_size=min(frame.max_size, left + 1))
    except zstandard.ZstdError as error:
        if frame.max_size > left:
            raise _too_large("zstd", limit) from error
        raise CorruptRecords(f"not zstd data: {error}") from error
    if len(part) > left:
        raise _too_large("zstd", limit)
    return part
