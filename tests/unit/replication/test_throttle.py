"""The throttle of replication: the rate in a sliding window (KIP-73), as Kafka's `SimpleRate` computes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.ids import TopicId
from tailrace.replication.throttle import ALL_PARTITIONS, ReplicationQuota, ReplicationThrottle, ThrottleConfig

T = TopicId(b"the topic's id..")
OTHER = TopicId(b"another topic id")


def quota(bytes_per_second: int = 1000) -> ReplicationQuota:
    made = ReplicationQuota(ThrottleConfig())
    made.bytes_per_second = bytes_per_second
    return made


def test_no_bytes_are_no_rate() -> None:
    assert (quota().rate(5), quota(0).exceeded_until_ms(5)) == (0.0, None)


def test_the_first_second_counts_as_a_whole_one() -> None:
    replica_quota = quota()
    replica_quota.record(1000, 5_000)
    assert [replica_quota.rate(at) for at in (5_000, 5_999, 6_000, 7_000)] == [1000.0, 1000.0, 1000.0, 500.0]


def test_a_rate_at_the_limit_is_within_it() -> None:
    replica_quota = quota()
    replica_quota.record(1000, 0)
    assert replica_quota.exceeded_until_ms(0) is None
    replica_quota.record(1, 10)
    assert replica_quota.exceeded_until_ms(10) == 1001


def test_the_rate_falls_until_the_limit_and_at_the_named_time_it_is_within() -> None:
    replica_quota = quota()
    replica_quota.record(5500, 0)
    assert replica_quota.exceeded_until_ms(0) == 5500
    assert replica_quota.exceeded_until_ms(5499) == 5500
    assert replica_quota.exceeded_until_ms(5500) is None


def test_samples_leave_the_window_of_eleven_seconds_one_by_one() -> None:
    replica_quota = quota()
    replica_quota.record(10_000_000, 0)
    replica_quota.record(5_500, 1_000)
    assert replica_quota.exceeded_until_ms(2_000) == 11_000
    assert replica_quota.rate(10_999) > 900_000
    assert replica_quota.rate(11_000) == 550.0


@pytest.mark.parametrize(("at_ms", "samples"), [(999, 1), (1_000, 2)])
def test_a_sample_has_one_second(at_ms: int, samples: int) -> None:
    """The second record leaves the window with the sample of the first record, or a second later."""
    replica_quota = quota()
    replica_quota.record(1, 0)
    replica_quota.record(1, at_ms)
    assert replica_quota.rate(11_000) == (0.0 if samples == 1 else 0.1)


def test_a_limit_of_nothing_lets_a_fetch_through_when_the_window_is_empty() -> None:
    replica_quota = quota(0)
    replica_quota.record(1, 500)
    assert replica_quota.exceeded_until_ms(600) == 11_500
    assert replica_quota.exceeded_until_ms(11_500) is None


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 5_000_000)), max_size=30),
    st.integers(0, 2_000_000),
    st.integers(0, 20_000),
)
def test_the_rate_is_exceeded_until_the_named_time_and_not_a_moment_less(
    records: list[tuple[int, int]], limit: int, later_ms: int
) -> None:
    replica_quota, now_ms = quota(limit), 0
    for pause_ms, size in records:
        now_ms += pause_ms
        replica_quota.record(size, now_ms)
    now_ms += later_ms
    until_ms = replica_quota.exceeded_until_ms(now_ms)
    assert (until_ms is None) == (replica_quota.rate(now_ms) <= limit)
    if until_ms is not None:
        assert until_ms > now_ms
        assert replica_quota.rate(until_ms - 1) > limit or until_ms - 1 == now_ms


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=200), st.integers(1_000, 1_000_000))
def test_a_sender_that_asks_before_each_answer_keeps_the_rate(sizes: list[int], limit: int) -> None:
    """Over the whole transfer: the limit, plus one answer that may be sent when the rate is just within it."""
    replica_quota, now_ms, sent = quota(limit), 0, 0
    for size in sizes:
        while (until_ms := replica_quota.exceeded_until_ms(now_ms)) is not None:
            now_ms = until_ms
        replica_quota.record(size, now_ms)
        sent += size
        now_ms += 1
    assert sent <= limit * (now_ms / 1000 + 1) + 12 * max(sizes)


def test_partitions_are_throttled_by_number_or_all_of_a_topic() -> None:
    throttle = ReplicationThrottle(ThrottleConfig())
    assert throttle.is_idle
    throttle.set_partitions(T, frozenset({1, 3}))
    throttle.set_partitions(OTHER, ALL_PARTITIONS)
    assert [throttle.is_throttled(T, number) for number in range(4)] == [False, True, False, True]
    assert throttle.is_throttled(OTHER, 77)
    throttle.set_partitions(T, frozenset())
    throttle.set_partitions(OTHER, frozenset())
    assert throttle.is_idle
    assert not throttle.is_throttled(OTHER, 77)


def test_bytes_count_if_their_partition_is_throttled() -> None:
    throttle = ReplicationThrottle(ThrottleConfig())
    throttle.quota.bytes_per_second = 1000
    throttle.set_partitions(T, frozenset({1}))
    throttle.count(T, 0, 5_000, 0)
    throttle.count(OTHER, 1, 5_000, 0)
    assert throttle.holds_until_ms(0) is None
    throttle.count(T, 1, 5_000, 0)
    assert [throttle.holds_until_ms(at) for at in (0, 4_500, 5_000)] == [1_000, 5_000, None]
    assert throttle.throttled_among([(T, 0), (T, 1), (OTHER, 1)]) == [(T, 1)]


def test_nothing_is_held_back_when_no_partition_is_throttled_any_more() -> None:
    throttle = ReplicationThrottle(ThrottleConfig())
    throttle.quota.bytes_per_second = 1000
    throttle.set_partitions(T, ALL_PARTITIONS)
    throttle.count(T, 1, 50_000, 0)
    throttle.set_partitions(T, frozenset())
    assert throttle.holds_until_ms(0) is None
