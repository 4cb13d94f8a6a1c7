"""Log lines about events that may come by the thousand: a few lines, then a count."""

import logging
from typing import Final

from tailrace.server.ports import Clock, Timer

LINES: Final = 10
WINDOW_MS: Final = 10_000

_logger = logging.getLogger("tailrace.server")


class BoundedLines:
    """The lines of one event: at most `LINES` in a window of `WINDOW_MS`, and at the window's end a line with the
    number of lines left out."""

    def __init__(self, event: str, *, clock: Clock, unit: str | None = None, level: int = logging.INFO) -> None:
        """`unit` names the unit of `amount`: the amounts of lines left out are added up."""
        self._event = event
        self._clock = clock
        self._unit = unit
        self._level = level
        self._window_end_ms: int | None = None
        self._written = self._more = self._amount = 0
        self._timer: Timer | None = None

    def write(self, text: str, *values: object, amount: int = 0) -> None:
        """Write `event=... TEXT`, where `text` has a %-place for each value, or count the line as left out."""
        now_ms = self._clock.monotonic_ms()
        if self._timer is None and (self._window_end_ms is None or now_ms >= self._window_end_ms):
            self._window_end_ms = now_ms + WINDOW_MS
            self._written = 0
        if self._written < LINES:
            self._written += 1
            if _logger.isEnabledFor(self._level):
                _logger.log(self._level, "event=%s %s", self._event, text % values)
            return
        self._more += 1
        self._amount += amount
        if self._timer is None and self._window_end_ms is not None:
            self._timer = self._clock.call_at(self._window_end_ms, self._count)

    def _count(self) -> None:
        self._timer = self._window_end_ms = None
        amount = "" if self._unit is None else f" {self._unit}={self._amount}"
        _logger.log(self._level, "event=%s more=%d%s", self._event, self._more, amount)
        self._more = self._amount = 0
