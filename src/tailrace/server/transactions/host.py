"""The transaction coordinators of this node, for each partition of `__transaction_state` that this node leads.

1. The markers of a decided transaction are written without a time limit: by the coordinator that made the decision, and
   by each later coordinator that finds the decision in its log. The last marker completes the transaction.
2. A producer that begins its next transaction before that waits for the end of its last transaction
   (`next_transactions`).
3. After a loss of leadership the next coordinator writes the markers again, with its newer epoch.
4. The records of one decision are one record batch, so that a log has either the whole decision or no part of it
   (decision 0063).
5. Members of a sink that no decision can commit any more are ended after the decision of their batch; after a change of
   the coordinator, by the next coordinator.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.commands import (
    AbortTimedOut,
    AddPartitions,
    Command,
    CommitSink,
    CompleteTransaction,
    EndTransaction,
    ForgetSink,
    ForgetUnused,
    InitializeProducer,
    MarkersToWrite,
    NeedsProducerId,
    Response,
    SweepSink,
)
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.records import (
    CoordinatorRecord,
    SinkRecord,
    decode_record,
    encode_record,
)
from tailrace.coordinators.transactions.transaction import concurrent
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, ProducerId
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC
from tailrace.model.sinks import coordinator_key, find_member, sink_of_key
from tailrace.replication.partition import Partition
from tailrace.server.coordination.coordinator_log import IN_NONE, CoordinatorLog, InTransaction, Outcome
from tailrace.server.coordination.host import CoordinatorHost, CoordinatorService
from tailrace.server.ports import Clock, Timer
from tailrace.server.transactions.markers import DecisionNumber
from tailrace.server.transactions.next_transactions import NextTransactions, OnDone, QueuedRequest, WaitingRequests
from tailrace.server.transactions.sink_commits import SinkCommits
from tailrace.server.transactions.sink_memory import SinkLeases, SinkProducers, SinkRun
from tailrace.server.waiters import Deadlines

OnProducerId = Callable[[ProducerId | KafkaError], None]
AllocateProducerId = Callable[[OnProducerId], None]
"""Allocates an id that no producer has had."""

_WRITE_TIMEOUT_MS: Final = 5_000
"""The longest wait of an answer for the commit of its record."""
_RETRY_MS: Final = 500
"""The time until a failed write of a completion is repeated."""

_logger = logging.getLogger("tailrace.server")


class Cancellable(Protocol):
    """Work that can be cancelled."""

    def cancel(self) -> None: ...


class MarkerWriter(Protocol):
    """Writes markers to the leaders of partitions."""

    def write(self, markers: MarkersToWrite, decision: DecisionNumber, on_done: Callable[[], None]) -> Cancellable:
        """Write a marker to each partition that still exists, with retries; then call `on_done`, perhaps at once."""
        ...


class TransactionCoordinatorHost(CoordinatorHost[str, Command, CoordinatorRecord, Response]):
    """The coordinator of one partition, by transactional id."""

    def __init__(
        self,
        partition: Partition,
        *,
        config: TransactionConfig,
        allocate_producer_id: AllocateProducerId,
        marker_writer: MarkerWriter,
        clock: Clock,
        deadlines: Deadlines,
        waiting_requests: WaitingRequests,
    ) -> None:
        self.machine = TransactionCoordinator(config=config)
        log = CoordinatorLog[CoordinatorRecord](
            partition,
            encode=encode_record,
            decode=lambda record, _: decode_record(record.key, record.value),
            clock=clock,
            deadlines=deadlines,
            timeout_ms=_WRITE_TIMEOUT_MS,
        )
        super().__init__(log, self.machine, keys="ids", reads_latest=False)
        log.on_committed, log.on_discarded = self._committed, self._discarded
        self._config = config
        self._allocate_producer_id = allocate_producer_id
        self._marker_writer = marker_writer
        self._writing: dict[str, Cancellable | None] = {}
        """The transactional ids whose markers are being written, or their completion."""
        self._retries: dict[str, Timer] = {}
        """The timers of failed completions, by transactional id."""
        self._next = NextTransactions(
            submit=self.submit,
            is_changing=self.machine.is_changing,
            clock=clock,
            deadlines=deadlines,
            waiting_requests=waiting_requests,
        )

        self._sink_commits = SinkCommits(
            submit=self.submit, is_complete=self.machine.sinks.is_complete, deadlines=deadlines
        )
        self._sink_producers = SinkProducers()
        self._sink_leases = SinkLeases(clock.monotonic_ms())

    def has(self, key: str) -> bool:
        return key in self.machine.transactions or sink_of_key(key) in self.machine.sinks.known

    @property
    def key_count(self) -> int:
        return len(self.machine.transactions) + len(self.machine.sinks.known)

    def _activated(self) -> None:
        """Write the markers of the ends that were decided before."""
        known = self.machine.transactions
        for transactional_id in [name for name, transaction in known.items() if transaction.state.is_prepared]:
            self._write_markers(transactional_id)
        self.decide_until_done([SweepSink(sink_id=sink_id) for sink_id in self.machine.sinks.members.sinks])
        config = self._config
        self._repeat(config.transaction_abort_timed_out_transaction_cleanup_interval_ms, self._abort_timed_out)
        self._repeat(config.transaction_remove_expired_transaction_cleanup_interval_ms, self._forget_unused)

    def submit(self, command: Command, on_done: OnDone) -> None:
        """Decide a command, see `CoordinatorHost.submit`. The answer is never NeedsProducerId."""
        if isinstance(command, EndTransaction) and command.transactional_id in self._next:
            on_done(concurrent(command.transactional_id))  # the id's next transaction waits to begin
        else:
            self._decide(command, partial(self._decided, command, on_done))

    def _decided(self, command: Command, on_done: OnDone, outcome: Response | KafkaError) -> None:
        if not isinstance(outcome, NeedsProducerId):
            on_done(outcome)
        elif (reusing := self._with_used_producer(command)) is not None:
            self.submit(reusing, on_done)
        else:
            self._allocate_producer_id(partial(self._submit_with, command, on_done))

    def _with_used_producer(self, command: Command) -> InitializeProducer | None:
        """The command with the producer id of an earlier member of the same sink. None if there is no such producer id,
        and for any other command."""
        if not isinstance(command, InitializeProducer) or command.transactional_id in self.machine.transactions:
            return None
        member = find_member(command.transactional_id)
        used = None if member is None else self._sink_producers.take(member.sink)
        if used is None:
            return None
        return replace(command, fresh_producer_id=used.producer_id, fresh_producer_epoch=used.producer_epoch)

    def _submit_with(self, command: Command, on_done: OnDone, fresh: ProducerId | KafkaError) -> None:
        if isinstance(fresh, KafkaError):
            on_done(fresh)
        else:
            self.submit(_with_producer_id(command, fresh), on_done)

    def begin(self, command: AddPartitions, on_done: OnDone, request: QueuedRequest) -> None:
        """Do what `submit` does, but only when the end of the producer's last transaction is complete: until then the
        request waits.

        After `next_transactions.WAIT_MS` the answer is CONCURRENT_TRANSACTIONS (51). If the connection closes, there is
        no answer.
        """
        self._next.add(command, on_done, request)

    def commit_sink(self, command: CommitSink, on_done: OnDone, *, timeout_ms: int) -> None:
        """Commit a sink. The answer comes when all members have their markers, or is REQUEST_TIMED_OUT (7)."""
        self._sink_commits.add(command, on_done, timeout_ms)

    def renew_run(self, run: SinkRun, lease_ms: int) -> None:
        """Note a sign of life of a run. Raises KafkaError PRODUCER_FENCED (90) if another run has followed."""
        self.machine.sinks.check_run_is_current(run.sink, run.run)
        self._sink_leases.renewed(run, lease_ms)

    def _append(
        self,
        records: Sequence[CoordinatorRecord],
        outcome: Outcome,
        *,
        within: InTransaction = IN_NONE,
        is_atomic: bool = True,
    ) -> None:
        super()._append(records, outcome, within=within, is_atomic=is_atomic)

    def _committed(self, records: Sequence[CoordinatorRecord]) -> None:
        for record in records:
            self._keep_producer(record)
        self.machine.commit(records)
        for record in records:
            if isinstance(record, SinkRecord):
                self._sink_changed(record)
            elif record.transaction is not None and record.transaction.state.is_prepared:
                # In a later turn: the answers to the writes of this turn come first, and a marker is another write.
                self._clock.call_soon(partial(self._write_markers, record.transactional_id))
            else:
                self._ended(record.transactional_id)

    def _keep_producer(self, record: CoordinatorRecord) -> None:
        """Keep the producer id of a member that is about to be deleted."""
        member = None if isinstance(record, SinkRecord) or record.transaction else find_member(record.transactional_id)
        known = self.machine.transactions.get(record.transactional_id)
        if member is not None and known is not None:
            last = known.completed(now_ms=0) if known.state.is_prepared else known
            self._sink_producers.add(member.sink, last.producer_id, last.producer_epoch)

    def _sink_changed(self, record: SinkRecord) -> None:
        """End members that can never commit, after a batch was decided or a run has followed another run."""
        if record.sink is None:
            self._sink_producers.forget(record.sink_id)
        else:
            self._clock.call_soon(partial(self._sweep, record.sink_id))

    def _sweep(self, sink_id: str) -> None:
        if self.is_active:
            self.decide_until_done((SweepSink(sink_id=sink_id),))

    def _discarded(self, records: Sequence[CoordinatorRecord]) -> None:
        self.machine.discard(records)
        for record in records:
            self._next.ended(record.transactional_id)

    def _write_markers(self, transactional_id: str) -> None:
        markers = self.machine.markers(transactional_id)
        if not self.is_active or markers is None or transactional_id in self._writing:
            return
        self._writing[transactional_id] = None
        # The log has the record of the decision, but not yet the record of its completion.
        decision = DecisionNumber(self.leader_epoch, self.partition.log.log_end_offset)
        writing = self._marker_writer.write(markers, decision, partial(self._complete, transactional_id))
        if transactional_id in self._writing:
            self._writing[transactional_id] = writing

    def _complete(self, transactional_id: str) -> None:
        """Submit the completion, after the last marker, repeatedly until its commit."""

        def outcome(answer: Response | KafkaError) -> None:
            if not self.is_active or self.machine.markers(transactional_id) is None:
                return
            if isinstance(answer, KafkaError):
                _logger.warning("event=completion-failed id=%r fault=%s", transactional_id, answer)
            at_ms = self._clock.monotonic_ms() + _RETRY_MS
            self._retries[transactional_id] = self._clock.call_at(at_ms, partial(self._complete, transactional_id))

        if self.is_active:
            self.submit(CompleteTransaction(transactional_id=transactional_id), outcome)

    def _ended(self, transactional_id: str) -> None:
        """Forget the markers of a transaction that is no longer prepared, and cancel the retry of its completion."""
        self._writing.pop(transactional_id, None)
        retry = self._retries.pop(transactional_id, None)
        if retry is not None:
            retry.cancel()
        self._next.ended(transactional_id)
        member = find_member(transactional_id)
        if member is not None:
            self._sink_commits.changed(member.sink)

    def _abort_timed_out(self) -> None:
        late = self.machine.timed_out(self._clock.now_ms())
        for transactional_id in late:
            _logger.warning("event=transaction-timed-out id=%r", transactional_id)
        self.decide_until_done(AbortTimedOut(transactional_id=name) for name in late)
        for run in self._sink_leases.lapsed(self._clock.monotonic_ms()):
            self._abort_members(run)

    def _abort_members(self, run: SinkRun) -> None:
        """End the open members of a run that gives no more signs of life, before their timeout."""
        members = self.machine.sinks.members.of(run.sink)
        names = [name for name, member in members.items() if member.run == run.run]
        if names:
            _logger.warning("event=sink-run-lapsed sink=%r run=%r members=%d", run.sink, run.run, len(names))
        self.decide_until_done([AbortTimedOut(transactional_id=name, is_lapsed=True) for name in names])

    def _forget_unused(self) -> None:
        now_ms = self._clock.now_ms()
        self.decide_until_done(ForgetUnused(transactional_id=name) for name in self.machine.unused(now_ms))
        self.decide_until_done(ForgetSink(sink_id=sink_id) for sink_id in self.machine.sinks.unused(now_ms))

    def _closed(self) -> None:
        for retry in self._retries.values():
            retry.cancel()
        for writing in self._writing.values():
            if writing is not None:
                writing.cancel()
        moved = KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.partition.topic_partition} has moved")
        self._next.close(moved)
        self._sink_commits.close(moved)


def _with_producer_id(command: Command, fresh: ProducerId) -> Command:
    assert isinstance(command, InitializeProducer | EndTransaction), f"{command} needs no producer id"
    return replace(command, fresh_producer_id=fresh)


class TransactionCoordinatorService(CoordinatorService[str, TransactionCoordinatorHost]):
    """The coordinators by transactional id."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        config: TransactionConfig,
        allocate_producer_id: AllocateProducerId,
        marker_writer: MarkerWriter,
        clock: Clock,
    ) -> None:
        super().__init__(
            TRANSACTION_STATE_TOPIC,
            noun="transactional id",
            key_text=coordinator_key,
            invalid_key=ErrorCode.INVALID_REQUEST,
            max_keys=config.transaction_max_ids,
            limit="transaction.max.ids",
            broker_id=broker_id,
            find_partition=find_partition,
            clock=clock,
        )
        self._config = config
        self._allocate_producer_id = allocate_producer_id
        self._marker_writer = marker_writer
        self._waiting_requests = WaitingRequests()

    def _host(self, partition: Partition) -> TransactionCoordinatorHost:
        return TransactionCoordinatorHost(
            partition,
            config=self._config,
            allocate_producer_id=self._allocate_producer_id,
            marker_writer=self._marker_writer,
            clock=self._clock,
            deadlines=self._deadlines,
            waiting_requests=self._waiting_requests,
        )
