"""The transactional ids and sinks of one partition of `__transaction_state`: a replicated machine.

1. A transactional id changes by `apply` and `commit` only, each time to the state in one record.
2. At most one record of a transactional id, or of a sink, is staged. While a record is staged, other requests get
   CONCURRENT_TRANSACTIONS (51), as with Kafka. So every decision reads the committed state, and its answer waits only
   for its own record.
3. A prepared transaction ends by its decision: only CompleteTransaction changes it.
4. A member of a sink commits by the decision of its batch only (`sinks`). A member whose end is complete is deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, assert_never

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.commands import (
    AbortTimedOut,
    AddPartitions,
    Command,
    CommitSink,
    Completed,
    CompleteTransaction,
    EndTransaction,
    ForgetSink,
    ForgetUnused,
    InitializeProducer,
    ListedTransactions,
    MarkersToWrite,
    ProducerCommand,
    Response,
    SinkCommand,
    SweepSink,
)
from tailrace.coordinators.transactions.producers import end, initialize
from tailrace.coordinators.transactions.records import CoordinatorRecord, SinkRecord, TransactionRecord
from tailrace.coordinators.transactions.sinks import Sinks
from tailrace.coordinators.transactions.transaction import (
    TRANSITIONS,
    Transaction,
    TransactionState,
    concurrent,
    fenced,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import find_member, is_reserved_for_sinks

TransactionDecision = Decision[CoordinatorRecord, Response]

_DONE = Completed()


class TransactionCoordinator:
    """The machine of one coordinator partition. Times in ms since 1970."""

    def __init__(self, *, config: TransactionConfig) -> None:
        self._config = config
        self._transactions: dict[str, Transaction] = {}
        self._pending: dict[str, CoordinatorRecord] = {}
        self.sinks: Final = Sinks(
            self._transactions, self._pending, expiration_ms=config.transactional_id_expiration_ms
        )

    @property
    def transactions(self) -> Mapping[str, Transaction]:
        """The committed transactions by transactional id. Read only."""
        return self._transactions

    def apply(self, record: CoordinatorRecord) -> None:
        """Apply one committed record. The only place where a transaction changes."""
        if isinstance(record, SinkRecord):
            self.sinks.apply(record)
            return
        transactional_id, transaction = record.transactional_id, record.transaction
        self.sinks.members.changed(transactional_id, self._transactions.get(transactional_id), transaction)
        if transaction is None:
            self._transactions.pop(transactional_id, None)
        else:
            self._transactions[transactional_id] = transaction

    def decide(self, command: Command, now_ms: int) -> TransactionDecision:
        """The decision on a command: records that have to be committed together, and the answer. Raises KafkaError with
        Kafka's code."""
        if isinstance(command, SinkCommand):
            return self._decide_of_sink(command, now_ms)
        return self._decide_of_producer(command, now_ms)

    def _decide_of_sink(self, command: SinkCommand, now_ms: int) -> TransactionDecision:
        match command:
            case CommitSink():
                decision = self.sinks.commit(command, now_ms)
                return Decision(records=decision.records, response=decision.response)
            case SweepSink():
                return Decision(records=self.sinks.swept(command.sink_id, now_ms), response=_DONE)
            case ForgetSink():
                is_unused = self.sinks.is_unused(command.sink_id, now_ms)
                records = (SinkRecord(sink_id=command.sink_id, sink=None),) if is_unused else ()
                return Decision(records=records, response=_DONE)
            case _:
                assert_never(command)

    def _decide_of_producer(self, command: ProducerCommand, now_ms: int) -> TransactionDecision:
        transactional_id = command.transactional_id
        transaction = self._transactions.get(transactional_id)
        is_pending = transactional_id in self._pending
        following: Transaction | None = None
        answer: Response = _DONE
        match command:
            case InitializeProducer():
                self._check_timeout(command)
                self.sinks.check_initialize(transactional_id)
                following, answer = initialize(transaction, command, is_pending=is_pending, now_ms=now_ms)
            case AddPartitions():
                following = self._with_partitions(command, now_ms)
            case EndTransaction():
                known = self._known(transactional_id)
                _check_may_end(command)
                following, answer = end(known, command, is_pending=is_pending, now_ms=now_ms)
            case CompleteTransaction():
                if transaction is not None and transaction.state.is_prepared and not is_pending:
                    if find_member(transactional_id) is not None:
                        return _decision(transactional_id, None)
                    following = transaction.completed(now_ms=now_ms)
            case AbortTimedOut():
                is_over = transaction is not None and (command.is_lapsed or _is_timed_out(transaction, now_ms))
                if transaction is not None and is_over and not is_pending and _is_open(transaction):
                    following = transaction.fenced(is_resumed=False, now_ms=now_ms)
            case ForgetUnused():
                if transaction is not None and not is_pending and self._is_unused(transaction, now_ms):
                    return _decision(transactional_id, None)
            case _:
                assert_never(command)
        if following is None:
            return Decision(records=(), response=answer)
        if transaction is not None:
            legal = TRANSITIONS[transaction.state]
            assert following.state in legal, f"{transactional_id!r}: {transaction.state.name} to {following.state.name}"
        return _decision(transactional_id, following, answer)

    def is_changing(self, transactional_id: str) -> bool:
        """Whether a record of the id is staged, or its transaction is decided and not complete."""
        transaction = self._transactions.get(transactional_id)
        return transactional_id in self._pending or (transaction is not None and transaction.state.is_prepared)

    def verify(self, command: AddPartitions) -> dict[TopicPartition, ErrorCode]:
        """Check that the partitions are in the transaction: TRANSACTION_ABORTABLE (120) if not (KIP-890).

        Raises KafkaError as AddPartitions does.
        """
        transaction = self._checked(command)
        return {
            partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in command.partitions
        }

    def stage(self, records: Iterable[CoordinatorRecord]) -> None:
        """Add appended records, which are not committed yet."""
        for record in records:
            assert record.transactional_id not in self._pending, f"{record.transactional_id!r} has a change under way"
            self._pending[record.transactional_id] = record

    def commit(self, records: Sequence[CoordinatorRecord]) -> None:
        """Apply staged records, which are committed now."""
        for record in records:
            self.apply(record)
        self.discard(records)

    def discard(self, records: Iterable[CoordinatorRecord]) -> None:
        """Remove staged records, which are committed by now, or are not in the log."""
        for record in records:
            del self._pending[record.transactional_id]

    def markers(self, transactional_id: str) -> MarkersToWrite | None:
        """The markers of a prepared transaction; None in any other state."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None or not transaction.state.is_prepared:
            return None
        return MarkersToWrite(
            transactional_id=transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_version=transaction.client_version,
            is_commit=transaction.state is TransactionState.PREPARE_COMMIT,
            partitions=transaction.partitions,
        )

    def timed_out(self, now_ms: int) -> list[str]:
        """The transactional ids whose transaction is open for too long."""
        return [name for name, transaction in self._transactions.items() if _is_timed_out(transaction, now_ms)]

    def unused(self, now_ms: int) -> list[str]:
        """The transactional ids that have not been used for too long."""
        return [name for name, transaction in self._transactions.items() if self._is_unused(transaction, now_ms)]

    def listed(self, wanted: ListedTransactions, now_ms: int) -> Iterator[tuple[str, Transaction]]:
        """The transactional ids that match the filter, with their states."""
        for name, transaction in self._transactions.items():
            if wanted.states is not None and transaction.state not in wanted.states:
                continue
            if wanted.producer_ids and transaction.producer_id not in wanted.producer_ids:
                continue
            if wanted.longer_than_ms >= 0 and now_ms - transaction.started_at_ms <= wanted.longer_than_ms:
                continue
            yield name, transaction

    def _known(self, transactional_id: str) -> Transaction:
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"no producer has initialized {transactional_id!r} lately"
            )
        return transaction

    def _checked(self, command: AddPartitions) -> Transaction:
        transaction = self._known(command.transactional_id)
        if transaction.state.is_prepared and command.producer_id == transaction.next_producer_id:
            raise concurrent(command.transactional_id)
        if command.producer_id != transaction.producer_id:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING,
                f"{command.transactional_id!r} belongs to producer {transaction.producer_id}",
            )
        if not transaction.is_held_by(command.producer_epoch):
            raise fenced(command.transactional_id, transaction, command.producer_epoch)
        if transaction.state.is_prepared:
            raise concurrent(command.transactional_id)
        self.sinks.check_writes(command.transactional_id)
        return transaction

    def _with_partitions(self, command: AddPartitions, now_ms: int) -> Transaction | None:
        transaction = self._checked(command)
        if command.transactional_id in self._pending:
            raise concurrent(command.transactional_id)
        if transaction.state is TransactionState.ONGOING and command.partitions <= transaction.partitions:
            return None
        return transaction.with_partitions(command.partitions, client_version=command.client_version, now_ms=now_ms)

    def _check_timeout(self, command: InitializeProducer) -> None:
        most = self._config.transaction_max_timeout_ms
        if not 0 < command.timeout_ms <= most:
            raise KafkaError(
                ErrorCode.INVALID_TRANSACTION_TIMEOUT,
                f"transaction.timeout.ms {command.timeout_ms} is not between 1 and transaction.max.timeout.ms {most}",
            )

    def _is_unused(self, transaction: Transaction, now_ms: int) -> bool:
        is_old = now_ms - transaction.updated_at_ms >= self._config.transactional_id_expiration_ms
        return transaction.state.is_idle and is_old


def _check_may_end(command: EndTransaction) -> None:
    if command.is_commit and is_reserved_for_sinks(command.transactional_id):
        raise KafkaError(
            ErrorCode.INVALID_TXN_STATE, f"{command.transactional_id!r} commits with its batch alone, by CommitSink"
        )


def _is_open(transaction: Transaction) -> bool:
    return transaction.state is TransactionState.ONGOING


def _is_timed_out(transaction: Transaction, now_ms: int) -> bool:
    return _is_open(transaction) and transaction.started_at_ms + transaction.timeout_ms < now_ms


def _decision(
    transactional_id: str, following: Transaction | None, answer: Response | None = None
) -> TransactionDecision:
    record = TransactionRecord(transactional_id=transactional_id, transaction=following)
    return Decision(records=(record,), response=Completed() if answer is None else answer)
