from tailrace.replication.replica_progress import NEVER, FollowerFetch, ReplicaProgress


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
    assert not progress.is_stale(FollowerFetch(3)), "one that does not say is believed, as in Kafka"


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
