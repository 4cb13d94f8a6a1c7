"""Before a producer's first batch of a transaction: is the transaction under way, and does it have the partition?

KIP-890. The producer's coordinator knows; `TransactionVerifier` asks it, wherever it is. For producers that add their
partitions themselves (AddPartitionsToTxn) they are only verified; with Produce v12 and later they are added.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

FIRST_WITH_ABORTABLE: Final = 11
FIRST_THAT_ADDS_PARTITIONS: Final = 12

_COORDINATOR_IS_AWAY: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class AskedTransaction(NamedTuple):
    """A request to a coordinator."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    adds_partitions: bool
    """Whether the partitions are to be added; otherwise they must be part of the transaction already."""


OnVerified = Callable[[Mapping[TopicPartition, ErrorCode]], None]


class TransactionVerifier(Protocol):
    """Asks coordinators of transactions."""

    def verify(self, asked: AskedTransaction, on_done: OnVerified) -> None:
        """Ask; `on_done` is called once, whatever happens and within a time limit, perhaps before this returns.

        The codes are the coordinator's, one per partition, NONE for one that may be written to. If it cannot be asked:
        NETWORK_EXCEPTION (13), COORDINATOR_NOT_AVAILABLE (15) or what else fits, for every partition.
        """
        ...


def refusal_of(code: ErrorCode, topic_partition: TopicPartition, *, produce_version: int) -> KafkaError | None:
    """The error for the producer, with a code that every client of its version understands; None if it may write.

    Producers retry for NOT_ENOUGH_REPLICAS without looking for another leader: that is why Kafka says it where the
    coordinator cannot be asked.
    """
    if code is ErrorCode.NONE:
        return None
    if code is ErrorCode.TRANSACTION_ABORTABLE and produce_version < FIRST_WITH_ABORTABLE:
        code = ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    is_busy = code is ErrorCode.CONCURRENT_TRANSACTIONS and produce_version < FIRST_THAT_ADDS_PARTITIONS
    if is_busy or code in _COORDINATOR_IS_AWAY:
        return KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"whether the transaction has {topic_partition} is not known now: {code.name}",
        )
    return KafkaError(code, f"{topic_partition} is not part of a transaction that the producer has open")
