"""Replicas that rest in their sessions or may join, and high watermarks that they hold back."""

from tailrace.metadata.image import ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.replica_progress import SessionVisits
from tailrace.server.replicas.in_sync_keeper import RECONSIDERED_AFTER_MS
from unit.server.replicas.in_sync_bench import LAG_MS, InSyncKeeperBench, proposing_bench, state


def resting(bench: InSyncKeeperBench, replica: int) -> SessionVisits:
    """A session of this follower, which has everything, over all partitions."""
    visits = SessionVisits(broker_epoch=10 + replica, may_join=True)
    for partition in bench.partitions:
        bench.fetch(partition, replica, offset=partition.log.log_end_offset)
        assert partition.in_sync.rest(BrokerId(replica), visits)
    visits.fetched(bench.clock.monotonic_ms())
    return visits


def fetch_on(bench: InSyncKeeperBench, for_ms: int, *sessions: SessionVisits) -> None:
    """Let these sessions fetch, twice within replica.lag.time.max.ms, with nothing to name."""
    for _ in range(0, for_ms, LAG_MS // 2):
        bench.clock.advance(LAG_MS // 2)
        for visits in sessions:
            visits.fetched(bench.clock.monotonic_ms())


def test_followers_that_rest_for_an_hour_stay_in_sync_at_the_next_write() -> None:
    bench = InSyncKeeperBench((1, 2, 3))
    sessions = resting(bench, 2), resting(bench, 3)
    fetch_on(bench, 3_600_000, *sessions)
    bench.node.produce("orders", b"a", acks=1)
    bench.clock.advance(LAG_MS // 2)  # the keeper has looked at the partition, and no follower has fetched since
    assert bench.proposed == []


def test_a_resting_follower_whose_session_fetches_no_more_leaves_in_time() -> None:
    bench = InSyncKeeperBench((1, 2, 3))
    sessions = resting(bench, 2), resting(bench, 3)
    fetch_on(bench, 3_600_000, *sessions)
    bench.node.produce("orders", b"a", acks=1)
    fetch_on(bench, LAG_MS, sessions[0])
    assert bench.proposed == [], "as of its last fetch it had everything, at most replica.lag.time.max.ms ago"
    bench.fetch(bench.partitions[0], 2, offset=1)
    bench.clock.advance(LAG_MS // 2)
    assert bench.proposed == [[(0, [1, 2])]]


def test_a_follower_that_rests_and_is_out_of_sync_is_wanted_until_its_session_is_silent() -> None:
    bench = InSyncKeeperBench((1,))
    visits = resting(bench, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))
    fetch_on(bench, 10 * LAG_MS, visits)
    bench.clock.advance(LAG_MS // 2)
    for _ in range(3):
        assert bench.proposed in ([], [[(0, [1, 2])]])
        if bench.proposed:
            bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))
        bench.clock.advance(LAG_MS // 2)
    bench.clock.advance(10 * LAG_MS)
    assert bench.proposed == []


def test_an_excluded_follower_comes_in_sync_by_a_recorded_fetch_alone() -> None:
    bench = InSyncKeeperBench((1,))
    visits = resting(bench, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))
    bench.partition.in_sync.exclude([BrokerId(2)])
    fetch_on(bench, 10 * LAG_MS, visits)
    assert bench.proposed == []
    assert not bench.partition.in_sync.rest(BrokerId(2), visits)
    bench.propose(2)
    assert bench.proposed == [[(0, [1, 2])]]


def test_a_partition_that_leaves_the_session_is_as_silent_as_its_follower() -> None:
    bench = InSyncKeeperBench((1, 2), (1, 2))
    visits = resting(bench, 2)
    fetch_on(bench, 10 * LAG_MS, visits)
    bench.partitions[0].in_sync.end_rest(BrokerId(2), visits)
    for number in range(2):
        bench.node.produce("orders", b"a", acks=1, partition=number)
    fetch_on(bench, 2 * LAG_MS, visits)
    assert bench.proposed == [[(0, [1])]]


def refuse(bench: InSyncKeeperBench, for_ms: int) -> None:
    """Let this time pass; the controller refuses each proposal at once."""
    for _ in range(for_ms):
        bench.clock.advance(1)
        if bench.controller.waiting:
            bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))


def held_back() -> InSyncKeeperBench:
    """A replica that keeps up and is not in sync, since the controller refuses it, lacks the last record."""
    bench = proposing_bench()
    bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))
    bench.node.produce("orders", b"a", acks=1)
    assert (bench.partition.high_watermark, bench.partition.log.log_end_offset) == (0, 1)
    return bench


def test_a_high_watermark_goes_on_when_the_time_of_a_joining_replica_is_over_though_no_follower_fetches() -> None:
    bench = held_back()
    refuse(bench, LAG_MS)
    assert bench.partition.high_watermark == 0
    bench.clock.advance(1)
    assert bench.partition.high_watermark == 1


def test_a_joining_replica_that_fetches_again_holds_the_high_watermark_back_for_longer() -> None:
    bench = held_back()
    refuse(bench, LAG_MS // 2)
    bench.fetch(bench.partition, 2, offset=1)
    assert bench.partition.high_watermark == 1
    bench.node.produce("orders", b"b", acks=1)
    refuse(bench, LAG_MS // 2 + 1)
    assert (bench.partition.high_watermark, bench.partition.log.log_end_offset) == (1, 2)
    refuse(bench, LAG_MS)
    assert bench.partition.high_watermark == 2


def test_no_timer_runs_for_a_high_watermark_that_no_joining_replica_holds_back() -> None:
    bench = InSyncKeeperBench((1, 2))
    before = bench.clock.calls_pending
    for number in range(3):
        bench.node.produce("orders", b"a", acks=1)
        bench.fetch(bench.partition, 2, offset=number + 1)
        bench.fetch(bench.partition, 3, offset=0)  # never caught up
    bench.node.produce("orders", b"a", acks=1)
    assert (bench.partition.high_watermark, bench.partition.log.log_end_offset) == (3, 4)
    assert bench.clock.calls_pending == before


def take_image(bench: InSyncKeeperBench, changed: PartitionState) -> None:
    """The metadata has a changed state of the first partition."""
    name = TopicPartition("orders", 0)
    bench.node.table.update(name, changed, TopicConfig())
    bench.keeper.on_image(bench.controller.image, ImageDelta(changed_partitions=((name, changed),)))  # type: ignore[arg-type]
    bench.clock.advance(0)


def test_a_replica_that_could_join_while_a_proposal_was_pending_is_proposed_when_the_image_has_its_outcome() -> None:
    bench = proposing_bench()
    bench.answer(KafkaError(ErrorCode.INVALID_UPDATE_VERSION))  # a later state will come
    bench.propose(3)
    assert bench.proposed == [], "the outcome of the proposal is not known"
    take_image(bench, state((1, 2), partition_epoch=1))
    assert bench.proposed == [[(0, [1, 2, 3])]]


def test_a_replica_that_could_join_while_a_proposal_was_pending_is_proposed_after_the_answer() -> None:
    bench = proposing_bench()
    bench.answer(refusal=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers"))
    bench.propose(3)
    bench.clock.advance(50)
    assert bench.proposed == [[(0, [1, 2])]], "the same again"
    bench.answer(state((1, 2), partition_epoch=1))
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2, 3])]]


def test_a_refused_replica_is_proposed_again_after_a_while_though_it_does_not_fetch() -> None:
    bench = InSyncKeeperBench((1,), lag_ms=60_000)
    bench.propose(2)
    bench.answer(KafkaError(ErrorCode.INELIGIBLE_REPLICA))
    bench.clock.advance(0)
    bench.answer(state((1,), partition_epoch=1))
    proposed_ms = []
    for _ in range(RECONSIDERED_AFTER_MS + 100):
        bench.clock.advance(1)
        if bench.controller.waiting:
            proposed_ms.append(bench.clock.monotonic_ms())
            bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))
    assert proposed_ms == [RECONSIDERED_AFTER_MS]


def test_a_leader_asks_the_controller_that_refuses_everything_no_more_often_than_followers_fetch() -> None:
    bench = InSyncKeeperBench((1,))
    visits = resting(bench, 2)
    commands = 0
    for now_ms in range(10 * LAG_MS):
        bench.clock.advance(1)
        visits.fetched(now_ms)
        if bench.controller.waiting:
            commands += 1
            bench.answer(KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED))
    most = 10 * LAG_MS // RECONSIDERED_AFTER_MS + 10 * LAG_MS // (LAG_MS // 2)  # the keeper's own looks
    assert 10 <= commands <= most + 2


def test_a_replica_that_has_everything_is_proposed_when_the_recovery_of_its_leader_is_over() -> None:
    bench = InSyncKeeperBench((1,))
    recovering = state((1,), partition_epoch=1, is_recovering=True)
    take_image(bench, recovering)
    bench.propose(2)
    assert bench.proposed == [[(0, [1])]]
    bench.answer(state((1,), partition_epoch=2))
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2])]]


def test_an_image_lets_the_in_sync_keeper_propose_no_unknown_partition() -> None:
    bench = InSyncKeeperBench((1,))
    unknown = TopicPartition("orders", 7)
    bench.keeper.on_image(bench.controller.image, ImageDelta(changed_partitions=((unknown, state((1,))),)))  # type: ignore[arg-type]
    bench.clock.advance(0)
    assert bench.proposed == []
