"""Workers that are tasks on an event loop, for a handler that is a coroutine function. Each call has a task and a
context of its own."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from tailrace.client.keyed.handler import Handler, cancelled, ends_program, within
from tailrace.client.keyed.lanes import LaneWork
from tailrace.client.keyed.outcomes import Outcome, Retry, outcome_of, prepared
from tailrace.client.keyed.work_queue import WorkQueue
from tailrace.client.settings import KeyedConsumerSettings


class HandlerTasks:
    """The calls of a handler on its loop, which is not the loop of the engine. `begin` and `cancel` are called from
    other threads."""

    can_cancel: Final = True

    def __init__(
        self,
        queue: WorkQueue,
        handler: Handler,
        settings: KeyedConsumerSettings,
        *,
        loop: asyncio.AbstractEventLoop,
        context: Context,
        on_end: Callable[[BaseException], None],
    ) -> None:
        """`context`: the variables that each call begins with. `on_end` gets an exception that ends the program, and
        the fault of a loop that is closed."""
        self._queue = queue
        self._handler = handler
        self._decode = settings.decode
        self._limit_ms = settings.handler_timeout_ms
        self._loop = loop
        self._context = context
        self._on_end = on_end
        self._tasks: dict[asyncio.Task[Outcome | None], LaneWork] = {}
        self._on_work = self._wake  # a bound method is a new object each time

    def begin(self, concurrency: int) -> None:
        """Work on the records of the queue, so many at a time."""
        self._queue.begin([self._on_work])

    def _wake(self) -> None:
        self._call_soon(self._take)

    def _call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments, context=self._context)
        except RuntimeError as fault:  # the loop is closed
            self._on_end(fault)

    def _take(self) -> None:
        while (work := self._queue.take(self._on_work)) is not None:
            self._start(work)

    def _start(self, work: LaneWork) -> None:
        task = self._loop.create_task(self._handle(work))
        self._tasks[task] = work
        task.add_done_callback(self._on_handled)

    async def _handle(self, work: LaneWork) -> Outcome | None:
        """The outcome of the handler; None: the handler ends the program. Raises other exceptions of the handler."""
        try:
            result: Any = self._handler(prepared(work.record, work.attempt, self._decode))
            return outcome_of(await (result if self._limit_ms is None else within(result, self._limit_ms)))
        except (SystemExit, KeyboardInterrupt) as end:  # raised out of a task, it would end the loop
            self._on_end(end)
            return None

    def _on_handled(self, task: "asyncio.Task[Outcome | None]") -> None:
        """Take the outcome. Each record comes here once, even if its task was cancelled before its start."""
        work = self._tasks.pop(task)
        outcome, fault = _result_of(task)
        if fault is not None:
            outcome = Retry()
            if ends_program(fault):
                self._on_end(fault)
                outcome = fault = None
        taken = self._queue.exchange(work, outcome, fault, self._on_work)
        if taken is not None:
            self._start(taken)

    def cancel(self, works: list[LaneWork]) -> None:
        """Cancel the calls with these records."""
        if works:
            self._call_soon(self._cancel, frozenset(works))

    def _cancel(self, works: frozenset[LaneWork]) -> None:
        for task, work in list(self._tasks.items()):
            if work in works:
                task.cancel()

    async def end(self) -> None:
        """Cancel the calls that run, and return when they have ended."""
        self._queue.end()
        if not self._loop.is_closed():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(cancelled(self._tasks), self._loop))


def _result_of(call: "asyncio.Task[Outcome | None]") -> tuple[Outcome | None, BaseException | None]:
    """The outcome of a call that has ended, or its exception; neither if it was cancelled."""
    if not call.cancelled():
        raised = call.exception()
        return (call.result(), None) if raised is None else (None, raised)
    if call.cancelling():
        return None, None
    return None, asyncio.CancelledError("of a task that the handler has made")
