"""Replicas that leave a bad disk: the decisions that each replica receives, and topics that are made again."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tailrace.metadata.commands import LeaveReason
from tailrace.metadata.image import ALL_BROKERS, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import PartitionState
from tailrace.server.replicas.failures import UNANSWERED_MS
from testkit.nodes.data_path import topic_id_of
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
    bench = lost_bench(state((1, 2)))
    assert bench.new_decisions() == []


def test_a_stalled_replica_that_must_stay_is_notified_at_once() -> None:
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
    bench = stalled_bench(first := state((1, 2, 3), leader=2))
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
    bench = stalled_bench(first := state((1, 2, 3)))
    assert bench.proposals
    left = after(first, 2, 3, leader=2)
    bench.leave(left)
    make_again(bench, anew(first), is_heard_at_once=is_heard_at_once)
    assert bench.proposals == [[(0, LeaveReason.STALLED, 0)]], "its partition epochs are others"


def test_an_answer_for_a_topic_that_was_made_again_meanwhile_says_nothing_of_the_new_one() -> None:
    bench = stalled_bench(first := state((1, 2, 3)))
    assert bench.proposals
    make_again(bench, anew(first))
    bench.answer(after(first, 2, 3, leader=2))
    assert bench.proposals == [[(0, LeaveReason.STALLED, 0)]]


def test_a_replica_of_a_topic_that_was_made_again_is_given_another_try() -> None:
    bench, leaderless = leaderless_bench()
    bench.take(0, named(leaderless))
    bench.failures.given_up(orders())
    make_again(bench, anew(leaderless))
    bench.controller.waiting.clear()
    bench.failures.lost(orders())
    bench.take(0, named(anew(leaderless)))
    assert bench.proposals == []


def test_an_answer_for_a_deleted_topic_leaves_a_lost_replica_of_its_successor_unreported() -> None:
    bench = lost_bench(first := state((2, 3), leader=2))
    make_again(bench, anew(first))
    bench.failures.lost(orders())
    bench.answer(after(first, 2, 3, leader=2))
    assert bench.proposals == [[(0, LeaveReason.LOST, 0)]], "the new leader may count on records fetched by this one"


def test_a_stalled_replica_that_stays_leaves_when_fewer_have_to_be_in_sync() -> None:
    bench = stalled_bench(state((1, 2), leader=2))
    assert bench.proposals == []
    lowered = {ALL_BROKERS: {"min.insync.replicas": "1"}}
    bench.controller.image = replace(bench.controller.image, configs=lowered)
    bench.failures.on_image(bench.controller.image, ImageDelta(changed_configs=(ALL_BROKERS,)))
    assert bench.proposals == [[(0, LeaveReason.STALLED, 7)]]
