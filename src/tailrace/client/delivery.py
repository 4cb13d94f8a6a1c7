"""The futures of records. Each knows whether it has been asked: a failure that has not is told by `flush` and `close`.

The one for threads is light enough to make a hundred thousand per second.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Self

from tailrace.client.failures import Ticket, WriteFailures
from tailrace.client.outgoing import RecordMetadata

_making = threading.Lock()
"""Held only while a future decides whether it is waited for, or has been asked, already."""


def _renew_lock() -> None:
    global _making
    _making = threading.Lock()  # the loop thread of the parent may have held it


os.register_at_fork(after_in_child=_renew_lock)

_LAZY = ("_condition", "_waiters", "_done_callbacks")


class DeliveryFuture(Future[RecordMetadata]):
    """A concurrent future that makes its lock and lists when somebody first waits for it or adds a callback.

    Most futures of records are never waited for, and an ordinary one consists of eight objects that Python's garbage
    collector walks again and again: half of a producer's time. It is running from the start, so it cannot be cancelled.
    """

    _state = "RUNNING"
    _result = None
    _exception = None
    _is_asked = False
    _failure: BaseException | None = None
    _ticket: Ticket | None = None
    _failures: WriteFailures | None = None

    def __init__(self, failures: WriteFailures | None = None) -> None:
        """`failures` counts it if it fails and is not asked; nothing else is made yet: see the class."""
        if failures is not None:
            self._failures = failures

    def __getattr__(self, name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(name)
        with _making:
            if "_condition" not in self.__dict__:
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._condition = threading.Condition()
        return self.__dict__[name]

    def done(self) -> bool:
        return self._state == "FINISHED"

    def set_result(self, result: RecordMetadata) -> None:
        with _making:
            if "_condition" not in self.__dict__:
                self._result = result
                self._state = "FINISHED"
                return
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        failures = self._failures
        with _making:
            self._failure = exception
            is_unheard = not self._is_asked and self._count()
        super().set_exception(exception)
        if is_unheard and failures is not None and exception is not None:
            failures.log(exception)  # a handler of the log may use a producer, too: no lock is held

    def _count(self) -> bool:
        """Under the lock: have the failure told by `flush` and `close`, unless it is asked for before."""
        if self._failures is None or self._failure is None:
            return False
        self._ticket = self._failures.add(self._failure)
        return True

    def result(self, timeout: float | None = None) -> RecordMetadata:
        self._ask()
        try:
            return super().result(timeout)
        finally:
            self._end_asking()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._ask()
        try:
            return super().exception(timeout)
        finally:
            self._end_asking()

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        self._ask()
        super().add_done_callback(fn)

    def _ask(self) -> None:
        """Whatever becomes of it is heard of from now on."""
        with _making:
            self._is_asked = True
            ticket, self._ticket = self._ticket, None
        if ticket is not None and self._failures is not None:
            self._failures.heard(ticket)

    def _end_asking(self) -> None:
        """A wait that was not long enough has heard nothing."""
        if self._state == "FINISHED" or self.__dict__.get("_done_callbacks"):
            return
        with _making:
            self._is_asked = False
            self._count()  # if it has failed just now


class AwaitedDelivery(asyncio.Future[RecordMetadata]):
    """The same for asyncio; on its event loop only."""

    def __init__(self, failures: WriteFailures, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._failures = failures
        self._is_asked = False
        self._ticket: Ticket | None = None

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        if not self._is_asked and isinstance(exception, BaseException):
            self._log_traceback = False  # asyncio would log each one when it is freed
            self._ticket = self._failures.add(exception)
            self._failures.log(exception)

    def result(self) -> RecordMetadata:
        self._ask()
        return super().result()

    def exception(self) -> BaseException | None:
        self._ask()
        return super().exception()

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        self._ask()
        super().add_done_callback(fn, context=context)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        self._ask()
        return super().__await__()

    __iter__ = __await__

    def _ask(self) -> None:
        self._is_asked = True
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._failures.heard(ticket)
