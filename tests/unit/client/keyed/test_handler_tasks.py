"""Coroutine handlers on their loop: tasks, contexts, cancellations and turns of the loop."""

import asyncio
from contextvars import ContextVar
from typing import Any

import pytest

from tailrace.client.keyed import outcomes
from tailrace.client.keyed.handler_work import HandlerWork
from tailrace.client.keyed.keyed_metrics import KeyedMetrics
from tailrace.client.keyed.outcomes import KeyedRecord
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.partitions import TopicPartition
from unit.client.keyed.keyed_runs import on_engine

NAME = TopicPartition("orders", 0)
SECONDS = 60.0

who: ContextVar[str] = ContextVar("who", default="nothing")


class Calls:
    """Calls of a handler on the loop of the test, each for a record with a key of its own."""

    def __init__(self, handler: Any, count: int, *, concurrency: int = 1, **settings: Any) -> None:
        self._handler = handler
        self._left = count
        self._ended = asyncio.Event()
        self.ends: list[BaseException] = []
        self.is_end_noted = asyncio.Event()
        given = KeyedConsumerSettings("127.0.0.1:1", group="g", topics=["orders"], **settings)
        self.work = HandlerWork(given, on_outcomes=lambda: None, on_end=self._note_end)
        self.work.begin(self._handle, concurrency, asyncio.get_running_loop)
        exchange = self.work.queue.exchange

        def noted(work: Any, outcome: Any, fault: Any, on_work: Any) -> Any:
            self._left -= not isinstance(outcome, outcomes.Retry) and outcome is not None
            if not self._left:
                self._ended.set()
            return exchange(work, outcome, fault, on_work)

        queue: Any = self.work.queue
        queue.exchange = noted
        self.work.queue.open(NAME)
        self.work.queue.add(NAME, [KeyedRecord(*NAME, offset, 0, b"%d" % offset, b"", ()) for offset in range(count)])

    def _note_end(self, fault: BaseException) -> None:
        self.ends.append(fault)
        self.is_end_noted.set()

    async def _handle(self, record: KeyedRecord) -> Any:
        return await self._handler(record)

    async def done(self) -> KeyedMetrics:
        """Return when each record is done. Ends the work."""
        async with asyncio.timeout(SECONDS):
            await self._ended.wait()
        metrics = self.metrics()
        await self.end()
        return metrics

    async def end(self) -> None:
        await on_engine(self.work.end())

    def metrics(self) -> KeyedMetrics:
        return self.work.queue.metrics(corrupt_batches=0, ranges={})


async def test_calls_that_do_not_wait_share_a_task_and_a_call_that_waits_has_a_task_of_its_own() -> None:
    tasks: dict[int, set[Any]] = {offset: set() for offset in range(6)}

    async def handle(record: KeyedRecord) -> None:
        tasks[record.offset].add(asyncio.current_task())
        if record.offset in (2, 3):
            await asyncio.sleep(0)
            tasks[record.offset].add(asyncio.current_task())
            await asyncio.sleep(0.001)
            tasks[record.offset].add(asyncio.current_task())

    await Calls(handle, 6).done()
    (first,), (second,), (waits,), (waits_too,), (after,), (last,) = tasks.values()
    assert None not in (first, waits, waits_too, after)
    assert first is second is waits, "the task goes on until a call waits, and ends with that call"
    assert len({waits, waits_too, after}) == 3
    assert after is last


@pytest.mark.parametrize("waits", [False, True])
async def test_a_call_has_a_context_of_its_own_that_begins_as_that_of_the_run(waits: bool) -> None:
    found: list[str] = []
    token = who.set("the run")

    async def handle(record: KeyedRecord) -> None:
        found.append(who.get())
        who.set(f"call {record.offset}")
        if waits:
            for _ in range(3):
                await asyncio.sleep(0)
        assert who.get() == f"call {record.offset}"

    calls = Calls(handle, 4, concurrency=2)
    who.reset(token)
    await calls.done()
    assert found == ["the run"] * 4
    assert who.get() == "nothing"


async def test_a_timeout_inside_a_call_meets_this_call_alone() -> None:
    """The timeout is begun before the call waits: it holds the task of the call."""
    timed_out, interrupted = [], []

    async def handle(record: KeyedRecord) -> None:
        try:
            async with asyncio.timeout(0.02 if record.offset == 1 else None):
                if record.offset == 1:
                    await asyncio.Event().wait()
        except TimeoutError:
            timed_out.append(record.offset)
        except asyncio.CancelledError:
            interrupted.append(record.offset)
            raise

    metrics = await Calls(handle, 20).done()
    assert (timed_out, interrupted, metrics.failed_total) == ([1], [], 0)


async def test_a_limit_counts_from_the_begin_of_the_call_and_not_for_a_call_that_does_not_wait(
    quick_pauses: None,
) -> None:
    """The first call blocks the loop beyond the limit, and then waits."""
    began: list[int] = []

    async def handle(record: KeyedRecord) -> None:
        began.append(record.offset)
        loop = asyncio.get_running_loop()
        if record.attempt == 1:
            late = loop.time() + 0.05
            while loop.time() < late:
                pass
        if record.offset == 0 and record.attempt == 1:
            await asyncio.sleep(0.03)

    calls = Calls(handle, 2, handler_timeout_ms=50)
    metrics = await calls.done()
    assert began == [0, 1, 0]
    assert metrics.failed_total == 1


async def test_a_cancelled_call_is_cancelled_where_it_waits_and_its_context_is_its_own() -> None:
    began, found = asyncio.Event(), []

    async def handle(record: KeyedRecord) -> None:
        who.set(f"call {record.offset}")
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            found.append(who.get())
            await asyncio.sleep(0)
            found.append(who.get())

    calls = Calls(handle, 1)
    await began.wait()
    await calls.end()
    assert found == ["call 0", "call 0"]
    metrics = calls.metrics()
    assert (metrics.running, metrics.done_total, metrics.retried_total, calls.ends) == (0, 0, 0, [])


async def test_a_call_that_cancels_its_own_task_and_does_not_wait_leaves_the_next_records_alone(
    quick_pauses: None,
) -> None:
    cancelled: list[int] = []

    async def handle(record: KeyedRecord) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        if record.offset == 0 and record.attempt == 1:
            cancelled.append(record.offset)
            task.cancel()

    calls = Calls(handle, 5)
    metrics = await calls.done()
    assert cancelled == [0]
    assert (metrics.done_total, metrics.failed_total, metrics.retried_total) == (5, 0, 0)


async def test_the_loop_makes_turns_while_no_call_waits() -> None:
    loop, turns, count = asyncio.get_running_loop(), 0, 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async def handle(record: KeyedRecord) -> None:
        nonlocal count
        count += 1
        end = loop.time() + 0.001
        while loop.time() < end:
            pass

    loop.call_soon(turn)
    calls = Calls(handle, 40, concurrency=2)
    while count < 40:
        before = count
        await asyncio.sleep(0)
        assert count - before <= 4, "two tasks, which work for a millisecond each"
    await calls.done()
    assert turns >= 10


async def test_an_awaitable_that_is_no_coroutine_is_awaited_too() -> None:
    """As a function that is marked as a coroutine function may return (`inspect.markcoroutinefunction`)."""
    ended: list[int] = []

    async def handle(record: KeyedRecord) -> None:
        await asyncio.sleep(0)
        ended.append(record.offset)

    calls = Calls(handle, 3)
    tasks: Any = calls.work._workers
    tasks._handler = lambda record: asyncio.ensure_future(handle(record))
    await calls.done()
    assert sorted(ended) == [0, 1, 2]


async def test_the_end_of_the_program_in_a_call_that_has_waited_is_no_outcome_and_ends_no_loop() -> None:
    async def handle(record: KeyedRecord) -> None:
        await asyncio.sleep(0)
        raise SystemExit(3)

    calls = Calls(handle, 1)
    await calls.is_end_noted.wait()
    await calls.end()
    assert [type(end) for end in calls.ends] == [SystemExit]
    assert calls.metrics().failed_total == 0
