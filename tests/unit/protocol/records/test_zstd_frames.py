"""Frames of zstd: their windows, and what they may unfold to."""

import os
import random
import subprocess
import sys

import pytest
import zstandard

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.compression import MAX_ZSTD_WINDOW, Codec, decompress
from tailrace.protocol.records.zstd_frames import narrowed, split_frames
from testkit.records.raw_batches import unfolded_in_steps, zstd_stream

PLAIN = b"".join(b'{"flight": %d, "carrier": "UA", "delay": %d}\n' % (i, i * 7 % 90) for i in range(3000))
NOISE = os.urandom(200_000)


def _with_window(frame: bytes, exponent: int) -> bytes:
    """The frame of an unknown size, with another window stated."""
    assert not frame[4] & 0x20
    return frame[:5] + bytes([exponent - 10 << 3]) + frame[6:]


def test_a_zstd_window_above_128_mib_is_refused() -> None:
    """The limit of the library where no other is set, and so of Java's readers."""
    stream = zstd_stream(PLAIN)
    assert MAX_ZSTD_WINDOW == 1 << 27
    assert decompress(Codec.ZSTD, _with_window(stream, 27)) == PLAIN
    for exponent in (28, 31, 41):
        with pytest.raises(CorruptRecords, match=f"window of {1 << exponent}"):
            decompress(Codec.ZSTD, _with_window(stream, exponent))


def test_a_window_is_no_larger_than_all_that_can_come_out() -> None:
    """The library takes memory for the history that a frame states, and keeps it for the next frame."""
    for size in (1, 1_000, 131_072, 131_073, 1_000_000, 9_000_000):
        wide = _with_window(zstd_stream(NOISE[:1] * size), 27)
        for most in (1, 100_000, 128 << 20):
            (frame,) = split_frames(memoryview(wide))
            assert frame.window_size == 128 << 20
            (narrow,) = split_frames(memoryview(narrowed(memoryview(wide), frame, most)))
            needed = min(frame.max_size, most + (256 << 10))
            assert max(needed, 128 << 10) <= narrow.window_size <= max(needed * 9 // 8, 8 << 20)
            assert narrow.max_size == frame.max_size
        assert decompress(Codec.ZSTD, wide) == NOISE[:1] * size


def test_history_of_twenty_megabytes_is_found_again() -> None:
    """Long mode: the second half refers to the first, which lies further back than ordinary levels see."""
    half = random.Random(7).randbytes(1 << 20) + bytes(19 << 20)
    long = zstd_stream(half + half, level=1, window_log=27, enable_ldm=True)
    assert len(long) < 3 << 19
    assert decompress(Codec.ZSTD, long) == half + half
    assert unfolded_in_steps(Codec.ZSTD, long, max_bytes=len(half) * 2, step_bytes=1 << 20) == half + half


def test_many_frames_that_state_large_windows_take_little_memory() -> None:
    """Eighty thousand frames of ten bytes, each with a window of 128 MiB; four readers at once."""
    frame = _with_window(zstd_stream(b"x"), 27)
    program = (
        "import resource, sys, threading\n"
        "from tailrace.protocol.records.compression import decompress\n"
        f"data = {frame!r}\n"
        "decompress(4, data)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "readers = [threading.Thread(target=decompress, args=(4, data * 20_000)) for _ in range(4)]\n"
        "[reader.start() for reader in readers]; [reader.join() for reader in readers]\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert int(grown.stdout) < 32 << 10, "KiB"


def test_zstd_frames_are_found_with_what_they_may_unfold_to() -> None:
    sized = zstandard.compress(PLAIN)
    (first, two) = split_frames(memoryview(sized + zstd_stream(bytes(300_000))))
    assert (first.start, first.end, first.content_size, first.max_size) == (0, len(sized), len(PLAIN), len(PLAIN))
    assert (two.start, two.content_size) == (len(sized), None)
    assert 300_000 <= two.max_size <= 3 * (128 << 10)


def test_a_zstd_frame_that_says_it_is_empty_must_be() -> None:
    frame = bytearray(zstandard.compress(b"a" * 100))
    assert decompress(Codec.ZSTD, zstandard.compress(b"")) == b""
    frame[5] = 0  # behind magic and descriptor: the size of the content
    with pytest.raises(CorruptRecords, match="claims to be empty"):
        decompress(Codec.ZSTD, frame)
