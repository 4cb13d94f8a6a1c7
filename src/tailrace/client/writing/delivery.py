"""Deliveries of records: their futures, and the failures that no future has reported, for `flush` and `close`.

A failure is unreported until its future is read (`result`, `exception`, a callback, `await`) or an exception has
reported it. Only a count and a few of the first failures are kept, however many there are. The log has a warning per
topic, at once and every 30 s. The future for threads is light enough to make a hundred thousand per second.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextvars import Context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from weakref import WeakMethod

from tailrace.client.writing.outgoing import RecordMetadata, RecordNotWritten
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.throttle import Throttle

_WARNING_PERIOD_MS: Final = 30_000
_MOST_KEPT: Final = 16
"""Several, so that a failure is left to quote when the futures of the first failures have been read."""

_MOST_TOPICS: Final = 1_000

_logger = logging.getLogger("tailrace.client")

_making = threading.Lock()
"""Held only while a future decides whether a caller waits for its result, or has read it already."""

_counting = threading.Lock()
"""Held for a few assignments only. Futures fail on the loop's thread and are read on any thread."""


def _renew_locks() -> None:
    global _making, _counting
    _making, _counting = threading.Lock(), threading.Lock()  # a thread of the parent may have held them


os.register_at_fork(after_in_child=_renew_locks)


class Ticket(NamedTuple):
    """The token of a counted failure, given back when its future is read."""

    reports: int
    number: int
    records: int


class WriteFailures:
    """The unreported failures of one producer. Every method may be called from any thread."""

    def __init__(
        self, situation: WeakMethod[Callable[[], str]] | None = None, pending: Callable[[str], str] = str
    ) -> None:
        """`situation` returns the reason for which records of the producer wait: a weak reference, as futures outlive
        their producer. `pending` makes the text about records that wait for this reason."""
        self._situation = situation
        self._pending = pending
        self._reports = 0
        """Rises each time when `flush` or `close` has reported all failures so far."""
        self._next_number = 0
        self._records = 0
        self._kept: dict[int, tuple[str, ErrorCode, str]] = {}
        self._warnings = Throttle(_WARNING_PERIOD_MS)
        self._unlogged: dict[str, int] = {}

    def add(self, fault: BaseException) -> Ticket:
        """Count a failed record whose future has not been read. Call `log` too, while no lock is held."""
        place, records = (fault.place, fault.records) if isinstance(fault, RecordNotWritten) else ("", 1)
        code = fault.code if isinstance(fault, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
        with _counting:
            ticket = Ticket(self._reports, self._next_number, records)
            self._next_number += 1
            self._records += records
            if len(self._kept) < _MOST_KEPT:
                self._kept[ticket.number] = place, code, str(fault)
        return ticket

    def log(self, fault: BaseException) -> None:
        """Log a warning of a counted failure, unless its topic had one less than 30 s ago.

        Records that an abort drops are not logged: the application asked for the abort.
        """
        if not isinstance(fault, RecordNotWritten) or fault.code is ErrorCode.OPERATION_NOT_ATTEMPTED:
            return
        count = self._unlogged.pop(fault.topic, 0) + fault.records
        if self._warnings.admits(fault.topic, time.monotonic_ns() // 1_000_000):
            what = (
                f"1 record for topic {fault.topic} was"
                if count == 1
                else f"{count} records for topic {fault.topic} were"
            )
            _logger.warning("%s not written: %s", what, fault)
        elif len(self._unlogged) < _MOST_TOPICS:
            self._unlogged[fault.topic] = count

    def late(self, topic: str, timeout: float | None) -> TimeoutError:
        """The error of a wait for the future of a record, after this time in seconds."""
        situation = None if self._situation is None else self._situation()
        why = "" if situation is None else f"; {self._pending(situation())}"
        return TimeoutError(f"the record for topic {topic!r} is not written after {timeout} s{why}")

    def mark_read(self, ticket: Ticket) -> None:
        """Count a failure no longer: its future has been read."""
        with _counting:
            if ticket.reports == self._reports:
                self._records -= ticket.records
                self._kept.pop(ticket.number, None)

    def pop_all(self) -> KafkaError | None:
        """Return the unreported failures as one KafkaError; from then on they are reported."""
        with _counting:
            records, kept = self._records, list(self._kept.values())
            self._reports += 1
            self._records = 0
            self._kept.clear()
        if not records:
            return None
        if not kept:
            return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{_were(records)} not written; the log says why")
        place, code, text = kept[0]
        first = "" if records == 1 else ", the first"
        return KafkaError(code, f"{_were(records)} not written{first}: {f'{place}: ' if place else ''}{text}")

    def raise_unreported(self) -> None:
        """Raise KafkaError for the unreported failures, if there are any."""
        fault = self.pop_all()
        if fault is not None:
            raise fault


def _were(records: int) -> str:
    return "1 record was" if records == 1 else f"{records} records were"


_LAZY = ("_condition", "_waiters", "_done_callbacks")


class DeliveryFuture(Future[RecordMetadata]):
    """A concurrent future that makes its lock and lists at the first wait or callback.

    Most futures of records are never waited for, and an ordinary future consists of eight objects that Python's garbage
    collector walks again and again: half of a producer's time. This future is running from the start, so it cannot be
    cancelled.
    """

    _state = "RUNNING"
    _result = None
    _exception = None
    _readers = 0
    """Waits under way, and callbacks: each gets the outcome."""
    _is_read = False
    _failure: BaseException | None = None
    _ticket: Ticket | None = None

    def __init__(self, failures: WriteFailures, topic: str = "") -> None:
        """`failures` counts the failure of this future unless it is read. Locks and lists are not made yet: see the
        class."""
        self._failures = failures
        self._topic = topic

    if not TYPE_CHECKING:  # a type checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            if name not in _LAZY:
                raise AttributeError(name)
            with _making:
                if "_condition" not in self.__dict__:
                    self._waiters = []
                    self._done_callbacks = []
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
        with _making:
            self._failure = exception
            is_unreported = not self._readers and self._count()
        super().set_exception(exception)
        if is_unreported and exception is not None:
            self._failures.log(exception)  # a handler of the log may use a producer, too: no lock is held

    def _count(self) -> bool:
        """Under the lock: count the failure for `flush` and `close`. Returns whether there is a failure."""
        if self._failure is None:
            return False
        self._ticket = self._failures.add(self._failure)
        return True

    def result(self, timeout: float | None = None) -> RecordMetadata:
        self._begin_read()
        try:
            result = super().result(timeout)
        except BaseException as raised:
            self._end_read(has_outcome=raised is self._failure)
            if isinstance(raised, TimeoutError):
                raise self._failures.late(self._topic, timeout) from None
            raise
        self._end_read(has_outcome=True)
        return result

    def get(self, timeout: float | None = None) -> RecordMetadata:
        """The result, under the name that kafka-python gives it."""
        return self.result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._begin_read()
        has_outcome = False
        try:
            exception = super().exception(timeout)
            has_outcome = True
        except TimeoutError:
            raise self._failures.late(self._topic, timeout) from None
        finally:
            self._end_read(has_outcome=has_outcome)
        return exception

    def add_done_callback(self, fn: Callable[[Future[RecordMetadata]], object]) -> None:
        self._begin_read()
        super().add_done_callback(fn)

    def add_callback(self, call: Callable[..., object], *args: Any, **keywords: Any) -> Self:
        """Call `call(*args, metadata, **keywords)` when the record is written, as kafka-python's futures do."""

        def succeeded(future: Future[RecordMetadata]) -> None:
            if future.exception() is None:
                call(*args, future.result(), **keywords)

        self.add_done_callback(succeeded)
        return self

    def add_errback(self, call: Callable[..., object], *args: Any, **keywords: Any) -> Self:
        """Call `call(*args, error, **keywords)` when the record has failed, as kafka-python's futures do."""

        def failed(future: Future[RecordMetadata]) -> None:
            if (error := future.exception()) is not None:
                call(*args, error, **keywords)

        self.add_done_callback(failed)
        return self

    def _begin_read(self) -> None:
        """From here on the caller gets the failure, unless its wait ends before."""
        with _making:
            self._readers += 1
            ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._failures.mark_read(ticket)

    def _end_read(self, *, has_outcome: bool) -> None:
        """Count the failure if this wait ended without the outcome and no other wait goes on."""
        with _making:
            self._readers -= 1
            self._is_read |= has_outcome
            is_unreported = not self._readers and not self._is_read and self._count()  # it may have failed just now
        if is_unreported and self._failure is not None:
            self._failures.log(self._failure)


class AwaitedDelivery(asyncio.Future[RecordMetadata]):
    """The future of a record for asyncio; on its event loop only.

    A registered callback counts as a reader: `asyncio.wait` and `asyncio.shield` remove their callbacks when they end
    before the record is complete.
    """

    def __init__(self, failures: WriteFailures, *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._failures = failures
        self._registered = 0
        """The number of callbacks, including callbacks of tasks that await this future."""
        self._ticket: Ticket | None = None

    def set_exception(self, exception: type | BaseException, /) -> None:
        super().set_exception(exception)
        if not self._registered and isinstance(exception, BaseException):
            self._log_traceback = False  # asyncio would log each one when it is freed
            self._ticket = self._failures.add(exception)
            self._failures.log(exception)

    def result(self) -> RecordMetadata:
        self._mark_read()
        return super().result()

    def exception(self) -> BaseException | None:
        self._mark_read()
        return super().exception()

    def add_done_callback(self, fn: Callable[[Self], object], /, *, context: Context | None = None) -> None:
        self._registered += 1
        self._mark_read()
        super().add_done_callback(fn, context=context)

    def remove_done_callback(self, fn: Callable[[Self], object], /) -> int:
        removed = super().remove_done_callback(fn)
        self._registered -= removed
        return removed

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        # asyncio.Future.__await__ does not call `result` of this class, which reports the failure.
        if not self.done():
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    __iter__ = __await__

    def _mark_read(self) -> None:
        """Count a failure as reported: the caller gets it now."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._failures.mark_read(ticket)
