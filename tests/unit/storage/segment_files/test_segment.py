"""A segment file and its indexes, on a real disk."""

import os
from pathlib import Path

import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import EpochCache, OsFiles
from tailrace.storage.segment_files.batch_file import Expected, ReadLimits
from tailrace.storage.segment_files.segment import Segment
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch

BASE = 1000
LIMITS = SegmentLimits(TopicConfig(index_interval_bytes=300), name="")


def segment_in(path: Path, batches: int) -> Segment:
    segment = Segment(str(path), BASE, files=OsFiles(), limits=LIMITS, create=True)
    for number in range(batches):
        batch = stored_batch(BASE + 3 * number, 3)
        assert segment.count_that_fit([batch]) == 1
        segment.append([batch])
    return segment


def reopened(path: Path) -> Segment:
    return Segment(str(path), BASE, files=OsFiles(), limits=LIMITS)


@pytest.mark.parametrize("offset", [BASE - 1, BASE + 2**31, 2**62])
def test_a_batch_with_an_offset_of_another_segment_is_reported_as_damage(tmp_path: Path, offset: int) -> None:
    """Found by fuzzing: the base offset lies outside the checksum, and no index entry can hold such an offset."""
    segment = segment_in(tmp_path, 20)
    position = 10 * segment.size_bytes // 20
    content = bytearray((tmp_path / f"{BASE:020d}.log").read_bytes())
    content[position : position + 8] = offset.to_bytes(8, "big")
    (tmp_path / f"{BASE:020d}.log").write_bytes(content)
    with pytest.raises(CorruptRecords, match=rf"position {position}: offset {offset}"):
        reopened(tmp_path).rebuild_indexes()
    with pytest.raises(CorruptRecords, match=rf"position {position}: offset {offset}"):
        reopened(tmp_path).locate(BASE + 50)


def test_every_offset_is_located_with_and_without_index_files(tmp_path: Path) -> None:
    segment = segment_in(tmp_path, 40)
    size = segment.size_bytes // 40
    expected = [number // 3 * size for number in range(120)]
    assert [segment.locate(BASE + number) for number in range(120)] == expected
    assert segment.locate(BASE + 120) == segment.size_bytes
    assert [reopened(tmp_path).locate(BASE + number) for number in range(120)] == expected
    segment.write_indexes()
    segment.sync()
    fresh = reopened(tmp_path)
    assert [fresh.locate(BASE + number) for number in range(120)] == expected
    segment.close()


def test_a_large_read_ends_at_a_batch_whatever_its_limit(tmp_path: Path) -> None:
    segment = segment_in(tmp_path, 60)
    size = segment.size_bytes // 60
    for max_bytes in range(0, 62 * size, size // 3):
        for end in (BASE + 2, BASE + 3, BASE + 70, BASE + 180):
            result = segment.read(0, ReadLimits(BASE, max_bytes), Expected(end, BASE + 180, -1, EpochCache()))
            wanted = min(max(max_bytes // size, 1), (end - BASE) // 3, 60)
            assert result.size_bytes == wanted * size == result.end_position
            assert not wanted or result.next_offset == BASE + 3 * wanted
            assert sum(map(len, result.records)) == result.size_bytes


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(ReadLimits(BASE + 57, 1), id="less than the batch"),
        pytest.param(ReadLimits(BASE + 57, 1 << 20, min_one_message=False), id="all that is left"),
    ],
)
def test_a_small_batch_at_the_end_takes_one_read_of_the_file(
    tmp_path: Path, limits: ReadLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = segment_in(tmp_path, 20)
    size = segment.size_bytes // 20
    reads: list[tuple[int, int]] = []
    pread = os.pread

    def recorded(descriptor: int, length: int, position: int) -> bytes:
        reads.append((length, position))
        return pread(descriptor, length, position)

    monkeypatch.setattr(os, "pread", recorded)
    result = segment.read(19 * size, limits, Expected(BASE + 60, BASE + 60, -1, EpochCache()))
    assert (result.size_bytes, result.next_offset) == (size, BASE + 60)
    assert reads == [(size, 19 * size)]


@pytest.mark.parametrize("batch", [4, 5])
@pytest.mark.parametrize("damaged", range(27))
def test_a_read_of_the_rest_finds_what_one_step_by_step_finds(tmp_path: Path, damaged: int, batch: int) -> None:
    """A reader that keeps up takes the rest of the file in one walk, which looks at the same bytes of each header."""
    segment = segment_in(tmp_path, 6)
    size = segment.size_bytes // 6
    limits, expected = ReadLimits(BASE + 12, 2 * size), Expected(BASE + 18, BASE + 18, -1, EpochCache())

    def outcome(first_offset: int) -> tuple[int, int, int] | str:
        try:
            read = segment.read(4 * size, limits, expected, first_offset=first_offset)
        except CorruptRecords as fault:
            return str(fault)
        assert sum(map(len, read.records)) == read.size_bytes
        return read.first_offset, read.size_bytes, read.next_offset

    assert outcome(BASE + 12) == outcome(-1) == (BASE + 12, 2 * size, BASE + 18)
    path = tmp_path / f"{BASE:020d}.log"
    content = bytearray(path.read_bytes())
    content[batch * size + damaged] ^= 0x41
    path.write_bytes(content)
    if damaged >= 8 or batch == 5:
        assert outcome(BASE + 12) == outcome(-1)
    else:  # without an expected offset, the first base offset is believed
        assert isinstance(outcome(BASE + 12), str)


def test_a_cut_keeps_the_indexes_right(tmp_path: Path) -> None:
    segment = segment_in(tmp_path, 40)
    size = segment.size_bytes // 40
    for number in (33, 12, 11, 1, 0):
        segment.cut_to(number * size, BASE + 3 * number)
        assert segment.file.size_bytes() == number * size
        assert segment.locate(BASE + 200) == number * size
        assert segment.max_timestamp == (FIRST_TIMESTAMP_MS + BASE + 3 * number - 1 if number else -1)
    segment.close()


def test_the_largest_timestamp_of_a_closed_segment_is_known_from_its_index(tmp_path: Path) -> None:
    segment = segment_in(tmp_path, 10)
    segment.write_indexes()
    segment.sync()
    segment.close()
    fresh = reopened(tmp_path)
    assert fresh.max_timestamp == FIRST_TIMESTAMP_MS + BASE + 29
    assert fresh._max_timestamp_offset == BASE + 29


def test_headers_end_where_the_file_ends_inside_a_batch(tmp_path: Path) -> None:
    segment = segment_in(tmp_path, 3)
    segment.file.truncate(segment.size_bytes - 1)
    broken = reopened(tmp_path)
    headers = broken.headers()
    assert [next(headers)[1].base_offset, next(headers)[1].base_offset] == [BASE, BASE + 3]
    with pytest.raises(CorruptRecords, match="the file ends inside a batch"):
        next(headers)
    segment.close()
