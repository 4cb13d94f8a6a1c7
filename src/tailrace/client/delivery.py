"""The futures of records. Each knows whether it was awaited: other failures are reported by `flush` and `close`.

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
    """A concurrent future that makes its lock and lists at the first wait or callback.

    Most futures of records are never waited for, and an ordinary one consists of eight objects that Python's garbage
    collector walks again and again: half of a producer's time. It is running from the start, so it cannot be cancelled.
    """

    _state = "RUNNING"
    _result = None
    _exception = None
    _askers = 0
    """Waits that are under way, and callbacks: each will hear how it ends."""
    _is_heard = False
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
            is_unheard = not self._askers and self._count()
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
        self._begin_asking()
        try:
            result = super().result(timeout)
        except BaseException as raised:
            self._end_asking(has_heard=raised is self._failure)
            raise
        self._end_asking(has_heard=True)
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._begin_asking()
        has_heard = False
        try:
            exception = super().exception(timeout)
            has_heard = True
        finally:
            self._end_asking(has_heard=has_heard)
        return exception

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        self._begin_asking()
        super().add_done_callback(fn)

    def _begin_asking(self) -> None:
        """A failure that comes from here on is reported, unless the wait ends before."""
        with _making:
            self._askers += 1
            ticket, self._ticket = self._ticket, None
        if ticket is not None and self._failures is not None:
            self._failures.heard(ticket)

    def _end_asking(self, *, has_heard: bool) -> None:
        """A wait that was not long enough has heard nothing, but another thread's may go on."""
        with _making:
            self._askers -= 1
            self._is_heard |= has_heard
            is_unheard = not self._askers and not self._is_heard and self._count()  # if it has failed just now
        if is_unheard and self._failures is not None and self._failure is not None:
            self._failures.log(self._failure)


class AwaitedDelivery(asyncio.Future[RecordMetadata]):
    """The same for asyncio; on its event loop only.

    A callback counts as asking while it is registered: `asyncio.wait` and `asyncio.shield` take theirs back when they
    end before the record does.
    """

    def __init__(self, failures: WriteFailures, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._failures = failures
        self._registered = 0
        """Callbacks, those of tasks that await it too."""
        self._ticket: Ticket | None = None

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        if not self._registered and isinstance(exception, BaseException):
            self._log_traceback = False  # asyncio would log each one when it is freed
            self._ticket = self._failures.add(exception)
            self._failures.log(exception)

    def result(self) -> RecordMetadata:
        self._hear()
        return super().result()

    def exception(self) -> BaseException | None:
        self._hear()
        return super().exception()

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        self._registered += 1
        self._hear()
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Self], object], /) -> int:
        removed = super().remove_done_callback(fn)
        self._registered -= removed
        return removed

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        # Asyncio's own takes the result past the method of this class, which has to note it.
        if not self.done():
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    __iter__ = __await__

    def _hear(self) -> None:
        """The failure is reported to the caller that asks now, if there is one."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._failures.heard(ticket)
