import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.headers import frame_prefix
from testkit.records.framing import FrameSplitter, frame_length


@given(st.lists(st.binary(max_size=20), max_size=6), st.lists(st.integers(0, 200), max_size=8))
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frame_prefix([frame]) + frame for frame in frames)
    places = sorted(min(cut, len(stream)) for cut in cuts)
    splitter = FrameSplitter()
    found = []
    for start, stop in zip([0, *places], [*places, len(stream)], strict=True):
        found += splitter.feed(stream[start:stop])
    assert found == frames
    assert splitter.buffered_bytes == 0


def test_a_frame_waits_for_its_last_byte() -> None:
    splitter = FrameSplitter()
    assert splitter.feed(b"\0\0\0\2a") == []
    assert splitter.buffered_bytes == 5
    assert splitter.feed(b"b\0") == [b"ab"]
    assert splitter.buffered_bytes == 1


@pytest.mark.parametrize("length", [-1, 101, 0x16030100, 0x47455420])
def test_an_absurd_length_is_malformed(length: int) -> None:
    with pytest.raises(MalformedMessage):
        FrameSplitter(max_bytes=100).feed(struct.pack(">i", length))


def test_the_limit_itself_is_allowed() -> None:
    assert frame_length(b"..\0\0\0\x64", 2, 100) == 100
