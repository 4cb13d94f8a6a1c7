"""Turns of the event loop that took too long: counted for the metrics, and told of in the log at a limited rate."""

import logging
from collections.abc import Callable
from functools import partial

from tailrace.net.audit import RateLimitedLog

_logger = logging.getLogger("tailrace.node")

_LINES_PER_WINDOW = 5


class StallWatch:
    """The stalls of one event loop; `note` is `net.turns.Turns.on_stall`."""

    def __init__(self, *, monotonic_ms: Callable[[], int]) -> None:
        self.count = 0
        self.seconds = 0.0
        self.longest_seconds = 0.0
        self._log = RateLimitedLog(_logger, monotonic_ms=monotonic_ms, lines=_LINES_PER_WINDOW)

    def note(self, work: Callable[[], None], seconds: float) -> None:
        """One turn has kept the others waiting."""
        self.count += 1
        self.seconds += seconds
        self.longest_seconds = max(self.longest_seconds, seconds)
        self._log.warning(f"event=event-loop-stall milliseconds={round(seconds * 1000)} work={_name_of(work)}")


def _name_of(work: Callable[[], None]) -> str:
    """The code that ran, without the values it ran on: those may be a client's."""
    function: object = work
    while isinstance(function, partial):
        function = function.func
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
