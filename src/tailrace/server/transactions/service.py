"""Runs the transaction coordinators of this node: one machine for each partition of `__transaction_state` it leads.

1. A transaction whose end is committed as decided gets its markers, for as long as it takes: the coordinator that made
   the decision writes them, and so does each later one that finds the decision in its log. When all are written, the
   transaction is complete.
2. No client hears of a decision before it is committed.
3. A producer that begins its next transaction meanwhile waits for the end of the last one (`next_transactions`).
4. On loss of leadership waiting clients hear NOT_COORDINATOR (16); markers on their way are the next coordinator's too,
   whose epoch makes ours void.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from tailrace.coordinators.transactions.commands import (
    AbortTimedOut,
    AddPartitions,
    Command,
    CompleteTransaction,
    EndTransaction,
    ForgetUnused,
    InitializeProducer,
    MarkersToWrite,
    NeedsProducerId,
    Response,
)
from tailrace.coordinators.transactions.config import TransactionConfig
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.ending import concurrent
from tailrace.coordinators.transactions.records import TransactionRecord, decode_record, encode_record
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, ProducerId
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC
from tailrace.protocol.records.record import Record
from tailrace.replication.partition import Partition
from tailrace.server.coordination.led_coordinators import HostState, LedCoordinators
from tailrace.server.coordination.led_machine import LedMachine
from tailrace.server.ports import Clock, Timer
from tailrace.server.transactions.next_transactions import Asked, NextTransactions, OnDone, WaitingRoom
from tailrace.server.waiters import Deadlines

OnProducerId = Callable[[ProducerId | KafkaError], None]
TakeProducerId = Callable[[OnProducerId], None]
"""Gives an id that nobody has had."""

_WRITE_TIMEOUT_MS = 5_000
"""How long an answer waits for its record to be committed."""
_RETRY_MS = 500
"""Until a completion that could not be written is tried again."""
_LONGEST_ID = 8191
"""Characters: at most 32,764 bytes, which an int16 can count."""

_logger = logging.getLogger("tailrace.server")


class Cancellable(Protocol):
    """Work under way."""

    def cancel(self) -> None: ...


class MarkerWriter(Protocol):
    """Writes markers to the leaders of partitions."""

    def write(self, markers: MarkersToWrite, coordinator_epoch: int, on_done: Callable[[], None]) -> Cancellable:
        """Write one to each partition that still exists, as often as it takes, then call `on_done`, perhaps at once."""
        ...


class TransactionCoordinatorHost:
    """The coordinator of one partition, from the moment this node leads it until it no longer does."""

    def __init__(
        self,
        partition: Partition,
        *,
        config: TransactionConfig,
        take_producer_id: TakeProducerId,
        marker_writer: MarkerWriter,
        clock: Clock,
        deadlines: Deadlines,
        room: WaitingRoom,
    ) -> None:
        self.partition = partition
        self.leader_epoch: LeaderEpoch = partition.leader_epoch
        self.machine = TransactionCoordinator(config=config)
        self._config = config
        self._take_producer_id = take_producer_id
        self._marker_writer = marker_writer
        self._clock = clock
        self._led: LedMachine[Command, TransactionRecord] = LedMachine(
            partition,
            self.machine,
            encode=encode_record,
            on_committed=self._committed,
            on_discarded=self._discarded,
            clock=clock,
            deadlines=deadlines,
            timeout_ms=_WRITE_TIMEOUT_MS,
        )
        self._writing: dict[str, Cancellable | None] = {}
        """The transactional ids whose markers are being written, or their completion."""
        self._retries: dict[str, Timer] = {}
        """By transactional id, of completions."""
        self._next = NextTransactions(
            submit=self._submit_or_refuse,
            is_changing=self.machine.is_changing,
            clock=clock,
            deadlines=deadlines,
            room=room,
        )

    @property
    def state(self) -> HostState:
        return self._led.state

    def start(self) -> None:
        """Read the log, then serve, and go on with what was decided before."""
        self._led.load(self._load, self._loaded, kept="ids")

    def _load(self, record: Record, _: int) -> None:
        decoded = decode_record(record.key, record.value)
        if decoded is not None:
            self.machine.apply(decoded)

    def _loaded(self) -> int:
        known = self.machine.transactions
        for transactional_id in [name for name, transaction in known.items() if transaction.state.is_prepared]:
            self._write_markers(transactional_id)
        config = self._config
        self._led.repeat(config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self._abort_timed_out)
        self._led.repeat(config.transaction_remove_expired_transaction_cleanup_interval_ms, self._forget_unused)
        return len(known)

    def check_active(self) -> None:
        """Raises what `LedMachine.check_active` raises."""
        self._led.check_active()

    def submit(self, command: Command, on_done: OnDone) -> None:
        """Have a command decided and committed; `on_done` is called once, now or later.

        The answer is never NeedsProducerId.
        """
        self.check_active()
        if isinstance(command, EndTransaction) and command.transactional_id in self._next:
            on_done(concurrent(command.transactional_id))  # it ends what has not begun yet, and is about to
            return
        try:
            decision = self.machine.decide(command, self._clock.now_ms())
            if decision.records:
                self._led.append(decision.records, lambda failure: on_done(failure or decision.response))
        except KafkaError as refusal:
            on_done(refusal)
            return
        if isinstance(decision.response, NeedsProducerId):
            self._take_producer_id(partial(self._submit_with, command, on_done))
        elif not decision.records:
            on_done(decision.response)

    def _submit_with(self, command: Command, on_done: OnDone, fresh: ProducerId | KafkaError) -> None:
        if isinstance(fresh, KafkaError):
            on_done(fresh)
        else:
            self._submit_or_refuse(_with_producer_id(command, fresh), on_done)

    def _submit_or_refuse(self, command: Command, on_done: OnDone) -> None:
        try:
            self.submit(command, on_done)
        except KafkaError as gone:
            on_done(gone)

    def begin(self, command: AddPartitions, on_done: OnDone, asked: Asked) -> None:
        """As `submit`, for a producer itself: if its last transaction is being ended, this waits until that is done.

        For some seconds; then the answer is CONCURRENT_TRANSACTIONS (51). There is none if its connection closes.
        """
        self.check_active()
        self._next.add(command, on_done, asked)

    def _committed(self, records: Sequence[TransactionRecord]) -> None:
        self.machine.commit(records)
        for record in records:
            if record.transaction is not None and record.transaction.state.is_prepared:
                # Not now: the writes of this turn are being told how they went, and a marker is another one.
                self._clock.call_soon(partial(self._write_markers, record.transactional_id))
            else:
                self._ended(record.transactional_id)

    def _discarded(self, records: Sequence[TransactionRecord]) -> None:
        for record in records:
            self._next.ended(record.transactional_id)

    def _write_markers(self, transactional_id: str) -> None:
        markers = self.machine.markers(transactional_id)
        if not self._led.is_active or markers is None or transactional_id in self._writing:
            return
        self._writing[transactional_id] = None
        writing = self._marker_writer.write(markers, self.leader_epoch, partial(self._complete, transactional_id))
        if transactional_id in self._writing:
            self._writing[transactional_id] = writing

    def _complete(self, transactional_id: str) -> None:
        """All markers are written: so be it said, again and again until the log says it."""

        def outcome(answer: Response | KafkaError) -> None:
            if not self._led.is_active or self.machine.markers(transactional_id) is None:
                return
            if isinstance(answer, KafkaError):
                _logger.warning("event=completion-failed id=%r fault=%s", transactional_id, answer)
            at_ms = self._clock.monotonic_ms() + _RETRY_MS
            self._retries[transactional_id] = self._clock.call_at(at_ms, partial(self._complete, transactional_id))

        if self._led.is_active:
            self.submit(CompleteTransaction(transactional_id=transactional_id), outcome)

    def _ended(self, transactional_id: str) -> None:
        """No end is decided that is not complete: what was under way for one is not about what comes next."""
        self._writing.pop(transactional_id, None)
        retry = self._retries.pop(transactional_id, None)
        if retry is not None:
            retry.cancel()
        self._next.ended(transactional_id)

    def _abort_timed_out(self) -> None:
        late = self.machine.timed_out(self._clock.now_ms())
        for transactional_id in late:
            _logger.warning("event=transaction-timed-out id=%r", transactional_id)
        self._led.sweep(AbortTimedOut(transactional_id=name) for name in late)

    def _forget_unused(self) -> None:
        self._led.sweep(ForgetUnused(transactional_id=name) for name in self.machine.unused(self._clock.now_ms()))

    def close(self) -> None:
        """The leadership is gone: tell everybody who waits."""
        if self._led.close():
            for retry in self._retries.values():
                retry.cancel()
            for writing in self._writing.values():
                if writing is not None:
                    writing.cancel()
            self._next.close()


class TransactionCoordinatorService:
    """All transaction coordinators of this node, by partition of `__transaction_state`.

    Knows nothing and refuses everybody until the first `on_image`.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        config: TransactionConfig,
        take_producer_id: TakeProducerId,
        marker_writer: MarkerWriter,
        clock: Clock,
    ) -> None:
        self._config = config
        self._take_producer_id = take_producer_id
        self._marker_writer = marker_writer
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self._room = WaitingRoom()
        self._led = LedCoordinators(
            TRANSACTION_STATE_TOPIC, broker_id=broker_id, find_partition=find_partition, take_over=self._take_over
        )

    @property
    def config(self) -> TransactionConfig:
        return self._config

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Take over and give up partitions as the image says. To be called when the partitions have their roles."""
        self._led.on_image(image)

    def _take_over(self, partition: Partition) -> TransactionCoordinatorHost:
        host = TransactionCoordinatorHost(
            partition,
            config=self._config,
            take_producer_id=self._take_producer_id,
            marker_writer=self._marker_writer,
            clock=self._clock,
            deadlines=self._deadlines,
            room=self._room,
        )
        host.start()
        return host

    def host_of(self, transactional_id: str) -> TransactionCoordinatorHost:
        """The coordinator of this transactional id, ready to serve.

        Raises KafkaError INVALID_REQUEST (42), NOT_COORDINATOR (16), or what `check_active` raises.
        """
        if not transactional_id or len(transactional_id) > _LONGEST_ID:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "a transactional id is not empty, and not longer than a record's key"
            )
        host = self._led.of_key(transactional_id)
        if host is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate {transactional_id!r}")
        host.check_active()
        return host

    def check_room_for(self, transactional_id: str) -> None:
        """Raises KafkaError INVALID_REQUEST if the id would be new and this node has its fill of them."""
        if transactional_id in self.host_of(transactional_id).machine.transactions:
            return
        known = sum(len(host.machine.transactions) for host in self._led.by_number.values())
        if known >= self._config.transaction_max_ids:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this broker has {self._config.transaction_max_ids} transactional ids, as many as it takes",
            )

    def active_hosts(self) -> list[TransactionCoordinatorHost]:
        """All coordinators here. Raises what `check_active` raises if one is not ready."""
        for host in self._led.by_number.values():
            host.check_active()
        return list(self._led.by_number.values())

    def close(self) -> None:
        """The node stops: whoever waits is sent elsewhere."""
        self._led.close()


def _with_producer_id(command: Command, fresh: ProducerId) -> Command:
    assert isinstance(command, InitializeProducer | EndTransaction), f"{command} needs no producer id"
    return replace(command, fresh_producer_id=fresh)
