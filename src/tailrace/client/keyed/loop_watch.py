"""Warnings about a handler that blocks its event loop: at once, and then every 30 s."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from tailrace.client.keyed.work_queue import WorkQueue
from tailrace.model.throttle import Throttle

CHECK_MS: Final = 500
"""The interval of `check`."""
LATE_MS: Final = 2_000
"""A loop that makes no turn for this time is blocked."""
_WARNING_PERIOD_MS: Final = 30_000

_log = logging.getLogger(__name__)


class LoopWatch:
    """Asks the loop of handlers for a turn again and again, while records are in hand. Runs on the background loop."""

    def __init__(
        self,
        queue: WorkQueue,
        loop: asyncio.AbstractEventLoop,
        now_ms: Callable[[], int],
        *,
        handler_name: str,
        group: str,
    ) -> None:
        self._queue = queue
        self._loop = loop
        self._now_ms = now_ms
        self._handler_name = handler_name
        self._group = group
        self._warnings = Throttle(_WARNING_PERIOD_MS)
        self._checked_ms = 0
        self._late_ms = 0
        """The time since the loop was asked for a turn."""
        self._has_turned = True
        """Whether the loop has made the turn."""

    def check(self) -> None:
        """Warn of a loop that is late. Called every CHECK_MS.

        A check that comes late counts as a check in time: the whole process was stopped, or had no processor.
        """
        now_ms = self._now_ms()
        elapsed_ms, self._checked_ms = min(now_ms - self._checked_ms, 2 * CHECK_MS), now_ms
        if not self._queue.has_work:
            self._late_ms = 0
        elif self._has_turned:
            self._late_ms, self._has_turned = 0, False
            self._ask()
        else:
            self._late_ms += elapsed_ms
            if self._late_ms >= LATE_MS and self._warnings.admits(self._handler_name, now_ms):
                self._warn()

    def _ask(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._turn)
        except RuntimeError:  # the loop is closed, which the workers notice
            self._has_turned = True

    def _turn(self) -> None:
        self._has_turned = True

    def _warn(self) -> None:
        _log.warning(
            "group %r: the handler %r blocks its event loop since %.1f s; use an async client, a plain function, or"
            " asyncio.to_thread",
            self._group,
            self._handler_name,
            self._late_ms / 1000,
        )
