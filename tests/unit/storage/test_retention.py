"""The segments that retention removes from a log."""

from dataclasses import dataclass, replace

import pytest

from tailrace.model.errors import StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Duplicate, Log, ReadLimits
from tailrace.storage.retention import Reason, expired_segments
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch
from unit.storage.small_logs import DIRECTORY, NOW, SMALL, fill, names, offsets, open_log


@dataclass
class AgedSegment:
    base_offset: int
    size_bytes: int = 100
    age_timestamp: int = 1000
    has_doubtful_times: bool = False


SEGMENTS = [
    AgedSegment(0, age_timestamp=100),
    AgedSegment(10, age_timestamp=200),
    AgedSegment(20, age_timestamp=150),
    AgedSegment(30),
]
KEEP = TopicConfig(retention_ms=-1)


def expired(config: TopicConfig, *, now_ms: int = 0, log_start: int = 0, high_watermark: int = 99) -> list[Reason]:
    return expired_segments(
        SEGMENTS, config=config, now_ms=now_ms, log_start_offset=log_start, high_watermark=high_watermark
    )


@pytest.mark.parametrize(("size", "count"), [(400, 0), (301, 0), (300, 1), (299, 1), (100, 3), (0, 3)])
def test_size_takes_the_oldest_while_enough_is_left(size: int, count: int) -> None:
    assert expired(TopicConfig(retention_ms=-1, retention_bytes=size)) == [Reason.SIZE] * count


@pytest.mark.parametrize(("now_ms", "count"), [(1100, 0), (1101, 1), (1151, 1), (1201, 3), (9999, 3)])
def test_time_takes_a_run_of_the_oldest_and_never_the_active_one(now_ms: int, count: int) -> None:
    assert expired(TopicConfig(retention_ms=1000), now_ms=now_ms) == [Reason.TIME] * count


@pytest.mark.parametrize(("log_start", "count"), [(9, 0), (10, 1), (35, 3)])
def test_segments_below_the_log_start_go_under_any_policy(log_start: int, count: int) -> None:
    config = TopicConfig(cleanup_policy=("compact",), retention_ms=0, retention_bytes=0)
    assert expired(config, now_ms=10**6, log_start=log_start) == [Reason.START_OFFSET] * count


@pytest.mark.parametrize(("high_watermark", "count"), [(9, 0), (10, 1), (25, 2), (30, 3)])
def test_nothing_at_or_above_the_high_watermark_goes(high_watermark: int, count: int) -> None:
    assert len(expired(TopicConfig(retention_bytes=0), high_watermark=high_watermark)) == count


def test_records_without_timestamps_are_as_old_as_their_file() -> None:
    disk = SimulatedDisk()
    config = TopicConfig(segment_bytes=200, retention_ms=1000)
    log = Log.open("/data/orders-0", files=disk, config=config, now_ms=0)
    for offset in range(4):
        log.append([stored_batch(offset, first_timestamp=-1, value_bytes=80)])
    disk.modified_at_ms = 5000
    assert not log.retention.apply(6000, 4)
    assert [segment.reason for segment in log.retention.apply(6001, 4)] == [Reason.TIME] * 3


def test_without_limits_everything_stays() -> None:
    assert expired(KEEP, now_ms=10**15) == []


def test_retention_by_size_renames_first_and_removes_later(disk: SimulatedDisk) -> None:
    config = TopicConfig(segment_bytes=1000, retention_bytes=2000, retention_ms=-1, file_delete_delay_ms=100)
    log = open_log(disk, config)
    fill(log, 40)
    bases = names(disk, ".log")
    held = log.read(ReadLimits(0, 500))
    retired = log.retention.apply(NOW, 40)
    assert [segment.base_offset for segment in retired] == bases[: len(retired)]
    assert {segment.reason for segment in retired} == {Reason.SIZE}
    assert log.log_start_offset == bases[len(retired)] == log.epochs.entries[0].start_offset
    assert names(disk, ".log") == bases[len(retired) :]
    assert names(disk, ".log.deleted") == bases[: len(retired)]
    assert offsets(held.records)[0] == 0
    assert log.size_bytes == sum(disk.size_of(f"{DIRECTORY}/{base:020d}.log") for base in names(disk, ".log"))
    log.retention.apply(NOW + 99, 40)
    assert names(disk, ".log.deleted")
    log.retention.apply(NOW + 100, 40)
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".deleted")]
    assert names(disk, ".snapshot")[0] == log.log_start_offset


def test_retention_by_time_and_by_log_start_leave_the_active_segment(disk: SimulatedDisk) -> None:
    log = open_log(disk, TopicConfig(segment_bytes=1000, retention_ms=1000))
    fill(log, 40)
    assert log.retention.apply(NOW + 1000, 40) == []
    log.advance_log_start(20)
    assert {segment.reason for segment in log.retention.apply(NOW, 40)} == {Reason.START_OFFSET}
    assert log.log_start_offset == 20
    assert log.retention.apply(NOW + 10**6, 10) == []
    assert {segment.reason for segment in log.retention.apply(NOW + 10**6, 40)} == {Reason.TIME}
    assert log.segment_count == 1
    assert offsets(log.read(ReadLimits(39, 1)).records) == [39]


def test_retention_removes_old_segments_on_a_full_disk_without_space_to_follow_the_active_one(
    disk: SimulatedDisk,
) -> None:
    config = TopicConfig(segment_bytes=1000, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    log = open_log(disk, config)
    fill(log, 40)
    bases = names(disk, ".log")
    disk.free_space = 0
    retired = log.retention.apply(NOW, 40, frees_all=True)
    assert [segment.base_offset for segment in retired] == bases[:-1]
    log.retention.remove_retired(None)
    with pytest.raises(StorageError, match="No space left"):
        log.retention.apply(NOW, 40, frees_all=True)
    disk.free_space = 1_000
    assert [segment.base_offset for segment in log.retention.apply(NOW, 40, frees_all=True)] == bases[-1:]
    assert log.log_start_offset == log.log_end_offset == 40
    assert not log.is_offline


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_retention_removes_the_one_segment_of_a_log_on_a_disk_without_space_for_its_indexes(is_cut_short: bool) -> None:
    disk = SimulatedDisk.with_directory("/data")
    config = TopicConfig(index_interval_bytes=1, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    log = open_log(disk, config)
    fill(log, 40)
    log.flush()
    disk.free_space = 60  # the entries of 40 batches take 800 bytes
    retired = log.retention.apply(NOW, 40, frees_all=True)
    assert [segment.base_offset for segment in retired] == [0]
    if is_cut_short:
        disk.power_cut()
        disk.reboot()
        log = open_log(disk, config)
    else:
        log.retention.remove_retired(None)
    assert log.log_start_offset == log.log_end_offset == 40
    assert log.size_bytes == 0
    assert names(disk, ".log") == [40]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_under_way", [False, True], ids=["before the flush", "during the flush"])
def test_the_state_of_producers_survives_retention_of_the_segments_that_they_wrote_to(
    seed: int, is_under_way: bool
) -> None:
    """Data before the new segment is flushed and may go; the files of the roll are not flushed yet."""
    disk = SimulatedDisk.with_directory("/data", seed)
    log = open_log(disk, replace(SMALL, retention_bytes=0))
    while log.segment_count == 1:
        log.flush()
        log.append([last := stored_batch(log.log_end_offset, producer_id=7, base_sequence=log.log_end_offset)])
    flushed = log.flushed_offset
    if is_under_way:
        log.flushes.begin()
    assert log.retention.apply(NOW, flushed)
    disk.power_cut()
    disk.reboot()
    again = open_log(disk, recovery_point=flushed)
    assert again.log_start_offset == flushed
    assert 7 in again.producers.producers
    retry = again.producers.check(stored_batch(flushed - 1, producer_id=7, base_sequence=flushed - 1).header)
    assert retry == Duplicate(flushed - 1, flushed - 1, FIRST_TIMESTAMP_MS + flushed - 1)
    assert last.header.base_offset == flushed
