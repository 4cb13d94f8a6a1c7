"""Decisions on the producer of a transactional id: its initialization, and the end of its transaction (pure)."""

from dataclasses import replace

from tailrace.coordinators.transactions.commands import (
    AbortedFirst,
    Completed,
    EndTransaction,
    InitializeProducer,
    NeedsProducerId,
    ProducerIdentity,
)
from tailrace.coordinators.transactions.transaction import (
    LAST_EPOCH,
    NO_EPOCH,
    Transaction,
    TransactionState,
    concurrent,
    fenced,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import EPOCH_PER_TRANSACTION, NO_PRODUCER_ID

Initialized = tuple[Transaction | None, ProducerIdentity | NeedsProducerId | AbortedFirst]
"""The next state of the transaction, None if it stays as it is; and the answer."""


def initialize(
    transaction: Transaction | None, command: InitializeProducer, *, is_pending: bool, now_ms: int
) -> Initialized:
    """The next state of the transaction, and the answer. `is_pending`: a record of the transaction is staged. Raises
    KafkaError CONCURRENT_TRANSACTIONS (51), PRODUCER_FENCED (90).

    - The end of the producer's transaction is not complete: error 51 for every identity, as in Kafka. A producer may
      already have the identity that follows the end, even with another id; the identity is checked when the end is
      complete.
    - The id is new: a fresh producer id, epoch 0.
    - No transaction is open: the next epoch, which fences the producer with the epoch before; a fresh producer id when
      the epochs are used up.
    - A transaction is open: an abort, with an epoch that no other producer gets; the producer has to retry.
    - A producer with an identity in its request (KIP-360) gets the next epoch if the identity is current, also if its
      own transaction was open and had to be aborted first; the current epoch again if the answer with this epoch was
      lost; otherwise PRODUCER_FENCED: an old instance must not abort a newer transaction.
    """
    if is_pending or (transaction is not None and transaction.state.is_prepared):
        raise concurrent(command.transactional_id)
    if transaction is None:
        return _created(command, now_ms)
    if command.is_resumed and not _may_be_its_producer(transaction, command):
        raise fenced(command.transactional_id, transaction, command.expected_producer_epoch)
    if transaction.state is TransactionState.ONGOING:
        if command.is_resumed and not _is_its_producer(transaction, command):
            raise fenced(command.transactional_id, transaction, command.expected_producer_epoch)
        return transaction.fenced(is_resumed=command.is_resumed, now_ms=now_ms), AbortedFirst()
    return _next(transaction, command, now_ms)


def _created(command: InitializeProducer, now_ms: int) -> Initialized:
    if command.fresh_producer_id == NO_PRODUCER_ID:
        return None, NeedsProducerId()
    created = Transaction(
        producer_id=command.fresh_producer_id,
        producer_epoch=command.fresh_producer_epoch,
        timeout_ms=command.timeout_ms,
        updated_at_ms=now_ms,
    )
    return created, _identity(created)


def _may_be_its_producer(transaction: Transaction, command: InitializeProducer) -> bool:
    if command.expected_producer_id == transaction.producer_id:
        return True
    is_previous_id = command.expected_producer_id == transaction.previous_producer_id
    return is_previous_id and command.expected_producer_epoch >= LAST_EPOCH


def _is_its_producer(transaction: Transaction, command: InitializeProducer) -> bool:
    is_same_id = command.expected_producer_id == transaction.producer_id
    return is_same_id and command.expected_producer_epoch == transaction.producer_epoch


def _next(transaction: Transaction, command: InitializeProducer, now_ms: int) -> Initialized:
    timeout_ms, heard_epoch = command.timeout_ms, command.expected_producer_epoch
    is_repetition = command.is_resumed and not _is_its_producer(transaction, command)
    if is_repetition and heard_epoch != transaction.last_producer_epoch:
        raise fenced(command.transactional_id, transaction, heard_epoch)
    if is_repetition and transaction.producer_epoch <= LAST_EPOCH:
        following = transaction.initialized_again(timeout_ms=timeout_ms, now_ms=now_ms)
    elif not transaction.is_exhausted:
        following = transaction.initialized(heard_epoch=heard_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
    elif command.fresh_producer_id == NO_PRODUCER_ID:
        return None, NeedsProducerId()
    else:
        following = transaction.rotated(
            command.fresh_producer_id, heard_epoch=heard_epoch, timeout_ms=timeout_ms, now_ms=now_ms
        )
    return following, _identity(following)


Ended = tuple[Transaction | None, ProducerIdentity | NeedsProducerId | Completed]
"""The next state of the transaction, None if it stays as it is; and the answer."""


def end(transaction: Transaction, command: EndTransaction, *, is_pending: bool, now_ms: int) -> Ended:
    """The next state of the transaction, and the answer. `is_pending`: a record of it is staged.

    | The transaction is | commit | abort |
    |---|---|---|
    | about to change, or Prepare.. | 51, whichever way it goes | 51 |
    | Ongoing | PrepareCommit | PrepareAbort |
    | Complete.. the same way, of this epoch | done already | done already |
    | Complete.. the other way, or Empty | 48 | 48; PrepareAbort from a producer of KIP-890 |

    Raises KafkaError INVALID_PRODUCER_ID_MAPPING (49), PRODUCER_FENCED (90), CONCURRENT_TRANSACTIONS (51),
    INVALID_TXN_STATE (48), in this order; for a producer of KIP-890, CONCURRENT_TRANSACTIONS first. The pending change
    may be a commit of the same producer. The commit was answered when the decision was committed, before the markers
    were written: an abort right behind this commit belongs to the next transaction, and the producer has to send the
    abort again (51). Any other code would stop the producer. Kafka has the same order.

    A producer of KIP-890 has a new epoch after each end, and perhaps another id. A request with the epoch before
    repeats a request that was decided. A request with the present epoch ends a transaction that has not begun: a commit
    gets 48; an abort is carried out, so that no transaction begins in this epoch any more.
    """
    is_changing = is_pending or transaction.state.is_prepared
    if is_changing and (command.client_version >= EPOCH_PER_TRANSACTION or _has_next_id(transaction, command)):
        raise concurrent(command.transactional_id)
    is_retry = _is_retry(transaction, command)
    if not is_retry and command.producer_id != transaction.producer_id:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{command.transactional_id!r} belongs to producer {transaction.producer_id}, not {command.producer_id}",
        )
    if not transaction.is_held_by(command.producer_epoch) and not is_retry:
        raise fenced(command.transactional_id, transaction, command.producer_epoch)
    if is_changing:
        raise concurrent(command.transactional_id)
    if transaction.state is TransactionState.ONGOING:
        return _decided(transaction, command, now_ms)
    if command.client_version >= EPOCH_PER_TRANSACTION and not is_retry:
        if command.is_commit:
            raise _invalid(transaction, command)
        return _decided(transaction, command, now_ms)
    if _is_same_end(transaction, command):
        return None, _identity(transaction)
    raise _invalid(transaction, command)


def _is_retry(transaction: Transaction, command: EndTransaction) -> bool:
    """Whether the producer has ended the transaction with this identity before: the answer was lost."""
    if not transaction.has_epoch_per_transaction or transaction.last_producer_epoch == NO_EPOCH:
        return False
    if command.producer_epoch != transaction.last_producer_epoch:
        return False
    if transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return False
    is_previous_identity = (
        command.producer_id == transaction.previous_producer_id and command.producer_epoch == LAST_EPOCH
    )
    return command.producer_id == transaction.producer_id or is_previous_identity


def _has_next_id(transaction: Transaction, command: EndTransaction) -> bool:
    """Whether the command names the id that the producer has when the end is complete."""
    return transaction.state.is_prepared and command.producer_id == transaction.next_producer_id


def _is_same_end(transaction: Transaction, command: EndTransaction) -> bool:
    done = TransactionState.COMPLETE_COMMIT if command.is_commit else TransactionState.COMPLETE_ABORT
    return transaction.state is done


def _decided(transaction: Transaction, command: EndTransaction, now_ms: int) -> Ended:
    if command.client_version < EPOCH_PER_TRANSACTION:
        # The version of this request counts: its markers keep the epoch, whatever version the producer has begun with.
        prepared = transaction.prepared(is_commit=command.is_commit, now_ms=now_ms)
        return replace(prepared, client_version=command.client_version), Completed()
    next_producer_id: int = NO_PRODUCER_ID
    if transaction.is_exhausted:
        if command.fresh_producer_id == NO_PRODUCER_ID:
            return None, NeedsProducerId()
        next_producer_id = command.fresh_producer_id
    prepared = transaction.prepared_with_next_epoch(
        is_commit=command.is_commit, next_producer_id=next_producer_id, now_ms=now_ms
    )
    return prepared, _identity(prepared.completed(now_ms=now_ms))


def _identity(transaction: Transaction) -> ProducerIdentity:
    return ProducerIdentity(producer_id=transaction.producer_id, producer_epoch=transaction.producer_epoch)


def _invalid(transaction: Transaction, command: EndTransaction) -> KafkaError:
    verb = "commit" if command.is_commit else "abort"
    return KafkaError(
        ErrorCode.INVALID_TXN_STATE, f"cannot {verb} {command.transactional_id!r}, which is {transaction.state.label}"
    )
