"""The real clock: `server.ports.Clock` on the event loop. Every call it makes is a turn."""

import asyncio
import time
from collections.abc import Callable

from tailrace.net.turns import Turns
from tailrace.server.ports import Timer


class LoopClock:
    """Time of the operating system, timers of the event loop."""

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
