"""The breaker of a handler: while most calls fail, the handler gets no records but for single tries, which show when
calls succeed again. Pure.

    closed --most of the last calls have failed, with several keys--> open
    open --a pause--> half-open: one call is a try --it succeeds--> closed
                                                   --it fails--> open, for a longer pause

1. The window has the last WINDOW_CALLS calls, or the last `min_calls` if these are more, since the breaker closed. The
   breaker opens when at least `min_calls` calls have ended, when more than `percent` of the calls in the window have
   failed, and when the failures are of LEAST_KEYS keys. So a key that always fails never opens the breaker by itself.
2. An open breaker lets one call begin after each pause. A pause is twice as long as the pause before, up to the
   longest. A try that hangs does not keep the next try from its time.
3. A call that was under way when the breaker opened is no try: its success does not close the breaker. Its failure
   counts no attempt of its record, and neither does the failure of a try.
4. A retry for which the handler names a time is neither a success nor a failure, nor is a call that was cancelled.

Times are in ms, of any clock that does not go back.
"""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

WINDOW_CALLS: Final = 50
LEAST_KEYS: Final = 5


@dataclass(frozen=True, slots=True)
class BreakerState:
    """The state of the breaker, and the failures that have opened it."""

    name: str = "closed"
    """"closed", "open", or "half-open": a call tries whether calls succeed again."""
    open_ms: int = 0
    """The time since the breaker opened; 0 if it is closed."""
    failed: int = 0
    """The calls that had failed when the breaker last opened, among the last `calls`."""
    calls: int = 0
    fault: str = ""
    """The last exception of the handler when the breaker last opened, or of a try since; empty after a retry for which
    the handler has asked."""
    opened_total: int = 0


class Breaker:
    """The breaker of one run. Callers ask `may_begin` before each call while the breaker is open, and tell each end."""

    def __init__(self, percent: int | None, *, min_calls: int, pause_ms: int, longest_pause_ms: int) -> None:
        """`percent`: the share of failures above which the breaker opens; None: never. For the rest see the module."""
        self._percent: Final = percent
        self._min_calls: Final = min_calls
        self._window: Final = max(WINDOW_CALLS, min_calls)
        self._first_pause_ms: Final = pause_ms
        self._longest_pause_ms: Final = longest_pause_ms
        self.is_open = False
        self.calls = 0
        """The calls that have ended since the breaker closed. A caller may add successes by itself while the breaker is
        closed."""
        self._failures: deque[tuple[int, Hashable]] = deque()
        """The number and the key of each failed call in the window."""
        self._tries: set[object] = set()
        self._pause_ms = pause_ms
        self._next_try_ms = 0
        self._opened_ms = self._closed_ms = 0
        self._failed_at_opening = self._calls_at_opening = 0
        self._fault = ""
        self._opened_total = 0

    # calls

    def may_begin(self, now_ms: int) -> bool:
        """Whether a call may begin now. In an open breaker the call is a try: see `begin_try`."""
        return not self.is_open or now_ms >= self._next_try_ms

    def begin_try(self, call: object, now_ms: int) -> None:
        """A call begins while the breaker is open."""
        self._tries.add(call)
        self._pause_ms = min(2 * self._pause_ms, self._longest_pause_ms)
        self._next_try_ms = now_ms + self._pause_ms

    @property
    def next_try_ms(self) -> int | None:
        """The time from which a call may begin; None: the breaker is closed."""
        return self._next_try_ms if self.is_open else None

    def succeeded(self, call: object, now_ms: int) -> None:
        """The call has ended without a failure."""
        if not self.is_open:
            self.calls += 1
        elif call in self._tries:
            self._close(now_ms)

    def failed(self, call: object, key: Hashable, fault: str, *, began_ms: int, now_ms: int) -> bool:
        """The call with a record of this key has failed. Returns whether the call counts as an attempt."""
        if self.is_open:
            if call in self._tries:
                self._tries.discard(call)
                self._fault = fault
                self._next_try_ms = now_ms + self._pause_ms
            return False
        if self._opened_total and began_ms < self._closed_ms:
            return False  # of the outage that is over
        self.calls += 1
        if self._percent is not None:
            self._failures.append((self.calls, key))
            if self._must_open(self._percent):
                self._open(fault, now_ms)
        return True

    def passed_over(self, call: object, now_ms: int) -> None:
        """The call has ended without a sign of what it calls: after a try, another call may begin at once."""
        if call in self._tries:
            self._tries.discard(call)
            self._next_try_ms = now_ms

    def _must_open(self, percent: int) -> bool:
        while self._failures[0][0] <= self.calls - self._window:
            self._failures.popleft()
        calls = min(self.calls, self._window)
        return (
            calls >= self._min_calls
            and len(self._failures) * 100 > calls * percent
            and len({key for _, key in self._failures}) >= LEAST_KEYS
        )

    def _open(self, fault: str, now_ms: int) -> None:
        self.is_open = True
        self._opened_total += 1
        self._opened_ms, self._fault = now_ms, fault
        self._failed_at_opening, self._calls_at_opening = len(self._failures), min(self.calls, self._window)
        self._pause_ms = self._first_pause_ms
        self._next_try_ms = now_ms + self._pause_ms

    def _close(self, now_ms: int) -> None:
        self.is_open = False
        self._closed_ms = now_ms
        self.calls = 0
        self._failures.clear()
        self._tries.clear()

    # state

    def notice(self, now_ms: int) -> str:
        """The sentence for the log when the breaker has just opened or closed."""
        open_s = (now_ms - self._opened_ms) / 1000
        if not self.is_open:
            return f"a call of the handler has succeeded after {open_s:.1f} s; the handler gets records again"
        return (
            f"{self._failed_at_opening} of the last {self._calls_at_opening} calls of the handler have failed, the last"
            f" with {self._fault or 'a retry'}; the handler gets no records but for single tries, the first in"
            f" {self._first_pause_ms / 1000:g} s, and failures count no attempt"
        )

    def state(self, now_ms: int) -> BreakerState:
        """The state now."""
        name = "closed" if not self.is_open else "half-open" if self._tries else "open"
        open_ms = now_ms - self._opened_ms if self.is_open else 0
        return BreakerState(
            name, open_ms, self._failed_at_opening, self._calls_at_opening, self._fault, self._opened_total
        )
