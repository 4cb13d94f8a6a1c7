"""Asyncio clients on the background loop of the process, for callers without asyncio."""

import asyncio
import inspect
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from tailrace.client.construction import Configured
from tailrace.client.errors import ClosedClient
from tailrace.client.hints.call_hints import hinted
from tailrace.client.loop_thread import loop_thread
from tailrace.model.errors import KafkaError

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F")

_log = logging.getLogger("tailrace.client")

_in_callback: ContextVar[bool] = ContextVar("tailrace_in_callback", default=False)
"""Whether the caller is code of the user that a client has called: it may use the client also while it closes."""


class Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
C_co = TypeVar("C_co", bound=Closable, covariant=True)


class PerProcess(Generic[C]):
    """An asyncio client, made on the loop of its process."""

    def __init__(self, make: Callable[[], C], finish: "Callable[[C], Coroutine[Any, Any, None]]") -> None:
        """`finish` ends a client after this object was dropped without `close`."""
        self._make = make
        self._finish = finish
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._process_id = 0
        self._client: C | None = None
        self._closing: C | None = None
        """The client while `close` waits for it."""
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
        """This process's client. Raises ClosedClient after `close`."""
        client = self._client
        if client is not None and self._process_id == os.getpid():
            return client
        with self._lock:
            if self._is_closed:
                if self._closing is not None and _in_callback.get():
                    return self._closing
                raise ClosedClient("client")
            if self._client is None or self._process_id != os.getpid():
                self._client = loop_thread().call(self._made())
                self._process_id = os.getpid()
                self._watch(self._client)
            return self._client

    def _watch(self, client: C) -> None:
        """Let the client live, and finish it on its loop when this object is dropped: without a reference, the client
        would be collected with its tasks, records and memberships."""
        if self._finalizer is not None:
            self._finalizer.detach()  # of the process that has forked this process
        self._finalizer = weakref.finalize(self, _finish_dropped, client, self._finish, self._process_id)
        self._finalizer.atexit = False  # the modules of the clients have their own ends

    async def _made(self) -> C:
        return self._make()

    def close(self, close: "Callable[[C], Coroutine[Any, Any, None]] | None" = None) -> None:
        """Close this process's client, if any, by its `close` or by this call. May be called again.

        When the interpreter ends there is nothing left to close. A daemon thread may still call this then, at the end
        of a `with` block: an exception would print a traceback.
        """
        with self._lock:
            self._is_closed = True
            client, self._client = self.existing(), None
            self._closing = client
            if self._finalizer is not None:
                self._finalizer.detach()
        thread = loop_thread()
        if client is None or thread.is_stopped:
            return
        try:
            thread.call(client.close() if close is None else close(client))
        except KafkaError:
            if not thread.is_stopped:
                raise
        finally:
            self._closing = None


async def called_in_thread(call: Callable[[T], object], argument: T) -> None:
    """Call code of the user in a thread, so that it may make blocking calls, also of a client that closes."""
    token = _in_callback.set(True)
    try:
        await asyncio.to_thread(call, argument)  # which has this context
    finally:
        _in_callback.reset(token)


def _finish_dropped(client: C, finish: Callable[[C], Coroutine[Any, Any, None]], process_id: int) -> None:
    """Finish a client whose facade was dropped. Runs where the garbage collector runs: on any thread, in any lock."""
    if process_id == os.getpid() and not sys.is_finalizing():
        loop_thread().finish_later(partial(_finished, client, finish))


async def _finished(client: C, finish: Callable[[C], Coroutine[Any, Any, None]]) -> None:
    try:
        await finish(client)
    except KafkaError as unreported:
        _log.error("a client that was dropped without close(): %s", unreported)


async def _close(client: Closable) -> None:
    await client.close()


_all: "weakref.WeakSet[PerProcess[Any]]" = weakref.WeakSet()


def _renew_locks() -> None:
    for each in list(_all):
        each.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class Facade(Configured[Any], Generic[C_co]):
    """A blocking client: usable in a `with` block. A client that is dropped without `close` finishes in the
    background."""

    def __init__(
        self, make: Callable[[], C_co], finish: "Callable[[C_co], Coroutine[Any, Any, None]]" = _close
    ) -> None:
        self._client = PerProcess(make, finish)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish and close the connections."""
        self._client.close()


def face_of(client: type[object]) -> Callable[[type[F]], type[F]]:
    """The decorator of a blocking class: help() shows the description of the asyncio class in place of a reference, and
    wrong calls are explained."""

    def described(face: type[F]) -> type[F]:
        text = (inspect.getdoc(client) or "").replace("An asyncio ", "A blocking ").replace("async with", "with")
        _reference, *own = (inspect.getdoc(face) or "").split("\n\n")
        face.__doc__ = "\n\n".join((text, *own))
        return hinted(face)

    return described


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[C], P], T]:
    """The method of the asyncio client as a method of the blocking client: the caller waits for the result."""

    @wraps(method, updated=())  # without the mark of a coroutine function
    def call(facade: Facade[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return loop_thread().call(method(facade._client.get(), *args, **kwargs))

    return call
