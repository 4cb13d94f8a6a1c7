"""Workers that are tasks on an event loop, for a handler that is a coroutine function.

1. A task works on records one after another, as long as no call waits for anything: such a call costs neither a task
   nor a turn of the loop. When the clock has gone on by a millisecond, other callbacks of the loop have a turn.
2. A call that waits has the task for itself from then on: the task ends with the call, and the next record gets a new
   task. So `asyncio.current_task()` is the same task in all steps of a call, and a cancellation or a timeout of this
   task meets no other call.
3. Each call has a context of its own: a copy of the context of `run`.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from types import CoroutineType, coroutine
from typing import Any, Final, NamedTuple

from tailrace.client.keyed.handler import Handler, cancelled, ends_program, within
from tailrace.client.keyed.lanes import LaneWork
from tailrace.client.keyed.outcomes import DONE, Outcome, Retry, outcome_of, prepared
from tailrace.client.keyed.work_queue import WorkQueue
from tailrace.client.reader_settings import KeyedConsumerSettings


class _Worker:
    """A task, and the record that it has now."""

    __slots__ = ("work",)

    def __init__(self, work: LaneWork) -> None:
        self.work: LaneWork | None = work


class _WaitingCall(NamedTuple):
    """A call that has not ended in its first step."""

    call: "CoroutineType[Any, Any, Any]"
    waited_for: object
    """The future that the task is to wait for; None for a turn of the loop."""


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
        self._handler: Callable[..., Any] = handler
        self._decode = settings.decode
        self._limit_ms = settings.handler_timeout_ms
        self._loop = loop
        self._context = context
        self._on_end = on_end
        self._tasks: dict[asyncio.Task[None], _Worker] = {}
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
        worker = _Worker(work)
        task = self._loop.create_task(self._work(worker, work))
        self._tasks[task] = worker
        task.add_done_callback(self._on_task_end)

    async def _work(self, worker: _Worker, work: LaneWork) -> None:
        """Work on this record, and on the next records until a call waits: then the task ends with the call."""
        task: Any = asyncio.current_task()
        queue, begin, on_work, new_context = self._queue, self._begin, self._on_work, self._context.copy
        turn_ms = work.began_ms
        while True:
            has_waited = False
            outcome: Outcome | None
            fault: BaseException | None = None
            began = self._loop.time() if self._limit_ms is not None else 0.0
            context = new_context()
            try:
                outcome = begun = context.run(begin, work)
                if begun.__class__ is _WaitingCall:
                    has_waited = True
                    outcome = await self._end_of(begun, context, began)
                elif task.cancelling():
                    outcome = None  # the call has cancelled its own task
            except GeneratorExit:
                raise
            except BaseException as raised:  # noqa: BLE001 - an exception of the handler, of any kind
                outcome, fault = self._outcome_of_fault(task, raised)
            following = worker.work = queue.exchange(work, outcome, fault, on_work)
            if following is None:
                return
            if has_waited or task.cancelling():
                worker.work = None
                self._start(following)
                return
            work = following
            if work.began_ms != turn_ms:
                await asyncio.sleep(0)
                turn_ms = work.began_ms

    def _begin(self, work: LaneWork) -> Any:
        """Begin the call with a record. Returns the outcome, or a _WaitingCall. Raises exceptions of the handler."""
        record, decode = work.record, self._decode
        if decode is not None or work.attempt != 1:
            record = prepared(record, work.attempt, decode)
        call = self._handler(record)
        if call.__class__ is not CoroutineType:
            call = _awaited(call)
        try:
            waited_for = call.send(None)
        except StopIteration as end:
            return DONE if end.value is None else outcome_of(end.value)
        return _WaitingCall(call, waited_for)

    async def _end_of(self, waiting: _WaitingCall, context: Context, began: float) -> Outcome:
        """The outcome of a call that waits, and began at this time of the loop."""
        rest = _further_steps(waiting.call, waiting.waited_for, context)
        return outcome_of(await (rest if self._limit_ms is None else within(rest, self._limit_ms, began)))

    def _outcome_of_fault(
        self, task: "asyncio.Task[None]", raised: BaseException
    ) -> tuple[Outcome | None, BaseException | None]:
        """The outcome of a call that has raised, and its fault; neither if it was cancelled, or ends the program."""
        if ends_program(raised):
            self._on_end(raised)
            return None, None
        if not isinstance(raised, asyncio.CancelledError):
            return Retry(), raised
        if task.cancelling():
            return None, None
        fault = asyncio.CancelledError("of a task that the handler has made")
        fault.__cause__ = raised
        return Retry(), fault

    def _on_task_end(self, task: "asyncio.Task[None]") -> None:
        """Give back the record of a task that has ended without an outcome: it was cancelled before the call began."""
        work = self._tasks.pop(task).work
        if work is None:
            return
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._on_end(fault)
        following = self._queue.exchange(work, None, None, self._on_work)
        if following is not None:
            self._start(following)

    def cancel(self, works: list[LaneWork]) -> None:
        """Cancel the calls with these records."""
        if works:
            self._call_soon(self._cancel, frozenset(works))

    def _cancel(self, works: frozenset[LaneWork]) -> None:
        for task, worker in list(self._tasks.items()):
            if worker.work in works:
                task.cancel()

    async def end(self) -> None:
        """Cancel the calls that run, and return when they have ended."""
        self._queue.end()
        if not self._loop.is_closed():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(cancelled(self._tasks), self._loop))


async def _awaited(awaitable: Any) -> Any:
    """The result of the awaitable."""
    return await awaitable


@coroutine
def _further_steps(
    call: "CoroutineType[Any, Any, Any]", waited_for: object, context: Context
) -> Generator[Any, Any, Any]:
    """The steps of a call after its first step, in its context. Returns the result of the call."""
    while True:
        step: Callable[..., Any] = call.send
        argument: object = None
        try:
            argument = yield waited_for
        except GeneratorExit:
            context.run(call.close)
            raise
        except BaseException as thrown:  # noqa: BLE001 - for the call, of any kind
            step, argument = call.throw, thrown
        try:
            waited_for = context.run(step, argument)
        except StopIteration as end:
            return end.value
