"""Codecs: Kafka's framings, and the caps that hold whatever the bytes claim."""

import gzip
import os
import struct
import zlib
from collections.abc import Callable
from functools import partial

import cramjam
import lz4.frame
import pytest
import zstandard

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.records.compression import (
    MAX_DECOMPRESSED,
    Codec,
    compress,
    compress_in_steps,
    decompress,
    decompress_in_steps,
)
from testkit.records.raw_batches import unfolded_in_steps, zstd_stream

PLAIN = b"".join(b'{"flight": %d, "carrier": "UA", "delay": %d}\n' % (i, i * 7 % 90) for i in range(3000))
NOISE = os.urandom(200_000)
CODECS = [codec for codec in Codec if codec is not Codec.NONE]

FOREIGN: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "gzip": (Codec.GZIP, gzip.compress),
    "gzip in two members": (Codec.GZIP, lambda data: gzip.compress(data[:99]) + gzip.compress(data[99:])),
    "raw snappy, as librdkafka": (Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "lz4 with linked blocks": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_linked=True)),
    "lz4 without the size": (Codec.LZ4, lambda data: lz4.frame.compress(data, store_size=False)),
    "lz4 with checksums": (Codec.LZ4, lambda data: lz4.frame.compress(data, content_checksum=True)),
    "lz4 in two frames": (Codec.LZ4, lambda data: lz4.frame.compress(data[:99]) + lz4.frame.compress(data[99:])),
    "zstd without the size": (
        Codec.ZSTD,
        lambda data: zstandard.ZstdCompressor(write_content_size=False).compress(data),
    ),
    "zstd as a stream": (Codec.ZSTD, lambda data: zstd_stream(data)),
    "zstd with a checksum": (Codec.ZSTD, lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data)),
    "zstd in two frames": (Codec.ZSTD, lambda data: zstandard.compress(data[:99]) + zstd_stream(data[99:])),
    "zstd behind a skippable frame": (
        Codec.ZSTD,
        lambda data: b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + zstandard.compress(data),
    ),
    "gzip without compression": (Codec.GZIP, lambda data: gzip.compress(data, 0)),
    "gzip with a file name": (Codec.GZIP, lambda data: _gzip_with(data, 8, b"orders.log\0")),
    "gzip with an extra field": (Codec.GZIP, lambda data: _gzip_with(data, 4, b"\4\0abcd")),
    "gzip with a comment": (Codec.GZIP, lambda data: _gzip_with(data, 16, b"no comment\0")),
    "gzip in members of 50 bytes": (Codec.GZIP, lambda data: _joined(data, 50, gzip.compress)),
    "gzip that ends with an empty member": (Codec.GZIP, lambda data: gzip.compress(data) + gzip.compress(b"")),
    "xerial blocks of 1 KiB": (Codec.SNAPPY, lambda data: _xerial(data, 1_024)),
    "one xerial block": (Codec.SNAPPY, lambda data: _xerial(data, len(data))),
    "xerial of other versions": (Codec.SNAPPY, lambda data: _xerial(data, 32_768, versions=b"\0\0\0\2\0\0\0\0")),
    "raw snappy without a match": (Codec.SNAPPY, lambda data: _literals_of_snappy(data)),
    "lz4 with independent blocks": (Codec.LZ4, lambda data: lz4.frame.compress(data, block_linked=False)),
    "lz4 with blocks of 4 MiB": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB, compression_level=12),
    ),
    "lz4 with checksums of blocks": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, content_checksum=True, block_checksum=True, block_linked=False),
    ),
    "lz4 in frames of 50 bytes": (Codec.LZ4, lambda data: _joined(data, 50, lz4.frame.compress)),
    "lz4 behind a skippable frame": (
        Codec.LZ4,
        lambda data: b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + lz4.frame.compress(data),
    ),
    "zstd flushed after each 700 bytes": (Codec.ZSTD, lambda data: zstd_stream(data, flush_every=700)),
    "zstd with the window of level 20": (Codec.ZSTD, lambda data: zstd_stream(data, window_log=25)),
    "zstd with the window of level 22": (Codec.ZSTD, lambda data: zstd_stream(data, window_log=27)),
    "zstd with a window of 1 KiB": (Codec.ZSTD, lambda data: zstd_stream(data, window_log=10)),
    "zstd in long mode": (Codec.ZSTD, lambda data: zstd_stream(data, window_log=27, enable_ldm=True)),
    "zstd in frames of 50 bytes with large windows": (
        Codec.ZSTD,
        lambda data: _joined(data[:10_000], 50, partial(zstd_stream, window_log=27)) + zstd_stream(data[10_000:]),
    ),
}
"""Forms that ordinary encoders write and that Java or librdkafka read."""

BEHIND: dict[str, tuple[Codec, bytes]] = {
    "zeros behind gzip": (Codec.GZIP, bytes(8)),
    "text behind gzip": (Codec.GZIP, b"not another member"),
    "half a magic behind gzip": (Codec.GZIP, b"\x1f"),
    "zeros behind lz4": (Codec.LZ4, bytes(8)),
    "text behind lz4": (Codec.LZ4, b"not another frame"),
    "half a magic behind lz4": (Codec.LZ4, b"\x04\x22"),
    "less than a length behind snappy": (Codec.SNAPPY, b"\0\0\0"),
}
"""Bytes that Java ignores behind the data."""


def _joined(data: bytes, size: int, encode: Callable[[bytes], bytes]) -> bytes:
    """The data in many members or frames."""
    return b"".join(encode(data[start : start + size]) for start in range(0, len(data), size))


def _gzip_with(data: bytes, flag: int, field: bytes) -> bytes:
    """With another field in the header, behind its ten bytes."""
    plain = gzip.compress(data)
    return plain[:3] + bytes([plain[3] | flag]) + plain[4:10] + field + plain[10:]


def _xerial(data: bytes, size: int, *, versions: bytes = b"\0\0\0\1\0\0\0\1") -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(data[start : start + size])) for start in range(0, len(data), size)]
    return b"\x82SNAPPY\0" + versions + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


def _literals_of_snappy(data: bytes) -> bytes:
    """As an encoder of a few lines writes it: the size, then literals, the last with four bytes of length."""
    size, encoded = len(data), bytearray()
    while size > 0x7F:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    encoded += b"\x00" + data[:1]
    encoded += b"\xfc" + struct.pack("<I", len(data) - 2) + data[1:]
    return bytes(encoded)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("data", [b"", b"x", PLAIN, NOISE, bytes(100_000)], ids=len)
def test_compressed_data_comes_back(codec: Codec, data: bytes) -> None:
    assert decompress(codec, compress(codec, data)) == data
    assert decompress(codec, memoryview(compress(codec, memoryview(data))), max_bytes=len(data)) == data


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("step_bytes", [1, 1_000, 65_536, 100_000, 10**6])
@pytest.mark.parametrize("data", [b"", b"x", PLAIN, NOISE, bytes(400_000)], ids=len)
def test_compressed_data_comes_back_in_steps(codec: Codec, step_bytes: int, data: bytes) -> None:
    if step_bytes == 1 and len(data) > 1_000:
        data = data[:1_000]
    steps = decompress_in_steps(codec, compress(codec, data), max_bytes=len(data), step_bytes=step_bytes)
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert bytes(end.value) == data
            break
        pauses += 1
    if codec is Codec.NONE:
        assert not pauses
    elif len(data) > 2 * step_bytes:
        assert pauses


@pytest.mark.parametrize("name", FOREIGN)
def test_data_compressed_by_other_libraries_is_read(name: str) -> None:
    codec, foreign = FOREIGN[name]
    for data in (PLAIN, NOISE):
        assert decompress(codec, foreign(data)) == data
        assert decompress(codec, foreign(data), max_bytes=len(data)) == data


def test_foreign_libraries_read_what_we_compress() -> None:
    assert gzip.decompress(compress(Codec.GZIP, PLAIN)) == PLAIN
    assert lz4.frame.decompress(compress(Codec.LZ4, PLAIN)) == PLAIN
    assert zstandard.decompress(compress(Codec.ZSTD, PLAIN)) == PLAIN
    from aiokafka.codec import snappy_decode

    assert snappy_decode(compress(Codec.SNAPPY, PLAIN)) == PLAIN


def test_lz4_blocks_are_independent_since_java_reads_no_others() -> None:
    assert not lz4.frame.get_frame_info(compress(Codec.LZ4, PLAIN))["block_linked"]


def test_a_level_is_the_codecs_own() -> None:
    assert len(compress(Codec.GZIP, PLAIN, 9)) < len(compress(Codec.GZIP, PLAIN, 1))
    assert len(compress(Codec.ZSTD, PLAIN, 19)) < len(compress(Codec.ZSTD, PLAIN, 1))
    assert len(compress(Codec.LZ4, PLAIN, 9)) < len(compress(Codec.LZ4, PLAIN))


def test_xerial_streams_may_start_anew_in_the_middle() -> None:
    stream = compress(Codec.SNAPPY, b"one") + compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, stream) == b"onetwo"


@pytest.mark.parametrize("codec", CODECS)
def test_data_cut_short_anywhere_is_corrupt(codec: Codec) -> None:
    whole = compress(codec, PLAIN[:5000] + NOISE[:3000])
    starts_anew = range(16, 20) if codec is Codec.SNAPPY else ()
    for size in range(len(whole)):
        if size in starts_anew:
            assert decompress(codec, whole[:size]) == b""
            continue
        with pytest.raises(CorruptRecords):
            decompress(codec, whole[:size])


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_data_cut_short_is_corrupt(name: str) -> None:
    codec, foreign = FOREIGN[name]
    whole = foreign(PLAIN[:2000])
    is_cut_between = "of 50 bytes" in name
    for size in (1, len(whole) - 1) if is_cut_between else (1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(CorruptRecords):
            decompress(codec, whole[:size])


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_stops_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(40 << 20))
    with pytest.raises(CorruptRecords, match="more than 1000000 bytes"):
        decompress(codec, bomb, max_bytes=1_000_000)
    assert len(decompress(codec, bomb)) == 40 << 20


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_data_may_unfold_to_128_mib_at_any_ratio(codec: Codec) -> None:
    """Java reads it without a limit, librdkafka up to receive.message.max.bytes: 100,000,000 by default."""
    assert MAX_DECOMPRESSED == 128 << 20 > 100_000_000
    assert len(decompress(codec, compress(codec, bytes(MAX_DECOMPRESSED)))) == MAX_DECOMPRESSED
    with pytest.raises(CorruptRecords, match="unfolds to more than 134217728 bytes"):
        decompress(codec, compress(codec, bytes(MAX_DECOMPRESSED + 1)))


def _framed_bombs(megabytes: int) -> dict[str, tuple[Codec, bytes]]:
    """So many MiB of zeros, in each form that unfolds in a way of its own."""
    megabyte = bytes(1 << 20)
    raw = bytes(cramjam.snappy.compress_raw(megabyte))
    return {
        "gzip members": (Codec.GZIP, gzip.compress(megabyte) * megabytes),
        "xerial blocks": (
            Codec.SNAPPY,
            _xerial(megabyte, len(megabyte)) + (struct.pack(">i", len(raw)) + raw) * (megabytes - 1),
        ),
        "xerial streams": (Codec.SNAPPY, _xerial(megabyte, len(megabyte)) * megabytes),
        "raw snappy": (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(megabyte * megabytes))),
        "lz4 frames": (Codec.LZ4, lz4.frame.compress(megabyte) * megabytes),
        "lz4 without size": (Codec.LZ4, lz4.frame.compress(megabyte * megabytes, store_size=False, block_linked=True)),
        "zstd frames": (Codec.ZSTD, zstandard.compress(megabyte) * megabytes),
        "zstd streams": (Codec.ZSTD, zstd_stream(megabyte) * megabytes),
        "zstd without size": (Codec.ZSTD, zstd_stream(megabyte * megabytes)),
        "zstd with a large window": (Codec.ZSTD, zstd_stream(megabyte * megabytes, window_log=27)),
    }


@pytest.mark.parametrize("name", _framed_bombs(1))
@pytest.mark.parametrize("step_bytes", [100_000, 10 << 20])
def test_a_bomb_of_any_framing_stops_at_the_limit(name: str, step_bytes: int) -> None:
    codec, bomb = _framed_bombs(12)[name]
    with pytest.raises(CorruptRecords, match="unfolds to more than 5000000 bytes"):
        unfolded_in_steps(codec, bomb, max_bytes=5_000_000, step_bytes=step_bytes)
    assert unfolded_in_steps(codec, bomb, max_bytes=12 << 20, step_bytes=step_bytes) == bytes(12 << 20)


@pytest.mark.parametrize("name", BEHIND)
def test_bytes_that_java_ignores_behind_the_data_are_ignored(name: str) -> None:
    codec, rest = BEHIND[name]
    assert decompress(codec, compress(codec, PLAIN) + rest) == PLAIN


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_another_member_that_is_damaged_is_not_ignored(codec: Codec) -> None:
    whole = compress(codec, PLAIN)
    with pytest.raises(CorruptRecords):
        decompress(codec, whole + whole[:-1])


@pytest.mark.parametrize("rest", [b"\0", b"rest"])
def test_bytes_behind_zstd_are_corrupt_as_they_are_for_java_and_librdkafka(rest: bytes) -> None:
    with pytest.raises(CorruptRecords):
        decompress(Codec.ZSTD, compress(Codec.ZSTD, PLAIN) + rest)


def test_data_with_a_dictionary_is_refused_by_that_name() -> None:
    dictionary = zstandard.train_dictionary(4_000, [PLAIN[start : start + 500] for start in range(0, 100_000, 500)])
    zstd = zstandard.ZstdCompressor(dict_data=dictionary).compress(PLAIN)
    with pytest.raises(CorruptRecords, match="zstd data with dictionary"):
        decompress(Codec.ZSTD, zstd)
    lz4_frame = bytearray(compress(Codec.LZ4, PLAIN))
    lz4_frame[4] |= 1
    with pytest.raises(CorruptRecords, match="lz4 data with a dictionary"):
        decompress(Codec.LZ4, lz4_frame)


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_above_the_limit_is_too_much(codec: Codec) -> None:
    whole = compress(codec, PLAIN)
    with pytest.raises(CorruptRecords, match="unfolds to more"):
        decompress(codec, whole, max_bytes=len(PLAIN) - 1)


def test_sizes_that_lie_cost_no_memory() -> None:
    claims_4_gib = b"\xff\xff\xff\xff\x0f" + b"\x01ab"
    with pytest.raises(CorruptRecords):
        decompress(Codec.SNAPPY, claims_4_gib)
    claims_1_mb = b"\xc0\x84\x3d" + b"\x01ab"
    with pytest.raises(CorruptRecords, match="claim to unfold to 1000000"):
        decompress(Codec.SNAPPY, claims_1_mb)
    # A single segment that claims 2^40 bytes and holds one raw block of one byte.
    zstd = b"\x28\xb5\x2f\xfd\xe0" + (2**40).to_bytes(8, "little") + b"\x09\0\0x"
    with pytest.raises(CorruptRecords, match="its blocks hold at most 1"):
        decompress(Codec.ZSTD, zstd)


@pytest.mark.parametrize("codec", CODECS)
def test_other_bytes_are_corrupt(codec: Codec) -> None:
    for data in (b"", b"\1", b"not compressed at all", NOISE[:1000], b"\xff" * 100):
        with pytest.raises(CorruptRecords):
            decompress(codec, data)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_each_record_may_have_a_member_of_its_own(codec: Codec) -> None:
    """The libraries copy what follows a member: a reader that gave them all would take minutes for this."""
    assert decompress(codec, compress(codec, b"x") * 10_000) == b"x" * 10_000


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("content", [b"", b"x"], ids=["of nothing", "of a byte"])
def test_very_many_members_are_unfolded_in_steps(codec: Codec, content: bytes) -> None:
    """A batch of 1 MB has 100,000 empty frames of lz4 or zstd: a third of a second, and nothing comes out."""
    count, member = 10_000, compress(codec, content)
    if codec is Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(content))
        member = len(block).to_bytes(4, "big") + block
    data = compress(codec, b"first") + member * count
    steps = decompress_in_steps(codec, data, max_bytes=MAX_DECOMPRESSED, step_bytes=1 << 20)
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            assert bytes(end.value) == b"first" + content * count
            break
        pauses += 1
    assert pauses >= 8


def test_gzip_means_gzip_not_zlib() -> None:
    with pytest.raises(CorruptRecords):
        decompress(Codec.GZIP, zlib.compress(PLAIN))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_has_a_code_of_its_own(codec: int) -> None:
    for call in (compress, decompress):
        with pytest.raises(KafkaError) as caught:
            call(codec, b"x")
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [0, 1, 5_000, 100_000])
def test_data_compressed_in_steps_is_that_data(codec: Codec, size: int) -> None:
    data = bytes(i * i % 251 for i in range(size))
    steps = compress_in_steps(codec, data, step_bytes=1_000)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            folded = end.value
            break
        count += 1
    assert decompress(codec, folded) == data
    if codec not in (Codec.NONE, Codec.SNAPPY):
        assert count == -(-size // 1_000)
