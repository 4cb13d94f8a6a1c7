"""Turns: work, then the write, then the answers."""

from collections.abc import Callable

import pytest

from tailrace.net.listener import RateLimitedLog
from tailrace.net.turns import Turns
from testkit.nodes.listeners import silent_turns


class TurnsBench:
    """A loop that runs nothing by itself, and a connection that notes when it is flushed."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.soon: list[Callable[[], None]] = []
        self.broken: list[BaseException] = []
        self.turns = silent_turns(call_soon=self.soon.append, on_broken_invariant=self.broken.append)
        self.turns.on_turn_end = lambda: self.events.append("write")

    def flush(self) -> None:
        self.events.append("flush")

    def work(self) -> None:
        self.events.append("work")
        self.turns.flush_at_end(self)


def test_answers_leave_after_the_write_that_they_report() -> None:
    bench = TurnsBench()
    bench.turns.run(bench.work)
    assert bench.events == ["work", "write", "flush"]


def test_an_answer_that_the_write_itself_causes_leaves_in_the_same_turn() -> None:
    bench = TurnsBench()
    bench.turns.on_turn_end = lambda: bench.turns.flush_at_end(bench)
    bench.turns.run(lambda: None)
    assert bench.events == ["flush"]
    assert bench.soon == []


def test_work_within_work_is_one_turn() -> None:
    bench = TurnsBench()
    bench.turns.run(lambda: bench.turns.run(bench.work))
    assert bench.events == ["work", "write", "flush"]


def test_answers_outside_a_turn_are_gathered_and_leave_soon() -> None:
    bench = TurnsBench()
    bench.turns.flush_at_end(bench)
    bench.turns.flush_at_end(bench)
    assert bench.events == []
    assert len(bench.soon) == 1
    bench.soon.pop()()
    assert bench.events == ["write", "flush", "flush"]


def test_work_that_fails_is_logged_and_the_turn_still_ends(caplog: pytest.LogCaptureFixture) -> None:
    bench = TurnsBench()

    def fail() -> None:
        bench.work()
        raise ZeroDivisionError

    bench.turns.run(fail)
    assert bench.events == ["work", "write", "flush"]
    assert "ZeroDivisionError" in caplog.text
    bench.turns.run(bench.work)
    assert bench.events[3:] == ["work", "write", "flush"]
    assert bench.broken == []


def test_a_failed_assertion_is_a_broken_invariant() -> None:
    bench = TurnsBench()

    def break_it() -> None:
        raise AssertionError("two leaders")

    bench.turns.run(break_it)
    assert [str(fault) for fault in bench.broken] == ["two leaders"]


def test_a_write_that_fails_is_a_broken_invariant() -> None:
    bench = TurnsBench()

    def fail() -> None:
        raise OSError("no such disk")

    bench.turns.on_turn_end = fail
    bench.turns.run(lambda: None)
    assert [str(fault) for fault in bench.broken] == ["no such disk"]


def test_a_long_turn_is_reported_with_its_write() -> None:
    now = 0.0
    stalls: list[tuple[object, float]] = []

    def work() -> None:
        nonlocal now
        now += 0.04

    turns = Turns(
        call_soon=lambda callback: None,
        on_broken_invariant=lambda error: pytest.fail(str(error)),
        on_stall=lambda what, seconds: stalls.append((what, seconds)),
        now=lambda: now,
    )
    turns.run(work)
    assert stalls == []
    turns.on_turn_end = work
    turns.run(work)
    assert stalls == [(work, pytest.approx(0.08))]


def test_clients_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    now_ms = [0]
    log = RateLimitedLog(logging.getLogger("test"), monotonic_ms=lambda: now_ms[0], lines=3, window_ms=1_000)

    def said() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "test"]

    for number in range(100):
        log.warning("line %d" % number)  # noqa: G002, UP031 - this log takes whole lines
    assert said() == ["line 0", "line 1", "line 2"]
    now_ms[0] = 1_000
    log.warning("next")
    assert said()[3:] == ["event=log-lines-left-out count=97", "next"]


class BrokenConnection:
    """A connection that cannot be written to."""

    def flush(self) -> None:
        raise RuntimeError("the handler is closed")


def test_a_connection_that_cannot_be_written_to_keeps_no_other_from_its_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = TurnsBench()

    def work() -> None:
        bench.turns.flush_at_end(BrokenConnection())
        bench.work()

    bench.turns.run(work)
    assert bench.events == ["work", "write", "flush"]
    assert "the handler is closed" in caplog.text
    bench.turns.run(bench.work)
    assert bench.events[3:] == ["work", "write", "flush"]
    assert bench.broken == []
