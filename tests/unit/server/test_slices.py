"""Long work in slices: the steps that fit into one, the others in later turns, and a step that fails."""

from collections import deque
from collections.abc import Iterator

import pytest

from tailrace.server.slices import SLICE_MS, drain, run_in_slices, run_slice
from tailrace.testing.clock import ManualClock


class Bench(ManualClock):
    """A clock that work moves: each step takes one millisecond."""

    spent_ms = 0
    done = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.spent_ms

    def steps(self, count: int) -> Iterator[None]:
        for number in range(count):
            self.step(number)
            yield

    def step(self, number: int) -> None:
        self.spent_ms += 1
        self.done += 1
        if number < 0:
            raise ValueError(number)


@pytest.mark.parametrize(("count", "done", "is_over"), [(0, 0, True), (4, 4, True), (5, 5, False), (50, 5, False)])
def test_a_slice_ends_with_its_time_or_with_the_steps(count: int, done: int, is_over: bool) -> None:
    bench = Bench()
    assert run_slice(bench.steps(count), bench) is is_over
    assert bench.done == done


def test_one_step_is_taken_however_short_the_slice_is() -> None:
    bench = Bench()
    assert not run_slice(bench.steps(3), bench, slice_ms=0)
    assert bench.done == 1


def test_steps_go_on_in_later_turns_until_they_end() -> None:
    bench = Bench()
    run_in_slices(bench.steps(2 * SLICE_MS + 1), bench)
    done = [bench.done]
    while bench.calls_pending:
        bench.advance(0)
        done.append(bench.done)
    assert done[0] == SLICE_MS
    assert done[-1] == 2 * SLICE_MS + 1


def test_works_of_several_take_turns() -> None:
    bench, order = Bench(), list[str]()

    def work(name: str) -> Iterator[None]:
        for number in range(SLICE_MS + 1):
            bench.step(number)
            order.append(name)
            yield

    run_in_slices(work("a"), bench)
    run_in_slices(work("b"), bench)
    bench.advance(0)
    assert "".join(order) == "a" * SLICE_MS + "b" * SLICE_MS + "ab"


def test_a_step_that_fails_does_not_hold_back_the_steps_behind_it() -> None:
    bench = Bench()
    with pytest.raises(ValueError, match="-1"):
        run_in_slices(map(bench.step, (0, -1, 2, 3)), bench)
    assert bench.done == 2
    bench.advance(0)
    assert (bench.done, bench.calls_pending) == (4, 0)


def test_a_queue_is_drained_of_what_comes_meanwhile_too() -> None:
    queue, seen = deque((1, 2)), list[int]()
    for number in drain(queue):
        seen.append(number)
        if number == 1:
            queue.append(3)
    assert (seen, len(queue)) == ([1, 2, 3], 0)
