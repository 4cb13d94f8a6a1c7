"""Outcomes of a partition's operations: the place of a batch, the records of a read, the new leader.

A read has one of three outcomes: records (`PartitionRead`, perhaps none), an error (KafkaError, raised), or nothing yet
(`PendingRead`): then the partition's watchers of `Change.AVAILABLE` are notified when the read can succeed.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.schema import Buffer
from tailrace.storage import AbortedTxn

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1

NO_TIMESTAMP: Final = -1
UNKNOWN_EPOCH: Final = -1
_UNKNOWN: Final = -1


class NotLeader(KafkaError):
    """This broker does not lead the partition; `leader` is the leader that this broker knows from the controller."""

    def __init__(self, detail: str, *, leader: BrokerId = NO_LEADER, leader_epoch: int = UNKNOWN_EPOCH) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
        self.leader = leader
        self.leader_epoch = leader_epoch


def not_leader(
    topic_partition: TopicPartition, *, leader: BrokerId, leader_epoch: int, broker_id: BrokerId
) -> NotLeader:
    """The error of this broker, `broker_id`, for a partition that it does not lead; `leader` is the leader as far as
    the broker knows.

    The error never names this broker as the leader, as clients would come back at once: a broker that the controller
    has named has not taken the role yet, or is about to give the role up.
    """
    if leader == broker_id:
        leader = NO_LEADER
    where = "no broker" if leader == NO_LEADER else f"broker {leader}"
    return NotLeader(
        f"{topic_partition} is led by {where} as far as broker {broker_id} knows",
        leader=leader,
        leader_epoch=leader_epoch,
    )


class Appended(NamedTuple):
    """The place of a batch in the log. For a producer's retry, the place of the batch that the first try has
    written."""

    base_offset: int
    last_offset: int
    """Inclusive."""
    log_append_time_ms: int
    """The broker's time in the batch; -1 if the topic's records keep the producer's time."""
    log_start_offset: int


OnDone = Callable[[Appended | KafkaError], None]
"""Called once, with the place of the batch or the error."""


class Traffic(NamedTuple):
    """The traffic since the log was opened."""

    records_in: int = 0
    bytes_in: int = 0
    bytes_out: int = 0

    def plus(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.records_in + other.records_in, self.bytes_in + other.bytes_in, self.bytes_out + other.bytes_out
        )

    def minus(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.records_in - other.records_in, self.bytes_in - other.bytes_in, self.bytes_out - other.bytes_out
        )


class PartitionRead:
    """The result of a read: whole batches, and the offsets that were in force."""

    is_pending: ClassVar[bool] = False
    has_scanned: ClassVar[bool] = False
    """Whether a read by keys has examined or unpacked records: the next read goes on behind these records."""

    __slots__ = (
        "aborted",
        "high_watermark",
        "last_stable_offset",
        "log_start_offset",
        "next_offset",
        "reaches_end",
        "records",
        "size_bytes",
    )

    def __init__(
        self,
        records: Buffer,
        size_bytes: int,
        next_offset: int,
        reaches_end: bool,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        aborted: Sequence[AbortedTxn] = (),
    ) -> None:
        self.records = records
        self.size_bytes = size_bytes
        self.next_offset = next_offset
        """The offset after the last batch; without a batch, the offset where the read began. After a read by keys, the
        offset up to which the read has found all records of the keys."""
        self.reaches_end = reaches_end
        """Whether the read ended at the readable end, and not at a limit or the end of a segment."""
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = log_start_offset
        self.aborted = aborted
        """The aborted transactions that the records may belong to, for a reader of committed data."""


class ScannedRead(PartitionRead):
    """The result of a read by keys that has examined records, though it may have found no record of the keys."""

    has_scanned = True

    __slots__ = ()


class PendingRead(PartitionRead):
    """A read whose records are not available yet. The result has no records, and no offset but the log start."""

    is_pending = True

    __slots__ = ("fault",)

    def __init__(self, offset: int, log_start_offset: int, fault: KafkaError) -> None:
        """`fault` is the answer to a reader that gives up waiting."""
        super().__init__(b"", 0, offset, True, _UNKNOWN, _UNKNOWN, log_start_offset)
        self.fault = fault
