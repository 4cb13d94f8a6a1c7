"""Reads the stored logs of a table slowly, so that damage is found before the last good copy is gone.

A pass reads every log once, one after the other (`storage.scrub`). The first pass begins a minute after the start, each
later pass `log.scrub.interval.ms` after the pass before began. The disk's thread reads and checks the slices, a few
tens of kilobytes between two flush rounds; `log.scrub.io.max.bytes.per.second` limits their rate. Damage puts the log
offline, as in a read that finds damage.

A dormant partition is not woken: a second opening of its log is read and closed. The partition is woken if damage is
found, or an index has to be rebuilt.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.ports import Clock, Disk, Timer
from tailrace.storage import Log, ScrubSlice

FIRST_PASS_MS: Final = 60_000
_SLICE_BYTES: Final = 64 << 10
_AT_ONCE: Final = 100
"""The most partitions without records that are skipped in one turn."""

_logger = logging.getLogger("tailrace.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubberConfig:
    """The settings of the scrubber, which Kafka does not have."""

    log_scrub_enable: bool = True
    log_scrub_interval_ms: int = 604_800_000
    log_scrub_io_max_bytes_per_second: float = 4_194_304.0


class ScrubMeasure(NamedTuple):
    """The work of a scrubber since the start."""

    passes: int
    """The number of completed passes."""
    bytes_read: int
    damaged_logs: int
    """The number of logs in which damage was found."""
    indexes_rebuilt: int


class _Running:
    """The log that is being read."""

    __slots__ = ("is_borrowed", "log", "name", "scrub")

    def __init__(self, name: TopicPartition, log: Log, *, is_borrowed: bool) -> None:
        self.name = name
        self.log = log
        self.is_borrowed = is_borrowed
        self.scrub = log.begin_scrub(mends=not is_borrowed)


class Scrubber:
    """Works from `start` to `stop`."""

    def __init__(self, table: PartitionTable, *, disk: Disk, clock: Clock, config: ScrubberConfig) -> None:
        self._table = table
        self._disk = disk
        self._clock = clock
        self._config = config
        self._names: deque[TopicPartition] = deque()
        self._timer: Timer | None = None
        self._is_stopped = True
        self._begun_ms = 0
        self.measure = ScrubMeasure(0, 0, 0, 0)
        """The work so far, in numbers."""

    def start(self) -> None:
        """Begin; the first pass is a minute from now, or one interval if that is shorter."""
        if self._config.log_scrub_enable:
            self._is_stopped = False
            self._after(min(FIRST_PASS_MS, self._config.log_scrub_interval_ms), self._begin_pass)

    def stop(self) -> None:
        """End the pass. A slice that is under way is dropped when the disk is done."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self._timer = self._clock.call_at(self._clock.monotonic_ms() + max(1, delay_ms), work)

    def _begin_pass(self) -> None:
        self._begun_ms = self._clock.monotonic_ms()
        self._names.extend(partition.topic_partition for partition in self._table)
        self._names.extend(name for name, dormant in self._table.dormant if not dormant.is_empty)
        self._next_log()

    def _next_log(self) -> None:
        if self._is_stopped:
            return
        for _ in range(_AT_ONCE):
            if not self._names:
                self._count(passes=1)
                since_ms = self._clock.monotonic_ms() - self._begun_ms
                self._after(self._config.log_scrub_interval_ms - since_ms, self._begin_pass)
                return
            running = self._opened(self._names.popleft())
            if running is not None:
                self._next_slice(running)
                return
        self._after(1, self._next_log)

    def _opened(self, name: TopicPartition) -> _Running | None:
        awake = self._table.awake(*name)
        if awake is not None:
            log = awake.log
            return None if log.is_offline or not log.log_end_offset else _Running(name, log, is_borrowed=False)
        try:
            borrowed = self._table.borrow_log(name)
        except KafkaError:
            self._table.find(*name)  # opening the log reports the fault
            return None
        return None if borrowed is None else _Running(name, borrowed, is_borrowed=True)

    def _next_slice(self, running: _Running) -> None:
        if self._is_stopped:
            self._give_back(running)
            return
        try:
            part = running.scrub.next_slice(max_bytes=_SLICE_BYTES)
        except KafkaError as fault:
            part = None
            _logger.warning("event=scrub-failed partition=%s fault=%s", running.name, fault)
        if part is None:
            self._finish(running)
            return
        begun_ms = self._clock.monotonic_ms()
        self._disk.carry_out(part.run, lambda: self._slice_done(running, part, begun_ms))

    def _slice_done(self, running: _Running, part: ScrubSlice, begun_ms: int) -> None:
        read = part.end - part.position
        running.scrub.finish_slice(part)
        self._count(bytes_read=read)
        due_ms = begun_ms + round(read * 1000 / self._config.log_scrub_io_max_bytes_per_second)
        self._after(due_ms - self._clock.monotonic_ms(), lambda: self._next_slice(running))

    def _finish(self, running: _Running) -> None:
        log, scrub, name = running.log, running.scrub, running.name
        self._count(indexes_rebuilt=scrub.indexes_rebuilt)
        if scrub.failure:
            _logger.warning("event=scrub-failed partition=%s fault=%s", name, scrub.failure)
        failure, good_end_offset = log.failure if log.is_damaged else "", log.good_end_offset
        self._give_back(running)
        if running.is_borrowed and self._table.awake(*name) is not None:
            # The partition woke meanwhile, and its files may have changed: its log is read again.
            failure = ""
            self._names.appendleft(name)
        elif running.is_borrowed and (failure or scrub.has_wrong_index):
            woken = self._table.find(*name)
            if woken is not None and failure:
                woken.log.condemn(failure, offset=good_end_offset)
            elif woken is not None:
                self._names.appendleft(name)
        if failure:
            self._count(damaged_logs=1)
            _logger.error("event=log-damaged partition=%s found-by=scrub fault=%s", name, failure)
        self._after(1, self._next_log)

    def _count(self, **more: int) -> None:
        self.measure = self.measure._replace(**{name: getattr(self.measure, name) + n for name, n in more.items()})

    def _give_back(self, running: _Running) -> None:
        if running.is_borrowed:
            running.log.close(clean=False)
