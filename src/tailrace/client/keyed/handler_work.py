"""The handler at work in one run: the queue of records, the workers that call the handler, and the time of retries."""

import asyncio
import time
from collections.abc import Callable, Collection
from contextvars import copy_context
from typing import Final

from tailrace.client.group.running_notes import RunningNote
from tailrace.client.keyed.breaker import Breaker
from tailrace.client.keyed.call_watch import CallWatch
from tailrace.client.keyed.handler import Handler, is_coroutine_handler, name_of
from tailrace.client.keyed.handler_tasks import HandlerTasks
from tailrace.client.keyed.handler_threads import HandlerThreads
from tailrace.client.keyed.lanes import Lanes
from tailrace.client.keyed.loop_watch import CHECK_MS, LoopWatch
from tailrace.client.keyed.work_queue import WorkQueue
from tailrace.client.loop_thread import loop_thread
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.partitions import TopicPartition

LONG_MS: Final = 3_000
"""A handler that has been running for this time is noted in the group's progress."""
LANE_RECORDS: Final = 16
LEAST_RECORDS_IN_HAND: Final = 1_000
"""The limit of records in hand: LANE_RECORDS for each lane, LEAST_RECORDS_IN_HAND at least."""


def now_ms() -> int:
    """Monotonic time, for all threads of the process."""
    return time.monotonic_ns() // 1_000_000


class HandlerWork:
    """The work of one run. `begin` is called where the handlers belong, all else on the background loop.

    `on_outcomes` is called on the background loop when outcomes that were awaited have come. `on_end` gets an exception
    that ends the run, from any thread.
    """

    def __init__(
        self,
        settings: KeyedConsumerSettings,
        *,
        on_outcomes: Callable[[], None],
        on_end: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._on_outcomes = on_outcomes
        self._on_end = on_end
        self.queue = self._queue_of(1, LEAST_RECORDS_IN_HAND)
        self._workers: HandlerTasks | HandlerThreads | None = None
        self._loop_watch: LoopWatch | None = None
        self._call_watch: CallWatch | None = None
        self._timer: asyncio.TimerHandle | None = None

    def _queue_of(self, concurrency: int, most_records: int) -> WorkQueue:
        settings = self._settings
        lanes = Lanes(concurrency, most_records=most_records, most_bytes=settings.max_bytes_in_hand)
        breaker = Breaker(
            settings.breaker_failure_percent,
            min_calls=settings.breaker_min_calls,
            pause_ms=settings.breaker_backoff_ms,
            longest_pause_ms=settings.breaker_backoff_max_ms,
        )
        return WorkQueue(
            lanes,
            breaker,
            now_ms,
            group=settings.group or "",
            most_records=most_records,
            on_outcomes=self._plan_look,
        )

    def begin(self, handler: Handler, concurrency: int, loop: Callable[[], asyncio.AbstractEventLoop]) -> int:
        """Give records to this handler from now on, `concurrency` at a time. Returns the limit of records in hand.

        `loop`: the loop on which coroutines of the handler run.
        """
        least = max(LANE_RECORDS * concurrency, LEAST_RECORDS_IN_HAND)
        most = self._settings.max_records_in_hand or least
        self.queue = self._queue_of(concurrency, most)
        names = {"handler_name": name_of(handler), "group": self._settings.group or ""}
        if is_coroutine_handler(handler):
            own_loop = loop()
            self._workers = HandlerTasks(
                self.queue, handler, self._settings, loop=own_loop, context=copy_context(), on_end=self._on_end
            )
            self._loop_watch = LoopWatch(self.queue, own_loop, now_ms, **names)
        else:
            self._workers = HandlerThreads(self.queue, handler, self._settings, loop=loop, on_end=self._on_end)
        if self._settings.handler_timeout_ms is not None:
            self._call_watch = CallWatch(self.queue, self._settings.handler_timeout_ms, **names)
        self._workers.begin(concurrency)
        return most

    async def watch(self) -> None:
        """Warn of a handler that blocks its loop, or runs beyond its limit. Does not return."""
        while True:
            await asyncio.sleep(CHECK_MS / 1000)
            if self._loop_watch is not None:
                self._loop_watch.check()
            if self._call_watch is not None:
                self._call_watch.check(now_ms())

    def _plan_look(self) -> None:
        loop_thread().loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Look at outcomes, and plan the next retry."""
        self.queue.begin_outcomes()
        self._plan_retry()
        self._on_outcomes()

    def _plan_retry(self) -> None:
        self.cancel_timer()
        deadline_ms = self.queue.next_deadline_ms
        if deadline_ms is not None and not self.queue.is_stopped:
            wait_s = max(deadline_ms - now_ms(), 0) / 1000 + 0.001
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin_retries)

    def _begin_retries(self) -> None:
        self.queue.end_holds()
        self._plan_retry()

    def cancel_timer(self) -> None:
        """Cancel the timer of the next retry."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def notes(self, member_id: str) -> dict[TopicPartition, str]:
        """The note of the handler that has been running for the longest time, by partition, where it runs for long."""
        now, clock_ms = now_ms(), time.time_ns() // 1_000_000
        notes: dict[TopicPartition, str] = {}
        for work in self.queue.works:
            running_ms = now - work.began_ms
            if running_ms < LONG_MS:
                break  # later works began later
            if work.name not in notes:
                notes[work.name] = RunningNote(work.record.offset, clock_ms - running_ms, member_id).text()
        return notes

    def cancel(self, names: Collection[TopicPartition]) -> None:
        """Cancel the calls of the handler in these partitions, if they can be cancelled."""
        if self._workers is not None:
            self._workers.cancel([work for work in self.queue.works if work.name in names])

    def close(self, name: TopicPartition) -> None:
        """Drop the records of this partition, and cancel its calls of the handler if they can be cancelled."""
        running = self.queue.close(name)
        if self._workers is not None:
            self._workers.cancel(running)

    async def end(self) -> None:
        """Cancel running calls, and return when coroutines have ended. Threads that run are not waited for."""
        self.cancel_timer()
        if self._workers is not None:
            await self._workers.end()
