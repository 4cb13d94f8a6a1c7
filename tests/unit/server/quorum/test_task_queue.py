"""Tasks, one after the other."""

import pytest

from tailrace.server.quorum.queued_work import TaskQueue
from tailrace.testing.clock import ManualClock


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
