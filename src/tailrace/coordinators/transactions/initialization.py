"""The outcome of InitProducerId with a transactional id, given the state of its transaction (pure).

- The id is new: a fresh producer id, epoch 0.
- No transaction is open: the next epoch, which fences the producer with the last one; a fresh producer id when the
  epochs are used up.
- A transaction is open: it is aborted under an epoch that no producer gets; the producer has to ask again.
- A producer that names its identity (KIP-360) gets the next epoch if the identity is the current one, the current one
  again if the answer with it was lost, and PRODUCER_FENCED otherwise: an old instance aborts no newer transaction.
"""

from tailrace.coordinators.transactions.commands import (
    AbortedFirst,
    InitializeProducer,
    NeedsProducerId,
    ProducerIdentity,
)
from tailrace.coordinators.transactions.ending import concurrent, fenced
from tailrace.coordinators.transactions.states import TransactionState
from tailrace.coordinators.transactions.transaction import LAST_EPOCH, Transaction
from tailrace.model.ids import NO_PRODUCER_ID

Initialized = tuple[Transaction | None, ProducerIdentity | NeedsProducerId | AbortedFirst]
"""The next state of the transaction, None if it stays as it is; and the answer."""


def initialize(
    transaction: Transaction | None, command: InitializeProducer, *, is_pending: bool, now_ms: int
) -> Initialized:
    """The transaction as it will be, and the answer. `is_pending`: a change of it is on its way into the log.

    Raises KafkaError CONCURRENT_TRANSACTIONS (51), PRODUCER_FENCED (90).
    """
    if is_pending:
        raise concurrent(command.transactional_id)
    if transaction is None:
        return _created(command, now_ms)
    if command.is_resumed and not _may_be_its_producer(transaction, command):
        raise fenced(command.transactional_id, transaction, command.expected_producer_epoch)
    if transaction.state.is_prepared:
        raise concurrent(command.transactional_id)
    if transaction.state is TransactionState.ONGOING:
        if command.is_resumed and not _is_its_producer(transaction, command):
            raise fenced(command.transactional_id, transaction, command.expected_producer_epoch)
        return transaction.fenced(now_ms=now_ms), AbortedFirst()
    return _next(transaction, command, now_ms)


def _created(command: InitializeProducer, now_ms: int) -> Initialized:
    if command.fresh_producer_id == NO_PRODUCER_ID:
        return None, NeedsProducerId()
    created = Transaction(
        producer_id=command.fresh_producer_id, producer_epoch=0, timeout_ms=command.timeout_ms, updated_at_ms=now_ms
    )
    return created, _identity(created)


def _may_be_its_producer(transaction: Transaction, command: InitializeProducer) -> bool:
    if command.expected_producer_id == transaction.producer_id:
        return True
    is_of_before = command.expected_producer_id == transaction.previous_producer_id
    return is_of_before and command.expected_producer_epoch >= LAST_EPOCH


def _is_its_producer(transaction: Transaction, command: InitializeProducer) -> bool:
    is_same_id = command.expected_producer_id == transaction.producer_id
    return is_same_id and command.expected_producer_epoch == transaction.producer_epoch


def _next(transaction: Transaction, command: InitializeProducer, now_ms: int) -> Initialized:
    timeout_ms, is_resumed = command.timeout_ms, command.is_resumed
    if is_resumed and not _is_its_producer(transaction, command):
        if command.expected_producer_epoch != transaction.last_producer_epoch:
            raise fenced(command.transactional_id, transaction, command.expected_producer_epoch)
        following = transaction.initialized_again(timeout_ms=timeout_ms, now_ms=now_ms)
    elif not transaction.is_exhausted:
        following = transaction.initialized(timeout_ms=timeout_ms, is_resumed=is_resumed, now_ms=now_ms)
    elif command.fresh_producer_id == NO_PRODUCER_ID:
        return None, NeedsProducerId()
    else:
        following = transaction.rotated(
            command.fresh_producer_id, timeout_ms=timeout_ms, is_resumed=is_resumed, now_ms=now_ms
        )
    return following, _identity(following)


def _identity(transaction: Transaction) -> ProducerIdentity:
    return ProducerIdentity(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch)
