"""A run of a keyed consumer: a task on the background loop, for a caller on another thread or loop."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from tailrace.client.loop_thread import loop_thread


class KeyedRun:
    """A run of the engine, for the thread that waits for its end."""

    def __init__(self) -> None:
        self.ended: Future[BaseException | None] = Future()
        """The exception that has ended the run; None for a stop."""
        self._task: asyncio.Task[BaseException | None] | None = None

    def start(self, work: Coroutine[Any, Any, BaseException | None]) -> None:
        """Begin; on the background loop."""
        self._task = asyncio.get_running_loop().create_task(work)
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[BaseException | None]") -> None:
        if task.cancelled():
            self.ended.cancel()
        elif (fault := task.exception()) is not None:
            self.ended.set_exception(fault)
        else:
            self.ended.set_result(task.result())

    def cancel(self) -> None:
        """End at once, without the grace of handlers; from any thread."""
        loop_thread().loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
