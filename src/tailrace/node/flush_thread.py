"""`server.ports.Disk` with one thread per log directory: logs are flushed in groups.

One round of flushes runs at a time. Every log that is requested meanwhile goes into the next round, so the slower the
disk, the larger the groups. A round starts at the end of the event loop's current iteration: all connections that were
readable at once share the round.

A flush that fails is never tried again: after a failed fsync the kernel may have dropped the pages it could not write,
and a second fsync would succeed without the pages. So the node stops.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from operator import call
from time import perf_counter
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.throttle import Throttle
from tailrace.server.callbacks import call_each
from tailrace.server.ports import Clock, Timer
from tailrace.storage import FlushTicket, Log, sync_together

_SLOW_SECONDS: Final = 1.0
_SYNC_SECONDS: Final = 0.02
"""The time that one sync of a round may take beyond the other syncs: a sync of a hard disk takes about as long."""
_SLOW_LINE_MS: Final = 60_000
"""A round that takes longer is logged: every acks=all produce and every new topic waits for a round."""

_logger = logging.getLogger("tailrace.node")

OnDone = Callable[[], None]
Post = Callable[[OnDone], object]


class _Flush(NamedTuple):
    """The flush of one log, and its callbacks."""

    log: Log
    ticket: FlushTicket
    callbacks: list[OnDone]


class _Round(NamedTuple):
    """The flushes and works of one round."""

    flushes: list[_Flush]
    works: list[tuple[OnDone, OnDone]]
    """Pieces of work, with their callbacks."""
    given_up: list[OnDone]
    """Callbacks that waited for a log that is offline."""


class FlushMeasure(NamedTuple):
    """Counters of a flush thread since its start."""

    rounds: int
    logs: int
    seconds: float
    """The time of all rounds on the disk."""


class FlushThread:
    """Flushes the logs of one directory.

    `call_soon` runs a callback on the event loop after the current callback, `post` does the same from another thread;
    `on_failure` gets the error of a failed flush, on the event loop.
    """

    def __init__(
        self, *, directory: str, call_soon: Post, post: Post, on_failure: Callable[[BaseException], None]
    ) -> None:
        self._directory = directory
        self._call_soon = call_soon
        self._post = post
        self._on_failure = on_failure
        self._waiting: dict[Log, list[OnDone]] = {}
        self._works: list[tuple[OnDone, OnDone]] = []
        self._is_round_planned = False
        self._on_idle: OnDone | None = None
        self._rounds: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"flush {directory}", daemon=True)
        self._thread.start()
        self.rounds_done = 0
        self.flushes_done = 0
        self.busy_seconds = 0.0
        self._round_began: float | None = None
        self._last_sync: tuple[int, float] = (0, 0.0)
        """The number of completed syncs of the round, and the time at which the last sync ended."""
        self._slow_lines = Throttle(_SLOW_LINE_MS)
        self._slow_rounds = 0
        self._longest_seconds = 0.0

    def flush(self, log: Log, on_done: OnDone) -> None:
        self._waiting.setdefault(log, []).append(on_done)
        self._plan_round()

    def carry_out(self, work: OnDone, on_done: OnDone) -> None:
        self._works.append((work, on_done))
        self._plan_round()

    def _plan_round(self) -> None:
        if not self._is_round_planned:
            self._is_round_planned = True
            self._call_soon(self._start_round)

    def when_idle(self, callback: OnDone) -> None:
        """Call `callback` once, as soon as nothing waits for a flush; perhaps at once."""
        if self._is_round_planned:
            self._on_idle = callback
        else:
            callback()

    async def idle(self, timeout_seconds: float) -> None:
        """Return when nothing waits for a flush. Raises KAFKA_STORAGE_ERROR if that takes too long."""
        idle = asyncio.get_running_loop().create_future()
        self.when_idle(lambda: idle.set_result(None))
        try:
            await asyncio.wait_for(idle, timeout_seconds)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self._directory} could not be flushed within {timeout_seconds:.0f} s; stopped without it",
            ) from None

    @property
    def stalled_seconds(self) -> float:
        """The time of the running round that its completed syncs do not explain; 0 if no round runs.

        That is the time since the last completed sync, or the time of the round beyond 20 ms for each completed sync,
        whichever is longer.
        """
        began = self._round_began
        if began is None:
            return 0.0
        syncs, ended = self._last_sync
        now = perf_counter()
        return max(now - max(began, ended), now - began - syncs * _SYNC_SECONDS)

    @property
    def measure(self) -> FlushMeasure:
        """The counters of this thread."""
        return FlushMeasure(rounds=self.rounds_done, logs=self.flushes_done, seconds=self.busy_seconds)

    def stop(self) -> None:
        """End the thread, after the round that runs."""
        self._rounds.put(None)
        self._thread.join()

    def _start_round(self) -> None:
        works, self._works = self._works, []
        try:
            flushes, given_up = self._begin_flushes()
        except Exception as fault:  # noqa: BLE001 - after any fault no round and no callback would follow
            self._on_failure(fault)
            return
        if flushes or works or given_up:
            self._rounds.put(_Round(flushes, works, given_up))
            return
        self._is_round_planned = False
        if self._on_idle is not None:
            callback, self._on_idle = self._on_idle, None
            callback()

    def _begin_flushes(self) -> tuple[list[_Flush], list[OnDone]]:
        """The waiting flushes, and the callbacks of offline logs: an offline log is not flushed any more."""
        waiting, self._waiting = self._waiting, {}
        flushes: list[_Flush] = []
        given_up: list[OnDone] = []
        for log, callbacks in waiting.items():
            if log.is_offline:
                given_up += callbacks
            else:
                flushes.append(_Flush(log, log.flushes.begin(), callbacks))
        return flushes, given_up

    def _work(self) -> None:
        while (round_ := self._rounds.get()) is not None:
            self._last_sync = (0, 0.0)
            began = self._round_began = perf_counter()
            try:
                sync_together([flush.ticket for flush in round_.flushes], self._note_sync)
                for work, _ in round_.works:
                    work()
                    self._note_sync()
            except BaseException as fault:  # noqa: BLE001 - after any fault these bytes may not be on disk
                self._post(partial(self._on_failure, fault))
                return
            self._round_began = None
            seconds = perf_counter() - began
            self._post(partial(self._finish_round, round_, seconds))

    def _note_sync(self) -> None:
        self._last_sync = (self._last_sync[0] + 1, perf_counter())

    def _log_slow_round(self, done: _Round, seconds: float) -> None:
        """Log a slow round, at most once a minute, with the number of lines left out since the last line."""
        self._slow_rounds += 1
        self._longest_seconds = max(self._longest_seconds, seconds)
        if self._slow_lines.admits(self._directory, round(perf_counter() * 1000)):
            _logger.warning(
                "event=flush-round-slow directory=%s seconds=%.1f logs=%d works=%d rounds=%d longest=%.1f",
                self._directory,
                seconds,
                len(done.flushes),
                len(done.works),
                self._slow_rounds,
                self._longest_seconds,
            )
            self._slow_rounds, self._longest_seconds = 0, 0.0

    def _finish_round(self, done: _Round, seconds: float) -> None:
        if seconds > _SLOW_SECONDS:
            self._log_slow_round(done, seconds)
        self.busy_seconds += seconds
        self.rounds_done += 1
        self.flushes_done += len(done.flushes)
        due: list[OnDone] = []
        try:
            for log, ticket, callbacks in done.flushes:
                log.flushes.finish(ticket)
                due += callbacks
        except Exception as fault:  # noqa: BLE001 - as above
            self._on_failure(fault)
            return
        due += done.given_up
        due += (on_done for _, on_done in done.works)
        try:
            call_each(call, due)
        finally:
            self._start_round()


class PageCache:
    """`server.ports.Disk` for `log.durability=page-cache`: records in the kernel's page cache count as durable."""

    def __init__(self, *, call_soon: Post, syncing: FlushThread) -> None:
        """`syncing` does the work that has to reach the disk in spite of this setting."""
        self._call_soon = call_soon
        self.carry_out = syncing.carry_out

    def flush(self, log: Log, on_done: OnDone) -> None:
        self._call_soon(on_done)


_LOOKS: Final = 10
"""The number of checks within the time that a round may be stalled."""
_QUICK_FOR: Final = 2
_QUICK_FOR_AT_MOST: Final = 8
"""A disk that has hung is in order again after so long without a slow round: at first, and at most. In multiples of the
time for which a round may be stalled."""
_SOON: Final = 24
"""The number of stall timeouts without a hang after which the next hang counts as a first hang."""


class FlushRounds(Protocol):
    """The rounds of one flush thread, for `HangWatch`."""

    @property
    def stalled_seconds(self) -> float:
        """The time of the running round that its completed syncs do not explain; 0 if no round runs."""
        ...


class HangWatch:
    """Reports a disk that hangs, by its flush threads: a round has been stalled for too long.

    A round over thousands of logs takes seconds on a disk that is well, so the watch judges by single syncs.

    If each round were judged alone, and every round were stalled a little too long, the replicas here would leave and
    join again in every round. So a disk counts as hanging until no round has been slow for some time. This time is
    longer than a round may be stalled, so that a next slow round would be noticed within it. Replicas that have left
    cause few rounds, so a slow disk may look quick: if the disk hangs again soon, this time is doubled.
    """

    def __init__(
        self, threads: Sequence[FlushRounds], *, clock: Clock, timeout_ms: int, on_change: Callable[[bool], None]
    ) -> None:
        """`timeout_ms` is log.dir.stall.timeout.ms; `on_change` gets whether the disk hangs, when that changes."""
        self._threads = threads
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._on_change = on_change
        self.is_hung = False
        self._quick_for = _QUICK_FOR
        self._slow_ms: int | None = None  # the last time at which a round was stalled for too long
        self._timer: Timer | None = None

    def start(self) -> None:
        """Check the rounds from now on."""
        self._timer = self._clock.call_at(self._clock.monotonic_ms() + max(1, self._timeout_ms // _LOOKS), self._look)

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()  # planned first, so that a failure does not end the checks
        now_ms = self._clock.monotonic_ms()
        if any(thread.stalled_seconds * 1000 > self._timeout_ms for thread in self._threads):
            if not self.is_hung:
                self._quick_for = self._next_quick_for(now_ms)
            self._slow_ms = now_ms
            self._report(True)
        elif self._slow_ms is None or now_ms - self._slow_ms >= self._quick_for * self._timeout_ms:
            self._report(False)

    def _next_quick_for(self, now_ms: int) -> int:
        if self._slow_ms is None or now_ms - self._slow_ms >= _SOON * self._timeout_ms:
            return _QUICK_FOR
        return min(2 * self._quick_for, _QUICK_FOR_AT_MOST)

    def _report(self, is_hung: bool) -> None:
        if is_hung is not self.is_hung:
            self.is_hung = is_hung
            self._on_change(is_hung)
