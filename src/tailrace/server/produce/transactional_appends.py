"""Batches of transactions that wait until the transaction coordinator has verified their partitions (KIP-890).

A Produce request sends one request to the coordinator, for all partitions without an open transaction of its producer.
Later batches for such a partition wait behind earlier batches, so that batches are written in the order of arrival.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.schema import Buffer
from tailrace.replication.partition import Partition
from tailrace.replication.verification import UNVERIFIED, Verification

FIRST_WITH_ABORTABLE: Final = 11
FIRST_THAT_ADDS_PARTITIONS: Final = 12

_COORDINATOR_IS_AWAY: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)


class VerificationRequest(NamedTuple):
    """A request to a transaction coordinator to verify or add partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    adds_partitions: bool
    """Whether the partitions are to be added; otherwise the transaction must have the partitions already."""


OnVerified = Callable[[Mapping[TopicPartition, ErrorCode]], None]


class TransactionVerifier(Protocol):
    """Verifies, before a producer's first batch, that an open transaction includes the partition (KIP-890).

    With Produce v12 and later the coordinator adds the partition; before v12 the producer adds the partition
    (AddPartitionsToTxn).
    """

    def verify(self, request: VerificationRequest, on_done: OnVerified) -> None:
        """Send the request; `on_done` is called once, within a time limit, perhaps before `verify` returns.

        `on_done` gets the coordinator's code for each partition, NONE if the producer may write. If the coordinator
        cannot be reached, every partition gets NETWORK_EXCEPTION (13), COORDINATOR_NOT_AVAILABLE (15) or another code.
        """
        ...


def refusal_of(code: ErrorCode, topic_partition: TopicPartition, *, produce_version: int) -> KafkaError | None:
    """The error for the producer, with a code that every client of its version knows; None if the producer may write.

    After NOT_ENOUGH_REPLICAS producers retry without a search for another leader: so Kafka answers with this code, too,
    when the coordinator cannot be reached.
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


Append = Callable[[bytearray, Verification], None]
"""Appends the batch. Raises KafkaError for a refused batch."""
Refuse = Callable[[KafkaError], None]


class TransactionalAppends:
    """The batches of one Produce request with a transactional id. Call `ask` after `hold` of all batches."""

    def __init__(
        self, transactional_id: str, *, produce_version: int, verifier: TransactionVerifier, is_verified: bool
    ) -> None:
        """`is_verified` is transaction.partition.verification.enable."""
        self.transactional_id: Final = transactional_id
        self._version = produce_version
        self._verifier = verifier
        self._adds_partitions = produce_version >= FIRST_THAT_ADDS_PARTITIONS
        self._is_verified = is_verified or self._adds_partitions
        self._producer: tuple[int, int] | None = None
        self._verifications: dict[TopicPartition, tuple[Partition, Verification]] = {}

    @property
    def default(self) -> Verification | None:
        """The verification of batches that need not wait."""
        return None if self._is_verified else UNVERIFIED

    def hold(self, partition: Partition, records: Buffer | None, append: Append, refuse: Refuse) -> bool:
        """Hold a batch that has to wait; `append` with its bytes or `refuse` is called later, never at once.

        Returns whether the batch has to wait. Bytes that are not a whole batch need not wait: `append` refuses them.
        Raises KafkaError INVALID_PRODUCER_ID_MAPPING (49) if the request has transactional batches of another producer.
        """
        header = _header_of(records)
        if header is None or not header.is_transactional or header.producer_id < 0 or not self._is_verified:
            return False
        producer = (header.producer_id, header.producer_epoch)
        if self._producer is None:
            self._producer = producer
        elif producer != self._producer:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "one request has transactional batches of several producers"
            )
        producers = partition.log.producers
        if not partition.is_leader or producers.is_in_transaction(*producer) or producers.is_duplicate(header):
            return False
        verification = partition.staging.verifications.begin(header, adds_partition=self._adds_partitions)
        assert records is not None
        verification.wait(partial(_answered, bytearray(records), verification, append, refuse))
        if not verification.is_sent:
            verification.is_sent = True
            self._verifications[partition.topic_partition] = (partition, verification)
        return True

    def ask(self) -> None:
        """Send the request for the partitions of held batches that no other request has verified yet."""
        if self._verifications:
            assert self._producer is not None
            producer_id, producer_epoch = self._producer
            request = VerificationRequest(
                self.transactional_id, producer_id, producer_epoch, tuple(self._verifications), self._adds_partitions
            )
            self._verifier.verify(request, self._verified)

    def _verified(self, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        assert self._producer is not None
        for topic_partition, (partition, verification) in self._verifications.items():
            code = codes.get(topic_partition, ErrorCode.UNKNOWN_SERVER_ERROR)
            refusal = refusal_of(code, topic_partition, produce_version=self._version)
            if refusal is not None and not refusal.code.retriable:
                partition.staging.verifications.end(self._producer[0])
            verification.answer(refusal)


def _answered(
    records: bytearray, verification: Verification, append: Append, refuse: Refuse, error: KafkaError | None
) -> None:
    try:
        if error is not None:
            raise KafkaError(error.code, error.detail)
        append(records, verification)
    except KafkaError as refusal:
        refuse(refusal)


def _header_of(records: Buffer | None) -> BatchHeader | None:
    try:
        return read_header(records) if records else None
    except CorruptRecords:
        return None
