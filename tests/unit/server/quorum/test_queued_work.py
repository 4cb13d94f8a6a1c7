"""Long work goes a step per turn, in order, and short work at once."""

from collections import deque
from collections.abc import Callable

import pytest

from tailrace.metadata.derive import Steps
from tailrace.server.quorum.queued_work import StepwiseWork


class Loop:
    """Turns that are taken by hand."""

    def __init__(self, *works: tuple[str, int]) -> None:
        self.works = deque(works)
        self.told: list[str] = []
        self.turns: deque[Callable[[], None]] = deque()
        self.work = StepwiseWork(
            self._next,
            later=self.turns.append,
            on_idle=lambda: self.told.append("idle"),
            on_long_work=lambda has_begun: self.told.append("long" if has_begun else "over"),
        )

    def _next(self) -> Steps[None] | None:
        return self._steps(*self.works.popleft()) if self.works else None

    def _steps(self, name: str, pauses: int) -> Steps[None]:
        for number in range(pauses):
            self.told.append(f"{name}{number}")
            yield
        if pauses < 0:
            raise AssertionError(name)
        self.told.append(name)

    def turn(self) -> None:
        self.turns.popleft()()


def test_what_needs_no_pause_is_done_at_once() -> None:
    loop = Loop(("a", 0), ("b", 0))
    loop.work.advance()
    assert loop.told == ["a", "b", "idle"]
    assert not loop.turns


def test_what_pauses_goes_on_in_a_later_turn_and_the_next_waits_for_it() -> None:
    loop = Loop(("a", 2), ("b", 0))
    loop.work.advance()
    assert loop.told == ["a0", "long"]
    assert loop.work.is_under_way
    loop.work.advance()
    loop.turn()
    assert loop.told == ["a0", "long", "a1"]
    loop.turn()
    assert loop.told == ["a0", "long", "a1", "a", "over", "b", "idle"]
    assert not loop.turns


def test_what_is_dropped_is_not_gone_on_with() -> None:
    loop = Loop(("a", 2), ("b", 0))
    loop.work.advance()
    loop.work.drop()
    assert loop.told == ["a0", "long", "over"]
    loop.turn()
    assert loop.told == ["a0", "long", "over", "b", "idle"]


def test_a_fault_comes_out_and_the_next_work_can_be_done() -> None:
    loop = Loop(("a", -1), ("b", 0))
    with pytest.raises(AssertionError, match="a"):
        loop.work.advance()
    loop.work.advance()
    assert loop.told == ["b", "idle"]
