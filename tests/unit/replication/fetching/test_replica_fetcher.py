"""The fetches of a follower: when they leave, and the partitions and changes that they state."""

from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.replication.fetcher_events import Answered, EndWait, Position, Store, Unfollow
from unit.replication.fetching.fetcher_bench import A, B, ReplicaFetcherBench, error, records


def test_a_follower_has_one_fetch_in_flight_at_a_time() -> None:
    bench = ReplicaFetcherBench(A)
    assert bench.requested == [(A, 0)]
    bench.follow(B)
    assert bench.requested == []
    bench.answer()
    assert bench.requested == [(A, 0), (B, 0)]


def test_a_new_followed_partition_ends_the_wait_of_the_fetch_in_flight_once() -> None:
    bench = ReplicaFetcherBench(A)
    assert bench.follow(B) == [], "others follow at once: one request for all of them"
    assert bench.machine.next_deadline_ms is not None
    assert bench.machine.next_deadline_ms <= bench.now_ms
    assert bench.later(0) == [EndWait()]
    assert bench.later(0) == []
    bench.answer()
    assert bench.requested == [(A, 0), (B, 0)]
    assert bench.later(0) == []


def test_a_fetch_of_a_follower_that_does_not_wait_is_not_asked_to_end_its_wait() -> None:
    """The leader answers a fetch at once if later fetches have more to say."""
    bench = ReplicaFetcherBench(A, B, max_changes=1)
    assert bench.fetches[0].has_more
    assert bench.later(0) == []


def test_a_fetch_of_a_follower_states_only_the_changes_since_the_last_fetch() -> None:
    bench = ReplicaFetcherBench(A, B)
    assert bench.changes == ([A, B], [])
    bench.answer(records(A))
    bench.stored(A, 1)
    assert bench.changes == ([A], [])
    bench.answer()
    assert bench.changes == ([], [])
    bench.step(Answered(answers=None))
    bench.later(50)
    assert bench.changes == ([], []), "the wanted partitions outlive a fetch without an answer"
    bench.answer(error(B, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert bench.changes == ([], [B])
    bench.later(50)
    bench.answer()
    assert bench.changes == ([B], [])


def test_a_fetch_of_a_follower_states_a_limited_number_of_changes_and_the_next_fetch_goes_on() -> None:
    bench = ReplicaFetcherBench(A, B, max_changes=1)
    assert (bench.changes, bench.fetches[0].has_more) == (([A], []), True)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([B], []), False)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([], []), False)


def test_a_followed_partition_that_leaves_ends_no_wait_of_a_fetch() -> None:
    bench = ReplicaFetcherBench(A, B)
    assert bench.step(Unfollow(key=B)) == []
    assert bench.later(0) == []


def test_a_followed_partition_that_leaves_while_it_is_stored_does_not_hold_up_others() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(records(A))
    bench.step(Unfollow(key=A))
    assert bench.requested == [(B, 0)]


def test_the_next_fetch_of_a_follower_leaves_when_the_last_answer_is_stored() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(records(A), records(B))
    assert [type(effect) for effect in bench.effects] == [Store, Store]
    bench.stored(B, 5)
    assert bench.requested == []
    bench.later(100_000)
    assert bench.requested == []
    bench.stored(A, 7)
    assert bench.requested == [(B, 5), (A, 7)]


def test_the_next_fetch_of_a_follower_leaves_at_an_answer_without_news() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A, 0))
    assert [type(effect) for effect in bench.effects] == [Store], "the first one tells a high watermark"
    bench.stored(A, 0)
    bench.answer(records(A, 0))
    assert bench.requested == [(A, 0)]


def test_a_follower_drops_an_answer_without_a_fetch() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Answered(answers=None))
    assert bench.answer(records(A)) == []


def test_a_follower_ignores_an_answer_of_an_older_leader_epoch() -> None:
    bench = ReplicaFetcherBench(A)
    bench.follow(A, epoch=4)
    bench.answer(records(A))
    assert bench.requested == [(A, 0)]


def test_a_follower_ignores_an_answer_for_a_partition_that_it_does_not_follow_any_more() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.step(Unfollow(key=A))
    bench.answer(records(A), records(B))
    assert [type(effect) for effect in bench.effects] == [Store]
    assert len(bench.machine) == 1


def test_a_follower_does_not_store_an_answer_for_a_partition_whose_new_position_is_not_stated_yet() -> None:
    """The leader has sent the answer, perhaps with another high watermark, for the old position."""
    bench = ReplicaFetcherBench(A, B, max_changes=1)
    bench.answer()
    bench.answer(records(A), records(B))
    bench.stored(A, 1)
    bench.stored(B, 1)
    assert (bench.changes, bench.fetches[0].has_more) == (([A], []), True)
    assert not [effect for effect in bench.answer(records(B, high_watermark=1)) if isinstance(effect, Store)]
    assert (bench.changes, bench.fetches[0].has_more) == (([], [B]), True)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([B], []), False)


def test_a_follower_stores_a_high_watermark_without_records() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A, 0))
    bench.stored(A, 0)
    (effect,) = bench.answer(records(A, 0, high_watermark=4))
    assert isinstance(effect, Store)
    bench.stored(A, 0)
    (effect,) = bench.answer(records(A, 0, high_watermark=4, log_start=2))
    assert isinstance(effect, Store)


def test_a_partition_with_records_goes_to_the_end_of_the_followers_next_fetch() -> None:
    bench = ReplicaFetcherBench(A, B)
    bench.answer(records(A))
    bench.stored(A, 1)
    assert [key for key, _ in bench.requested] == [B, A]


def test_a_partition_that_comes_and_goes_between_two_fetches_of_a_follower_is_in_neither() -> None:
    bench = ReplicaFetcherBench(A)
    bench.follow(B)
    bench.step(Unfollow(key=B))
    bench.answer()
    assert bench.changes == ([], [])
    bench.step(Unfollow(key=A))
    bench.follow(A, epoch=4)
    bench.step(Unfollow(key=A))
    bench.follow(B)
    bench.answer()
    assert bench.changes == ([B], [A])


def test_a_follower_ignores_a_second_answer_for_a_partition() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A, 0))
    bench.stored(A, 0)
    bench.answer(records(A, 0), records(A))
    assert bench.requested == [(A, 0)]


def test_a_follower_asks_a_leader_that_does_not_answer_again_later() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Answered(answers=None))
    assert (bench.requested, bench.machine.next_deadline_ms) == ([], 50)
    assert bench.later(49) == []
    bench.later(1)
    assert bench.requested == [(A, 0)]
    bench.step(Answered(answers=None))
    assert bench.machine.next_deadline_ms == bench.now_ms + 100
    assert bench.machine.failed_fetches == 2


def test_a_new_leader_epoch_ends_the_wait_for_a_silent_leader() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Answered(answers=None))
    bench.follow(A, epoch=4)
    assert bench.machine.next_deadline_ms == 0
    bench.step(Tick())
    assert bench.requested == [(A, 0)]


def test_a_follower_ignores_a_store_of_an_older_leader_epoch() -> None:
    bench = ReplicaFetcherBench(A)
    bench.answer(records(A))
    bench.follow(A, epoch=4, position=Position(2, 3, 0, 0))
    bench.step(Tick())
    assert bench.requested == [(A, 2)]
    bench.stored(A, 9, epoch=3)
    bench.answer()
    assert bench.requested == [(A, 2)]


def test_a_follower_of_no_partition_makes_no_fetch() -> None:
    bench = ReplicaFetcherBench(A)
    bench.step(Unfollow(key=A))
    bench.answer()
    assert (bench.effects, bench.machine.is_idle, bench.machine.next_deadline_ms) == ([], True, None)


def test_the_lag_of_a_follower_is_counted_against_the_leaders_high_watermark() -> None:
    bench = ReplicaFetcherBench(A)
    assert bench.machine.max_lag == 0
    bench.answer(records(A, high_watermark=30))
    bench.stored(A, 12)
    assert bench.machine.max_lag == 18


def test_a_fetch_of_a_follower_states_leaving_partitions_before_new_partitions() -> None:
    bench = ReplicaFetcherBench(A, max_changes=1)
    bench.follow(B)
    bench.step(Unfollow(key=A))
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([], [A]), True)
    bench.answer()
    assert (bench.changes, bench.fetches[0].has_more) == (([B], []), False)
