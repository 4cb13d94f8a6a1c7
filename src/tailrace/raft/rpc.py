"""The messages between replicas of one partition, as plain values with the meaning of Kafka's fields.

The form on the wire is not known here: an adapter in the server maps these values to Kafka's messages of the same
names, and adds or removes topic and partition. `cluster_id` is None when the sender does not know the cluster.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.model.errors import ErrorCode
from tailrace.raft.voters import ReplicaKey

NO_LEADER = -1
"""The leader is not known."""


class SnapshotId(NamedTuple):
    """A snapshot of all records below `end_offset`, the last of which has this epoch (KIP-630)."""

    end_offset: int
    epoch: int

    @property
    def position(self) -> "LogEnd":
        return LogEnd(self.epoch, self.end_offset)


class LogEnd(NamedTuple):
    """The end of a log. Compares as Raft does: the epoch of the last record first, then the end offset."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """Asks for a vote; with `pre_vote`, asks whether the voter would give its vote, without a raise of the epoch
    (KIP-996).

    `voter` is the receiver: a replica with that id and another directory must refuse (KIP-853). None: a request of
    version 0.
    """

    cluster_id: str | None
    candidate_epoch: int
    candidate: ReplicaKey
    voter: ReplicaKey | None
    last_epoch: int
    last_offset: int
    """The end offset of the candidate's log: exclusive, in spite of Kafka's name."""
    pre_vote: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply:
    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    vote_granted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpoch:
    """A leader has been elected."""

    cluster_id: str | None
    leader_id: int
    leader_epoch: int
    voter: ReplicaKey | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpochReply:
    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEpoch:
    """A leader resigns and names its successors, the best first."""

    cluster_id: str | None
    leader_id: int
    leader_epoch: int
    preferred_candidates: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEpochReply:
    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRecords:
    """Asks for records from `fetch_offset` on, and acknowledges the records below, which the sender has flushed."""

    cluster_id: str | None
    replica: ReplicaKey
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    """The epoch of the record before `fetch_offset`, or of the snapshot that ends there; 0 at the offset 0."""
    max_wait_ms: int
    max_bytes: int = 1 << 20
    high_watermark: int = (1 << 63) - 1
    """The high watermark of the replica. A leader with a higher high watermark answers at once (KIP-1166). The default:
    not stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRecordsReply:
    """Records, or the change that the replica's log needs first: a cut at `diverging`, or a snapshot that replaces the
    log."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    high_watermark: int = -1
    log_start_offset: int = -1
    diverging: LogEnd | None = None
    snapshot_id: SnapshotId | None = None
    records: object = field(default=None, repr=False)
    """Opaque to the machine: the leader's host reads the records, the follower's host appends them. No records are
    falsy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshot:
    """Asks for bytes of a snapshot from `position`. A message about several snapshots becomes one FetchSnapshot for
    each snapshot, whose `max_bytes` is a share of the message's limit (`RaftNode.snapshot_shares`)."""

    cluster_id: str | None
    replica: ReplicaKey
    leader_epoch: int
    snapshot_id: SnapshotId
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSnapshotReply:
    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    snapshot_id: SnapshotId | None = None
    size: int = 0
    """The bytes of the whole snapshot."""
    position: int = 0
    data: bytes | memoryview = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDescription:
    """The state of one replica on its leader. Times are by the leader's clock, in ms; -1 for unknown."""

    key: ReplicaKey
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorumReply:
    """The answer to DescribeQuorum. A replica that does not lead answers NOT_LEADER_OR_FOLLOWER."""

    error: ErrorCode = ErrorCode.NONE
    leader_id: int = NO_LEADER
    leader_epoch: int = -1
    high_watermark: int = -1
    voters: tuple[ReplicaDescription, ...] = ()
    observers: tuple[ReplicaDescription, ...] = ()


Request = Vote | BeginEpoch | EndEpoch | FetchRecords | FetchSnapshot
Response = VoteReply | BeginEpochReply | EndEpochReply | FetchRecordsReply | FetchSnapshotReply | DescribeQuorumReply
