"""A search in a task beside `poll`, repeated after faults: what a consumer must learn about positions.

As in Java's client, a partition without a leader, or a node that hangs, does not hold back other partitions' records.
"""

import asyncio
from collections.abc import Awaitable, Callable

from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError


class RetriedSearch:
    """Runs one search at a time. After a fault the next search waits, after each further fault twice as long."""

    def __init__(
        self,
        router: Router,
        *,
        on_end: Callable[[], None],
        gets_better: Callable[[KafkaError], bool] = lambda fault: fault.retriable,
    ) -> None:
        """`gets_better`: whether a retry may cure this fault. `on_end` is called after each search."""
        self._router = router
        self._on_end = on_end
        self._gets_better = gets_better
        self._task: asyncio.Task[None] | None = None
        self._fault: KafkaError | None = None
        self._pause_ms = router.retry_backoff_ms
        self._not_before_ms = 0
        self.trouble: KafkaError | None = None
        """The fault of the last search during retries."""

    def start_if_due(self, search: Callable[[], Awaitable[None]]) -> None:
        """Start this search, unless a search is under way or the pause after a fault goes on."""
        if self._task is None and self._router.now_ms() >= self._not_before_ms:
            self._task = asyncio.get_running_loop().create_task(self._run(search))

    @property
    def is_under_way(self) -> bool:
        return self._task is not None

    def take_fault(self) -> KafkaError | None:
        """Return the fault of the last search that no retry cures, and forget it; None without such a fault."""
        fault, self._fault = self._fault, None
        return fault

    def next_due_ms(self, deadline_ms: int) -> int:
        """The time of the next search, at most the deadline."""
        return deadline_ms if self._task is not None else min(deadline_ms, self._not_before_ms)

    def cancel(self) -> None:
        """Cancel the search, and forget faults and pauses."""
        if self._task is not None:
            self._task.cancel()
        self._task = self._fault = self.trouble = None
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._pause_ms = self._router.retry_backoff_ms
        self._not_before_ms = 0

    async def _run(self, search: Callable[[], Awaitable[None]]) -> None:
        try:
            await search()
            self.trouble = None
            self._begin_anew()
        except KafkaError as fault:
            self._not_before_ms = self._router.now_ms() + self._pause_ms
            self._pause_ms = min(self._pause_ms * 2, self._router.retry_backoff_max_ms)
            if self._gets_better(fault):
                self.trouble = fault
            else:
                self._fault = fault
        except Exception as bug:
            # A bug: raise it for the log, and fail the next poll, so that no caller polls for ever.
            self._fault = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"this consumer has failed: {bug!r}")
            raise
        finally:
            if self._task is asyncio.current_task():
                self._task = None
            self._on_end()
