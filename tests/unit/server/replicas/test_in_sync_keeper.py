import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tailrace.metadata.commands import InSyncOutcome, PartitionsAltered
from tailrace.metadata.image import ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import FollowerFetch, SessionVisits
from tailrace.server.replicas.in_sync_keeper import RECONSIDERED_AFTER_MS, InSyncKeeper
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.clocks import TickingClock
from testkit.nodes.data_path import BROKER, DataPath, topic_id_of
from testkit.nodes.ports import DeferredController, broker_images

TOPIC_ID = topic_id_of("orders")
LAG_MS = 1_000


def state(
    in_sync: Sequence[int],
    *,
    partition_epoch: int = 0,
    is_recovering: bool = False,
    replicas: Sequence[int] = (1, 2, 3),
) -> PartitionState:
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=tuple(map(BrokerId, replicas)),
        in_sync_replicas=tuple(map(BrokerId, in_sync)),
        leader=BROKER,
        leader_epoch=LeaderEpoch(4),
        partition_epoch=partition_epoch,
        is_recovering=is_recovering,
    )


class InSyncKeeperBench:
    """Broker 1, which leads some partitions of one topic."""

    def __init__(self, *in_sync: Sequence[int], clock: ManualClock | None = None, lag_ms: int = LAG_MS) -> None:
        self.clock = clock or ManualClock()
        self.node = DataPath("/logs", files=SimulatedDisk(), clock=self.clock)
        self.controller = DeferredController(ClusterImage(brokers=broker_images()))
        self.keeper = InSyncKeeper(
            broker_id=BROKER,
            partitions=self.node.table,
            controller=self.controller,
            clock=self.clock,
            replica_lag_time_max_ms=lag_ms,
        )
        self.partitions = [
            self.node.create("orders", partition=number, leader_epoch=4, in_sync=members, replicas=(1, 2, 3))
            for number, members in enumerate(in_sync)
        ]
        for partition in self.partitions:
            partition.replica.context = replace(partition.replica.context, lag_ms=lag_ms)
        self.keeper.start()

    def fetch(self, partition: Partition, replica: int, offset: int = 0) -> None:
        if partition.in_sync.take_fetch(BrokerId(replica), FollowerFetch(offset, 0, 10 + replica, may_join=True)):
            self.keeper.consider(partition)

    @property
    def proposed(self) -> list[list[tuple[int, list[int]]]]:
        """(partition, members) of each command that waits."""
        return [
            [(change.partition, [member.broker_id for member in change.in_sync_replicas]) for change in command.changes]
            for command, _ in self.controller.waiting
        ]

    def answer(self, *results: PartitionState | KafkaError, refusal: KafkaError | None = None) -> None:
        command, on_done = self.controller.waiting.pop(0)
        on_done(
            refusal
            or PartitionsAltered(
                outcomes=tuple(
                    InSyncOutcome(topic_id=TOPIC_ID, partition=change.partition, result=result)
                    for change, result in zip(command.changes, results, strict=True)
                )
            )
        )


def test_all_proposals_of_a_turn_are_one_command() -> None:
    bench = InSyncKeeperBench((1,), (1, 3), (1, 2, 3))
    for partition in bench.partitions:
        bench.fetch(partition, 2)
    assert bench.proposed == []
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2]), (1, [1, 2, 3])]]
    ((command, _),) = bench.controller.waiting
    assert command.broker_epoch == 11
    members = command.changes[0].in_sync_replicas
    assert [(member.broker_id, member.broker_epoch) for member in members] == [(1, 11), (2, 12)]
    assert (command.changes[0].leader_epoch, command.changes[0].partition_epoch) == (4, 0)


def test_one_command_is_under_way_at_a_time() -> None:
    bench = InSyncKeeperBench((1,), (1,))
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(0)
    bench.fetch(bench.partitions[1], 2)
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2])]]
    bench.answer(state((1, 2), partition_epoch=1))
    bench.clock.advance(0)
    assert bench.proposed == [[(1, [1, 2])]]
    assert bench.partitions[0].state == state((1, 2), partition_epoch=1)
    assert (bench.keeper.expansions, bench.keeper.shrinks) == (1, 0)


def test_a_replica_that_lags_for_too_long_is_proposed_to_leave() -> None:
    bench = InSyncKeeperBench((1, 2, 3))
    (partition,) = bench.partitions
    bench.node.produce("orders", b"a", acks=1)
    bench.clock.advance(LAG_MS)
    assert bench.proposed == []
    bench.fetch(partition, 2, offset=1)
    bench.clock.advance(LAG_MS // 2)
    assert bench.proposed == [[(0, [1, 2])]]
    bench.answer(state((1, 2), partition_epoch=1))
    assert bench.keeper.shrinks == 1
    assert partition.high_watermark == 0, "broker 3 counts until the image says that it has left"
    bench.node.table.update(TopicPartition("orders", 0), state((1, 2), partition_epoch=1), TopicConfig())
    assert partition.high_watermark == 1


def test_a_proposal_with_an_unknown_outcome_is_made_again() -> None:
    bench = InSyncKeeperBench((1,))
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(0)
    bench.answer(refusal=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers"))
    assert bench.proposed == []
    bench.clock.advance(50)
    assert bench.proposed == [[(0, [1, 2])]]
    bench.answer(state((1, 2), partition_epoch=1))
    bench.clock.advance(50)
    assert bench.proposed == []


def test_a_proposal_that_the_image_has_is_not_made_again() -> None:
    bench = InSyncKeeperBench((1,))
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(0)
    bench.answer(refusal=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers"))
    bench.node.table.update(TopicPartition("orders", 0), state((1, 2), partition_epoch=1), TopicConfig())
    bench.clock.advance(50)
    assert bench.proposed == []


def test_a_refusal_of_one_partition_leaves_the_others_alone() -> None:
    bench = InSyncKeeperBench((1,), (1,))
    for partition in bench.partitions:
        bench.fetch(partition, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INELIGIBLE_REPLICA), state((1, 2), partition_epoch=1))
    assert [partition.state == state((1, 2), partition_epoch=1) for partition in bench.partitions] == [False, True]
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1])]], "so that no late copy of the proposal can be carried out"
    bench.answer(state((1,), partition_epoch=1))
    bench.clock.advance(50)
    assert bench.proposed == []
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2])]]


def test_the_high_watermark_waits_for_a_refused_replica_for_one_more_answer_and_no_longer() -> None:
    bench = InSyncKeeperBench((1,))
    (partition,) = bench.partitions
    bench.fetch(partition, 2)
    bench.clock.advance(0)
    bench.node.produce("orders", b"a", acks=1)
    bench.answer(KafkaError(ErrorCode.INELIGIBLE_REPLICA))
    partition.in_sync.exclude([BrokerId(2)])
    assert partition.high_watermark == 0, "a late copy of the proposal may still be carried out"
    bench.clock.advance(0)
    bench.answer(state((1,), partition_epoch=1))
    assert partition.high_watermark == 1


@pytest.mark.parametrize("replicas", [(1, 2, 3), (1,)], ids=["with others", "alone"])
def test_a_leader_that_was_elected_without_being_complete_says_that_it_has_recovered(replicas: Sequence[int]) -> None:
    bench = InSyncKeeperBench((1,))
    recovering = state((1,), partition_epoch=1, is_recovering=True, replicas=replicas)
    bench.node.table.update(TopicPartition("orders", 0), recovering, TopicConfig())
    topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions={0: recovering})
    bench.keeper.load(replace(bench.controller.image, topics={"orders": topic}))
    bench.clock.advance(0)
    ((command, _),) = bench.controller.waiting
    assert not command.changes[0].is_recovering
    assert bench.proposed == [[(0, [1])]]


def test_no_request_waits_for_a_fenced_broker() -> None:
    bench = InSyncKeeperBench((1,))
    (partition,) = bench.partitions
    bench.fetch(partition, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INELIGIBLE_REPLICA))
    bench.clock.advance(0)
    bench.answer(state((1,), partition_epoch=1))
    bench.node.produce("orders", b"a", acks=1)
    assert partition.high_watermark == 0
    fenced = replace(bench.controller.image.brokers[BrokerId(2)], fenced=True)
    image = replace(bench.controller.image, brokers={BrokerId(2): fenced})
    bench.keeper.on_image(image, ImageDelta(changed_brokers=(BrokerId(2),)))
    assert partition.high_watermark == 1


def test_a_partition_that_is_gone_proposes_nothing() -> None:
    bench = InSyncKeeperBench((1,))
    bench.fetch(bench.partitions[0], 2)
    bench.node.table.delete("orders", 0)
    bench.clock.advance(0)
    assert bench.proposed == []


def test_after_the_stop_nothing_is_proposed() -> None:
    bench = InSyncKeeperBench((1,))
    bench.keeper.stop()
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(10 * LAG_MS)
    assert bench.proposed == []


def test_of_many_partitions_whose_followers_lag_a_few_are_looked_at_in_a_turn_and_none_is_forgotten() -> None:
    bench = InSyncKeeperBench(*[(1, 2, 3)] * 30, clock=TickingClock())
    bench.clock.advance(3 * LAG_MS)
    seen: list[int] = []
    while bench.controller.waiting:
        (command,) = bench.proposed
        assert len(command) <= 5
        seen += [number for number, _ in command]
        bench.answer(*(state((1,), partition_epoch=1) for _ in command))
        bench.clock.advance(LAG_MS // 4)
    assert sorted(seen) == list(range(30))


def test_many_partitions_learn_in_several_turns_that_a_broker_is_gone_unless_it_is_back() -> None:
    bench = InSyncKeeperBench(*[(1,)] * 30, clock=TickingClock())
    for partition in bench.partitions:
        bench.fetch(partition, 2)

    def waiting_for_2() -> int:
        return sum(partition.in_sync.leadership.replicas[BrokerId(2)].may_join for partition in bench.partitions)  # type: ignore[union-attr]

    there = bench.controller.image
    gone = replace(there, brokers={BrokerId(1): there.brokers[BrokerId(1)]})
    bench.keeper.on_image(gone, ImageDelta(changed_brokers=(BrokerId(2),)))
    assert 20 < waiting_for_2() < 30
    bench.clock.advance(200)
    assert waiting_for_2() == 0
    for partition in bench.partitions:
        bench.fetch(partition, 2)
    bench.keeper.on_image(gone, ImageDelta(changed_brokers=(BrokerId(2),)))
    bench.keeper.on_image(there, ImageDelta(changed_brokers=(BrokerId(2),)))
    bench.clock.advance(200)
    assert waiting_for_2() > 20


def test_the_leaders_own_log_leaves_changes_to_the_controllers(caplog: pytest.LogCaptureFixture) -> None:
    """The controller's log names the state before, too; the leader could only log a count of answers."""
    caplog.set_level(logging.INFO, logger="tailrace.server")
    bench = InSyncKeeperBench((1,))
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(0)
    ((command, answer),) = bench.controller.waiting
    answer(KafkaError(ErrorCode.NOT_CONTROLLER, "moved"))
    assert command.changes
    assert not [record for record in caplog.records if record.name == "tailrace.server"]


# Followers that rest in their sessions


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


def test_followers_that_were_idle_for_an_hour_stay_in_sync_at_the_next_write() -> None:
    bench = InSyncKeeperBench((1, 2, 3))
    sessions = resting(bench, 2), resting(bench, 3)
    fetch_on(bench, 3_600_000, *sessions)
    bench.node.produce("orders", b"a", acks=1)
    bench.clock.advance(LAG_MS // 2)  # the keeper has looked at the partition, and no follower has fetched since
    assert bench.proposed == []


def test_a_follower_whose_session_fetches_no_more_leaves_in_time() -> None:
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
    (partition,) = bench.partitions
    visits = resting(bench, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))
    partition.in_sync.exclude([BrokerId(2)])
    fetch_on(bench, 10 * LAG_MS, visits)
    assert bench.proposed == []
    assert not partition.in_sync.rest(BrokerId(2), visits)
    bench.fetch(partition, 2)
    bench.clock.advance(0)
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


# A high watermark that a joining replica holds back


def refuse(bench: InSyncKeeperBench, for_ms: int) -> None:
    """Let this time pass; the controller refuses each proposal at once."""
    for _ in range(for_ms):
        bench.clock.advance(1)
        if bench.controller.waiting:
            bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))


def held_back(bench: InSyncKeeperBench) -> Partition:
    """A replica that keeps up and is not in sync, since the controller refuses it, lacks the last record."""
    (partition,) = bench.partitions
    bench.fetch(partition, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INVALID_REQUEST))
    bench.node.produce("orders", b"a", acks=1)
    assert (partition.high_watermark, partition.log.log_end_offset) == (0, 1)
    return partition


def test_a_high_watermark_goes_on_when_the_time_of_a_joining_replica_is_over_though_no_follower_fetches() -> None:
    bench = InSyncKeeperBench((1,))
    partition = held_back(bench)
    refuse(bench, LAG_MS)
    assert partition.high_watermark == 0
    bench.clock.advance(1)
    assert partition.high_watermark == 1


def test_a_joining_replica_that_fetches_again_holds_the_high_watermark_back_for_longer() -> None:
    bench = InSyncKeeperBench((1,))
    partition = held_back(bench)
    refuse(bench, LAG_MS // 2)
    bench.fetch(partition, 2, offset=1)
    assert partition.high_watermark == 1
    bench.node.produce("orders", b"b", acks=1)
    refuse(bench, LAG_MS // 2 + 1)
    assert (partition.high_watermark, partition.log.log_end_offset) == (1, 2)
    refuse(bench, LAG_MS)
    assert partition.high_watermark == 2


def test_no_timer_runs_for_a_high_watermark_that_no_joining_replica_holds_back() -> None:
    bench = InSyncKeeperBench((1, 2))
    (partition,) = bench.partitions
    before = bench.clock.calls_pending
    for number in range(3):
        bench.node.produce("orders", b"a", acks=1)
        bench.fetch(partition, 2, offset=number + 1)
        bench.fetch(partition, 3, offset=0)  # never caught up
    bench.node.produce("orders", b"a", acks=1)
    assert (partition.high_watermark, partition.log.log_end_offset) == (3, 4)
    assert bench.clock.calls_pending == before


# Replicas that may join though no follower fetches


def take_image(bench: InSyncKeeperBench, changed: PartitionState) -> None:
    """The metadata has a changed state of the first partition."""
    name = TopicPartition("orders", 0)
    bench.node.table.update(name, changed, TopicConfig())
    bench.keeper.on_image(bench.controller.image, ImageDelta(changed_partitions=((name, changed),)))  # type: ignore[arg-type]
    bench.clock.advance(0)


def test_a_replica_that_could_join_while_a_proposal_was_pending_is_proposed_when_the_image_has_its_outcome() -> None:
    bench = InSyncKeeperBench((1,))
    (partition,) = bench.partitions
    bench.fetch(partition, 2)
    bench.clock.advance(0)
    bench.answer(KafkaError(ErrorCode.INVALID_UPDATE_VERSION))  # a later state will come
    bench.fetch(partition, 3)
    bench.clock.advance(0)
    assert bench.proposed == [], "the outcome of the proposal is not known"
    take_image(bench, state((1, 2), partition_epoch=1))
    assert bench.proposed == [[(0, [1, 2, 3])]]


def test_a_replica_that_could_join_while_a_proposal_was_pending_is_proposed_after_the_answer() -> None:
    bench = InSyncKeeperBench((1,))
    (partition,) = bench.partitions
    bench.fetch(partition, 2)
    bench.clock.advance(0)
    bench.answer(refusal=KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answers"))
    bench.fetch(partition, 3)
    bench.clock.advance(0)
    bench.clock.advance(50)
    assert bench.proposed == [[(0, [1, 2])]], "the same again"
    bench.answer(state((1, 2), partition_epoch=1))
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2, 3])]]


def test_a_refused_replica_is_proposed_again_after_a_while_though_it_does_not_fetch() -> None:
    bench = InSyncKeeperBench((1,), lag_ms=60_000)
    bench.fetch(bench.partitions[0], 2)
    bench.clock.advance(0)
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
    (partition,) = bench.partitions
    recovering = state((1,), partition_epoch=1, is_recovering=True)
    take_image(bench, recovering)
    bench.fetch(partition, 2)
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1])]]
    bench.answer(state((1,), partition_epoch=2))
    bench.clock.advance(0)
    assert bench.proposed == [[(0, [1, 2])]]


def test_an_image_wakes_no_partition_for_its_followers() -> None:
    bench = InSyncKeeperBench((1,))
    unknown = TopicPartition("orders", 7)
    bench.keeper.on_image(bench.controller.image, ImageDelta(changed_partitions=((unknown, state((1,))),)))  # type: ignore[arg-type]
    bench.clock.advance(0)
    assert bench.proposed == []
