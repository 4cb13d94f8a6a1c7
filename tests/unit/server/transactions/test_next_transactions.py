"""Requests that wait for the end of a transaction, by themselves; with a coordinator see test_service."""

from collections.abc import Iterator
from itertools import count

import pytest

from tailrace.coordinators.transactions.commands import AddPartitions, Completed, Response
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.server.transactions import next_transactions
from tailrace.server.transactions.next_transactions import (
    WAIT_MS,
    NextTransactions,
    OnDone,
    QueuedRequest,
    WaitingRequests,
)
from tailrace.server.waiters import Deadlines
from tailrace.testing.clock import ManualClock
from testkit.nodes.ports import RecordingConnection

BUSY = KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)


def command(epoch: int, name: str = "pay") -> AddPartitions:
    return AddPartitions(transactional_id=name, producer_id=7, producer_epoch=epoch, partitions=frozenset())


class NextTransactionsBench:
    """A coordinator that decides as a test says; commands are known by their epochs."""

    def __init__(self, requests: WaitingRequests | None = None) -> None:
        self.clock = ManualClock()
        self.connection = RecordingConnection()
        self.changing = {"pay"}
        self.writing: dict[int, OnDone] = {}
        self.answers: dict[int, Response | KafkaError] = {}
        self.deadlines = Deadlines(self.clock)
        self.waiting = NextTransactions(
            submit=self.submit,
            is_changing=self.changing.__contains__,
            clock=self.clock,
            deadlines=self.deadlines,
            waiting_requests=requests or WaitingRequests(),
        )

    def submit(self, command: AddPartitions, on_done: OnDone) -> None:
        if command.transactional_id in self.changing:
            on_done(BUSY)
            return
        self.changing.add(command.transactional_id)
        self.writing[command.producer_epoch] = on_done

    def add(self, *epochs: int, size: int = 1) -> None:
        for epoch in epochs:
            self.waiting.add(
                command(epoch),
                lambda outcome, epoch=epoch: self.answers.update({epoch: outcome}),  # type: ignore[misc]
                QueuedRequest(self.connection, size),
            )

    def end(self) -> None:
        """Commit the transaction that was under way."""
        self.changing.discard("pay")
        self.waiting.ended("pay")
        self.clock.advance(0)

    def written(self, outcome: Response | KafkaError) -> None:
        """Complete the command whose record is being written, with this outcome."""
        self.changing.discard("pay")
        ((_, on_done),) = self.writing.items()
        self.writing.clear()
        on_done(outcome)
        self.clock.advance(0)


@pytest.fixture
def bench() -> Iterator[NextTransactionsBench]:
    bench = NextTransactionsBench()
    yield bench
    assert "pay" not in bench.waiting
    assert len(bench.deadlines) == 0


def test_each_request_for_the_next_transaction_has_its_turn(bench: NextTransactionsBench) -> None:
    bench.add(1, 2)
    assert "pay" in bench.waiting
    bench.end()
    assert list(bench.writing) == [1]
    bench.written(Completed())
    assert list(bench.writing) == [2]
    bench.written(Completed())
    assert bench.answers == {1: Completed(), 2: Completed()}


def test_a_write_that_fails_does_not_hold_up_the_next(bench: NextTransactionsBench) -> None:
    bench.add(1, 2)
    bench.end()
    failure = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    bench.written(failure)
    bench.written(Completed())
    assert bench.answers == {1: failure, 2: Completed()}


def test_a_late_request_for_the_next_transaction_may_still_be_in_time(bench: NextTransactionsBench) -> None:
    """The transaction's end was not reported: the records on their way were dropped."""
    bench.add(1)
    bench.changing.clear()
    bench.clock.advance(WAIT_MS)
    bench.written(Completed())
    assert bench.answers == {1: Completed()}


def test_requests_that_wait_for_the_transaction_before_are_answered_after_the_timeout(
    bench: NextTransactionsBench,
) -> None:
    bench.add(1)
    bench.clock.advance(WAIT_MS - 1)
    bench.add(2)
    bench.clock.advance(1)
    assert bench.answers == {1: BUSY}
    bench.clock.advance(WAIT_MS)
    assert bench.answers == {1: BUSY, 2: BUSY}


def test_requests_for_the_next_transaction_are_answered_when_the_coordinator_closes(
    bench: NextTransactionsBench,
) -> None:
    bench.add(1, 2)
    bench.waiting.close(BUSY)
    assert bench.answers == {1: BUSY, 2: BUSY}


def test_coordinators_of_a_node_share_the_limits_of_waiting_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_transactions, "MAX_PARTITIONS", 10)
    requests = WaitingRequests()
    first, second = NextTransactionsBench(requests), NextTransactionsBench(requests)
    first.add(1, size=6)
    second.add(1, size=5)
    assert (first.answers, second.answers) == ({}, {1: BUSY})
    first.end()
    second.add(2, size=5)
    assert second.answers == {1: BUSY}, "another request may wait again"


@pytest.mark.parametrize("end", ["written", "expired", "closed", "gone"])
def test_a_request_for_the_next_transaction_no_longer_counts_however_its_wait_ends(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """However often that happens, the connection keeps one callback only."""
    monkeypatch.setattr(next_transactions, "MAX_WAITING", 1)
    monkeypatch.setattr(next_transactions, "MAX_PARTITIONS", 1)
    requests, connection, numbers = WaitingRequests(), RecordingConnection(), count()
    for _ in range(3):
        bench = NextTransactionsBench(requests)
        bench.connection = connection
        number = next(numbers)
        bench.add(number)
        assert "pay" in bench.waiting
        if end == "written":
            bench.end()
            bench.written(Completed())
        elif end == "expired":
            bench.clock.advance(WAIT_MS)
        elif end == "closed":
            bench.waiting.close(BUSY)
        else:
            connection.hang_up()
            connection = RecordingConnection()
        assert bench.answers == {"written": {number: Completed()}, "gone": {}}.get(end, {number: BUSY})
        assert "pay" not in bench.waiting
        assert len(bench.deadlines) == 0
    assert connection.callbacks == (0 if end == "gone" else 1)
