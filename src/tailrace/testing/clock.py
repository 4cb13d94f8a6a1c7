"""A clock that a test moves by hand."""

import heapq
from collections.abc import Callable
from itertools import count


class ManualTimer:
    """A call that has been scheduled on a ManualClock."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A `server.ports.Clock` that stands still until `advance`. Each call is a turn, ended by `on_turn_end`."""

    def __init__(self, *, now_ms: int = 1_700_000_000_000, on_turn_end: Callable[[], None] = lambda: None) -> None:
        self.on_turn_end = on_turn_end
        self._wall_offset_ms = now_ms
        self._monotonic_ms = 0
        self._order = count()
        self._timers: list[tuple[int, int, ManualTimer]] = []

    def now_ms(self) -> int:
        return self._wall_offset_ms + self._monotonic_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def call_at(self, monotonic_ms: int, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(callback)
        heapq.heappush(self._timers, (monotonic_ms, next(self._order), timer))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.call_at(self._monotonic_ms, callback)

    def turn(self, work: Callable[[], object]) -> None:
        """Run `work` as one turn of the event loop, then the calls that are due."""
        work()
        self.on_turn_end()
        self.advance(0)

    def advance(self, milliseconds: int) -> None:
        """Let this time pass: run all calls that become due, in their order, and calls that are scheduled meanwhile
        too."""
        end_ms = self._monotonic_ms + milliseconds
        while self._timers and self._timers[0][0] <= end_ms:
            due_ms, _, timer = heapq.heappop(self._timers)
            self._monotonic_ms = max(self._monotonic_ms, due_ms)
            if timer.callback is not None:
                timer.callback()
                self.on_turn_end()
        self._monotonic_ms = end_ms

    @property
    def calls_pending(self) -> int:
        """The number of calls that are scheduled and not cancelled."""
        return sum(timer.callback is not None for _, _, timer in self._timers)
