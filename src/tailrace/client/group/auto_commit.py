"""The commits that a consumer makes by itself while it polls (enable.auto.commit)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from tailrace.client.group.committed_offsets import OffsetAndMetadata
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

Positions = Mapping[TopicPartition, OffsetAndMetadata]


class AutoCommit:
    """A commit every `interval_ms`, in a task of its own: reading does not wait for it."""

    def __init__(
        self, router: Router, commit: Callable[[Positions], Awaitable[None]], *, is_on: bool, interval_ms: int
    ) -> None:
        """`commit` makes one attempt."""
        self._router = router
        self._commit = commit
        self.is_on = is_on
        self._interval_ms = interval_ms
        self._next_ms = 0
        self._running: asyncio.Task[None] | None = None

    def start_if_due(self, positions: Callable[[], Positions]) -> None:
        """Begin a commit of these positions if the last one was long enough ago. A later one makes up for a failure."""
        now_ms = self._router.now_ms()
        if not self.is_on or now_ms < self._next_ms or self._running is not None:
            return
        is_first, self._next_ms = self._next_ms == 0, now_ms + self._interval_ms
        if not is_first:
            self._running = asyncio.get_running_loop().create_task(self._commit_once(positions()))

    async def _commit_once(self, positions: Positions) -> None:
        try:
            await self._commit(positions)
        except KafkaError as fault:
            if fault.code.retriable and fault.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._next_ms = self._router.now_ms() + self._router.retry_backoff_ms
        finally:
            if self._running is asyncio.current_task():
                self._running = None

    async def wait(self) -> None:
        """Wait for the commit under way: its older offsets must not overwrite newer ones."""
        if self._running is not None:
            await asyncio.wait((self._running,))

    def drop(self) -> None:
        """Cancel the commit under way: it must not follow a commit of all offsets, nor the loss of the partitions."""
        if self._running is not None:
            self._running.cancel()
            self._running = None
