"""The sparse indexes agree with a linear search, in memory and from their files."""

import pytest

from tailrace.storage.segment_files.index import OffsetIndex, TimeIndex

BATCHES = [(9, 0), (14, 100), (20, 250), (21, 300), (40, 900)]
"""Last relative offset and position of five batches."""


def offset_index() -> OffsetIndex:
    index = OffsetIndex()
    for last_offset, position in BATCHES:
        index.append(last_offset, position)
    return index


@pytest.mark.parametrize(
    ("offset", "position"), [(0, 0), (8, 0), (9, 0), (13, 0), (14, 100), (19, 100), (21, 300), (39, 300), (99, 900)]
)
def test_the_floor_is_never_behind_the_batch_that_holds_the_offset(offset: int, position: int) -> None:
    assert offset_index().floor(offset)[0] == position


def test_a_boundary_below_leaves_a_whole_batch_before_both_bounds() -> None:
    index = offset_index()
    assert index.boundary_below(relative_end=100, position=10_000) == 300
    assert index.boundary_below(relative_end=22, position=10_000) == 250
    assert index.boundary_below(relative_end=21, position=10_000) == 100
    assert index.boundary_below(relative_end=100, position=300) == 250
    assert index.boundary_below(relative_end=10, position=10_000) == 0


def test_offset_entries_survive_their_file() -> None:
    data = offset_index().to_bytes()
    assert data[:16] == b"\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x0e\x00\x00\x00\x64"
    again = OffsetIndex.from_bytes(data, log_size_bytes=1000)
    assert again is not None
    assert again.to_bytes() == data
    again.truncate(position=250)
    assert len(again) == 2
    assert again.floor(99)[0] == 100


def test_a_torn_index_file_is_not_believed() -> None:
    data = offset_index().to_bytes()
    assert OffsetIndex.from_bytes(data[:-1], log_size_bytes=1000) is None
    assert OffsetIndex.from_bytes(data[:-8] + bytes(8), log_size_bytes=1000) is None
    assert OffsetIndex.from_bytes(data, log_size_bytes=900) is None
    assert OffsetIndex.from_bytes(b"", log_size_bytes=0) is not None


def test_times_rise_and_survive_their_file() -> None:
    index = TimeIndex()
    for timestamp, offset in ((100, 3), (90, 5), (120, 9), (1 << 40, 11)):
        index.append(timestamp, offset)
    assert len(index) == 3
    found = [index.below(timestamp) for timestamp in (0, 100, 101, 120, 121, 1 << 41)]
    assert [entry and entry[1] for entry in found] == [None, None, 3, 3, 9, 11]
    data = index.to_bytes()
    assert data[:12] == b"\x00\x00\x00\x00\x00\x00\x00\x64\x00\x00\x00\x03"
    again = TimeIndex.from_bytes(data)
    assert again is not None
    assert again.to_bytes() == data
    assert again.last == (1 << 40, 11)
    again.truncate(relative_offset=9)
    assert again.last == (100, 3)
    assert TimeIndex.from_bytes(data[:-1]) is None
    assert TimeIndex.from_bytes(data[:-12] + bytes(12)) is None
