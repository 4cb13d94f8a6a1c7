"""The throttle of replication: the rate in a sliding window (KIP-73), as Kafka's `SimpleRate` computes it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.replication.fetcher_events import FetchAnswer, PartitionKey, Unfollow
from tailrace.replication.throttle import ALL_PARTITIONS, ReplicationQuota, ReplicationThrottle, ThrottleConfig
from unit.replication.fetching.fetcher_bench import A, B, ReplicaFetcherBench, records

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


def throttle_of(*partitions: int, bytes_per_second: int) -> ReplicationThrottle:
    made = ReplicationThrottle(ThrottleConfig())
    made.quota.bytes_per_second = bytes_per_second
    made.set_partitions(A.topic_id, frozenset(partitions) or ALL_PARTITIONS)
    return made


def behind(key: PartitionKey, size_bytes: int) -> FetchAnswer:
    """Records of a leader that has committed far more."""
    return FetchAnswer(key, ErrorCode.NONE, 1_000_000, 0, bytes(size_bytes))


def test_a_throttled_replica_that_is_behind_pauses_until_the_rate_has_come_down() -> None:
    bench = ReplicaFetcherBench(A, B, throttle=throttle_of(A.partition, bytes_per_second=2_000))
    bench.answer(behind(A, 3_600), behind(B, 3_600))
    bench.stored(B, 5)
    bench.stored(A, 5)
    assert bench.requested == [(B, 5)], "the other partition is not throttled"
    bench.answer(behind(B, 3_600))
    bench.later(900)
    bench.stored(B, 9)
    assert bench.requested == [(B, 9)]
    assert bench.machine.next_deadline_ms == 1_000, "a rate that is raised counts within a second"
    bench.later(100)
    bench.answer(behind(B, 0))
    assert bench.requested == [(B, 9)], "3,600 bytes in one second are still too much"
    bench.later(800)
    bench.answer(behind(B, 0))
    assert bench.requested == [(B, 9), (A, 5)]


def test_a_throttled_replica_that_has_what_is_committed_is_fetched_always() -> None:
    throttle = throttle_of(bytes_per_second=1)
    bench = ReplicaFetcherBench(A, throttle=throttle)
    bench.answer(records(A, 5_000, high_watermark=0))
    bench.stored(A, 7)
    assert bench.requested == [(A, 7)]
    assert throttle.holds_until_ms(bench.now_ms) is not None, "its bytes count all the same"


def test_a_throttle_never_holds_back_the_first_fetch_of_a_leader_epoch() -> None:
    """The replica may be in sync: acks=all would wait for it after each election."""
    throttle = throttle_of(bytes_per_second=1)
    throttle.count(*A, 1_000_000, 0)
    bench = ReplicaFetcherBench(A, throttle=throttle)
    assert bench.requested == [(A, 0)]
    bench.answer(behind(A, 10))
    bench.stored(A, 1)
    assert bench.requested == []


def test_a_throttle_holds_a_replica_back_though_its_last_answer_was_empty() -> None:
    """A leader that is throttled itself gives nothing; meanwhile other partitions use up the rate."""
    throttle = throttle_of(bytes_per_second=1_000)
    bench = ReplicaFetcherBench(A, B, throttle=throttle)
    bench.answer(behind(A, 0), behind(B, 0))
    bench.stored(A, 0)
    bench.stored(B, 0)
    throttle.count(*B, 1_000_000, bench.now_ms)
    bench.answer(behind(A, 0), behind(B, 0))
    assert bench.requested == []
    assert bench.machine.next_deadline_ms == 1_000


def test_a_throttled_replica_that_is_held_back_can_be_unfollowed_and_followed_anew() -> None:
    throttle = throttle_of(bytes_per_second=1)
    bench = ReplicaFetcherBench(A, throttle=throttle)
    bench.answer(behind(A, 100))
    bench.stored(A, 1)
    assert bench.requested == []
    bench.follow(A, epoch=4)
    bench.later(0)
    assert bench.requested == [(A, 0)]
    bench.step(Unfollow(key=A))
    bench.answer()
    assert bench.machine.next_deadline_ms is None
