"""The outcome of EndTxn, given the state of the transaction (pure).

| The transaction is | commit | abort |
|---|---|---|
| about to change, or Prepare.. | 51, whichever way it goes | 51 |
| Ongoing | PrepareCommit | PrepareAbort |
| Complete.. the same way, of this epoch | done already | done already |
| Complete.. the other way, or Empty | 48 | 48; PrepareAbort from a producer of KIP-890 |

The order of the checks is Kafka's (KAFKA-18464): the producer id, then whether a change is under way, then the epoch,
then the state. A change that is under way may be the commit of this very producer, which was answered when the decision
was committed and not when the markers were: an abort right behind it belongs to the next transaction, and has to come
again (51). Any other code would end its producer.

A producer of KIP-890 has a new epoch after each end. One that comes with the epoch of before asks again for what was
decided; one that comes with the present epoch ends a transaction that has not begun: 48, or an abort of nothing, which
makes sure that it never will with this epoch.
"""

from tailrace.coordinators.transactions.commands import Completed, EndTransaction, NeedsProducerId, ProducerIdentity
from tailrace.coordinators.transactions.transaction import (
    EPOCH_PER_TRANSACTION,
    LAST_EPOCH,
    NO_EPOCH,
    Transaction,
    TransactionState,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_PRODUCER_ID

Ended = tuple[Transaction | None, ProducerIdentity | NeedsProducerId | Completed]
"""The next state of the transaction, None if it stays as it is; and the answer."""


def end(transaction: Transaction, command: EndTransaction, *, is_pending: bool, now_ms: int) -> Ended:
    """The transaction as it will be, and the answer. `is_pending`: a change of it is on its way into the log.

    Raises KafkaError INVALID_PRODUCER_ID_MAPPING (49), CONCURRENT_TRANSACTIONS (51), PRODUCER_FENCED (90),
    INVALID_TXN_STATE (48), in this order.
    """
    is_retry = _is_retry(transaction, command)
    if not (is_retry or _is_its_id(transaction, command)):
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"{command.transactional_id!r} belongs to producer {transaction.producer_id}, not {command.producer_id}",
        )
    if is_pending or transaction.state.is_prepared:
        raise concurrent(command.transactional_id)
    if not transaction.is_held_by(command.producer_epoch) and not is_retry:
        raise fenced(command.transactional_id, transaction, command.producer_epoch)
    if transaction.state is TransactionState.ONGOING:
        return _decided(transaction, command, now_ms)
    if command.client_version >= EPOCH_PER_TRANSACTION and not is_retry:
        if command.is_commit:
            raise _invalid(transaction, command)
        return _decided(transaction, command, now_ms)
    if _is_same_end(transaction, command):
        return None, _identity(transaction)
    raise _invalid(transaction, command)


def fenced(transactional_id: str, transaction: Transaction, producer_epoch: int) -> KafkaError:
    """A newer instance has taken over, or the transaction took too long."""
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"epoch {producer_epoch} of {transactional_id!r} is not {transaction.producer_epoch}, the epoch of now",
    )


def concurrent(transactional_id: str) -> KafkaError:
    """Something else has to be done first: ask again."""
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"the last change of {transactional_id!r} is not complete")


def _is_retry(transaction: Transaction, command: EndTransaction) -> bool:
    """Whether the producer has ended it with this identity before, and has not heard the answer."""
    if not transaction.has_epoch_per_transaction or transaction.last_producer_epoch == NO_EPOCH:
        return False
    if command.producer_epoch != transaction.last_producer_epoch:
        return False
    if transaction.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        return False
    is_of_before = command.producer_id == transaction.previous_producer_id and command.producer_epoch == LAST_EPOCH
    return command.producer_id == transaction.producer_id or is_of_before


def _is_its_id(transaction: Transaction, command: EndTransaction) -> bool:
    """Whether the producer has this id, or has it from the moment when the end is complete."""
    if command.producer_id == transaction.producer_id:
        return True
    return transaction.state.is_prepared and command.producer_id == transaction.next_producer_id


def _is_same_end(transaction: Transaction, command: EndTransaction) -> bool:
    done = TransactionState.COMPLETE_COMMIT if command.is_commit else TransactionState.COMPLETE_ABORT
    return transaction.state is done


def _decided(transaction: Transaction, command: EndTransaction, now_ms: int) -> Ended:
    if command.client_version < EPOCH_PER_TRANSACTION:
        return transaction.prepared(is_commit=command.is_commit, now_ms=now_ms), Completed()
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
