"""The segments that retention removes."""

from dataclasses import dataclass

import pytest

from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log
from tailrace.storage.retention import Reason, expired_segments
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch


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
