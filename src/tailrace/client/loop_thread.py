"""One event loop in one background thread per process, for callers that do not use asyncio.

Keyed by process id: after a fork the child has a loop of its own, made when it first needs one, since threads do not
survive a fork (Spark forks its Python workers from a daemon).
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """A running loop. The thread is a daemon: it does not keep the process alive."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="tailrace-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_current(self) -> bool:
        """Whether the caller is on this thread, and must not wait for it."""
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine, run on the loop. An interrupted wait cancels it."""
        assert not self.is_current, "a blocking call inside the loop would never return"
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_threads: dict[int, LoopThread] = {}
_lock = threading.Lock()


def _forget_after_fork() -> None:
    global _lock
    _threads.clear()
    _lock = threading.Lock()  # the parent may have held it


os.register_at_fork(after_in_child=_forget_after_fork)


def loop_thread() -> LoopThread:
    """This process's loop, started at the first call."""
    process_id = os.getpid()
    thread = _threads.get(process_id)
    if thread is None:
        with _lock:
            thread = _threads.get(process_id)
            if thread is None:
                thread = _threads[process_id] = LoopThread()
    return thread
