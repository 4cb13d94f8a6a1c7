"""The indexes of a log's segments take the slots of batches that were read for others, if they go on where they end."""

import pytest

from tailrace.model.key_ranges import hash_of, slot_of
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches, read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Log, ReadLimits
from tailrace.storage.keys.batch_slots import BatchGroup, BatchSlots
from tailrace.testing.disk import SimulatedDisk

CONFIG = TopicConfig(segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1)
A = 1 << slot_of(hash_of(b"a", 0))


@pytest.fixture
def log() -> Log:
    """Segments from 0, 10 and 20 on; only the batch at offset 12 has the key a."""
    log = Log.open("/log", files=SimulatedDisk(), config=CONFIG, now_ms=0)
    for offset in range(24):
        batch = bytes(build_batch([Record(0, 0, b"a" if offset == 12 else b"b", bytes(31))], base_offset=offset))
        log.append([AppendBatch(batch, read_header(batch))])
    assert [segment.base_offset for segment in log.segments.all] == [0, 10, 20]
    return log


def read(log: Log, start: int, end: int) -> BatchSlots:
    group = BatchGroup()
    offset = start
    while offset < end:
        result = log.read(ReadLimits(offset, 1 << 20), end)
        for chunk in result.records:
            for position, header in iter_batches(chunk):
                group.add(memoryview(chunk)[position : position + header.size_bytes], header)
        offset = result.next_offset
    return group.slots()


def note(log: Log, start: int, end: int) -> None:
    log.keys.note(start, read(log, start, end))


def known_to(log: Log, offset: int) -> int:
    """The offset up to which batches can be passed over, but for the batch with the key a."""
    while (reached := log.keys.next_match(A, offset, 24)) > offset or reached == 12:
        offset = reached + (reached == 12)
    return offset


def test_batches_that_are_read_from_the_start_of_a_segment_on_are_indexed(log: Log) -> None:
    note(log, 0, 3)
    assert known_to(log, 0) == 3
    note(log, 3, 10)
    note(log, 10, 14)
    assert (known_to(log, 0), log.keys.next_match(A, 10, 24)) == (14, 12)
    note(log, 14, 20)
    note(log, 20, 24)
    assert known_to(log, 0) == 24
    assert log.keys.end(0, 2**32 - 1, 24) == 24


@pytest.mark.parametrize(("start", "end"), [(2, 5), (4, 6), (5, 12), (1, 3)], ids=["before", "behind", "across", "in"])
def test_batches_that_do_not_go_on_where_the_index_ends_are_not_indexed(log: Log, start: int, end: int) -> None:
    note(log, 0, 3)
    note(log, start, end)
    assert known_to(log, 0) == 3
    note(log, 3, 4)
    assert known_to(log, 0) == 4


def test_a_segment_that_is_read_from_its_middle_on_is_not_indexed(log: Log) -> None:
    note(log, 12, 15)
    assert log.keys.next_match(A, 13, 24) == 13
    note(log, 8, 10)
    note(log, 10, 12)
    assert log.keys.next_match(A, 10, 24) == 12


def test_the_run_that_the_end_of_a_range_has_begun_is_continued(log: Log) -> None:
    assert log.keys.end(0, 2**32 - 1, 22) is None
    log.keys.index_on(lambda: 0)
    note(log, 22, 24)
    assert log.keys.end(0, 2**32 - 1, 24) == 24


def test_without_files_nothing_is_taken(log: Log) -> None:
    log.update_config(TopicConfig(key_ranges_index="none"))
    note(log, 0, 3)
    assert log.keys.next_match(A, 0, 24) == 0
