"""The bytes of unsent records of an asyncio producer (buffer.memory), and the waits for space, or for an empty
buffer."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from tailrace.client.writer_settings import ProducerSettings


class BufferMemory:
    """The count of bytes. A record larger than the whole buffer is taken when the buffer is empty."""

    def __init__(self, settings: ProducerSettings[Any, Any], situation: Callable[[], str]) -> None:
        """`situation` returns the reason for which records wait now."""
        self._settings = settings
        self._situation = situation
        self.used_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._watchers: list[asyncio.Event] = []
        self.on_release: Callable[[int], None] | None = None
        """Called with the bytes that are free again, for a facade with a count of its own."""

    async def wait_for_space(self, cost: int) -> None:
        """Return when there is space for so many bytes. Raises KafkaError(REQUEST_TIMED_OUT) after max.block.ms."""
        while self.used_bytes + cost > self._settings.buffer_memory and self.used_bytes > 0:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(self._settings.max_block_ms / 1000):
                    await waiter
            except TimeoutError:
                raise self._settings.buffer_full(self._situation()) from None

    def take(self, cost: int) -> None:
        """Count a record."""
        self.used_bytes += cost

    def release(self, cost: int) -> None:
        """Count a record no longer after its write or failure."""
        self.used_bytes -= cost
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if self.on_release is not None:
            self.on_release(cost)
        for watcher in self._watchers:
            watcher.set()

    async def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Return when `is_over` is true; it is called again after each release."""
        released = asyncio.Event()
        self._watchers.append(released)
        try:
            while not is_over():
                released.clear()
                await released.wait()
        finally:
            self._watchers.remove(released)
