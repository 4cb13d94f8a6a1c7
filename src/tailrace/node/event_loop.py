"""The node's event loop: its clock (`server.ports.Clock`), and the watch for turns that take too long."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from tailrace.model.throttle import Throttle
from tailrace.net.turns import Turns
from tailrace.server.ports import Timer

_logger = logging.getLogger("tailrace.node")


class LoopClock:
    """A clock with the time of the operating system and the timers of the event loop. Each callback runs as a turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
        self._loop = loop
        self._turns = turns

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return round(self._loop.time() * 1000)

    def call_at(self, monotonic_ms: int, callback: Callable[[], None]) -> Timer:
        return self._loop.call_at(monotonic_ms / 1000, self._turns.run, callback)

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(self._turns.run, callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Do what `call_soon` does, for a call from another thread."""
        self._loop.call_soon_threadsafe(self._turns.run, callback)


_LINE_MS = 60_000
_MOST_CAUSES = 1_000


class _Unlogged:
    """The stalls of one cause since the last line about this cause."""

    __slots__ = ("count", "longest_seconds")

    def __init__(self) -> None:
        self.count = 0
        self.longest_seconds = 0.0


class StallWatch:
    """Turns of the event loop that took too long: counted for the metrics, and logged once a minute per cause.

    `record` is `net.turns.Turns.on_stall`.
    """

    def __init__(self, *, monotonic_ms: Callable[[], int]) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest_seconds = 0.0
        self._monotonic_ms = monotonic_ms
        self._lines = Throttle(_LINE_MS)
        self._unlogged: dict[str, _Unlogged] = {}

    def record(self, work: Callable[[], None], seconds: float) -> None:
        """Count a turn that took this long, and log it if its cause was not logged within a minute."""
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
    """The name of the code that ran, without values, which may come from a client."""
    function: object = work
    while isinstance(function, partial):
        function = function.func
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
