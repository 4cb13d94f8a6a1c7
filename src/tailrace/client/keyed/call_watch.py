"""Warnings about calls of a handler that run beyond their time limit: of each call at once, and then every 30 s."""

import logging
from typing import Final

from tailrace.client.keyed.lanes import LaneWork
from tailrace.client.keyed.work_queue import WorkQueue
from tailrace.model.throttle import Throttle

GRACE_MS: Final = 1_000
"""The time beyond the limit in which a cancelled coroutine may end."""
_WARNING_PERIOD_MS: Final = 30_000

_log = logging.getLogger(__name__)


class CallWatch:
    """Looks for calls that run for too long: threads, which cannot be cancelled, and coroutines that go on although
    they were cancelled."""

    def __init__(self, queue: WorkQueue, limit_ms: int, *, handler_name: str, group: str) -> None:
        self._queue = queue
        self._limit_ms = limit_ms
        self._handler_name = handler_name
        self._group = group
        self._warnings = Throttle(_WARNING_PERIOD_MS)

    def check(self, now_ms: int) -> None:
        """Warn of each call that is beyond the limit."""
        for work in self._queue.works:
            running_ms = now_ms - work.began_ms
            if running_ms < self._limit_ms + GRACE_MS:
                return  # later works began later
            if self._warnings.admits((work.name, work.record.offset), now_ms):
                self._warn(work, running_ms)

    def _warn(self, work: LaneWork, running_ms: int) -> None:
        _log.warning(
            "group %r: the handler %r has been running for %.1f s at offset %d of %s, beyond handler_timeout_ms %d; its"
            " key %r is held",
            self._group,
            self._handler_name,
            running_ms / 1000,
            work.record.offset,
            work.name,
            self._limit_ms,
            work.record.key,
        )
