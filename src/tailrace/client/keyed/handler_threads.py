"""Workers that are threads, for a handler that is a plain function.

The threads do not keep the interpreter alive by themselves: at its end, calls that run are waited for, and no more
calls begin.
"""

import asyncio
import atexit
import inspect
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, Final

from tailrace.client.keyed.handler import Handler, ends_program, within
from tailrace.client.keyed.lanes import LaneWork
from tailrace.client.keyed.outcomes import DONE, Outcome, Retry, outcome_of, prepared
from tailrace.client.keyed.work_queue import WorkQueue
from tailrace.client.reader_settings import KeyedConsumerSettings


class HandlerThreads:
    """As many threads as records may run at a time; each starts when it is first needed."""

    can_cancel: Final = False

    def __init__(
        self,
        queue: WorkQueue,
        handler: Handler,
        settings: KeyedConsumerSettings,
        *,
        loop: Callable[[], asyncio.AbstractEventLoop],
        on_end: Callable[[BaseException], None],
    ) -> None:
        """`loop`: the loop of awaitables that the function returns. `on_end` gets an exception that ends the
        program."""
        self._queue = queue
        self._handler = handler
        self._decode = settings.decode
        self._limit_ms = settings.handler_timeout_ms
        self._loop = loop
        self._on_end = on_end
        self._threads: list[threading.Thread] = []
        self._awaited: set[Future[Any]] = set()

    def begin(self, concurrency: int) -> None:
        """Work on the records of the queue, so many at a time."""
        _all.add(self)
        self._queue.begin(partial(self._start, number) for number in reversed(range(concurrency)))

    def _start(self, number: int) -> None:
        if self._queue.is_ended:
            return
        thread = threading.Thread(target=self._work, name=f"tailrace-handler_{number}", daemon=True)
        try:
            thread.start()
        except RuntimeError as fault:  # the system has no more threads
            self._on_end(fault)
            return
        self._threads.append(thread)

    def _work(self) -> None:
        parked = threading.Lock()
        parked.acquire()
        on_work = parked.release
        queue = self._queue
        work = queue.take(on_work)
        while True:
            if work is not None:
                outcome, fault = self._call(work)
                work = queue.exchange(work, outcome, fault, on_work)
            elif queue.is_ended:
                return
            else:
                parked.acquire()
                work = queue.take(on_work)

    def _call(self, work: LaneWork) -> tuple[Outcome | None, BaseException | None]:
        """Call the handler. Returns the outcome, and the exception that led to the outcome.

        The outcome is None if the exception ends the program, or if the call was cancelled at the end of the run: then
        the queue counts no outcome. If the handler returns None, the outcome is DONE.
        """
        try:
            result: object = self._handler(prepared(work.record, work.attempt, self._decode))
            if result is None:
                return DONE, None
            if inspect.isawaitable(result):
                result = self._result_of(result)
            return outcome_of(result), None
        except StopIteration as end:  # as of a coroutine
            failure = RuntimeError("the handler has raised StopIteration")
            failure.__cause__ = end
            return Retry(), failure
        except BaseException as fault:  # noqa: BLE001 - an exception of the handler, of any kind
            if ends_program(fault):
                self._on_end(fault)
                return None, None
            if isinstance(fault, CancelledError) and self._queue.is_ended:
                return None, None
            return Retry(), fault

    def _result_of(self, awaitable: Awaitable[object]) -> object:
        """The result of an awaitable, which runs on the loop."""
        future = asyncio.run_coroutine_threadsafe(_finished_result(within(awaitable, self._limit_ms)), self._loop())
        self._awaited.add(future)
        try:
            result, fault = future.result()
        finally:
            self._awaited.discard(future)
        if fault is not None:
            raise fault
        return result

    def cancel(self, works: list[LaneWork]) -> None:
        """Calls that run in threads cannot be cancelled."""

    async def end(self) -> None:
        """Begin no more calls. A thread that runs is not waited for; an awaitable is cancelled."""
        self._queue.end()
        for future in list(self._awaited):
            future.cancel()

    def join(self) -> None:
        """End, and wait for the calls that run."""
        self._queue.end()
        for thread in list(self._threads):
            thread.join()


async def _finished_result(awaitable: Awaitable[object]) -> tuple[object, BaseException | None]:
    """The result, or an exception that must not leave the task: SystemExit would end the loop, and CancelledError would
    say that this task was cancelled."""
    try:
        return await awaitable, None
    except (SystemExit, KeyboardInterrupt) as end:
        return None, end
    except asyncio.CancelledError as fault:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return None, fault


_all: "weakref.WeakSet[HandlerThreads]" = weakref.WeakSet()


def _forget_after_fork() -> None:
    _all.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


@atexit.register
def _join_at_exit() -> None:
    for threads in list(_all):
        threads.join()
