from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tailrace.metadata.commands import InSyncOutcome, LeaveReason, PartitionsAltered
from tailrace.metadata.image import ALL_BROKERS, ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.server.replicas.failures import MOST_PER_COMMAND, UNANSWERED_MS, ReplicaFailures
from tailrace.testing.clock import ManualClock
from testkit.nodes.data_path import BROKER, topic_id_of
from testkit.nodes.ports import DeferredController, broker_images

TOPIC_ID = topic_id_of("orders")


def state(
    in_sync: Sequence[int], *, leader: int = 1, eligible: Sequence[int] = (), last_known: Sequence[int] = ()
) -> PartitionState:
    return PartitionState(
        topic_id=TOPIC_ID,
        replicas=(BrokerId(1), BrokerId(2), BrokerId(3)),
        in_sync_replicas=tuple(map(BrokerId, in_sync)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(4),
        partition_epoch=7,
        eligible_leader_replicas=tuple(map(BrokerId, eligible)),
        last_known_leaders=tuple(map(BrokerId, last_known)),
    )


class FailuresBench:
    def __init__(self, *states: PartitionState) -> None:
        self.clock = ManualClock()
        topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions=dict(enumerate(states)))
        self.controller = DeferredController(
            ClusterImage(
                topics={"orders": topic},
                topic_names={TOPIC_ID: "orders"},
                brokers=broker_images(),
                configs={ALL_BROKERS: {"min.insync.replicas": "2"}},
            )
        )
        self.decisions: list[tuple[str, int]] = []
        """The decisions that each replica received, by its number, in order."""
        self.failures = ReplicaFailures(
            broker_id=BROKER,
            controller=self.controller,
            clock=self.clock,
            on_leaving=self._note("leaving"),
            on_left=self._note("left"),
            on_staying=self._note("staying"),
        )
        self.failures.start()
        self.reported: list[bool] = []

    def _note(self, what: str) -> Callable[[TopicPartition, PartitionState], None]:
        return lambda topic_partition, state: self.decisions.append((what, topic_partition.partition))

    def new_decisions(self) -> list[tuple[str, int]]:
        """The decisions that replicas received since the last call."""
        self.clock.advance(0)
        decisions, self.decisions[:] = list(self.decisions), []
        return decisions

    @property
    def proposals(self) -> list[list[tuple[int, LeaveReason | None, int]]]:
        """(partition, kind, partition epoch) of each command that waits."""
        self.clock.advance(0)
        return [
            [(change.partition, change.leaving, change.partition_epoch) for change in command.changes]
            for command, _ in self.controller.waiting
        ]

    def answer(self, *results: PartitionState | KafkaError, refusal: KafkaError | None = None) -> None:
        command, on_done = self.controller.waiting.pop(0)
        pairs = zip(command.changes, results, strict=True) if refusal is None else ()
        outcomes = tuple(
            InSyncOutcome(topic_id=TOPIC_ID, partition=change.partition, result=result) for change, result in pairs
        )
        on_done(refusal or PartitionsAltered(outcomes=outcomes))

    def take(self, number: int, changed: PartitionState | None) -> None:
        """The image says something else of one partition; None: its topic is deleted."""
        image = self.controller.image
        topic = image.topics["orders"]
        if changed is None:
            self.controller.image = replace(image, topics={}, topic_names={})
            delta = ImageDelta(deleted_topics=(topic,))
        else:
            partitions = {**topic.partitions, number: changed}
            self.controller.image = replace(image, topics={"orders": replace(topic, partitions=partitions)})
            delta = ImageDelta(changed_partitions=((TopicPartition("orders", number), changed),))  # type: ignore[arg-type]
        self.failures.on_image(self.controller.image, delta)

    def fence(self, number: int, *, fenced: bool = True) -> None:
        image = self.controller.image
        broker = replace(image.brokers[BrokerId(number)], fenced=fenced)
        self.controller.image = replace(image, brokers={**image.brokers, BrokerId(number): broker})
        self.failures.on_image(self.controller.image, ImageDelta(changed_brokers=(BrokerId(number),)))

    def when_reported(self) -> None:
        self.failures.when_reported(lambda: self.reported.append(True))


def orders(number: int = 0) -> TopicPartition:
    return TopicPartition("orders", number)


def after(before: PartitionState, *in_sync: int, leader: int) -> PartitionState:
    members = tuple(map(BrokerId, in_sync))
    return replace(
        before,
        in_sync_replicas=members,
        leader=BrokerId(leader),
        eligible_leader_replicas=(),
        last_known_leaders=(),
        partition_epoch=before.partition_epoch + 1,
    )


def refusal(code: ErrorCode) -> KafkaError:
    return KafkaError(code, "not now")


def test_all_failures_of_a_turn_are_one_command() -> None:
    bench = FailuresBench(state((1, 2)), state((2, 1), leader=2), state((2,), leader=2, eligible=(1,)))
    bench.failures.lost(orders(0))
    bench.failures.stalled(orders(1))
    bench.failures.lost(orders(2))
    assert bench.proposals == [[(0, LeaveReason.LOST, 7), (1, LeaveReason.STALLED, 7), (2, LeaveReason.LOST, 7)]]
    ((command, _),) = bench.controller.waiting
    assert (command.broker_id, command.broker_epoch) == (1, 11)
    assert {(change.leader_epoch, change.in_sync_replicas) for change in command.changes} == {(4, ())}


def test_no_proposal_is_made_for_a_replica_that_the_image_does_not_count_on() -> None:
    bench = FailuresBench(
        state((), leader=-1), state((2,), leader=2, eligible=(1,)), state((), leader=-1, last_known=(1,))
    )
    bench.failures.lost(orders(0))
    bench.failures.stalled(orders(1))
    assert bench.proposals == [], "an eligible replica that is stalled still has everything"
    bench.failures.lost(orders(2))
    assert bench.proposals == [[(2, LeaveReason.LOST, 7)]], "a last known leader is elected without being asked"


def test_a_lost_replica_that_nothing_counts_on_says_so_once() -> None:
    """The partition's leader may still count on records that were fetched before, and begins a new epoch."""
    before = state((2, 3), leader=2)
    bench = FailuresBench(before)
    bench.failures.lost(orders(0))
    assert bench.proposals == [[(0, LeaveReason.LOST, 7)]]
    changed = replace(before, leader_epoch=LeaderEpoch(before.leader_epoch + 1), partition_epoch=8)
    bench.answer(changed)
    bench.take(0, changed)
    assert bench.proposals == []


def test_a_waiting_callback_runs_when_the_image_agrees() -> None:
    first = state((1, 2))
    bench = FailuresBench(first)
    bench.when_reported()
    assert bench.reported == [True], "nothing has failed"
    bench.failures.lost(orders())
    bench.when_reported()
    assert bench.proposals
    left = after(first, 2, leader=2)
    bench.answer(left)
    assert (bench.proposals, bench.reported) == ([], [True]), "the controller has said so, the image has not"
    bench.take(0, left)
    assert (bench.proposals, bench.reported) == ([], [True, True])


def test_a_stalled_replica_does_not_hold_up_others() -> None:
    bench = FailuresBench(state((1, 2)))
    bench.failures.stalled(orders())
    bench.when_reported()
    assert bench.reported == [True]


def test_nothing_is_asked_or_told_before_the_start() -> None:
    bench = FailuresBench(state((1, 2)))
    early = ReplicaFailures(
        broker_id=BROKER,
        controller=bench.controller,
        clock=bench.clock,
        on_leaving=bench._note("leaving"),
        on_left=bench._note("left"),
        on_staying=bench._note("staying"),
    )
    early.lost(orders())
    early.when_reported(lambda: bench.reported.append(True))
    assert (bench.proposals, bench.reported) == ([], [])
    early.start()
    assert bench.proposals == [[(0, LeaveReason.LOST, 7)]]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_CONTROLLER]
)
def test_after_a_refusal_the_proposal_is_repeated_with_the_new_state(code: ErrorCode) -> None:
    bench = FailuresBench(state((1, 2)))
    bench.failures.lost(orders())
    assert bench.proposals
    bench.answer(refusal(code))
    bench.take(0, replace(state((1, 2)), partition_epoch=8))
    bench.clock.advance(50)
    assert bench.proposals == [[(0, LeaveReason.LOST, 8)]]


def test_a_command_that_came_to_nothing_is_sent_again() -> None:
    bench = FailuresBench(state((1, 2)), state((1, 2)))
    bench.failures.lost(orders(0))
    bench.failures.lost(orders(1))
    assert bench.proposals
    bench.answer(refusal=refusal(ErrorCode.REQUEST_TIMED_OUT))
    assert bench.proposals == []
    bench.clock.advance(50)
    assert bench.proposals == [[(0, LeaveReason.LOST, 7), (1, LeaveReason.LOST, 7)]]


def test_one_command_is_under_way_at_a_time_and_none_is_too_large() -> None:
    bench = FailuresBench(*[state((1, 2))] * (MOST_PER_COMMAND + 1))
    for number in range(MOST_PER_COMMAND + 1):
        bench.failures.lost(orders(number))
    assert [len(proposal) for proposal in bench.proposals] == [MOST_PER_COMMAND]
    bench.answer(*[after(state((1, 2)), 2, leader=2)] * MOST_PER_COMMAND)
    assert bench.proposals == [[(MOST_PER_COMMAND, LeaveReason.LOST, 7)]]


def test_a_replica_that_is_counted_on_again_is_taken_out_again() -> None:
    first = state((1, 2))
    bench = FailuresBench(first)
    bench.failures.lost(orders())
    assert bench.proposals
    bench.answer(after(first, 2, leader=2))
    bench.take(0, after(first, 2, leader=2))
    assert bench.proposals == []
    elected = replace(first, leader=BROKER, in_sync_replicas=(BROKER,), partition_epoch=9)
    bench.take(0, elected)
    assert bench.proposals == [[(0, LeaveReason.LOST, 9)]]


def test_a_replica_that_has_recovered_may_be_counted_on() -> None:
    first = state((1, 2))
    bench = FailuresBench(first)
    bench.failures.lost(orders())
    assert bench.proposals
    bench.answer(after(first, 2, leader=2))
    bench.failures.recovered(orders())
    bench.take(0, replace(first, partition_epoch=9))
    assert (bench.proposals, bench.failures.is_lost(orders())) == ([], False)


def test_the_last_copy_that_is_stalled_asks_again_when_brokers_come_and_now_and_then() -> None:
    bench = FailuresBench(state((1,)))
    bench.failures.stalled(orders())
    assert bench.proposals
    bench.answer(refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE))
    bench.clock.advance(900)
    assert bench.proposals == []
    bench.fence(2, fenced=False)
    assert bench.proposals == [[(0, LeaveReason.STALLED, 7)]]
    bench.answer(refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE))
    assert bench.proposals == []
    bench.clock.advance(1_000)
    assert bench.proposals == [[(0, LeaveReason.STALLED, 7)]]


def test_a_stalled_directory_gives_up_all_that_it_has_and_what_it_gets_meanwhile() -> None:
    bench = FailuresBench(state((1, 2, 3)), state((2, 3), leader=2), state((2, 1, 3), leader=2))
    bench.failures.directory_stalled()
    assert bench.proposals == [[(0, LeaveReason.STALLED, 7), (2, LeaveReason.STALLED, 7)]]
    bench.answer(after(state((1, 2, 3)), 2, 3, leader=2), after(state((2, 1, 3)), 2, 3, leader=2))
    assert bench.proposals == []
    bench.take(1, replace(state((1, 2, 3), leader=2), partition_epoch=8))
    assert bench.proposals == [[(1, LeaveReason.STALLED, 8)]]
    bench.answer(after(state((1, 2, 3)), 2, 3, leader=2))
    bench.failures.directory_recovered()
    bench.take(0, replace(state((1, 2, 3)), partition_epoch=9))
    assert bench.proposals == []


def test_a_directory_that_stalls_leaves_enough_in_sync() -> None:
    """Nodes of a test may share one disk: the last two must not both leave."""
    bench = FailuresBench(state((1, 2, 3)), state((1, 2)))
    bench.failures.directory_stalled()
    assert bench.proposals == [[(0, LeaveReason.STALLED, 7)]]
    bench.answer(after(state((1, 2, 3)), 2, 3, leader=2))
    assert bench.proposals == []
    bench.take(1, replace(state((1, 2, 3)), partition_epoch=8))
    assert bench.proposals == [[(1, LeaveReason.STALLED, 8)]], "a third replica is in sync now"
    bench.answer(refusal(ErrorCode.INVALID_UPDATE_VERSION))
    bench.take(1, replace(state((1, 2)), partition_epoch=9))
    bench.clock.advance(50)
    assert bench.proposals == []
    bench.failures.stalled(orders(1))
    assert bench.proposals == [[(1, LeaveReason.STALLED, 9)]], "its own log fails: others can store"
    bench.failures.resumed(orders(1))
    bench.failures.directory_recovered()
    assert bench.failures.leaving_of(orders(1)) is None


def test_a_lost_replica_that_can_store_is_still_lost() -> None:
    bench = FailuresBench(state((1, 2)))
    bench.failures.lost(orders())
    bench.failures.resumed(orders())
    assert bench.proposals == [[(0, LeaveReason.LOST, 7)]]


def test_a_replica_that_has_left_is_reported_before_the_image_has_it() -> None:
    bench = FailuresBench(state((1, 2)))
    left: list[tuple[TopicPartition, PartitionState]] = []
    failures = ReplicaFailures(
        broker_id=BROKER,
        controller=bench.controller,
        clock=bench.clock,
        on_leaving=bench._note("leaving"),
        on_left=lambda topic_partition, state: left.append((topic_partition, state)),
        on_staying=bench._note("staying"),
    )
    failures.start()
    failures.stalled(orders())
    assert bench.proposals
    then = after(state((1, 2)), 2, leader=2)
    bench.answer(then)
    assert left == [(orders(), then)]


def test_a_lost_replica_is_lost_also_on_a_stalled_directory() -> None:
    bench = FailuresBench(state((1, 2, 3)))
    bench.failures.lost(orders())
    bench.failures.stalled(orders())
    bench.failures.directory_stalled()
    assert bench.proposals == [[(0, LeaveReason.LOST, 7)]]


def test_a_deleted_topic_has_no_failed_replicas() -> None:
    bench = FailuresBench(state((1, 2)))
    bench.failures.lost(orders())
    bench.when_reported()
    bench.take(0, None)
    assert (bench.proposals, bench.reported, bench.failures.leaving_of(orders())) == ([], [True], None)


def test_after_the_stop_nothing_is_asked() -> None:
    bench = FailuresBench(state((1, 2)))
    bench.failures.lost(orders())
    bench.when_reported()
    assert bench.proposals
    bench.failures.stop()
    bench.answer(refusal=refusal(ErrorCode.REQUEST_TIMED_OUT))
    bench.clock.advance(10_000)
    assert (bench.proposals, bench.reported) == ([], [])


def named(before: PartitionState) -> PartitionState:
    """An administrator has chosen this broker with the records that it has left."""
    return replace(
        after(before, 1, leader=1),
        leader_epoch=LeaderEpoch(before.leader_epoch + 1),
        is_recovering=True,
        accepts_loss=True,
    )


def test_a_lost_replica_that_was_named_to_lead_stays_until_its_log_cannot_be_cut() -> None:
    leaderless = state((), leader=-1)
    bench = FailuresBench(leaderless)
    bench.failures.lost(orders())
    assert bench.proposals == []
    chosen = named(leaderless)
    bench.take(0, chosen)
    assert bench.proposals == []
    bench.failures.given_up(orders())
    assert bench.proposals == [[(0, LeaveReason.LOST, chosen.partition_epoch)]]
    left = after(chosen, leader=-1)
    bench.answer(left)
    bench.take(0, left)
    bench.take(0, named(left))
    assert bench.proposals == [], "it was named again, and is given another try"


def test_a_lost_replica_that_is_elected_otherwise_leaves_again() -> None:
    leaderless = state((), leader=-1)
    bench = FailuresBench(leaderless)
    bench.failures.lost(orders())
    elected = replace(named(leaderless), accepts_loss=False)
    bench.take(0, elected)
    assert bench.proposals == [[(0, LeaveReason.LOST, elected.partition_epoch)]]


def stalled_bench(*states: PartitionState) -> FailuresBench:
    bench = FailuresBench(*states)
    bench.failures.directory_stalled()
    return bench


def test_a_stalled_replica_is_notified_that_it_leaves_before_the_controller_is_asked() -> None:
    bench = FailuresBench(state((1, 2, 3), leader=2))
    asked_before: list[int] = []
    decisions = bench.decisions
    submit = bench.controller.submit

    def note(command: Any, on_done: Callable[[Any], None]) -> None:
        asked_before.append(len(decisions))
        submit(command, on_done)

    bench.controller.submit = note  # type: ignore[method-assign]
    bench.failures.directory_stalled()
    assert bench.proposals == [[(0, LeaveReason.STALLED, 7)]]
    assert (asked_before, bench.new_decisions()) == ([1], [("leaving", 0)])
    bench.answer(after(state((1, 2, 3), leader=2), 2, 3, leader=2))
    assert bench.new_decisions() == [("left", 0)]


def test_a_lost_replica_is_not_told_that_it_leaves() -> None:
    """The partition's leader begins a new epoch, and refuses whatever the replica fetches."""
    bench = FailuresBench(state((1, 2)))
    bench.failures.lost(orders())
    assert bench.proposals
    assert bench.new_decisions() == []


def test_a_replica_that_must_stay_is_notified_at_once() -> None:
    bench = stalled_bench(state((1, 2, 3), leader=2), state((1, 2), leader=2))
    assert bench.new_decisions() == [("leaving", 0)], "without the other fewer than wanted would be in sync"
    bench.answer(refusal(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE))
    assert bench.new_decisions() == [("staying", 0)]


@pytest.mark.parametrize("code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH])
def test_while_the_controller_knows_a_later_state_a_replica_is_not_told_that_it_stays(code: ErrorCode) -> None:
    """In that state it may have left: the answer that said so was lost."""
    bench = stalled_bench(state((1, 2, 3), leader=2))
    assert bench.new_decisions() == [("leaving", 0)]
    for _ in range(2):
        bench.clock.advance(UNANSWERED_MS - 100)
        bench.answer(refusal(code))
        bench.clock.advance(50)
        assert len(bench.proposals) == 1
        assert ("staying", 0) not in bench.new_decisions()
    bench.answer(refusal(code))
    bench.take(0, replace(state((1, 2), leader=2), partition_epoch=8))
    assert bench.new_decisions()[-1] == ("staying", 0), "in the later state it must stay"


def test_a_replica_whose_controller_does_not_answer_stays_until_one_decides() -> None:
    first = state((1, 2, 3), leader=2)
    bench = stalled_bench(first)
    assert bench.new_decisions() == [("leaving", 0)]
    bench.clock.advance(UNANSWERED_MS - 1)
    assert bench.new_decisions() == []
    bench.clock.advance(1)
    assert bench.new_decisions() == [("staying", 0)]
    bench.answer(refusal=refusal(ErrorCode.REQUEST_TIMED_OUT))
    bench.clock.advance(50)
    assert len(bench.proposals) == 1
    assert bench.new_decisions() == [], "it is asked for again, and goes on"
    bench.answer(refusal(ErrorCode.INVALID_UPDATE_VERSION))
    bench.clock.advance(50)
    assert bench.new_decisions() == [("leaving", 0)], "a controller decides"
    bench.answer(after(first, 2, 3, leader=2))
    bench.clock.advance(UNANSWERED_MS)
    assert bench.new_decisions() == [("left", 0)]


def test_a_replica_whose_controller_knows_no_leaving_stays() -> None:
    """A controller of an earlier release."""
    bench = stalled_bench(state((1, 2, 3), leader=2))
    bench.new_decisions()
    for _ in range(3):
        bench.answer(refusal(ErrorCode.INVALID_REQUEST))
        bench.clock.advance(50)
        assert len(bench.proposals) == 1
    assert bench.new_decisions() == [("staying", 0)]


def test_no_replica_of_a_directory_that_recovers_is_notified_that_it_stays() -> None:
    """Every replica of the directory is fetched again by then."""
    bench = stalled_bench(state((1, 2, 3), leader=2))
    bench.new_decisions()
    bench.failures.directory_recovered()
    bench.clock.advance(UNANSWERED_MS)
    assert bench.new_decisions() == []
    bench.failures.directory_stalled()
    bench.answer(refusal(ErrorCode.INVALID_UPDATE_VERSION))
    bench.clock.advance(50)
    assert bench.new_decisions() == [("leaving", 0)]


def make_again(bench: FailuresBench, made: PartitionState, *, is_heard_at_once: bool = False) -> None:
    """Delete the topic and make it again under its name, with one partition, as the image tells of it."""
    old = bench.controller.image.topics["orders"]
    topic = TopicImage(name="orders", topic_id=made.topic_id, partitions={0: made})
    if not is_heard_at_once:
        bench.take(0, None)
    bench.controller.image = replace(
        bench.controller.image, topics={"orders": topic}, topic_names={made.topic_id: "orders"}
    )
    deleted = (old,) if is_heard_at_once else ()
    bench.failures.on_image(bench.controller.image, ImageDelta(deleted_topics=deleted, created_topics=(topic,)))


def anew(made: PartitionState) -> PartitionState:
    """The first state of a topic that was made again."""
    return replace(made, topic_id=topic_id_of("another"), partition_epoch=0, leader_epoch=LeaderEpoch(0))


@pytest.mark.parametrize("is_heard_at_once", [True, False])
def test_of_a_topic_that_was_made_again_a_stalled_replica_leaves_too(is_heard_at_once: bool) -> None:
    first = state((1, 2, 3))
    bench = stalled_bench(first)
    assert bench.proposals
    left = after(first, 2, 3, leader=2)
    bench.answer(left)
    bench.take(0, left)
    make_again(bench, anew(first), is_heard_at_once=is_heard_at_once)
    assert bench.proposals == [[(0, LeaveReason.STALLED, 0)]], "its partition epochs are others"


def test_an_answer_for_a_topic_that_was_made_again_meanwhile_says_nothing_of_the_new_one() -> None:
    first = state((1, 2, 3))
    bench = stalled_bench(first)
    assert bench.proposals
    make_again(bench, anew(first))
    bench.answer(after(first, 2, 3, leader=2))
    assert bench.proposals == [[(0, LeaveReason.STALLED, 0)]]


def test_a_replica_of_a_topic_that_was_made_again_is_given_another_try() -> None:
    leaderless = state((), leader=-1)
    bench = FailuresBench(leaderless)
    bench.failures.lost(orders())
    bench.take(0, named(leaderless))
    bench.failures.given_up(orders())
    make_again(bench, anew(leaderless))
    bench.controller.waiting.clear()
    bench.failures.lost(orders())
    bench.take(0, named(anew(leaderless)))
    assert bench.proposals == []


def test_an_answer_for_a_deleted_topic_leaves_a_lost_replica_of_its_successor_unreported() -> None:
    first = state((2, 3), leader=2)
    bench = FailuresBench(first)
    bench.failures.lost(orders())
    assert bench.proposals
    make_again(bench, anew(first))
    bench.failures.lost(orders())
    bench.answer(after(first, 2, 3, leader=2))
    assert bench.proposals == [[(0, LeaveReason.LOST, 0)]], "the new leader may count on records fetched by this one"


def test_a_replica_that_stays_leaves_when_fewer_have_to_be_in_sync() -> None:
    bench = stalled_bench(state((1, 2), leader=2))
    assert bench.proposals == []
    lowered = {ALL_BROKERS: {"min.insync.replicas": "1"}}
    bench.controller.image = replace(bench.controller.image, configs=lowered)
    bench.failures.on_image(bench.controller.image, ImageDelta(changed_configs=(ALL_BROKERS,)))
    assert bench.proposals == [[(0, LeaveReason.STALLED, 7)]]
