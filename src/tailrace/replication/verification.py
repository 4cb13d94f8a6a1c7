"""The coordinator's confirmation, before the first batch, that a transaction includes a partition (KIP-890).

A late batch of a finished transaction would open a transaction without an end, and readers of committed data would
wait for ever. So the first batch of each transaction waits until the coordinator has confirmed that the transaction is
under way and includes the partition. Later batches do not wait: the transaction is open here.

A marker ends the verification: a confirmation from before the marker says nothing about the next transaction.
"""

from collections.abc import Callable
from typing import Final, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.batch import BatchHeader
from tailrace.storage.producers.state import MOST_PRODUCERS, ProducerState

Verified = Callable[[KafkaError | None], None]


class BatchIdentity(Protocol):
    """The producer and sequence number of a batch: the header of the batch, or only its later fields."""

    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...


class Verification:
    """The verification of one producer in one partition: first requested, then valid until the transaction's first
    batch or a marker."""

    __slots__ = ("_waiting", "adds_partition", "is_idle", "is_sent", "lowest_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int, sequence: int, *, adds_partition: bool) -> None:
        self.producer_epoch = producer_epoch
        self.lowest_sequence = sequence
        """The lowest sequence that came: a batch with a higher sequence cannot be the first."""
        self.adds_partition = adds_partition
        """Whether the coordinator adds the partition (KIP-890): then each transaction starts with sequence 0."""
        self.is_sent = False
        """Whether the coordinator's answer is pending."""
        self.is_idle = False
        """Whether the producer has sent no batch since the last `forget_idle`."""
        self._waiting: list[Verified] = []

    def wait(self, verified: Verified) -> None:
        """Call `verified` with the coordinator's answer, later, in the order of the calls of `wait`."""
        self._waiting.append(verified)

    def answer(self, error: KafkaError | None) -> None:
        """Call the waiting callbacks with the coordinator's answer."""
        self.is_sent = False
        waiting, self._waiting = self._waiting, []
        for verified in waiting:
            verified(error)


UNVERIFIED: Final = Verification(-1, 2**31 - 1, adds_partition=False)
"""No verification: for batches of coordinators, and with transaction.partition.verification.enable=false."""

UNNAMED: Final = Verification(-1, 2**31 - 1, adds_partition=False)
"""The verification of batches in a request without a transactional id: their producer is not verified for a
transaction."""


class Verifications:
    """The verifications of one partition, by producer id."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}

    def __len__(self) -> int:
        return len(self._by_producer)

    def begin(self, header: BatchIdentity, *, adds_partition: bool) -> Verification:
        """The verification that the producer's batch needs. If `is_sent` is false, the caller has to send the request
        to the coordinator.

        Raises KafkaError INVALID_PRODUCER_EPOCH (47) for an older epoch, THROTTLING_QUOTA_EXCEEDED (89) beyond
        MOST_PRODUCERS.
        """
        known = self._by_producer.get(header.producer_id)
        if known is not None and header.producer_epoch < known.producer_epoch:
            raise _fenced(header, known.producer_epoch)
        if known is None or header.producer_epoch > known.producer_epoch:
            if len(self._by_producer) >= MOST_PRODUCERS:
                raise KafkaError(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{MOST_PRODUCERS} producers are beginning a transaction here; retry later",
                )
            known = Verification(header.producer_epoch, header.base_sequence, adds_partition=adds_partition)
            self._by_producer[header.producer_id] = known
        else:
            known.lowest_sequence = min(known.lowest_sequence, header.base_sequence)
            known.is_idle = False
        return known

    def end(self, producer_id: int) -> None:
        """Forget the verification: the producer's transaction has begun in this partition, or will not begin."""
        self._by_producer.pop(producer_id, None)

    def forget_idle(self) -> None:
        """Forget the producers that began before the last call, and have not written since.

        The batch of such a producer was refused, or never came. If the producer does send a batch later, the
        coordinator is asked again.
        """
        idle = [producer_id for producer_id, known in self._by_producer.items() if known.is_idle and not known.is_sent]
        for producer_id in idle:
            del self._by_producer[producer_id]
        for known in self._by_producer.values():
            known.is_idle = True

    def end_by_marker(self, producer_id: int, producer_epoch: int) -> None:
        """Forget the verification at a marker: the producer's transaction has ended in this partition.

        With KIP-890 the marker has the epoch of the following transaction, whose verification may be under way. That
        verification stays: the coordinator grants it only when all markers are written, so it cannot belong to the
        ended transaction.
        """
        known = self._by_producer.get(producer_id)
        if known is not None and not (known.adds_partition and producer_epoch <= known.producer_epoch):
            del self._by_producer[producer_id]

    def check(self, header: BatchHeader, producers: ProducerState, verification: Verification | None) -> None:
        """Check that this batch may be its producer's first of a transaction.

        Raises KafkaError INVALID_TXN_STATE (48) without a verification that is still good, and
        OUT_OF_ORDER_SEQUENCE_NUMBER (45) for a batch that cannot be the first.
        """
        producer_id, sequence = header.producer_id, header.base_sequence
        if verification is UNVERIFIED:
            return
        if verification is None or self._by_producer.get(producer_id) is not verification:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id}: the batch is not part of a transaction that is open here",
            )
        if header.producer_epoch != verification.producer_epoch:
            raise _fenced(header, verification.producer_epoch)
        must_be_zero = verification.adds_partition and producers.latest(producer_id) is None
        if sequence > (0 if must_be_zero else verification.lowest_sequence):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id}: sequence {sequence} cannot be the first of the transaction here",
            )


def _fenced(header: BatchIdentity, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id}: epoch {header.producer_epoch} in place of {epoch}, which begins a transaction",
    )
