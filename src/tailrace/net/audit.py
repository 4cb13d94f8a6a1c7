"""A log that a stranger cannot fill."""

import logging
from collections.abc import Callable


class RateLimitedLog:
    """Writes at most `lines` warnings per `window_ms`; the next window starts with how many were left out."""

    def __init__(
        self, logger: logging.Logger, *, monotonic_ms: Callable[[], int], lines: int = 20, window_ms: int = 10_000
    ) -> None:
        self._logger = logger
        self._monotonic_ms = monotonic_ms
        self._lines = lines
        self._window_ms = window_ms
        self._window_start_ms = monotonic_ms()
        self._written = 0
        self._left_out = 0

    def warning(self, line: str) -> None:
        """Write the line, or count it."""
        now_ms = self._monotonic_ms()
        if now_ms - self._window_start_ms >= self._window_ms:
            self._window_start_ms = now_ms
            self._written = 0
            if self._left_out:
                self._logger.warning("event=log-lines-left-out count=%d", self._left_out)
                self._left_out = 0
        if self._written < self._lines:
            self._written += 1
            self._logger.warning("%s", line)
        else:
            self._left_out += 1
