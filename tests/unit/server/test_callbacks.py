"""Callbacks: each of several is called although one fails; long work in slices; one timer, set again and again."""

import gc
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tailrace.server.callbacks import SLICE_MS, Alarm, Rotation, call_each, call_safely, drain, run_in_slices, run_slice
from tailrace.testing.clock import ManualClock
from testkit.nodes.clocks import BusyClock


def test_callbacks_are_all_called_and_the_first_fault_is_raised_then() -> None:
    quotients: list[int] = []
    with pytest.raises(ZeroDivisionError):
        call_each(lambda by: quotients.append(12 // by), (1, 0, 2))
    assert quotients == [12, 6]


def test_faults_behind_the_first_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="first"):
        call_each(fail, ("first", "second"))
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["second"]
    assert "event=callback-failed" in caplog.text


def test_a_broken_invariant_ends_it_at_once() -> None:
    checked: list[int] = []

    def check(number: int) -> None:
        assert number
        checked.append(number)

    with pytest.raises(AssertionError):
        call_each(check, (1, 0, 2))
    assert checked == [1]
    with pytest.raises(AssertionError):
        call_safely("check-failed", check, 0)


def test_a_safe_call_logs_its_fault(caplog: pytest.LogCaptureFixture) -> None:
    quotients: list[int] = []

    def divide(by: int) -> None:
        quotients.append(12 // by)

    call_safely("division-failed", divide, 0)
    call_safely("division-failed", divide, by=2)
    assert quotients == [6]
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().startswith("event=division-failed callback=<function ")


class SlicesBench:
    """Steps, each of which takes one millisecond."""

    def __init__(self) -> None:
        self.clock = BusyClock()
        self.done = 0

    def steps(self, count: int) -> Iterator[None]:
        for number in range(count):
            self.step(number)
            yield

    def step(self, number: int) -> None:
        self.clock.spend(1)
        self.done += 1
        if number < 0:
            raise ValueError(number)


@pytest.mark.parametrize(("count", "done", "is_over"), [(0, 0, True), (4, 4, True), (5, 5, False), (50, 5, False)])
def test_a_slice_ends_with_its_time_or_with_the_steps(count: int, done: int, is_over: bool) -> None:
    bench = SlicesBench()
    assert run_slice(bench.steps(count), bench.clock) is is_over
    assert bench.done == done


def test_a_slice_takes_a_step_however_short_it_is() -> None:
    bench = SlicesBench()
    assert not run_slice(bench.steps(3), bench.clock, slice_ms=0)
    assert bench.done == 1


def test_steps_go_on_in_later_turns_until_they_end() -> None:
    bench = SlicesBench()
    run_in_slices(bench.steps(2 * SLICE_MS + 1), bench.clock)
    done = [bench.done]
    while bench.clock.calls_pending:
        bench.clock.advance(0)
        done.append(bench.done)
    assert done[0] == SLICE_MS
    assert done[-1] == 2 * SLICE_MS + 1


def test_works_of_several_take_turns() -> None:
    bench, order = SlicesBench(), list[str]()

    def work(name: str) -> Iterator[None]:
        for number in range(SLICE_MS + 1):
            bench.step(number)
            order.append(name)
            yield

    run_in_slices(work("a"), bench.clock)
    run_in_slices(work("b"), bench.clock)
    bench.clock.advance(0)
    assert "".join(order) == "a" * SLICE_MS + "b" * SLICE_MS + "ab"


def test_a_step_that_fails_does_not_hold_back_the_steps_behind_it() -> None:
    bench = SlicesBench()
    with pytest.raises(ValueError, match="-1"):
        run_in_slices(map(bench.step, (0, -1, 2, 3)), bench.clock)
    assert bench.done == 2
    bench.clock.advance(0)
    assert (bench.done, bench.clock.calls_pending) == (4, 0)


def test_a_rotation_takes_a_step_of_each_in_turn() -> None:
    clock, left = ManualClock(), {"a": 2, "b": 1}
    steps: list[str] = []
    done: list[str] = []

    def step(name: str) -> bool:
        steps.append(name)
        left[name] -= 1
        return left[name] > 0

    rotation = Rotation(clock, step, done.append)
    for name in ("a", "b", "a"):
        rotation.add(name)
    assert "a" in rotation
    assert not steps
    clock.advance(0)
    assert (steps, done) == (["a", "b", "a"], ["b", "a"])
    assert "a" not in rotation


def test_a_rotation_goes_on_when_a_callback_has_failed() -> None:
    clock = ManualClock()
    done: list[str] = []

    def end(name: str) -> None:
        done.append(name)
        if name == "a":
            raise ValueError(name)

    rotation = Rotation(clock, lambda name: False, end)
    rotation.add("a")
    rotation.add("b")
    with pytest.raises(ValueError, match="a"):
        clock.advance(0)
    clock.advance(0)
    assert done == ["a", "b"]


def test_a_rotation_whose_next_turn_is_dropped_asks_for_no_other_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop that is closed drops the calls that wait, and takes no other."""
    bench, turns = SlicesBench(), list[Callable[[], None]]()
    monkeypatch.setattr(bench.clock, "call_soon", turns.append)

    def step(number: int) -> bool:
        bench.step(number)
        return True

    rotation = Rotation(bench.clock, step, lambda number: None)
    rotation.add(1)
    turns.pop()()
    assert (bench.done, len(turns)) == (SLICE_MS, 1)
    turns.clear()
    gc.collect()
    assert not turns


def test_a_queue_is_drained_of_what_comes_meanwhile_too() -> None:
    queue, seen = deque((1, 2)), list[int]()
    for number in drain(queue):
        seen.append(number)
        if number == 1:
            queue.append(3)
    assert (seen, len(queue)) == ([1, 2, 3], 0)


class Bedside:
    """An alarm, and when it has rung."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.rung: list[int] = []
        self.alarm = Alarm(self.clock, lambda: self.rung.append(self.clock.monotonic_ms()))
        self.start_ms = self.clock.monotonic_ms()

    def set(self, *after_ms: int) -> None:
        for milliseconds in after_ms:
            self.alarm.set(self.start_ms + milliseconds)

    def rung_after(self, milliseconds: int) -> list[int]:
        self.clock.advance(milliseconds)
        return [at_ms - self.start_ms for at_ms in self.rung]


def test_an_alarm_rings_once_and_for_the_earliest_time() -> None:
    bedside = Bedside()
    bedside.set(500, 200, 300)
    assert bedside.rung_after(1_000) == [200]


def test_an_alarm_can_be_set_again_when_it_has_rung() -> None:
    bedside = Bedside()
    bedside.set(200)
    assert bedside.rung_after(250) == [200]
    bedside.set(900)
    assert bedside.rung_after(750) == [200, 900]


def test_a_cancelled_alarm_does_not_ring_until_it_is_set_anew() -> None:
    bedside = Bedside()
    bedside.set(200)
    bedside.alarm.cancel()
    bedside.alarm.cancel()
    assert bedside.rung_after(300) == []
    bedside.set(400)
    assert bedside.rung_after(700) == [400]
