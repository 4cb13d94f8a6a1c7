"""Deadlines of waiters: their order, their cost, and waiters that fail."""

import tracemalloc

import pytest

from tailrace.server.waiters import Deadlines
from tailrace.testing.clock import ManualClock


class Waiter:
    def __init__(self, expired: list["Waiter"]) -> None:
        self._expired = expired

    def expire(self) -> None:
        self._expired.append(self)


def test_waiters_expire_in_the_order_of_their_deadlines_and_not_before() -> None:
    clock, expired = ManualClock(), list[Waiter]()
    deadlines = Deadlines(clock)
    first, second, third = Waiter(expired), Waiter(expired), Waiter(expired)
    deadlines.add(third, 500)
    deadlines.add(first, 100)
    clock.advance(50)
    deadlines.add(second, 100)
    clock.advance(49)
    assert expired == []
    clock.advance(1)
    assert expired == [first]
    clock.advance(50)
    assert expired == [first, second]
    clock.advance(1000)
    assert expired == [first, second, third]
    assert len(deadlines) == 0


def test_a_removed_waiter_does_not_expire_and_leaves_nothing_behind() -> None:
    clock, expired = ManualClock(), list[Waiter]()
    deadlines = Deadlines(clock)
    for timeout_ms in range(1, 1000):
        waiter = Waiter(expired)
        deadlines.add(waiter, timeout_ms)
        deadlines.remove(waiter, timeout_ms)
    assert len(deadlines) == 0
    clock.advance(5000)
    assert expired == []
    assert clock.calls_pending == 0


def test_timeouts_without_a_waiter_take_no_memory() -> None:
    """A client chooses its timeouts: thousands of different ones leave nothing behind, before any timer has run."""
    deadlines = Deadlines(ManualClock())
    tracemalloc.start()
    try:
        for timeout_ms in range(60_000, 65_000):
            waiter = Waiter([])
            deadlines.add(waiter, timeout_ms)
            deadlines.remove(waiter, timeout_ms)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def test_ten_thousand_waiters_need_one_timer() -> None:
    clock, expired = ManualClock(), list[Waiter]()
    deadlines = Deadlines(clock)
    for _ in range(10_000):
        deadlines.add(Waiter(expired), 500)
    assert clock.calls_pending == 1
    clock.advance(500)
    assert len(expired) == 10_000


class ComparedTime(int):
    """A time that counts how often times are compared with it."""

    comparisons = 0

    def __add__(self, other: int) -> "ComparedTime":
        return ComparedTime(int(self) + other)

    def __lt__(self, other: int) -> bool:
        ComparedTime.comparisons += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        ComparedTime.comparisons += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        ComparedTime.comparisons += 1
        return int(self) > int(other)


class ComparedClock(ManualClock):
    def monotonic_ms(self) -> int:
        return ComparedTime(super().monotonic_ms())


def test_a_timer_costs_what_is_due_however_many_timeouts_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client chooses its timeouts: a look at each of them at each timer would take the time of their square."""
    monkeypatch.setattr(ComparedTime, "comparisons", 0)
    clock, expired, timeouts = ComparedClock(), list[Waiter](), range(1, 1001)
    deadlines = Deadlines(clock)
    waiters = [Waiter(expired) for _ in timeouts]
    for waiter, timeout_ms in zip(waiters, timeouts, strict=True):
        deadlines.add(waiter, timeout_ms)
    clock.advance(1000)
    assert expired == waiters
    assert ComparedTime.comparisons < 100 * len(timeouts)


def test_a_timer_passes_over_the_timeouts_whose_waiters_are_gone() -> None:
    timers, expired = list[int](), list[Waiter]()
    clock = ManualClock(on_turn_end=lambda: timers.append(clock.monotonic_ms()))
    deadlines = Deadlines(clock)
    waiters = [Waiter(expired) for _ in range(100)]
    for timeout_ms, waiter in enumerate(waiters, 1):
        deadlines.add(waiter, timeout_ms)
    for timeout_ms, waiter in enumerate(waiters[:90], 1):
        deadlines.remove(waiter, timeout_ms)
    clock.advance(90)
    assert (timers, expired, len(deadlines)) == ([1], [], 10)
    clock.advance(10)
    assert expired == waiters[90:]
    assert timers == [1, *range(91, 101)]
    assert clock.calls_pending == 0


def test_a_timeout_is_used_again_after_its_waiters_have_gone() -> None:
    clock, expired = ManualClock(), list[Waiter]()
    deadlines = Deadlines(clock)
    gone, late, later = Waiter(expired), Waiter(expired), Waiter(expired)
    deadlines.add(gone, 100)
    deadlines.remove(gone, 100)
    clock.advance(50)
    deadlines.add(late, 100)
    clock.advance(75)
    deadlines.add(later, 100)
    clock.advance(24)
    assert expired == []
    clock.advance(1)
    assert expired == [late]
    clock.advance(75)
    assert expired == [late, later]
    assert clock.calls_pending == 0


def test_a_waiter_that_fails_keeps_no_other_from_its_end() -> None:
    clock, expired = ManualClock(), list[Waiter]()

    class FailingWaiter(Waiter):
        def expire(self) -> None:
            raise ZeroDivisionError

    deadlines = Deadlines(clock)
    first, second, third = FailingWaiter(expired), Waiter(expired), Waiter(expired)
    for waiter, timeout_ms in ((first, 100), (second, 100), (third, 200)):
        deadlines.add(waiter, timeout_ms)
    with pytest.raises(ZeroDivisionError):
        clock.advance(100)
    assert expired == [second]
    clock.advance(100)
    assert expired == [second, third]
