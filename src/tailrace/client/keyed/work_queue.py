"""The lanes of a run between its threads: the engine adds records, and workers take records and give outcomes.

1. A lock guards the lanes. A worker gives an outcome and takes the next record in one step.
2. A worker that finds no record is idle, and leaves a call that wakes it. A worker that takes a record while another
   record waits wakes the next idle worker.
3. The engine is notified of outcomes when it awaits them: once for many outcomes while records wait for their turn, and
   at once when no record waits. It is notified of each retry at once, since a retry has a time.
4. While the breaker is open, a worker gets a record only when the breaker lets a call begin.
"""

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from time import sleep
from typing import Final

from tailrace.client.group.range_progress import RangeBudget
from tailrace.client.keyed.breaker import Breaker
from tailrace.client.keyed.handler import fault_text
from tailrace.client.keyed.keyed_metrics import KeyedMetrics, held_key, running_key
from tailrace.client.keyed.lanes import Lanes, LaneWork
from tailrace.client.keyed.outcomes import DONE, KeyedRecord, Outcome, Retry, Skip
from tailrace.model.partitions import TopicPartition

MANY: Final = 4
"""The engine is notified of outcomes for a MANYth part of the records that may be in hand."""

_TRIES: Final = 100
"""The tries of a worker to get the lock, before it waits for the lock."""
_UNCOUNTED: Final = Retry()

_log = logging.getLogger(__name__)


class WorkQueue:
    """The records of one run that are in hand. Calls are safe from any thread; `stop` also in a signal handler."""

    def __init__(
        self,
        lanes: Lanes,
        breaker: Breaker,
        now_ms: Callable[[], int],
        *,
        group: str,
        most_records: int,
        on_outcomes: Callable[[], None],
    ) -> None:
        """`on_outcomes` is called by a worker, outside the lock; then not before `begin_outcomes`."""
        self._lanes: Final = lanes
        self._breaker: Final = breaker
        self._now_ms: Final = now_ms
        self._group: Final = group
        self._many: Final = max(most_records // MANY, 1)
        self._on_outcomes: Final = on_outcomes
        self._lock: Final = threading.Lock()
        self._idle: dict[Callable[[], None], None] = {}
        """The calls that wake an idle worker; the last call comes first."""
        self._outcomes = 0
        """The number of outcomes since the engine last looked."""
        self._is_awaited = False
        """Whether the engine waits for room, or for the end of what runs."""
        self._is_notified = False
        self.is_stopped = False
        """Whether no record begins any more."""
        self.is_ended = False
        """Whether the workers end."""
        self._done = self._skipped = self._retried = self._failed = 0

    # workers

    def take(self, on_work: Callable[[], None]) -> LaneWork | None:
        """The next record; None: the worker is idle, and gets the call `on_work` once, when a record may wait again."""
        now_ms = self._now_ms()
        with self._lock:
            taken = self._take(now_ms, on_work)
            wake = self._woken()
        if wake is not None:
            wake()
        return taken

    def exchange(
        self, work: LaneWork, outcome: Outcome | None, fault: BaseException | None, on_work: Callable[[], None]
    ) -> LaneWork | None:
        """Give the outcome of a record, and take the next record as `take` does.

        `fault`: the exception of the handler that led to the outcome. An outcome of None is not counted: the call was
        cancelled, or the handler ends the program.
        """
        shown = notice = None
        if outcome is not DONE:
            shown = self._log(work, outcome, fault)
        now_ms = self._now_ms()
        lanes, breaker = self._lanes, self._breaker
        must_look = False
        if not self._lock.acquire(blocking=False):
            self._acquire()
        try:
            if outcome is DONE and not breaker.is_open:
                breaker.calls += 1
                self._done += 1
                lanes.finish(work, DONE, now_ms)
            else:
                was_open = breaker.is_open
                is_counted = self._tell_breaker(work, outcome, shown, now_ms)
                lanes.finish(work, outcome or _UNCOUNTED, now_ms, fault=shown, is_counted=is_counted)
                must_look = self._count(outcome, fault)
                if breaker.is_open is not was_open:
                    must_look, notice = True, breaker.notice(now_ms)
            self._outcomes += 1
            taken = None if self.is_stopped or breaker.is_open else lanes.take_next(now_ms)
            if taken is None:
                taken = self._take(now_ms, on_work)
            notify = (must_look or self._is_awaited) and self._must_notify(must_look=must_look, is_idle=taken is None)
            wake = self._woken() if self._idle else None
        finally:
            self._lock.release()
        if notice is not None:
            _log.warning("group %r: %s", self._group, notice)
        if notify:
            self._on_outcomes()
        if wake is not None:
            wake()
        return taken

    def _acquire(self) -> None:
        """Acquire the lock without a place in its queue, if that is possible in a while.

        The lock of a thread that has lost the interpreter goes to the next thread in the queue, which has to wait for
        the interpreter: from then on every exchange would cost two changes of threads.
        """
        acquire = self._lock.acquire
        for _ in range(_TRIES):
            sleep(0)
            if acquire(blocking=False):
                return
        acquire()

    def _take(self, now_ms: int, on_work: Callable[[], None]) -> LaneWork | None:
        lanes = self._lanes
        if not self.is_stopped:
            taken = self._take_try(now_ms) if self._breaker.is_open else lanes.take_next(now_ms)
            if taken is not None:
                return taken
        if lanes.running < lanes.concurrency:
            self._idle[on_work] = None
        return None

    def _take_try(self, now_ms: int) -> LaneWork | None:
        if not self._breaker.may_begin(now_ms):
            return None
        taken = self._lanes.take_fresh(now_ms)
        if taken is not None:
            self._breaker.begin_try(taken, now_ms)
        return taken

    def _woken(self) -> Callable[[], None] | None:
        """The call of an idle worker that is to take a record."""
        if not self._idle or not self._lanes.has_waiting or self.is_stopped:
            return None
        if self._breaker.is_open and not self._breaker.may_begin(self._now_ms()):
            return None
        return self._idle.popitem()[0]

    def _must_notify(self, *, must_look: bool, is_idle: bool) -> bool:
        """Whether the engine, which awaits outcomes or has something to plan, is to be notified now."""
        if self._is_notified or not (must_look or is_idle or self._outcomes >= self._many):
            return False
        self._is_notified = True
        return True

    def _count(self, outcome: Outcome | None, fault: BaseException | None) -> bool:
        """Count an outcome other than DONE. Returns whether the record is to be retried."""
        if outcome is None:
            return True
        if fault is not None:
            self._failed += 1
        if isinstance(outcome, Retry):
            self._retried += 1
            return True
        if isinstance(outcome, Skip):
            self._skipped += 1
        else:
            self._done += 1
        return False

    def _tell_breaker(self, work: LaneWork, outcome: Outcome | None, fault: str | None, now_ms: int) -> bool:
        """Tell the breaker that the call with this record has ended. Returns whether the call was an attempt."""
        breaker = self._breaker
        if outcome is None or (isinstance(outcome, Retry) and outcome.after is not None):
            breaker.passed_over(work, now_ms)
        elif isinstance(outcome, Retry):
            key: Hashable = (work.name, work.record.offset) if work.record.key is None else work.record.key
            return breaker.failed(work, key, fault or "", began_ms=work.began_ms, now_ms=now_ms)
        else:
            breaker.succeeded(work, now_ms)
        return True

    def _log(self, work: LaneWork, outcome: Outcome | None, fault: BaseException | None) -> str | None:
        """Log a skip, and the first failure of a record. Returns the text of the failure."""
        if isinstance(outcome, Skip):
            _log.info("group %r skips offset %d of %s: %s", self._group, work.record.offset, work.name, outcome.reason)
        if fault is None:
            return None
        shown = fault_text(fault)
        if work.attempt == 1 and not self._breaker.is_open:
            _log.warning(
                "group %r: the handler has failed at offset %d of %s; its key is held and tried again: %s",
                self._group,
                work.record.offset,
                work.name,
                shown,
                exc_info=fault,
            )
        return shown

    # the engine

    def begin(self, on_work: Iterable[Callable[[], None]]) -> None:
        """Begin with idle workers: each of these calls wakes a worker."""
        with self._lock:
            self._idle.update(dict.fromkeys(on_work))

    def open(self, name: TopicPartition) -> None:
        """Take records of this partition from now on."""
        with self._lock:
            self._lanes.open(name)

    def add(self, name: TopicPartition, records: Sequence[KeyedRecord]) -> None:
        """Take these records in hand, behind the records of their partition that were added before."""
        with self._lock:
            self._lanes.add(name, records)
            wake = self._woken()
        if wake is not None:
            wake()

    def drop_waiting(self, name: TopicPartition) -> None:
        """Drop the records of this partition that do not run."""
        with self._lock:
            self._lanes.drop_waiting(name)

    def close(self, name: TopicPartition) -> list[LaneWork]:
        """Close a partition that has left. Returns its records that still run: their outcomes do not count."""
        with self._lock:
            self._lanes.close(name)
            return [work for work in self._lanes.works if work.name == name]

    def take_done(self, name: TopicPartition) -> list[int]:
        """The offsets of the records of this partition that are done since the last call."""
        with self._lock:
            return self._lanes.take_done(name)

    def is_full(self, name: TopicPartition) -> bool:
        """Whether no more records of this partition are to be read now. The engine then awaits outcomes."""
        with self._lock:
            is_full = self._lanes.is_full(name)
            self._is_awaited = self._is_awaited or is_full
            return is_full

    def is_idle(self, names: Iterable[TopicPartition]) -> bool:
        """Whether no record of these partitions runs. Otherwise the engine awaits outcomes."""
        with self._lock:
            is_idle = self._lanes.is_idle(names)
            self._is_awaited = self._is_awaited or not is_idle
            return is_idle

    def begin_outcomes(self) -> None:
        """Note that the engine takes over the outcomes so far. It awaits no more outcomes until `is_full` or `is_idle`
        says so."""
        with self._lock:
            self._is_notified = self._is_awaited = False
            self._outcomes = 0

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next retry, or of the next try while the breaker is open; None: there is no such time."""
        now_ms = self._now_ms()
        with self._lock:
            try_ms = self._breaker.next_try_ms
            return self._lanes.next_deadline_ms if try_ms is None or try_ms <= now_ms else try_ms

    def end_holds(self) -> None:
        """Let the keys go on for which the time of a retry has come."""
        now_ms = self._now_ms()
        with self._lock:
            self._lanes.end_holds(now_ms)
            wake = self._woken()
        if wake is not None:
            wake()

    def stop(self) -> None:
        """Begin no more records. Takes no lock, for signal handlers."""
        self.is_stopped = True

    def end(self) -> None:
        """Stop, and wake all idle workers, so that they end."""
        self.is_stopped = True
        with self._lock:
            self.is_ended = True
            idle, self._idle = self._idle, {}
        for wake in idle:
            wake()

    @property
    def works(self) -> list[LaneWork]:
        """The records that the handler has now, in the order in which they began."""
        with self._lock:
            return self._lanes.works

    @property
    def has_work(self) -> bool:
        """Whether a record waits for its turn, or is with the handler."""
        with self._lock:
            return self._lanes.has_waiting or self._lanes.running > 0

    def metrics(self, *, corrupt_batches: int, ranges: Mapping[TopicPartition, RangeBudget]) -> KeyedMetrics:
        """The metrics of the consumer now."""
        now_ms = self._now_ms()
        with self._lock:
            longest = next(iter(self._lanes.works), None)
            return KeyedMetrics(
                in_hand=self._lanes.records,
                in_hand_bytes=self._lanes.bytes,
                running=self._lanes.running,
                held=self._lanes.held,
                oldest_held=held_key(self._lanes.oldest_failure, now_ms),
                longest_running=None if longest is None else running_key(longest, now_ms),
                done_total=self._done,
                skipped_total=self._skipped,
                retried_total=self._retried,
                failed_total=self._failed,
                corrupt_batches_skipped_total=corrupt_batches,
                ranges=ranges,
                breaker=self._breaker.state(now_ms),
            )
