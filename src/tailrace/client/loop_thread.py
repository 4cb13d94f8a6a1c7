"""The event loops in background threads of the process.

`loop_thread` has all clients of the process. `handler_thread` has coroutines of users: if a coroutine blocks its loop,
the clients go on.

A forked child makes a loop and clients of its own at their first use, since threads do not survive a fork (Spark
forks its Python workers from a daemon).
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError

T = TypeVar("T")

_FINISH_S = 5.0
"""The longest wait for clients that were dropped without `close`, at the end of the interpreter."""

_STOP_S = 2.0
"""The longest wait for cancelled tasks, and then for the thread, at the end of the interpreter."""


_CLIENTS: Final = "tailrace-client"
_HANDLERS: Final = "tailrace-handlers"
"""The names of the threads."""


class LoopThread:
    """A running event loop. Its thread is a daemon: it does not keep the process alive."""

    def __init__(self, name: str = _CLIENTS) -> None:
        self.loop = _new_loop()
        self._is_stopped = False
        self._finishing: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_stopped(self) -> bool:
        """Whether the interpreter ends: nothing runs on the loop any more."""
        return self._is_stopped

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread, and so must not wait for it."""
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of the coroutine, run on the loop. An interrupted wait cancels the coroutine.

        Raises KafkaError(NETWORK_EXCEPTION) after `stop`, and when `stop` cancels the coroutine.
        """
        assert not self.is_current, "a blocking call inside the loop would never return"
        if self._is_stopped:
            coroutine.close()
            raise _stopped()
        future: Future[T] = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except CancelledError:
            if self._is_stopped:
                raise _stopped() from None
            raise
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """Finish the clients that were dropped, for a few seconds; then cancel running tasks, and end the thread.

        For the end of the interpreter.

        A loop of uvloop that is left running calls into the interpreter when its next timer is due, also after the
        interpreter is gone: the process then dies by SIGSEGV instead of ending with its exit code.
        """
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._finished(), self.loop).result(_FINISH_S)
        self._is_stopped = True
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all_tasks(), self.loop).result(_STOP_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_S)

    def finish_later(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the work on the loop, without waiting for its end. From any thread, also from inside the garbage
        collector: takes no lock."""
        if not self._is_stopped:
            self.loop.call_soon_threadsafe(self._begin, work)

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = self.loop.create_task(work())
        self._finishing.add(task)  # the only reference to the task
        task.add_done_callback(self._finishing.discard)

    async def _finished(self) -> None:
        """Return when the work of `finish_later` has ended."""
        if self._finishing:
            await asyncio.wait(set(self._finishing))


def _stopped() -> KafkaError:
    detail = "the interpreter ends, and the clients' background loop has stopped: close them before"
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, detail)


async def _cancel_all_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


_threads: dict[tuple[int, str], LoopThread] = {}
_lock = threading.Lock()


def _forget_after_fork() -> None:
    global _lock
    _threads.clear()
    _lock = threading.Lock()  # a thread of the parent may have held the lock


os.register_at_fork(after_in_child=_forget_after_fork)


def runs_here() -> bool:
    """Whether an event loop runs in the calling thread, and a blocking call blocks its coroutines."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def loop_thread() -> LoopThread:
    """This process's loop of clients, started at the first call."""
    return _thread_of(_CLIENTS)


def handler_thread() -> LoopThread:
    """This process's loop of coroutine handlers, started at the first call."""
    return _thread_of(_HANDLERS)


def _thread_of(name: str) -> LoopThread:
    place = os.getpid(), name
    thread = _threads.get(place)
    if thread is None:
        with _lock:
            thread = _threads.get(place)
            if thread is None:
                thread = _threads[place] = LoopThread(name)
    return thread


@atexit.register
def _stop_at_exit() -> None:
    """Stop the loops after the handlers of importing modules, which flush and close clients on the loop."""
    for name in (_HANDLERS, _CLIENTS):
        thread = _threads.get((os.getpid(), name))
        if thread is not None:
            thread.stop()
