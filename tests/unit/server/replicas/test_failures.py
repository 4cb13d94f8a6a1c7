from dataclasses import replace

import pytest

from tailrace.metadata.commands import LeaveReason
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.server.replicas.failures import MOST_PER_COMMAND
from testkit.nodes.data_path import BROKER
from unit.server.replicas.failures_bench import (
    FailuresBench,
    after,
    leaderless_bench,
    lost_bench,
    named,
    orders,
    refusal,
    stalled_bench,
    state,
)


def test_all_replica_failures_of_a_turn_are_one_command() -> None:
    bench = FailuresBench(state((1, 2)), state((2, 1), leader=2), state((2,), leader=2, eligible=(1,)))
    bench.failures.lost(orders(0))
    bench.failures.stalled(orders(1))
    bench.failures.lost(orders(2))
    assert bench.proposals == [[(0, LeaveReason.LOST, 7), (1, LeaveReason.STALLED, 7), (2, LeaveReason.LOST, 7)]]
    ((command, _),) = bench.controller.waiting
    assert (command.broker_id, command.broker_epoch) == (1, 11)
    assert {(change.leader_epoch, change.in_sync_replicas) for change in command.changes} == {(4, ())}


def test_a_failed_replica_that_the_image_does_not_count_on_is_not_proposed() -> None:
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


def test_a_callback_of_replica_failures_runs_when_the_image_agrees() -> None:
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


def test_replica_failures_ask_and_report_nothing_before_their_start() -> None:
    bench = FailuresBench(state((1, 2)))
    early = bench.new_failures()
    early.lost(orders())
    early.when_reported(lambda: bench.reported.append(True))
    assert (bench.proposals, bench.reported) == ([], [])
    early.start()
    assert bench.proposals == [[(0, LeaveReason.LOST, 7)]]


@pytest.mark.parametrize(
    "code", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_CONTROLLER]
)
def test_a_refused_replica_failure_is_proposed_again_with_the_new_state(code: ErrorCode) -> None:
    bench = lost_bench(state((1, 2)))
    bench.answer(refusal(code))
    bench.take(0, replace(state((1, 2)), partition_epoch=8))
    bench.clock.advance(50)
    assert bench.proposals == [[(0, LeaveReason.LOST, 8)]]


def test_a_command_of_replica_failures_without_an_outcome_is_sent_again() -> None:
    bench = FailuresBench(state((1, 2)), state((1, 2)))
    bench.failures.lost(orders(0))
    bench.failures.lost(orders(1))
    assert bench.proposals
    bench.answer(refusal=refusal(ErrorCode.REQUEST_TIMED_OUT))
    assert bench.proposals == []
    bench.clock.advance(50)
    assert bench.proposals == [[(0, LeaveReason.LOST, 7), (1, LeaveReason.LOST, 7)]]


def test_one_command_of_replica_failures_is_under_way_at_a_time_and_none_is_too_large() -> None:
    bench = FailuresBench(*[state((1, 2))] * (MOST_PER_COMMAND + 1))
    for number in range(MOST_PER_COMMAND + 1):
        bench.failures.lost(orders(number))
    assert [len(proposal) for proposal in bench.proposals] == [MOST_PER_COMMAND]
    bench.answer(*[after(state((1, 2)), 2, leader=2)] * MOST_PER_COMMAND)
    assert bench.proposals == [[(MOST_PER_COMMAND, LeaveReason.LOST, 7)]]


def test_a_lost_replica_that_is_counted_on_again_is_taken_out_again() -> None:
    bench = lost_bench(first := state((1, 2)))
    bench.leave(after(first, 2, leader=2))
    assert bench.proposals == []
    elected = replace(first, leader=BROKER, in_sync_replicas=(BROKER,), partition_epoch=9)
    bench.take(0, elected)
    assert bench.proposals == [[(0, LeaveReason.LOST, 9)]]


def test_a_lost_replica_that_has_recovered_may_be_counted_on() -> None:
    bench = lost_bench(first := state((1, 2)))
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
    bench = stalled_bench(state((1, 2, 3)), state((2, 3), leader=2), state((2, 1, 3), leader=2))
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
    bench = stalled_bench(state((1, 2, 3)), state((1, 2)))
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


def test_a_stalled_replica_that_has_left_is_reported_before_the_image_has_it() -> None:
    bench = FailuresBench(state((1, 2)))
    left: list[tuple[TopicPartition, PartitionState]] = []
    failures = bench.new_failures(on_left=lambda topic_partition, state: left.append((topic_partition, state)))
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


def test_stopped_replica_failures_ask_nothing() -> None:
    bench = FailuresBench(state((1, 2)))
    bench.failures.lost(orders())
    bench.when_reported()
    assert bench.proposals
    bench.failures.stop()
    bench.answer(refusal=refusal(ErrorCode.REQUEST_TIMED_OUT))
    bench.clock.advance(10_000)
    assert (bench.proposals, bench.reported) == ([], [])


def test_a_lost_replica_that_was_named_to_lead_stays_until_its_log_cannot_be_cut() -> None:
    bench, leaderless = leaderless_bench()
    assert bench.proposals == []
    chosen = named(leaderless)
    bench.take(0, chosen)
    assert bench.proposals == []
    bench.failures.given_up(orders())
    assert bench.proposals == [[(0, LeaveReason.LOST, chosen.partition_epoch)]]
    left = after(chosen, leader=-1)
    bench.leave(left)
    bench.take(0, named(left))
    assert bench.proposals == [], "it was named again, and is given another try"


def test_a_lost_replica_that_is_elected_otherwise_leaves_again() -> None:
    bench, leaderless = leaderless_bench()
    elected = replace(named(leaderless), accepts_loss=False)
    bench.take(0, elected)
    assert bench.proposals == [[(0, LeaveReason.LOST, elected.partition_epoch)]]
