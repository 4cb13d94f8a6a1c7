"""The calls of the handler: records in hand go to the handler lane by lane, and its outcomes come back.

A coroutine function runs on the event loop, any other function in threads.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from traceback import TracebackException
from typing import Any, Final

from tailrace.client.keyed.lanes import Lanes, LaneWork
from tailrace.client.keyed.outcomes import Decode, KeyedRecord, Outcome, Retry, Skip, keyed_record, outcome_of
from tailrace.client.settings import KeyedConsumerSettings
from tailrace.model.partitions import TopicPartition

Handler = Callable[[KeyedRecord], Awaitable[Outcome | None] | Outcome | None]

LANE_RECORDS: Final = 16
LEAST_RECORDS_IN_HAND: Final = 1_000
"""The limit of records in hand: LANE_RECORDS for each lane, LEAST_RECORDS_IN_HAND at least."""
_SHOWN_CHARS: Final = 200

_log = logging.getLogger(__name__)


class HandlerWork:
    """The work of one run. The owner adds records to `lanes`, and asks for a turn when there may be something to do.

    `on_finished` gets each record that has left the handler, and whether the record is done. `on_turn` is called after
    each turn: there may be room for other records. `on_end` gets an exception that ends the program.
    """

    def __init__(
        self,
        settings: KeyedConsumerSettings,
        now_ms: Callable[[], int],
        *,
        on_finished: Callable[[LaneWork, bool], None],
        on_turn: Callable[[], None],
        on_end: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        self._on_finished = on_finished
        self._on_turn = on_turn
        self._on_end = on_end
        self.lanes = Lanes(1, most_records=LEAST_RECORDS_IN_HAND, most_bytes=settings.max_bytes_in_hand)
        self.counts = OutcomeCounts(settings.group or "")
        self.running: dict[asyncio.Task[Outcome | None], LaneWork] = {}
        """The records that the handler has now."""
        self._calls: HandlerCalls | None = None
        self._is_ending = False
        self._timer: asyncio.TimerHandle | None = None
        self._is_turn_planned = False

    def begin(self, handler: Handler, concurrency: int) -> int:
        """Give records to this handler from now on, at most `concurrency` at a time. Returns the limit of records in
        hand."""
        least = max(LANE_RECORDS * concurrency, LEAST_RECORDS_IN_HAND)
        most = self._settings.max_records_in_hand or least
        self.lanes = Lanes(concurrency, most_records=most, most_bytes=self._settings.max_bytes_in_hand)
        self._calls = HandlerCalls(handler, self._settings.decode, concurrency)
        return most

    @property
    def has_begun(self) -> bool:
        return self._calls is not None

    def stop(self) -> None:
        """Begin no more records. The handler goes on with the records that it has."""
        self._is_ending = True

    def plan_turn(self) -> None:
        """Let the loop make a turn soon."""
        if not self._is_turn_planned:
            self._is_turn_planned = True
            asyncio.get_running_loop().call_soon(self.turn)

    def turn(self) -> None:
        """Give the handler the records that may run now."""
        self._is_turn_planned = False
        if self._is_ending:
            return
        loop = asyncio.get_running_loop()
        now_ms = self._now_ms()
        for work in self.lanes.take(now_ms):
            task = loop.create_task(self._handle(work))
            self.running[task] = work
            task.add_done_callback(self._on_handled)
        self.cancel_timer()
        deadline_ms = self.lanes.next_deadline_ms
        if deadline_ms is not None:
            self._timer = loop.call_later(max(deadline_ms - now_ms, 0) / 1000 + 0.001, self.turn)
        self._on_turn()

    def cancel_timer(self) -> None:
        """Cancel the turn that is planned for the next retry of a key."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _handle(self, work: LaneWork) -> Outcome | None:
        """The outcome of the handler; None: the handler ends the program. Raises other exceptions of the handler."""
        assert self._calls is not None, "it runs"
        try:
            return outcome_of(await self._calls.call(work))
        except (SystemExit, KeyboardInterrupt) as end:  # raised out of a task, it would end the loop
            self._on_end(end)
            return None

    def _on_handled(self, task: "asyncio.Task[Outcome | None]") -> None:
        """Take the outcome. Each record that `take` gave comes here once, even if its task was cancelled before its
        start."""
        work = self.running.pop(task)
        outcome, fault = result_of(task)
        if fault is not None and not isinstance(fault, Exception | asyncio.CancelledError):
            self._on_end(fault)
            fault = None
        if fault is not None:
            outcome = Retry()
        if outcome is not None:
            self.counts.add(work, outcome, fault)
        shown = None if fault is None else fault_text(fault)
        is_done = self.lanes.finish(work, outcome or Retry(), self._now_ms(), fault=shown)
        self._on_finished(work, is_done)
        self.plan_turn()

    def close(self, name: TopicPartition) -> None:
        """Drop the records of this partition, and cancel its calls of the handler if they can be cancelled."""
        self.lanes.close(name)
        if self._calls is not None and self._calls.is_async:
            for task, work in self.running.items():
                if work.name == name:
                    task.cancel()

    async def end(self) -> None:
        """Cancel running calls of the handler, and end the threads."""
        try:
            await cancelled(self.running)
        finally:
            assert self._calls is not None, "it runs"
            self._calls.close()


async def cancelled(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel these tasks, and await their end."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


class OutcomeCounts:
    """Totals since the consumer was made."""

    def __init__(self, group: str) -> None:
        self._group = group
        self.done = self.skipped = self.retried = self.failed = 0

    def add(self, work: LaneWork, outcome: Outcome, fault: BaseException | None) -> None:
        """Count the outcome of this record. `fault`: the exception of the handler that led to the outcome."""
        if isinstance(outcome, Retry):
            self.retried += 1
        elif isinstance(outcome, Skip):
            self.skipped += 1
            _log.info("group %r skips offset %d of %s: %s", self._group, work.record.offset, work.name, outcome.reason)
        else:
            self.done += 1
        if fault is None:
            return
        self.failed += 1
        if work.attempt == 1:
            _log.warning(
                "group %r: the handler has failed at offset %d of %s; its key is held and tried again: %s",
                self._group,
                work.record.offset,
                work.name,
                fault_text(fault),
                exc_info=fault,
            )


def fault_text(fault: BaseException) -> str:
    """The exception in a few words. The text may be empty: its `__str__` is code of users too."""
    text = TracebackException(type(fault), fault, None, lookup_lines=False, compact=True)
    return f"{type(fault).__name__}: {text}"[:_SHOWN_CHARS]


class HandlerCalls:
    """A handler, with as many threads as it may run at a time if the handler needs threads."""

    def __init__(self, handler: Handler, decode: Decode | None, concurrency: int) -> None:
        self._handler = handler
        self._decode = decode
        self.is_async = any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))
        """Whether its calls can be cancelled: threads cannot."""
        self._threads = (
            None if self.is_async else ThreadPoolExecutor(concurrency, thread_name_prefix="tailrace-handler")
        )

    async def call(self, work: LaneWork) -> object:
        """The result of the handler for this record; the result may be no outcome. Raises the exceptions of the
        handler."""
        if self._threads is None:
            result = self._run(work)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)
        return await result if inspect.isawaitable(result) else result

    def _run(self, work: LaneWork) -> object:
        try:
            return self._handler(keyed_record(work.record, work.attempt, self._decode))
        except StopIteration as end:  # a future takes no StopIteration, and its reader would wait for ever
            raise RuntimeError("the handler has raised StopIteration") from end

    def close(self) -> None:
        """Begin no more calls. A thread that runs is not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def result_of(call: "asyncio.Task[Outcome | None]") -> tuple[Outcome | None, BaseException | None]:
    """The outcome of a call that has ended, or its exception; None and None for a cancelled call."""
    if not call.cancelled():
        raised = call.exception()
        return (call.result(), None) if raised is None else (None, raised)
    if call.cancelling():
        return None, None
    return None, asyncio.CancelledError("of a task that the handler has made")
