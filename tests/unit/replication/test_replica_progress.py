from tailrace.replication.replica_progress import NEVER, FollowerFetch, ReplicaProgress, SessionVisits


def taken(*fetches: tuple[int, int, int]) -> ReplicaProgress:
    """The progress after (fetch offset, leader's log end, time in ms)."""
    progress = ReplicaProgress()
    for end_offset, leader_end_offset, now_ms in fetches:
        progress.record(FollowerFetch(end_offset), leader_end_offset=leader_end_offset, now_ms=now_ms)
    return progress


def test_a_fetch_at_the_log_end_is_caught_up_as_of_now() -> None:
    assert taken((10, 10, 500)).caught_up_ms == 500


def test_a_replica_at_the_log_end_of_its_last_fetch_is_caught_up_as_of_that_fetch() -> None:
    assert taken((0, 10, 500), (10, 20, 600)).caught_up_ms == 500
    assert taken((0, 10, 500), (10, 20, 600), (20, 30, 700)).caught_up_ms == 600


def test_a_replica_that_falls_behind_is_caught_up_as_of_its_last_end() -> None:
    assert taken((10, 10, 500), (12, 30, 600), (14, 50, 700)).caught_up_ms == 500
    assert taken((0, 10, 500), (5, 20, 600)).caught_up_ms == NEVER


def test_one_that_has_everything_is_caught_up_however_long_ago_it_asked() -> None:
    progress = taken((10, 10, 500))
    assert progress.is_caught_up(leader_end_offset=10, now_ms=1_000_000, lag_ms=100)
    assert progress.is_caught_up(leader_end_offset=11, now_ms=600, lag_ms=100)
    assert not progress.is_caught_up(leader_end_offset=11, now_ms=601, lag_ms=100)


def test_a_fetch_from_before_the_last_registration_is_stale() -> None:
    progress = ReplicaProgress()
    progress.record(FollowerFetch(10, broker_epoch=7), leader_end_offset=10, now_ms=0)
    assert progress.is_stale(FollowerFetch(12, broker_epoch=6))
    assert not progress.is_stale(FollowerFetch(12, broker_epoch=7))
    assert not progress.is_stale(FollowerFetch(3, broker_epoch=8))
    assert not progress.is_stale(FollowerFetch(3)), "a fetch without a broker epoch is believed, as in Kafka"


def test_a_fetch_without_a_broker_epoch_does_not_lower_the_one_that_is_known() -> None:
    """KIP-903: else a late fetch of the earlier registration would count again behind it."""
    progress = ReplicaProgress()
    progress.record(FollowerFetch(10, broker_epoch=7), leader_end_offset=10, now_ms=0)
    progress.record(FollowerFetch(10), leader_end_offset=10, now_ms=1)
    assert progress.broker_epoch == 7
    assert progress.is_stale(FollowerFetch(12, broker_epoch=6))


def told(*fetches: FollowerFetch) -> ReplicaProgress:
    progress = ReplicaProgress()
    for fetch in fetches:
        progress.record(fetch, leader_end_offset=100, now_ms=0)
    return progress


def test_the_acknowledged_high_watermark_is_what_the_follower_states_and_within_its_log() -> None:
    assert ReplicaProgress().acknowledged_high_watermark == -1
    assert told(FollowerFetch(10, high_watermark=7)).acknowledged_high_watermark == 7
    assert told(FollowerFetch(10, high_watermark=40)).acknowledged_high_watermark == 10
    assert told(FollowerFetch(10, high_watermark=7), FollowerFetch(5, high_watermark=5)).known_high_watermark == 5


def test_a_high_watermark_that_was_sent_is_acknowledged_by_the_next_fetch() -> None:
    progress = told(FollowerFetch(10))
    progress.sent_high_watermark = 8
    assert progress.acknowledged_high_watermark == -1
    progress.record(FollowerFetch(10), leader_end_offset=100, now_ms=1)
    assert progress.acknowledged_high_watermark == 8
    progress.record(FollowerFetch(6), leader_end_offset=100, now_ms=2)
    assert progress.acknowledged_high_watermark == 6, "its log was cut"


def test_a_fetch_that_states_a_high_watermark_is_believed_before_what_was_sent() -> None:
    progress = told(FollowerFetch(10))
    progress.sent_high_watermark = 8
    progress.record(FollowerFetch(10, high_watermark=3), leader_end_offset=100, now_ms=1)
    assert progress.acknowledged_high_watermark == 3


def test_a_follower_that_has_started_anew_has_acknowledged_nothing() -> None:
    progress = told(FollowerFetch(10, broker_epoch=5))
    progress.sent_high_watermark = 8
    progress.record(FollowerFetch(10, broker_epoch=5), leader_end_offset=100, now_ms=1)
    assert progress.acknowledged_high_watermark == 8
    progress.record(FollowerFetch(10, broker_epoch=6), leader_end_offset=100, now_ms=2)
    assert progress.acknowledged_high_watermark == -1


def resting(*, broker_epoch: int = 7, may_join: bool = True) -> tuple[ReplicaProgress, SessionVisits]:
    """A replica that had everything up to 10 in its last fetch, at 500 ms; its session has fetched since."""
    progress = ReplicaProgress()
    progress.record(FollowerFetch(10, 0, broker_epoch, may_join), leader_end_offset=10, now_ms=500)
    visits = SessionVisits(broker_epoch=broker_epoch, may_join=may_join)
    assert progress.rest(visits, leader_end_offset=10)
    visits.fetched(3_600_000)
    return progress, visits


def test_a_resting_replica_is_caught_up_as_of_the_last_fetch_of_its_session() -> None:
    progress, visits = resting()
    assert (progress.caught_up_ms, progress.fetched_ms) == (3_600_000, 3_600_000)
    assert progress.is_caught_up(leader_end_offset=11, now_ms=3_600_100, lag_ms=100), "the first write after an hour"
    assert not progress.is_caught_up(leader_end_offset=11, now_ms=3_600_101, lag_ms=100), "it fetches no more"
    visits.fetched(3_600_200)
    assert progress.caught_up_ms == 3_600_200


def test_a_resting_replica_is_wanted_as_long_as_its_session_fetches() -> None:
    progress, _ = resting()
    progress.looked_at()
    assert progress.may_be_wanted(now_ms=3_600_100, lag_ms=100)
    assert not progress.may_be_wanted(now_ms=3_600_101, lag_ms=100)


def test_the_time_before_the_rest_counts_until_the_session_fetches() -> None:
    progress = taken((10, 10, 500))
    assert progress.rest(SessionVisits(broker_epoch=-1, may_join=True), leader_end_offset=10)
    assert (progress.caught_up_ms, progress.fetched_ms) == (500, 500)


def test_a_recorded_fetch_ends_the_rest_and_the_fetch_before_it_was_caught_up() -> None:
    progress, visits = resting()
    progress.record(FollowerFetch(10, 0, 7), leader_end_offset=30, now_ms=3_600_400)
    assert (progress.caught_up_ms, progress.fetched_ms) == (3_600_000, 3_600_400)
    visits.fetched(3_600_500)
    assert (progress.caught_up_ms, progress.fetched_ms) == (3_600_000, 3_600_400)


def test_the_end_of_a_rest_keeps_its_last_time() -> None:
    progress, visits = resting()
    progress.end_rest(SessionVisits(broker_epoch=7, may_join=True))
    visits.fetched(3_600_100)
    assert progress.caught_up_ms == 3_600_100, "the end of another session's rest"
    progress.end_rest(visits)
    visits.fetched(3_600_200)
    assert (progress.caught_up_ms, progress.fetched_ms) == (3_600_100, 3_600_100)


def test_another_session_takes_the_rest_over() -> None:
    progress, visits = resting()
    progress.record(FollowerFetch(10, 0, 8), leader_end_offset=10, now_ms=3_600_100)
    later = SessionVisits(broker_epoch=8, may_join=True)
    assert progress.rest(later, leader_end_offset=10)
    visits.fetched(4_000_000)
    assert progress.caught_up_ms == 3_600_100, "the session of the earlier registration counts no more"
    later.fetched(3_600_200)
    assert progress.caught_up_ms == 3_600_200


def test_an_excluded_replica_rests_no_more() -> None:
    progress, visits = resting()
    progress.exclude()
    visits.fetched(3_600_100)
    assert (progress.caught_up_ms, progress.may_join) == (NEVER, False)
    assert not progress.may_be_wanted(now_ms=3_600_100, lag_ms=100)


def test_only_a_replica_that_has_everything_rests() -> None:
    progress = taken((10, 10, 500))
    visits = SessionVisits(broker_epoch=-1, may_join=True)
    assert not progress.rest(visits, leader_end_offset=11)
    visits.fetched(9_000)
    assert progress.caught_up_ms == 500


def test_a_session_of_another_registration_gives_no_rest() -> None:
    progress = ReplicaProgress()
    progress.record(FollowerFetch(10, 0, 7), leader_end_offset=10, now_ms=0)
    assert not progress.rest(SessionVisits(broker_epoch=6, may_join=True), leader_end_offset=10)
    assert not progress.rest(SessionVisits(broker_epoch=7, may_join=False), leader_end_offset=10)
    progress.exclude()
    assert not progress.rest(SessionVisits(broker_epoch=7, may_join=True), leader_end_offset=10)


def test_the_visits_of_a_session_hold_for_one_registration() -> None:
    visits = SessionVisits(broker_epoch=7, may_join=True)
    assert visits.holds_for(broker_epoch=7, may_join=True)
    assert not visits.holds_for(broker_epoch=8, may_join=True)
    assert not visits.holds_for(broker_epoch=7, may_join=False)
