"""Turns of the event loop that took too long: counted for the metrics, and logged once a minute per cause."""

import logging
from collections.abc import Callable
from functools import partial

from tailrace.model.throttle import Throttle

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
    """The stalls of one event loop; `note` is `net.turns.Turns.on_stall`."""

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
