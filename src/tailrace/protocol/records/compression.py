"""The codecs of record batches, in the framing Kafka's clients use, with a cap on what may come out.

The codec covers the records of a batch, never its header. gzip: concatenated members; snappy: xerial's framing (what
Java writes) or one raw block (what librdkafka writes); lz4: the frame format, written with independent blocks, the
only ones Java reads; zstd: concatenated frames with a window of at most 128 MiB. Bytes behind the last gzip member or
lz4 frame are ignored, as Java does.

A kilobyte of zstd can unfold to 32 MB, so a reader states its limit (decision 0070). A decoder here takes memory for
its output as the output comes, and at most as much again for its history. The libraries are imported at first use: a
broker passes batches on unchanged and need not pay for the libraries in start-up time and memory. zstd is in Python's
own library from 3.14 on, and a copy of it before (decision 0107).
"""

import sys
import zlib
from collections.abc import Callable, Generator
from enum import IntEnum
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Final

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.steps import result_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.zstd_frames import narrowed, split_frames

if TYPE_CHECKING:
    from backports.zstd import ZstdCompressor, ZstdDecompressor


class Codec(IntEnum):
    """The numbers of the codecs in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


MAX_DECOMPRESSED: Final = 128 << 20
"""The bytes that one batch may unfold to, whatever its ratio: equal lines compress more than a thousandfold.

At least what librdkafka takes by default (receive.message.max.bytes, 100 MB), and the largest window of zstd.
"""
MAX_ZSTD_WINDOW: Final = 128 << 20
"""The history of zstd data in bytes: the library's own limit, and so that of Java. Levels 20 to 22 state this
window."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK = 32 << 10
_SNAPPY_MAX_RATIO = 22
"""No snappy block unfolds further: its densest element is 3 bytes that stand for 64."""
_ZSTD_LEVEL = 3
_GZIP_BITS = 31
_GZIP_MAGIC = b"\x1f\x8b"
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HAS_DICTIONARY = 0x01
_PIECE = 512
"""The first bytes given to a decoder behind the first gzip member or lz4 frame, then twice as many and so on.

The decoder copies bytes that it does not need.
"""
_MEMBER_COST = 4 << 10
"""The work on a member or frame besides its content, in bytes of a step."""
_ZSTD_FRAME_COST = 24 << 10
"""The same for a frame of zstd, whose decoder serves this frame alone: on some virtual machines it takes 20 us to make
(decision 0107)."""
_ZSTD_PIECE = 1 << 20
"""The decoder copies bytes that it does not need yet."""
_BLOCK_COST = 1 << 10
"""The same for a block of xerial's framing."""

# A zstd encoder takes longer to make than to use on 16 KiB, and serves one thread at a time. `pop` and `append` are
# atomic, so these shelves need no lock.
_spare_compressors: dict[int, list["ZstdCompressor"]] = {}


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
            return bytes(result_of(_fold_snappy(memoryview(data), len(data) + 1)))
        case Codec.LZ4:
            return _compress_lz4(data, level or 0)
        case Codec.ZSTD:
            return _compress_zstd(data, _ZSTD_LEVEL if level is None else level)
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec} is unknown")


def compress_in_steps(codec: int, data: Buffer, *, step_bytes: int) -> Generator[object, None, Buffer]:
    """Compress the data at the codec's default level, with a pause after about every `step_bytes` bytes."""
    view = memoryview(data)
    if codec == Codec.NONE:
        return data
    if codec == Codec.SNAPPY:
        return (yield from _fold_snappy(view, step_bytes))
    begin, fold, finish = _folding(codec, len(view))
    folded = bytearray(begin)
    for start in range(0, len(view), step_bytes):
        folded += fold(view[start : start + step_bytes])
        yield None
    return folded + finish()


def _folding(codec: int, size_bytes: int) -> tuple[bytes, Callable[[Buffer], bytes], Callable[[], bytes]]:
    """The first bytes of the data, and the functions that compress a part of it and the end."""
    match codec:
        case Codec.GZIP:
            deflate = zlib.compressobj(zlib.Z_DEFAULT_COMPRESSION, zlib.DEFLATED, _GZIP_BITS)
            return b"", deflate.compress, deflate.flush
        case Codec.LZ4:
            import lz4.frame

            frame = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False)
            return frame.begin(size_bytes), frame.compress, frame.flush
        case Codec.ZSTD:
            stream: ZstdCompressor = _zstd().ZstdCompressor(level=_ZSTD_LEVEL)
            stream.set_pledged_input_size(size_bytes)
            return b"", stream.compress, stream.flush
    raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {codec} is unknown")


def decompress(codec: int, data: Buffer, *, max_bytes: int | None = None) -> Buffer:
    """The data as it was before `compress`; `max_bytes` defaults to `MAX_DECOMPRESSED`.

    Raises CorruptRecords for bytes that are not in the codec, are cut short or unfold to more than `max_bytes`, and
    CorruptRecords with the code UNSUPPORTED_COMPRESSION_TYPE for an unknown codec. Without a codec, `data` itself.
    """
    limit = MAX_DECOMPRESSED if max_bytes is None else max_bytes
    return result_of(decompress_in_steps(codec, data, max_bytes=limit, step_bytes=limit + 1))


def decompress_in_steps(
    codec: int, data: Buffer, *, max_bytes: int, step_bytes: int
) -> Generator[Buffer, None, Buffer]:
    """Do what `decompress` does, with a pause after about every `step_bytes` bytes; the generator returns the data.

    At each pause the generator yields the data so far, which may grow in place: hold no view of it when the generator
    goes on.

    One block of raw snappy is unfolded without a pause.
    """
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            return (yield from _unfold_gzip(data, max_bytes, step_bytes))
        case Codec.SNAPPY:
            return (yield from _unfold_snappy(memoryview(data), max_bytes, step_bytes))
        case Codec.LZ4:
            return (yield from _unfold_lz4(data, max_bytes, step_bytes))
        case Codec.ZSTD:
            return (yield from _unfold_zstd(memoryview(data), max_bytes, step_bytes))
    raise CorruptRecords(f"codec {codec} is unknown", ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def _too_large(codec: str, limit: int) -> CorruptRecords:
    return CorruptRecords(f"{codec} data unfolds to more than {limit} bytes")


def _added(plain: bytes | bytearray | None, part: bytes | bytearray) -> bytes | bytearray:
    """The data with another part. The data grows in place: to join all parts at the end would hold up other work once
    more."""
    if plain is None:
        return part
    grown = plain if isinstance(plain, bytearray) else bytearray(plain)
    grown += part
    return grown


def _unfold_gzip(data: Buffer, limit: int, step: int) -> Generator[Buffer, None, Buffer]:
    """Unfolds all members. As in Java, bytes behind a member that do not begin another member are ignored."""
    view = memoryview(data)
    plain: bytes | bytearray | None = None
    left, position, piece_size, worked = limit, 0, len(view), 0
    while plain is None or view[position : position + 2] == _GZIP_MAGIC:
        if plain is not None and worked >= step:
            worked = 0
            yield plain
        inflate = zlib.decompressobj(_GZIP_BITS)
        while not inflate.eof:
            piece, wanted = view[position : position + piece_size], min(left + 1, step)
            try:
                part = inflate.decompress(piece, wanted)
            except zlib.error as error:
                raise CorruptRecords(f"not gzip data: {error}") from error
            if len(part) > left:
                raise _too_large("gzip", limit)
            if not piece and len(part) < wanted and not inflate.eof:
                raise CorruptRecords("gzip data is cut short")
            # At the end of a member its last unconsumed bytes may be named a second time.
            position += len(piece) - len(inflate.unused_data if inflate.eof else inflate.unconsumed_tail)
            piece_size *= 2
            plain = _added(plain, part)
            left -= len(part)
            worked += len(part)
            if worked >= step and not inflate.eof:
                worked = 0
                yield plain
        piece_size, worked = _PIECE, worked + _MEMBER_COST
    return plain


def _fold_snappy(view: memoryview, step: int) -> Generator[object, None, Buffer]:
    from cramjam import snappy

    out = bytearray(_XERIAL_HEADER)
    steps = 1
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        out += len(block).to_bytes(4, "big")
        out += block
        if start >= steps * step:
            steps += 1
            yield None
    return out


def _unfold_snappy(view: memoryview, limit: int, step: int) -> Generator[Buffer, None, Buffer]:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit, limit)
    plain: bytes | bytearray | None = None
    left, position, worked = limit, 0, 0
    while len(view) - position >= 4:  # fewer bytes are ignored, as in Java
        worked += _BLOCK_COST
        if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            # Java's stream may start anew in the middle, with a header of its own.
            position += len(_XERIAL_HEADER)
            if position > len(view):
                raise CorruptRecords("snappy data is cut short in xerial's header")
            continue
        length = int.from_bytes(view[position : position + 4], "big")
        start, position = position + 4, position + 4 + length
        if position > len(view):
            raise CorruptRecords("snappy data is cut short in a block")
        block = _decompress_snappy_block(view[start:position], left, limit)
        plain = _added(plain, block)
        left -= len(block)
        worked += len(block)
        if worked >= step:
            worked = 0
            yield plain
    return plain or b""


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


def _unfold_lz4(data: Buffer, limit: int, step: int) -> Generator[Buffer, None, Buffer]:
    """Unfolds all frames. As in Java, bytes behind a frame that do not begin another frame are ignored."""
    import lz4.frame

    view = memoryview(data)
    plain: bytes | bytearray | None = None
    left, position, piece_size, worked = limit, 0, len(view), 0
    while plain is None or _begins_as_lz4(view, position):
        if plain is not None and worked >= step:
            worked = 0
            yield plain
        if view[position : position + 4] == _LZ4_MAGIC and len(view) > position + 4:
            _refuse_lz4_dictionary(view[position + 4])
        frame = lz4.frame.LZ4FrameDecompressor()
        while not frame.eof:
            piece = view[position : position + piece_size] if frame.needs_input else b""
            position += len(piece)
            piece_size *= 2
            try:
                part = frame.decompress(piece, min(left + 1, step))
            except RuntimeError as error:
                raise CorruptRecords(f"not lz4 data: {error}") from error
            if len(part) > left:
                raise _too_large("lz4", limit)
            if frame.needs_input and position == len(view) and not frame.eof:
                raise CorruptRecords("lz4 data is cut short")
            plain = _added(plain, part)
            left -= len(part)
            worked += len(part)
            if worked >= step and not frame.eof:
                worked = 0
                yield plain
        position -= len(frame.unused_data or b"")
        piece_size, worked = _PIECE, worked + _MEMBER_COST
    return plain


def _begins_as_lz4(view: memoryview, position: int) -> bool:
    """Whether an lz4 frame is here, or a skippable frame."""
    magic = bytes(view[position : position + 4])
    return magic == _LZ4_MAGIC or (magic[1:] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50)


def _refuse_lz4_dictionary(flags: int) -> None:
    if flags & _LZ4_HAS_DICTIONARY:
        raise CorruptRecords("lz4 data with a dictionary, which is not part of it")


@cache
def _zstd() -> ModuleType:
    """The library: `compression.zstd` of Python 3.14, or its copy for older versions."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _compress_zstd(data: Buffer, level: int) -> bytes:
    spare = _spare_compressors.setdefault(level, [])
    compressor: ZstdCompressor = spare.pop() if spare else _zstd().ZstdCompressor(level=level)
    compressed = compressor.compress(data, compressor.FLUSH_FRAME)
    spare.append(compressor)
    return compressed


def _unfold_zstd(view: memoryview, limit: int, step: int) -> Generator[Buffer, None, Buffer]:
    if not view:
        raise CorruptRecords("zstd data is cut short")
    plain: bytes | bytearray | None = None
    left, worked = limit, 0
    for frame in split_frames(view):
        if frame.window_size > MAX_ZSTD_WINDOW:
            raise CorruptRecords(
                f"zstd data needs a window of {frame.window_size} bytes; {MAX_ZSTD_WINDOW} is the limit"
            )
        if (frame.content_size or 0) > left:
            raise _too_large("zstd", limit)
        if frame.max_size:
            source = memoryview(narrowed(view, frame, left + 1))
            plain = yield from _unfold_zstd_frame(source, plain, frame.max_size, limit, step)
        worked += len(plain or b"") - (limit - left) + _ZSTD_FRAME_COST
        left = limit - len(plain or b"")
        if worked >= step:
            worked = 0
            yield plain or b""
    return plain or b""


def _unfold_zstd_frame(
    source: memoryview, plain: bytes | bytearray | None, max_size: int, limit: int, step: int
) -> Generator[Buffer, None, bytes | bytearray]:
    """The data of the earlier frames and of a frame of at most `max_size` bytes, with a pause after each step."""
    zstd = _zstd()
    decompressor: ZstdDecompressor = zstd.ZstdDecompressor()
    # With a byte more than the frame or the limit leaves the decoder comes to the end of the frame, or is beyond it.
    left, position, worked = limit - len(plain or b""), 0, 0
    while not decompressor.eof:
        piece = source[position : position + _ZSTD_PIECE] if decompressor.needs_input else b""
        position += len(piece)
        try:
            part = decompressor.decompress(piece, min(max_size, left, step) + 1)
        except zstd.ZstdError as error:
            raise CorruptRecords(f"not zstd data: {error}") from error
        if len(part) > left:
            raise _too_large("zstd", limit)
        if not part and not piece and not decompressor.eof:
            raise CorruptRecords("zstd data is cut short")
        plain = _added(plain, part)
        left -= len(part)
        worked += len(part)
        if worked >= step and not decompressor.eof:
            worked = 0
            yield plain
    return plain or b""
