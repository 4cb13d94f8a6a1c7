"""What every coordinator has: a replicated machine and the log that keeps it, on a partition that this node leads.

load --log replayed--> append, sweep, repeat --leadership gone--> close
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.replication.partition import Partition
from tailrace.server.coordination.coordinator_log import (
    IN_NONE,
    CoordinatorLog,
    InTransaction,
    KeyValue,
    OnMarker,
    OnRecord,
    Outcome,
)
from tailrace.server.coordination.led_coordinators import HostState
from tailrace.server.coordination.sweep import Sweep
from tailrace.server.ports import Clock, Timer
from tailrace.server.waiters import Deadlines

C_contra = TypeVar("C_contra", contravariant=True)
C = TypeVar("C")
R = TypeVar("R")

_logger = logging.getLogger("tailrace.server")


class StagedMachine(Protocol[C_contra, R]):
    """A replicated machine that is told how its records fare on their way into the log."""

    def decide(self, command: C_contra, now_ms: int) -> Decision[R, object]: ...
    def stage(self, records: Iterable[R]) -> None: ...
    def discard(self, records: Sequence[R]) -> None: ...


class LedMachine(Generic[C, R]):
    """`C` are the machine's commands, `R` its records; `encode` makes a log record of one."""

    def __init__(
        self,
        partition: Partition,
        machine: StagedMachine[C, R],
        *,
        encode: Callable[[R], KeyValue],
        on_committed: Callable[[Sequence[R]], None],
        on_discarded: Callable[[Sequence[R]], None] = lambda records: None,
        clock: Clock,
        deadlines: Deadlines,
        timeout_ms: int,
    ) -> None:
        """`on_discarded` is called when the machine has been told that these records will not be in the log."""
        self.state = HostState.LOADING
        self._name = str(partition.topic_partition)
        self._partition = partition
        self._machine = machine
        self._on_discarded = on_discarded
        self._clock = clock
        self._timers: list[Timer] = []
        self.log: CoordinatorLog[R] = CoordinatorLog(
            partition,
            encode=encode,
            on_committed=on_committed,
            on_discarded=self._discard,
            clock=clock,
            deadlines=deadlines,
            timeout_ms=timeout_ms,
        )

    @property
    def is_active(self) -> bool:
        """Whether it may decide, and serve."""
        return self.state is HostState.ACTIVE

    def check_active(self) -> None:
        """Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS (14), COORDINATOR_NOT_AVAILABLE (15), NOT_COORDINATOR (16)."""
        self.state.check_active(self._partition.topic_partition)

    def load(
        self,
        on_record: OnRecord,
        on_loaded: Callable[[], int],
        *,
        kept: str,
        on_marker: OnMarker = lambda producer_id, marker: None,
    ) -> None:
        """Read the log; `on_loaded` is called when it is active, or never, and says how many it has of what is kept."""

        def loaded() -> None:
            self.state = HostState.ACTIVE
            number = on_loaded()
            level = logging.INFO if number else logging.DEBUG  # a new cluster has 50 of them, and nothing in any
            _logger.log(level, "event=coordinator-loaded partition=%s %s=%d", self._name, kept, number)

        self.log.replay(on_record, loaded, self._load_failed, on_marker=on_marker)

    def _load_failed(self, fault: KafkaError) -> None:
        self.state = HostState.FAILED
        _logger.error("event=coordinator-failed partition=%s fault=%s", self._name, fault)

    def append(
        self, records: Sequence[R], outcome: Outcome, *, within: InTransaction = IN_NONE, is_atomic: bool = False
    ) -> None:
        """Have these committed, as `CoordinatorLog.append`; the machine knows that they are on their way."""
        self.log.append(records, outcome, within=within, is_atomic=is_atomic)
        self._machine.stage(records)

    def _discard(self, records: Sequence[R]) -> None:
        self._machine.discard(records)
        self._on_discarded(records)

    def sweep(self, commands: Iterable[C]) -> None:
        """Have each of these decided until it has nothing more to write."""
        Sweep(self._name, commands, decide=self._decide_sweep, clock=self._clock).go_on()

    def _decide_sweep(self, command: C, on_done: Callable[[int | KafkaError], None]) -> None:
        if not self.is_active:
            return
        try:
            records = self._machine.decide(command, self._clock.now_ms()).records
            if records:
                self.append(records, lambda failure: on_done(failure or len(records)))
        except KafkaError as refusal:
            on_done(refusal)
            return
        if not records:
            on_done(0)

    def repeat(self, interval_ms: int, work: Callable[[], None]) -> None:
        """Do this whenever so much time has passed, until it is closed."""
        place = len(self._timers)

        def again() -> None:
            # First, so that work which fails once is done again all the same.
            self._timers[place] = self._clock.call_at(self._clock.monotonic_ms() + interval_ms, again)
            work()

        self._timers.append(self._clock.call_at(self._clock.monotonic_ms() + interval_ms, again))

    def close(self) -> bool:
        """The leadership is gone: tell everybody who waits for the log. False if that was known before."""
        if self.state is HostState.CLOSED:
            return False
        self.state = HostState.CLOSED
        for timer in self._timers:
            timer.cancel()
        self.log.close(KafkaError(ErrorCode.NOT_COORDINATOR, f"{self._name} has moved"))
        return True
