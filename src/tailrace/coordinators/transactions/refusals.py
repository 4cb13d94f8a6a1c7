"""Refusals of requests about a transactional id."""

from tailrace.coordinators.transactions.transaction import Transaction
from tailrace.model.errors import ErrorCode, KafkaError


def fenced(transactional_id: str, transaction: Transaction, producer_epoch: int) -> KafkaError:
    """PRODUCER_FENCED: a newer instance has replaced the producer, or the transaction has timed out."""
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"epoch {producer_epoch} of {transactional_id!r} is fenced: its present epoch is {transaction.producer_epoch}",
    )


def concurrent(transactional_id: str) -> KafkaError:
    """CONCURRENT_TRANSACTIONS: another change has to be complete first."""
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"the last change of {transactional_id!r} is not complete")
