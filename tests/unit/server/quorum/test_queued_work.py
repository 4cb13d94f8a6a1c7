"""Long work goes a step per turn, short work is done at once, and tasks run one after the other."""

from collections import deque
from collections.abc import Callable

import pytest

from tailrace.metadata.derive import Steps
from tailrace.server.quorum.queued_work import StepwiseWork, TaskQueue
from tailrace.testing.clock import ManualClock


class QueuedWorkBench:
    """Turns that are taken by hand."""

    def __init__(self, *works: tuple[str, int]) -> None:
        self.works = deque(works)
        self.runs: list[str] = []
        self.turns: deque[Callable[[], None]] = deque()
        self.clock = ManualClock()
        self.step_ms = 0
        self.work = StepwiseWork(
            self._next,
            later=self.turns.append,
            clock=self.clock,
            on_idle=lambda: self.runs.append("idle"),
            on_long_work=lambda has_begun: self.runs.append("long" if has_begun else "over"),
        )

    def _next(self) -> Steps[None] | None:
        return self._steps(*self.works.popleft()) if self.works else None

    def _steps(self, name: str, pauses: int) -> Steps[None]:
        for number in range(pauses):
            self.runs.append(f"{name}{number}")
            yield
        self.clock.advance(self.step_ms)
        if pauses < 0:
            raise AssertionError(name)
        self.runs.append(name)

    def turn(self) -> None:
        self.turns.popleft()()


def test_work_without_a_pause_is_done_at_once() -> None:
    bench = QueuedWorkBench(("a", 0), ("b", 0))
    bench.work.advance()
    assert bench.runs == ["a", "b", "idle"]
    assert not bench.turns


def test_a_queue_of_short_works_takes_slices_of_turns() -> None:
    bench = QueuedWorkBench(*((name, 0) for name in "abcde"))
    bench.step_ms = 3
    bench.work.advance()
    assert bench.runs == ["a", "b"]
    bench.turn()
    assert bench.runs == ["a", "b", "c", "d"]
    bench.turn()
    assert bench.runs == ["a", "b", "c", "d", "e", "idle"]
    assert not bench.turns


def test_work_that_pauses_continues_in_a_later_turn_before_the_next_work() -> None:
    bench = QueuedWorkBench(("a", 2), ("b", 0))
    bench.work.advance()
    assert bench.runs == ["a0", "long"]
    assert bench.work.is_under_way
    bench.work.advance()
    bench.turn()
    assert bench.runs == ["a0", "long", "a1"]
    bench.turn()
    assert bench.runs == ["a0", "long", "a1", "a", "over", "b", "idle"]
    assert not bench.turns


def test_dropped_work_is_not_continued() -> None:
    bench = QueuedWorkBench(("a", 2), ("b", 0))
    bench.work.advance()
    bench.work.drop()
    assert bench.runs == ["a0", "long", "over"]
    bench.turn()
    assert bench.runs == ["a0", "long", "over", "b", "idle"]


def test_a_fault_is_raised_and_the_next_work_can_be_done() -> None:
    bench = QueuedWorkBench(("a", -1), ("b", 0))
    with pytest.raises(AssertionError, match="a"):
        bench.work.advance()
    bench.work.advance()
    assert bench.runs == ["b", "idle"]


class Workshop:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.done: list[str] = []
        self.queue = TaskQueue(self.clock, on_idle=lambda: self.done.append("idle"))

    def do(self, name: str) -> None:
        self.queue.perform(lambda: self.done.append(name))


def test_a_task_is_done_at_once_and_what_it_asks_for_behind_it() -> None:
    shop = Workshop()

    def task() -> None:
        shop.do("second")
        shop.do("third")
        shop.done.append("first")

    shop.queue.perform(task)
    assert shop.done == ["first", "second", "third", "idle"]


def test_a_task_that_fails_does_not_hold_back_the_next() -> None:
    shop = Workshop()

    def task() -> None:
        shop.do("next")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        shop.queue.perform(task)
    assert shop.done == []
    shop.clock.advance(1)
    assert shop.done == ["next", "idle"]


def test_when_it_is_closed_nothing_is_done_any_more() -> None:
    shop = Workshop()

    def task() -> None:
        shop.do("waits")
        shop.queue.close()

    shop.queue.perform(task)
    shop.do("late")
    assert shop.done == ["idle"]
    assert shop.queue.is_closed
