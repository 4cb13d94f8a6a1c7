"""Calls of a handler: a coroutine function on the event loop, any other function in threads."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from tailrace.client.sharing.lanes import LaneWork
from tailrace.client.sharing.outcomes import Outcome
from tailrace.client.sharing.shared_record import Decode, SharedRecord, shared_record

Handler = Callable[[SharedRecord], Awaitable[Outcome | None] | Outcome | None]


class HandlerCalls:
    """A handler, with as many threads as it may run at a time if it needs any."""

    def __init__(self, handler: Handler, decode: Decode | None, concurrency: int) -> None:
        self._handler = handler
        self._decode = decode
        self.is_async = any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))
        """Whether its calls can be cancelled: threads cannot."""
        self._threads = (
            None if self.is_async else ThreadPoolExecutor(concurrency, thread_name_prefix="tailrace-handler")
        )

    async def call(self, work: LaneWork) -> object:
        """The result of the handler for this record; it may be no outcome. Raises the exceptions of the handler."""
        if self._threads is None:
            result = self._run(work)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)
        return await result if inspect.isawaitable(result) else result

    def _run(self, work: LaneWork) -> object:
        try:
            return self._handler(shared_record(work.record, work.attempt, self._decode))
        except StopIteration as end:  # a future takes none, and its reader would wait for ever
            raise RuntimeError("the handler has raised StopIteration") from end

    def close(self) -> None:
        """Begin no more calls. A thread that runs is not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def result_of(call: "asyncio.Task[Outcome | None]") -> tuple[Outcome | None, BaseException | None]:
    """The outcome of a call that has ended, or its exception; neither if it was cancelled."""
    if not call.cancelled():
        raised = call.exception()
        return (call.result(), None) if raised is None else (None, raised)
    if call.cancelling():
        return None, None
    return None, asyncio.CancelledError("of a task that the handler has made")
