"""A transactional id in each state, and the requests for it."""

import dataclasses

from tailrace.coordinators.config import TransactionConfig
from tailrace.coordinators.transactions.commands import (
    AddPartitions,
    Command,
    EndTransaction,
    InitializeProducer,
    Response,
)
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.coordinators.transactions.records import TransactionRecord
from tailrace.coordinators.transactions.transaction import Transaction, TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

E, S = ErrorCode, TransactionState
NOW = 1_000_000
ORDERS = TopicPartition("orders", 0)
BILLS = TopicPartition("bills", 1)
PREPARED = (S.PREPARE_COMMIT, S.PREPARE_ABORT)
IDLE = (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT)


def transaction(state: TransactionState, **changes: object) -> Transaction:
    is_open = state not in IDLE
    known = Transaction(
        producer_id=7,
        producer_epoch=3,
        timeout_ms=60_000,
        state=state,
        partitions=frozenset((ORDERS,)) if is_open else frozenset(),
        started_at_ms=NOW - 1_000 if is_open else -1,
        updated_at_ms=NOW - 1_000,
    )
    return dataclasses.replace(known, **changes)  # type: ignore[arg-type]


def machine(known: Transaction | None, *, is_pending: bool = False) -> TransactionCoordinator:
    coordinator = TransactionCoordinator(config=TransactionConfig())
    if known is not None:
        coordinator.apply(TransactionRecord(transactional_id="pay", transaction=known))
    if is_pending:
        coordinator.stage((TransactionRecord(transactional_id="pay", transaction=known),))
    return coordinator


def outcome(
    known: Transaction | None, command: Command, *, is_pending: bool = False
) -> tuple[Transaction | None, Response | ErrorCode]:
    """The new state of the id, None if it stays the same, and the answer."""
    try:
        decision = machine(known, is_pending=is_pending).decide(command, NOW)
    except KafkaError as refusal:
        return None, refusal.code
    (record,) = decision.records or (None,)
    return (record.transaction if isinstance(record, TransactionRecord) else None), decision.response


INITIALIZE = InitializeProducer(transactional_id="pay", timeout_ms=5_000)


def naming(producer_id: int, producer_epoch: int) -> InitializeProducer:
    """InitProducerId with the identity that the producer has (KIP-360)."""
    return dataclasses.replace(INITIALIZE, expected_producer_id=producer_id, expected_producer_epoch=producer_epoch)


ADD = AddPartitions(transactional_id="pay", producer_id=7, producer_epoch=3, partitions=frozenset((BILLS,)))
COMMIT = EndTransaction(transactional_id="pay", producer_id=7, producer_epoch=3, is_commit=True)
ABORT = dataclasses.replace(COMMIT, is_commit=False)
COMMIT_2, ABORT_2 = (dataclasses.replace(command, client_version=2) for command in (COMMIT, ABORT))
