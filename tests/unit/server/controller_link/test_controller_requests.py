"""Requests reach the active controller on any node, and end once."""

from collections.abc import Callable
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.server.controller_link.controller_requests import (
    APPLIED_MEANWHILE,
    ATTEMPT_MS,
    FIRST_BACKOFF_MS,
    LONGEST_BACKOFF_MS,
    ControllerRequests,
    OnOutcome,
    Outcome,
)
from tailrace.testing.clock import ManualClock
from testkit.nodes.ports import DeferredPeer

HERE = 1
NOT_ME = "not me"


class Quorum:
    """A node's view of the quorum, with the values that a test gives it."""

    def __init__(self) -> None:
        self.is_active = False
        self.leader_id = BrokerId(2)
        self.leader_epoch = 5
        self.applied_end_offset = 0
        self.applied = 0
        """The end offset up to which this node has also acted on the changes."""
        self.waiting: list[tuple[int, Callable[[], None]]] = []

    def when_applied(self, end_offset: int, callback: Callable[[], None]) -> None:
        if end_offset <= self.applied:
            callback()
        else:
            self.waiting.append((end_offset, callback))

    def apply(self, end_offset: int) -> None:
        self.applied = end_offset
        waiting, self.waiting = self.waiting, []
        for wanted, callback in waiting:
            self.when_applied(wanted, callback)


class ControllerRequest:
    """A request that keeps its outcomes."""

    oldest_version = 0

    def __init__(self, end_offset: int = 0, *, is_question: bool = False) -> None:
        self.is_question = is_question
        self.ends: list[Any] = []
        self.detail = ""
        self.here: list[OnOutcome] = []
        self._end_offset = end_offset

    def carry_out_here(self, on_outcome: OnOutcome) -> None:
        self.here.append(on_outcome)

    def message(self, leader_epoch: int) -> Any:
        return f"please, in epoch {leader_epoch}"

    def outcome(self, answer: Any) -> Outcome | None:
        return None if answer == NOT_ME else Outcome(self._end_offset, lambda: self.ends.append(answer))

    def fail(self, error: KafkaError) -> None:
        self.ends.append(error.code)
        self.detail = error.detail


class ControllerRequestsBench:
    def __init__(self, request: ControllerRequest | None = None, timeout_ms: int = 30_000) -> None:
        self.quorum = Quorum()
        self.peer = DeferredPeer()
        self.clock = ManualClock()
        self.requests = ControllerRequests(quorum=self.quorum, peer=self.peer, node_id=HERE, clock=self.clock)
        self.request = request or ControllerRequest()
        self._timeout_ms = timeout_ms

    def run(self) -> None:
        self.requests.run(self.request, self._timeout_ms)

    def reply(self, answer: Any) -> None:
        """To the last request."""
        self.peer.waiting[-1][2](answer)


@pytest.fixture
def bench() -> ControllerRequestsBench:
    return ControllerRequestsBench()


@pytest.mark.parametrize("is_question", [False, True])
@pytest.mark.parametrize(
    ("leader_id", "detail"),
    [
        (-1, "no active controller was known within 30000 ms; a majority"),
        (2, "controller 2 did not answer within 30000 ms; a majority"),
        (HERE, "controller 1, this node, did not become active within 30000 ms"),
    ],
)
def test_a_question_without_an_answer_has_done_nothing(leader_id: int, detail: str, is_question: bool) -> None:
    bench = ControllerRequestsBench(ControllerRequest(is_question=is_question))
    bench.quorum.leader_id = BrokerId(leader_id)
    bench.run()
    bench.clock.advance(30_000)
    assert bench.request.ends == [ErrorCode.REQUEST_TIMED_OUT]
    assert bench.request.detail.startswith(detail)
    assert ("may have been done" in bench.request.detail) is not is_question


def test_a_controller_request_asks_the_leaders_node_in_its_epoch(bench: ControllerRequestsBench) -> None:
    bench.run()
    ((node_id, request, _),) = bench.peer.waiting
    assert (node_id, request, bench.peer.timeout_ms) == (2, "please, in epoch 5", ATTEMPT_MS)
    bench.reply("done")
    assert bench.request.ends == ["done"]
    assert len(bench.requests) == 0


def test_with_the_controller_on_this_node_no_request_is_sent(bench: ControllerRequestsBench) -> None:
    bench.quorum.is_active = True
    bench.run()
    assert bench.peer.waiting == []
    bench.request.here[0](Outcome(0, lambda: bench.request.ends.append("done")))
    assert bench.request.ends == ["done"]


def test_a_controller_request_without_an_answer_or_a_leader_is_tried_again_with_longer_pauses(
    bench: ControllerRequestsBench,
) -> None:
    bench.quorum.leader_id = BrokerId(-1)
    bench.run()
    assert bench.peer.waiting == []
    bench.quorum.leader_id = BrokerId(2)
    pauses_ms = []
    for answer in (None, NOT_ME, None, NOT_ME, None, None):
        before = bench.clock.monotonic_ms()
        count = len(bench.peer.waiting)
        while len(bench.peer.waiting) == count:
            bench.clock.advance(1)
        pauses_ms.append(bench.clock.monotonic_ms() - before)
        bench.reply(answer)
    assert pauses_ms == [FIRST_BACKOFF_MS, 40, 80, 160, LONGEST_BACKOFF_MS, LONGEST_BACKOFF_MS]
    bench.clock.advance(LONGEST_BACKOFF_MS)
    bench.reply("done")
    assert bench.request.ends == ["done"]


def test_a_leader_that_is_here_and_not_active_yet_is_waited_for(bench: ControllerRequestsBench) -> None:
    bench.quorum.leader_id = BrokerId(HERE)
    bench.run()
    assert (bench.peer.waiting, bench.request.here) == ([], [])
    bench.quorum.is_active = True
    bench.clock.advance(FIRST_BACKOFF_MS)
    assert len(bench.request.here) == 1


def test_the_controller_moves_from_here_to_another_node(bench: ControllerRequestsBench) -> None:
    bench.quorum.is_active = True
    bench.run()
    bench.quorum.is_active = False
    bench.request.here[0](None)
    bench.clock.advance(FIRST_BACKOFF_MS)
    bench.reply("done")
    assert bench.request.ends == ["done"]


def test_the_controllers_answer_is_delivered_when_its_records_are_applied_here() -> None:
    bench = ControllerRequestsBench(ControllerRequest(end_offset=100))
    bench.run()
    bench.reply("done")
    bench.quorum.apply(99)
    assert bench.request.ends == []
    bench.quorum.apply(100)
    assert bench.request.ends == ["done"]


def test_the_controllers_answer_is_delivered_at_the_deadline_without_its_records() -> None:
    bench = ControllerRequestsBench(ControllerRequest(end_offset=100), timeout_ms=500)
    bench.run()
    bench.reply("done")
    bench.clock.advance(500)
    assert bench.request.ends == ["done"]
    bench.quorum.apply(100)
    assert bench.request.ends == ["done"]


def decided_here(bench: ControllerRequestsBench, applied_end_offset: int, acted_on: int = 99) -> None:
    """The controller on this node decides, and that is in the image."""
    bench.quorum.is_active = True
    bench.quorum.applied_end_offset, bench.quorum.applied = 99, acted_on
    bench.run()
    bench.quorum.applied_end_offset = applied_end_offset
    bench.request.here[0](Outcome(APPLIED_MEANWHILE, lambda: bench.request.ends.append("done")))


def test_a_decision_of_this_node_is_delivered_when_it_has_been_acted_on(bench: ControllerRequestsBench) -> None:
    decided_here(bench, applied_end_offset=102)
    bench.quorum.apply(101)
    assert bench.request.ends == []
    bench.quorum.apply(102)
    assert bench.request.ends == ["done"]


def test_a_decision_of_this_node_is_delivered_at_the_deadline_too() -> None:
    bench = ControllerRequestsBench(timeout_ms=500)
    decided_here(bench, applied_end_offset=102)
    bench.clock.advance(500)
    assert bench.request.ends == ["done"]
    bench.quorum.apply(102)
    assert bench.request.ends == ["done"]


def test_a_controller_requests_answer_of_this_node_that_changed_nothing_waits_for_nothing(
    bench: ControllerRequestsBench,
) -> None:
    decided_here(bench, applied_end_offset=99, acted_on=98)
    assert bench.request.ends == ["done"]


def test_a_controller_request_fails_after_its_time_and_later_answers_are_ignored() -> None:
    bench = ControllerRequestsBench(timeout_ms=500)
    bench.run()
    assert bench.peer.timeout_ms == 500
    bench.clock.advance(500)
    assert bench.request.ends == [ErrorCode.REQUEST_TIMED_OUT]
    bench.reply("done")
    assert bench.request.ends == [ErrorCode.REQUEST_TIMED_OUT]
    assert bench.clock.calls_pending == 0


def test_an_answer_to_an_earlier_attempt_of_a_controller_request_does_not_start_another(
    bench: ControllerRequestsBench,
) -> None:
    bench.run()
    bench.reply(None)
    bench.clock.advance(FIRST_BACKOFF_MS)
    bench.peer.waiting[0][2](NOT_ME)
    bench.clock.advance(10_000)
    assert len(bench.peer.waiting) == 2


def test_a_forgotten_request_has_no_outcome_and_is_not_tried_again(bench: ControllerRequestsBench) -> None:
    bench.run()
    bench.requests.forget(bench.request)
    bench.reply(None)
    bench.clock.advance(60_000)
    assert (bench.request.ends, len(bench.peer.waiting)) == ([], 1)
    bench.requests.forget(bench.request)  # twice is once


def test_the_stop_of_the_node_answers_controller_requests_with_an_unknown_outcome(
    bench: ControllerRequestsBench,
) -> None:
    bench.run()
    bench.requests.close()
    assert bench.request.ends == [ErrorCode.REQUEST_TIMED_OUT]
    assert len(bench.requests) == 0


def test_known_answers_are_delivered_when_the_node_stops(bench: ControllerRequestsBench) -> None:
    decided_here(bench, applied_end_offset=102)
    bench.requests.close()
    assert bench.request.ends == ["done"]
    bench.quorum.apply(102)
    assert bench.request.ends == ["done"]
