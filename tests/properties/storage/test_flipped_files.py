"""A flipped bit in any small file beside the batches: the log is as it was, or does not open; it never differs."""

from functools import cache

import pytest

from tailrace.model.errors import CorruptRecords
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log, ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
COUNT = 30
STEP = 7
"""The distance between the bits that are flipped: in turn each bit of a byte."""


def disk_with_log(*, clean: bool) -> SimulatedDisk:
    disk = SimulatedDisk()
    log = Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0)
    for offset in range(COUNT):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset, leader_epoch=offset // 12)])
    log.flush()
    if clean:
        log.close()
    return disk


def opened(disk: SimulatedDisk, *, clean: bool) -> Log:
    return Log.open(DIRECTORY, files=disk, config=CONFIG, now_ms=0, recovery_point=COUNT, clean=clean, leader_epoch=2)


def content(log: Log) -> tuple[object, ...]:
    """Every answer that a log gives."""
    offsets = range(log.log_start_offset, log.log_end_offset)
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.epochs.entries,
        {producer: tuple(entry.batches) for producer, entry in log.producers.producers.items()},
        [bytes(log.read(ReadLimits(offset, 1)).records[0]) for offset in offsets],
        [log.offset_for_timestamp(FIRST_TIMESTAMP_MS + offset) for offset in offsets],
        log.max_timestamp_offset(),
    )


@cache
def names(*, clean: bool) -> list[str]:
    return [name for name in disk_with_log(clean=clean).list_dir(DIRECTORY) if not name.endswith(".log")]


@pytest.mark.parametrize(("clean", "name"), [(clean, name) for clean in (False, True) for name in names(clean=clean)])
def test_a_flipped_bit_makes_no_other_log(clean: bool, name: str) -> None:
    path = f"{DIRECTORY}/{name}"
    expected = content(opened(disk_with_log(clean=clean), clean=clean))
    for bit in range(len(name) % STEP, 8 * disk_with_log(clean=clean).size_of(path), STEP):
        disk = disk_with_log(clean=clean)
        disk.flip_bit(path, bit // 8, bit % 8)
        try:
            log = opened(disk, clean=clean)
        except CorruptRecords:
            continue
        assert content(log) == expected, f"bit {bit}"
