"""A transactional id: its producer and the state of its transaction. An immutable value; each step returns a new value
(pure)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import EPOCH_PER_TRANSACTION, NO_PRODUCER_ID
from tailrace.model.partitions import TopicPartition


class TransactionState(IntEnum):
    """The state, with its number in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    """The commit is decided, and its markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """A state in the memory of Kafka's coordinators while a transactional id expires, in no log."""
    PREPARE_EPOCH_FENCE = 7
    """A state in the memory of Kafka's coordinators while a producer is fenced, in no log."""

    @property
    def label(self) -> str:
        """The name for clients, as `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """Whether the end is decided, and not all markers are written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


_S = TransactionState

TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        # A new instance of a producer, or a producer that has lost its sequence numbers.
        _S.EMPTY: frozenset((_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT)),
        _S.ONGOING: frozenset((_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT)),
        _S.PREPARE_COMMIT: frozenset((_S.COMPLETE_COMMIT,)),
        _S.PREPARE_ABORT: frozenset((_S.COMPLETE_ABORT,)),
        # A producer of KIP-890 may abort a transaction that has not begun, so that it never begins.
        _S.COMPLETE_COMMIT: frozenset((_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT)),
        _S.COMPLETE_ABORT: frozenset((_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT)),
    }
)
"""The states that may follow each state in a log. EMPTY and COMPLETE_* may also be deleted."""


NO_EPOCH: Final = -1
LAST_EPOCH: Final = 2**15 - 2
"""The last epoch of a producer: the next epoch is reserved for fencing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """The state of a transactional id in the log. Times in ms since 1970."""

    producer_id: int
    producer_epoch: int
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the present epoch, if the producer itself raised the epoch: a request with the last epoch may be
    a retry (KIP-360)."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The previous id, whose epochs were used up."""
    next_producer_id: int = NO_PRODUCER_ID
    """The id of the producer after the end is complete."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    """The partitions of a transaction that is open or prepared."""
    started_at_ms: int = -1
    updated_at_ms: int
    client_version: int = 0
    """The transaction.version of its producer at the last change."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the epochs of the producer id are used up."""
        return self.producer_epoch >= LAST_EPOCH

    def is_held_by(self, producer_epoch: int) -> bool:
        """Whether this is the producer's epoch. An epoch above LAST_EPOCH only fences, and belongs to no producer."""
        return producer_epoch == self.producer_epoch <= LAST_EPOCH

    @property
    def has_epoch_per_transaction(self) -> bool:
        return self.client_version >= EPOCH_PER_TRANSACTION

    def with_partitions(
        self, partitions: frozenset[TopicPartition], *, client_version: int, now_ms: int
    ) -> "Transaction":
        """The state with an open transaction that includes these partitions too."""
        return replace(
            self,
            state=TransactionState.ONGOING,
            partitions=self.partitions | partitions,
            started_at_ms=self.started_at_ms if self.state is TransactionState.ONGOING else now_ms,
            updated_at_ms=now_ms,
            client_version=client_version,
        )

    def prepared(self, *, is_commit: bool, now_ms: int) -> "Transaction":
        """The state in which the end is decided."""
        return replace(
            self,
            state=TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT,
            started_at_ms=now_ms if self.state.is_idle else self.started_at_ms,
            updated_at_ms=now_ms,
        )

    def prepared_with_next_epoch(self, *, is_commit: bool, next_producer_id: int, now_ms: int) -> "Transaction":
        """The state in which the end is decided, and the producer has the next epoch; after the last epoch, the next
        id."""
        return replace(
            self.prepared(is_commit=is_commit, now_ms=now_ms),
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch,
            next_producer_id=next_producer_id,
            client_version=EPOCH_PER_TRANSACTION,
        )

    def fenced(self, *, is_resumed: bool, now_ms: int) -> "Transaction":
        """The state in which the abort is decided, with the next epoch: requests with the present epoch are refused.

        `is_resumed`: the transaction's own producer causes the abort. It names the present epoch again when the abort
        is complete, and gets the next epoch (KIP-360). Otherwise no producer gets that epoch.
        """
        return replace(
            self.prepared(is_commit=False, now_ms=now_ms),
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=self.producer_epoch if is_resumed else NO_EPOCH,
        )

    def sealed(self, *, is_commit: bool, now_ms: int) -> "Transaction":
        """The state after the decision on a sink's member: it has the next epoch, which fences its producer in all
        partitions."""
        return replace(
            self.prepared(is_commit=is_commit, now_ms=now_ms),
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=NO_EPOCH,
            client_version=EPOCH_PER_TRANSACTION,
        )

    def completed(self, *, now_ms: int) -> "Transaction":
        """The state after all markers are written."""
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        done = replace(
            self,
            state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_at_ms=now_ms,
        )
        if self.next_producer_id == NO_PRODUCER_ID:
            return done
        return replace(
            done,
            producer_id=self.next_producer_id,
            producer_epoch=0,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def initialized(self, *, heard_epoch: int, timeout_ms: int, now_ms: int) -> "Transaction":
        """The state in which the producer has the next epoch. `heard_epoch`: the epoch in its request, which may be a
        retry, or NO_EPOCH."""
        return self._empty(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch + 1,
            last_producer_epoch=heard_epoch,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
        )

    def rotated(self, producer_id: int, *, heard_epoch: int, timeout_ms: int, now_ms: int) -> "Transaction":
        """The state in which the producer has another id, since the epochs of its id are used up. `heard_epoch`: as for
        `initialized`."""
        return self._empty(
            producer_id=producer_id,
            producer_epoch=0,
            last_producer_epoch=heard_epoch,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
        )

    def initialized_again(self, *, timeout_ms: int, now_ms: int) -> "Transaction":
        """The state after a repeated initialization whose answer was lost: the producer has the same epoch again."""
        return self._empty(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_producer_epoch=self.last_producer_epoch,
            timeout_ms=timeout_ms,
            now_ms=now_ms,
        )

    def _empty(
        self, *, producer_id: int, producer_epoch: int, last_producer_epoch: int, timeout_ms: int, now_ms: int
    ) -> "Transaction":
        is_same = producer_id == self.producer_id
        return Transaction(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            last_producer_epoch=last_producer_epoch,
            previous_producer_id=self.previous_producer_id if is_same else self.producer_id,
            timeout_ms=timeout_ms,
            updated_at_ms=now_ms,
            client_version=self.client_version,
        )


def fenced(transactional_id: str, transaction: Transaction, producer_epoch: int) -> KafkaError:
    """PRODUCER_FENCED: a newer instance has replaced the producer, or the transaction has timed out."""
    return KafkaError(
        ErrorCode.PRODUCER_FENCED,
        f"epoch {producer_epoch} of {transactional_id!r} is fenced: its present epoch is {transaction.producer_epoch}",
    )


def concurrent(transactional_id: str) -> KafkaError:
    """CONCURRENT_TRANSACTIONS: another change has to be complete first."""
    return KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"the last change of {transactional_id!r} is not complete")
