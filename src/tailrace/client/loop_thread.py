"""The event loops in background threads of the process, and asyncio clients on a loop for callers without asyncio.

`loop_thread` has all clients of the process. `handler_thread` has coroutines of users: if a coroutine blocks its loop,
the clients go on.

A forked child makes a loop and clients of its own at their first use, since threads do not survive a fork (Spark
forks its Python workers from a daemon).
"""

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from tailrace.client.construction import Configured
from tailrace.model.errors import ErrorCode, KafkaError

P = ParamSpec("P")
T = TypeVar("T")

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
        """Cancel running tasks and end the thread, for the end of the interpreter.

        A loop of uvloop that is left running calls into the interpreter when its next timer is due, also after the
        interpreter is gone: the process then dies by SIGSEGV instead of ending with its exit code.
        """
        self._is_stopped = True
        with suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(_cancel_all_tasks(), self.loop).result(_STOP_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_S)


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


class Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class PerProcess(Generic[C]):
    """An asyncio client, made on the loop of its process."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._process_id = 0
        self._client: C | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        _all.add(self)

    def renew_lock(self) -> None:
        """Make a new lock in a child made by a fork: a thread of the parent may have held the old lock."""
        self._lock = threading.Lock()

    def existing(self) -> C | None:
        """This process's client, if the process has used and not closed a client."""
        return self._client if self._process_id == os.getpid() else None

    def get(self) -> C:
        """This process's client. Raises KafkaError(NETWORK_EXCEPTION) after `close`."""
        client = self._client
        if client is not None and self._process_id == os.getpid():
            return client
        with self._lock:
            if self._is_closed:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "this client is closed")
            if self._client is None or self._process_id != os.getpid():
                self._client = loop_thread().call(self._made())
                self._process_id = os.getpid()
            return self._client

    async def _made(self) -> C:
        return self._make()

    def close(self) -> None:
        """Close this process's client, if any. May be called again.

        When the interpreter ends there is nothing left to close. A daemon thread may still call this then, at the end
        of a `with` block: an exception would print a traceback.
        """
        with self._lock:
            self._is_closed = True
            client, self._client = self.existing(), None
        thread = loop_thread()
        if client is None or thread.is_stopped:
            return
        try:
            thread.call(client.close())
        except KafkaError:
            if not thread.is_stopped:
                raise


_all: "weakref.WeakSet[PerProcess[Any]]" = weakref.WeakSet()


def _renew_locks() -> None:
    for each in list(_all):
        each.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class Facade(Configured[Any], Generic[C]):
    """A blocking client: usable in a `with` block."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._client = PerProcess(make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish and close the connections."""
        self._client.close()


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[C], P], T]:
    """The method of the asyncio client as a method of the blocking client: the caller waits for the result."""

    @wraps(method)
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop_thread().call(method(facade._client.get(), *args, **kwargs))

    return call
