"""The segments of a log that are compacted, and the time for it."""

from dataclasses import dataclass

import pytest

from tailrace.model.topic_config import TopicConfig
from tailrace.storage.compaction.plan import Cleanable, find_cleanable, group_segments


@dataclass
class PlannedSegment:
    base_offset: int
    size_bytes: int = 100
    age_timestamp: int = 1000
    first_timestamp: int = 500
    index_entries: int = 5


SEGMENTS = [PlannedSegment(0), PlannedSegment(10), PlannedSegment(20, age_timestamp=2000), PlannedSegment(30)]


def cleanable(
    config: TopicConfig | None = None,
    *,
    now_ms: int = 10_000,
    first_dirty: int = 0,
    log_start: int = 0,
    end_offset: int = 99,
) -> Cleanable:
    return find_cleanable(
        SEGMENTS,
        config=config or TopicConfig(cleanup_policy=("compact",)),
        now_ms=now_ms,
        first_dirty_offset=first_dirty,
        log_start_offset=log_start,
        end_offset=end_offset,
    )


def test_the_active_segment_is_never_compacted() -> None:
    assert cleanable().end_offset == 30
    assert cleanable().segment_count == 3


@pytest.mark.parametrize(("end_offset", "end"), [(9, 0), (10, 10), (19, 10), (29, 20), (30, 30)])
def test_a_segment_that_reaches_above_the_high_watermark_stays_with_all_after_it(end_offset: int, end: int) -> None:
    assert cleanable(end_offset=end_offset).end_offset == end


@pytest.mark.parametrize(("lag_ms", "end"), [(0, 30), (8000, 30), (8001, 20), (9001, 0)])
def test_records_younger_than_the_minimum_lag_stay(lag_ms: int, end: int) -> None:
    assert cleanable(TopicConfig(min_compaction_lag_ms=lag_ms)).end_offset == end


@pytest.mark.parametrize(("first_dirty", "clean", "dirty"), [(0, 0, 300), (10, 100, 200), (15, 100, 200), (30, 300, 0)])
def test_the_part_that_was_compacted_is_clean(first_dirty: int, clean: int, dirty: int) -> None:
    found = cleanable(first_dirty=first_dirty)
    assert (found.clean_bytes, found.dirty_bytes) == (clean, dirty)
    assert found.dirty_ratio == pytest.approx(dirty / 300)


@pytest.mark.parametrize(("ratio", "is_worth_it"), [(0.6, True), (2 / 3, False), (0.7, False)])
def test_compaction_is_worth_it_above_the_dirty_ratio(ratio: float, is_worth_it: bool) -> None:
    config = TopicConfig(min_cleanable_dirty_ratio=ratio)
    assert cleanable(config, first_dirty=10).is_worth_it(config) is is_worth_it


@pytest.mark.parametrize(("lag_ms", "is_worth_it"), [(9499, True), (9500, False)])
def test_the_maximum_lag_asks_for_it_whatever_the_ratio(lag_ms: int, is_worth_it: bool) -> None:
    config = TopicConfig(max_compaction_lag_ms=lag_ms, min_cleanable_dirty_ratio=1.0)
    assert cleanable(config).is_worth_it(config) is is_worth_it


def test_nothing_dirty_is_never_worth_it() -> None:
    config = TopicConfig(max_compaction_lag_ms=1, min_cleanable_dirty_ratio=0.0)
    assert not cleanable(config, first_dirty=30).is_worth_it(config)


@pytest.mark.parametrize(
    ("segment_bytes", "entries", "counts"), [(300, 99, [3]), (299, 99, [2, 1]), (50, 99, [1, 1, 1]), (999, 10, [2, 1])]
)
def test_segments_become_one_as_long_as_it_fits_the_limits(segment_bytes: int, entries: int, counts: list[int]) -> None:
    config = TopicConfig(segment_bytes=segment_bytes)
    assert group_segments(SEGMENTS[:3], end_offset=30, config=config, max_index_entries=entries) == counts


def test_offsets_of_one_segment_stay_within_its_index() -> None:
    segments = [PlannedSegment(0), PlannedSegment(10), PlannedSegment(2**31)]
    assert group_segments(segments, end_offset=2**31 + 5, config=TopicConfig(), max_index_entries=99) == [2, 1]
