"""Codecs: Kafka's framings, and the caps that hold whatever the bytes claim."""

import gzip
import os
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.records.compression import (
    ALWAYS_ALLOWED,
    MAX_DECOMPRESSED,
    Codec,
    compress,
    decompress,
    decompress_in_steps,
    default_limit,
)
from tailrace.protocol.records.zstd_frames import split_frames

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
    "zstd as a stream": (Codec.ZSTD, lambda data: _zstd_stream(data)),
    "zstd with a checksum": (Codec.ZSTD, lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data)),
    "zstd in two frames": (Codec.ZSTD, lambda data: zstandard.compress(data[:99]) + _zstd_stream(data[99:])),
    "zstd behind a skippable frame": (
        Codec.ZSTD,
        lambda data: b"\x5a\x2a\x4d\x18\x03\0\0\0abc" + zstandard.compress(data),
    ),
}


def _zstd_stream(data: bytes) -> bytes:
    """As zstd-jni writes it for Java's producer: the size is not known in advance."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


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
    starts_anew = {16, 0} if codec is Codec.SNAPPY else set()
    for size in range(len(whole)):
        if size in starts_anew and size:
            assert decompress(codec, whole[:size]) == b""
            continue
        with pytest.raises(CorruptRecords):
            decompress(codec, whole[:size])


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_data_cut_short_is_corrupt(name: str) -> None:
    codec, foreign = FOREIGN[name]
    whole = foreign(PLAIN[:2000])
    for size in (1, len(whole) // 2, len(whole) - 1):
        with pytest.raises(CorruptRecords):
            decompress(codec, whole[:size])


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_stops_at_the_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(40 << 20))
    with pytest.raises(CorruptRecords, match="more than 1000000 bytes"):
        decompress(codec, bomb, max_bytes=1_000_000)
    if default_limit(len(bomb)) < 40 << 20:
        with pytest.raises(CorruptRecords, match="more than"):
            decompress(codec, bomb)
    else:
        assert len(decompress(codec, bomb)) == 40 << 20


def test_the_limit_lets_small_batches_unfold_freely_and_large_ones_by_ratio() -> None:
    assert default_limit(10) == ALWAYS_ALLOWED
    assert default_limit(100_000) == 20_000_000
    assert default_limit(1_000_000) == MAX_DECOMPRESSED
    assert len(decompress(Codec.ZSTD, compress(Codec.ZSTD, bytes(ALWAYS_ALLOWED)))) == ALWAYS_ALLOWED


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


def test_a_zstd_frame_that_says_it_is_empty_must_be() -> None:
    frame = bytearray(zstandard.compress(b"a" * 100))
    assert decompress(Codec.ZSTD, zstandard.compress(b"")) == b""
    frame[5] = 0  # behind magic and descriptor: the size of the content
    with pytest.raises(CorruptRecords, match="claims to be empty"):
        decompress(Codec.ZSTD, frame)


def test_a_zstd_window_above_8_mib_is_refused() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=24)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    wide = stream.compress(PLAIN) + stream.flush()
    with pytest.raises(CorruptRecords, match="window of 16777216"):
        decompress(Codec.ZSTD, wide)


def test_zstd_frames_are_found_with_what_they_may_unfold_to() -> None:
    sized = zstandard.compress(PLAIN)
    (one, two) = split_frames(memoryview(sized + _zstd_stream(bytes(300_000))))
    assert (one.start, one.end, one.content_size, one.max_size) == (0, len(sized), len(PLAIN), len(PLAIN))
    assert (two.start, two.content_size) == (len(sized), None)
    assert 300_000 <= two.max_size <= 3 * (128 << 10)


@pytest.mark.parametrize("codec", CODECS)
def test_other_bytes_are_corrupt(codec: Codec) -> None:
    for data in (b"", b"\1", b"not compressed at all", NOISE[:1000], b"\xff" * 100):
        with pytest.raises(CorruptRecords):
            decompress(codec, data)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4])
def test_many_tiny_members_are_refused_since_each_costs_a_copy_of_the_rest(codec: Codec) -> None:
    with pytest.raises(CorruptRecords, match="more than 1000"):
        decompress(codec, compress(codec, b"x") * 1001)
    assert decompress(codec, compress(codec, b"x") * 1000) == b"x" * 1000


def test_gzip_means_gzip_not_zlib() -> None:
    with pytest.raises(CorruptRecords):
        decompress(Codec.GZIP, zlib.compress(PLAIN))


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_has_a_code_of_its_own(codec: int) -> None:
    for call in (compress, decompress):
        with pytest.raises(KafkaError) as caught:
            call(codec, b"x")
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
