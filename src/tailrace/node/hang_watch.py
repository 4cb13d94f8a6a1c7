"""Notices that the disk hangs: a round of flushes that has taken too long and is not done yet.

A disk whose every round takes a little too long would have the replicas here leave and join again in every round. So it
counts as hanging until no round has been too slow for some time: longer than a round may take, since
the next one would be noticed by then. Replicas that have left cause few rounds, so a slow disk may look quick: when it
hangs again soon that time is doubled.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from tailrace.model.throttle import Throttle
from tailrace.server.ports import Clock, Timer

_LOOKS: Final = 10
"""The number of checks within the time that a round may take."""
_QUICK_FOR: Final = 2
_QUICK_FOR_AT_MOST: Final = 8
"""The time without a slow round after which the disk is well, as a multiple of the time that a round may take."""
_SOON: Final = 24
"""After as many times that time without a hang, the next one is a first one again."""


class FlushRounds(Protocol):
    """A `node.flush_thread.FlushThread`."""

    @property
    def round_seconds(self) -> float:
        """The time since the start of the round that runs; 0 if none does."""
        ...


class HangWatch:
    """Watches the flush threads of one disk, from `start` to `stop`."""

    def __init__(
        self, threads: Sequence[FlushRounds], *, clock: Clock, timeout_ms: int, on_change: Callable[[bool], None]
    ) -> None:
        """`timeout_ms` is log.dir.stall.timeout.ms; `on_change` gets whether the disk hangs, when that changes."""
        self._threads = threads
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._on_change = on_change
        self.is_hung = False
        self._quick_for = _QUICK_FOR
        self._slow_ms: int | None = None  # when a round was last seen that took too long
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look from now on."""
        self._timer = self._clock.call_at(self._clock.monotonic_ms() + max(1, self._timeout_ms // _LOOKS), self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()  # before all else, so that one failure does not end it
        now_ms = self._clock.monotonic_ms()
        if any(thread.round_seconds * 1000 > self._timeout_ms for thread in self._threads):
            if not self.is_hung:
                self._quick_for = self._next_quick_for(now_ms)
            self._slow_ms = now_ms
            self._tell(True)
        elif self._slow_ms is None or now_ms - self._slow_ms >= self._quick_for * self._timeout_ms:
            self._tell(False)

    def _next_quick_for(self, now_ms: int) -> int:
        if self._slow_ms is None or now_ms - self._slow_ms >= _SOON * self._timeout_ms:
            return _QUICK_FOR
        return min(2 * self._quick_for, _QUICK_FOR_AT_MOST)

    def _tell(self, is_hung: bool) -> None:
        if is_hung is not self.is_hung:
            self.is_hung = is_hung
            self._on_change(is_hung)


_logger = logging.getLogger("tailrace.node")

_LINE_MS = 60_000
_MOST_CAUSES = 1_000


class _Unlogged:
    """The stalls of one cause since its last line."""

    __slots__ = ("count", "longest_seconds")

    def __init__(self) -> None:
        self.count = 0
        self.longest_seconds = 0.0


class StallWatch:
    """Turns of the event loop that took too long: counted for the metrics, and logged once a minute per cause.

    `note` is `net.turns.Turns.on_stall`.
    """

    def __init__(self, *, monotonic_ms: Callable[[], int]) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest_seconds = 0.0
        self._monotonic_ms = monotonic_ms
        self._lines = Throttle(_LINE_MS)
        self._unlogged: dict[str, _Unlogged] = {}

    def note(self, work: Callable[[], None], seconds: float) -> None:
        """One turn has kept the others waiting."""
        self.count += 1
        self.seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)
        cause = _name_of(work)
        if cause not in self._unlogged and len(self._unlogged) >= _MOST_CAUSES:
            self._unlogged.clear()
        since = self._unlogged.setdefault(cause, _Unlogged())
        since.count += 1
        since.longest_seconds = max(since.longest_seconds, seconds)
        if self._lines.admits(cause, self._monotonic_ms()):
            del self._unlogged[cause]
            _logger.warning(
                "event=event-loop-stall milliseconds=%d work=%s stalls=%d longest=%d",
                round(seconds * 1000),
                cause,
                since.count,
                round(since.longest_seconds * 1000),
            )


def _name_of(work: Callable[[], None]) -> str:
    """The code that ran, without the values it ran on: those may be a client's."""
    function: object = work
    while isinstance(function, partial):
        function = function.func
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
