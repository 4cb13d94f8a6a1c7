"""Lanes: order, turns, holds, the bound of records in hand, and partitions that leave and come back."""

import pytest

from tailrace.client.keyed.lanes import RECORD_BYTES, Lanes, LaneWork, size_of
from tailrace.client.keyed.outcomes import Done, KeyedRecord, Retry, Skip
from tailrace.model.partitions import TopicPartition

ONE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)


def lanes_of(concurrency: int = 4, *, most_records: int = 1_000, most_bytes: int = 1 << 30) -> Lanes:
    lanes = Lanes(concurrency, most_records=most_records, most_bytes=most_bytes)
    lanes.open(ONE)
    lanes.open(OTHER)
    return lanes


def records(name: TopicPartition, keys: str, start: int = 0) -> list[KeyedRecord]:
    """A record for each letter, which is its key; without a key for a dot."""
    return [
        KeyedRecord(*name, start + number, 0, None if key == "." else key.encode(), b"value", ())
        for number, key in enumerate(keys)
    ]


def offsets(works: list[LaneWork]) -> list[int]:
    return [work.record.offset for work in works]


def test_one_record_of_a_key_runs_at_a_time_and_in_order() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "aabab"))
    first, second = lanes.take(0)
    assert offsets([first, second]) == [0, 2]
    assert lanes.take(0) == []
    assert lanes.finish(second, Done(), 0)
    (third,) = lanes.take(0)
    assert third.record.offset == 4
    assert lanes.finish(first, Done(), 0)
    assert offsets(lanes.take(0)) == [1]


def test_the_same_key_in_two_partitions_has_two_lanes() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "a"))
    lanes.add(OTHER, records(OTHER, "a"))
    assert len(lanes.take(0)) == 2


def test_records_without_a_key_wait_for_none_and_an_empty_key_is_a_key() -> None:
    lanes = lanes_of()
    lanes.add(ONE, [*records(ONE, "..."), *[record._replace(key=b"") for record in records(ONE, "ab", 3)]])
    assert offsets(lanes.take(0)) == [0, 1, 2, 3]


def test_partitions_take_turns() -> None:
    lanes = lanes_of(3)
    lanes.add(ONE, records(ONE, "abcdefgh"))
    lanes.add(OTHER, records(OTHER, "xy"))
    assert [work.name for work in lanes.take(0)] == [ONE, OTHER, ONE]


def test_a_fresh_record_is_the_newest_whose_key_has_not_failed_of_the_partition_whose_turn_it_is() -> None:
    lanes = lanes_of(1)
    lanes.add(ONE, records(ONE, "pqabb"))
    lanes.add(OTHER, records(OTHER, "x"))
    for key in (b"p", b"x"):
        (work,) = lanes.take(0)
        assert work.record.key == key
        lanes.finish(work, Retry(0), 0)
    tried = []
    for _ in range(7):
        fresh = lanes.take_fresh(0)
        assert fresh is not None
        tried.append(fresh.record.key)
        lanes.finish(fresh, Retry(0), 0, is_counted=False)
    assert tried == [b"b", b"x", b"a", b"x", b"q", b"x", b"p"]


def test_a_failure_holds_its_key_alone_and_twice_as_long_each_time() -> None:
    lanes = lanes_of(1)
    lanes.add(ONE, records(ONE, "aab"))
    now_ms = 0
    for attempt, pause_ms in enumerate((1_000, 2_000, 4_000), 1):
        (work,) = lanes.take(now_ms)
        assert (work.record.offset, work.attempt) == (0, attempt)
        assert not lanes.finish(work, Retry(), now_ms, fault="ValueError: no")
        assert lanes.next_deadline_ms == now_ms + pause_ms
        assert (lanes.running, lanes.held) == (0, 1)
        if attempt == 1:
            (free,) = lanes.take(now_ms)
            assert lanes.finish(free, Done(), now_ms), "the other key goes on"
        assert lanes.take(now_ms + pause_ms - 1) == []
        now_ms += pause_ms
    oldest = lanes.oldest_failure
    assert oldest is not None
    assert (oldest.name, oldest.record.offset, oldest.since_ms, oldest.attempts) == (ONE, 0, 0, 3)
    assert oldest.fault == "ValueError: no"


def test_a_success_ends_the_series_of_pauses() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "aa"))
    for now_ms in (0, 1_000):
        lanes.finish(lanes.take(now_ms)[0], Retry(), now_ms)
    assert lanes.finish(lanes.take(3_000)[0], Skip(), 3_000)
    assert lanes.oldest_failure is None
    (work,) = lanes.take(3_000)
    assert (work.record.offset, work.attempt) == (1, 1)
    lanes.finish(work, Retry(), 3_000)
    assert lanes.next_deadline_ms == 4_000


def test_a_failure_that_is_not_counted_is_no_attempt_and_its_pause_stays() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "a"))
    now_ms = 0
    for attempt, is_counted, counted, pause_ms in ((1, False, 0, 1_000), (1, True, 1, 1_000), (2, False, 1, 1_000)):
        (work,) = lanes.take(now_ms)
        assert work.attempt == attempt
        assert not lanes.finish(work, Retry(), now_ms, fault="ConnectionError: down", is_counted=is_counted)
        assert lanes.next_deadline_ms == now_ms + pause_ms
        now_ms += pause_ms
        assert lanes.oldest_failure is not None
        assert lanes.oldest_failure.attempts == counted
    (work,) = lanes.take(now_ms)
    assert work.attempt == 2
    lanes.finish(work, Retry(), now_ms)
    assert lanes.next_deadline_ms == now_ms + 2_000


def test_a_retry_after_a_time_comes_at_that_time() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "a"))
    lanes.finish(lanes.take(0)[0], Retry(2.5), 0)
    assert lanes.next_deadline_ms == 2_500
    lanes.finish(lanes.take(2_500)[0], Retry(), 2_500)
    assert lanes.next_deadline_ms == 3_500, "the first failure"


def test_a_retry_waits_for_a_day_at_most() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "a"))
    (work,) = lanes.take(0)
    lanes.finish(work, Retry(1e306), 0)
    assert lanes.next_deadline_ms == 24 * 3_600 * 1_000


def test_a_partition_with_the_bound_alone_is_full_and_stops_no_other() -> None:
    lanes = lanes_of(most_records=4)
    lanes.add(ONE, records(ONE, "aaaa"))
    lanes.finish(lanes.take(0)[0], Retry(), 0)
    assert lanes.is_full(ONE)
    assert not lanes.is_full(OTHER)
    lanes.add(OTHER, records(OTHER, "x"))
    assert not lanes.is_full(OTHER)
    lanes.add(OTHER, records(OTHER, "y", 1))
    assert lanes.is_full(OTHER), "it has its share, and all together have the bound"


def test_partitions_together_have_the_bound() -> None:
    lanes = lanes_of(most_records=4)
    lanes.add(ONE, records(ONE, "ab"))
    lanes.add(OTHER, records(OTHER, "x"))
    assert (lanes.is_full(ONE), lanes.is_full(OTHER)) == (False, False)
    lanes.add(OTHER, records(OTHER, "y", 1))
    assert (lanes.is_full(ONE), lanes.is_full(OTHER)) == (True, True)
    work = lanes.take(0)[0]
    lanes.finish(work, Done(), 0)
    assert (lanes.is_full(ONE), lanes.is_full(OTHER)) == (False, False)


def test_bytes_are_bounded_too() -> None:
    lanes = lanes_of(most_bytes=10_000)
    large = records(ONE, "a")[0]._replace(value=b"v" * 9_000, headers=(("name", b"h" * 800), ("none", None)))
    assert size_of([large]) == RECORD_BYTES + 1 + 9_000 + 804 + 4
    lanes.add(ONE, [large])
    assert lanes.is_full(ONE)
    lanes.finish(lanes.take(0)[0], Done(), 0)
    assert (lanes.bytes, lanes.is_full(ONE)) == (0, False)


def test_a_partition_that_leaves_drops_what_waits_and_what_runs_still_counts() -> None:
    lanes = lanes_of(2)
    lanes.add(ONE, records(ONE, "aabc"))
    lanes.add(OTHER, records(OTHER, "x"))
    works = {work.name: work for work in lanes.take(0)}
    lanes.drop_waiting(ONE)
    assert (lanes.records, lanes.is_idle([ONE])) == (2, False)
    assert lanes.finish(works[ONE], Done(), 0)
    assert lanes.is_idle([ONE])
    assert lanes.take(0) == []
    assert not lanes.is_idle([OTHER])


def test_a_retry_in_a_partition_that_leaves_is_not_tried_again() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "a"))
    (work,) = lanes.take(0)
    lanes.drop_waiting(ONE)
    assert not lanes.finish(work, Retry(0), 0)
    assert lanes.take(1) == []
    assert (lanes.records, lanes.held, lanes.oldest_failure) == (0, 0, None)


def test_a_key_that_still_runs_does_not_run_again_when_its_partition_is_back() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "a."))
    keyed, free = lanes.take(0)
    lanes.close(ONE)
    lanes.open(ONE)
    lanes.add(ONE, records(ONE, "a.b"))
    assert offsets(lanes.take(0)) == [2]
    assert lanes.running == 3
    assert not lanes.finish(keyed, Done(), 0), "its partition had left"
    assert offsets(lanes.take(0)) == [0]
    assert not lanes.finish(free, Retry(), 0)
    assert offsets(lanes.take(0)) == [1]


def test_a_hold_of_a_partition_that_has_left_means_nothing_to_it_later() -> None:
    lanes = lanes_of()
    lanes.add(ONE, records(ONE, "a"))
    lanes.finish(lanes.take(0)[0], Retry(1), 0)
    lanes.close(ONE)
    assert (lanes.held, lanes.records) == (0, 0)
    lanes.open(ONE)
    lanes.add(ONE, records(ONE, "a"))
    lanes.finish(lanes.take(500)[0], Retry(10), 500)
    assert lanes.take(1_000) == []
    assert offsets(lanes.take(10_500)) == [0]


def test_records_of_a_partition_that_is_not_open_are_a_mistake() -> None:
    lanes = lanes_of()
    lanes.drop_waiting(ONE)
    with pytest.raises(AssertionError, match="orders-0 leaves"):
        lanes.add(ONE, records(ONE, "a"))
