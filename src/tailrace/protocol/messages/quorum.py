"""Vote (52), BeginQuorumEpoch (53), EndQuorumEpoch (54), DescribeQuorum (55): elections of the metadata log (KIP-595).

AddRaftVoter (80), RemoveRaftVoter (81), UpdateRaftVoter (82): one change of the quorum at a time (KIP-853).
FetchSnapshot (59): the bytes of snapshots, for a replica whose log ends before the leader's begins (KIP-630).

From v1 on voters are known by directory too (KIP-853). Records are fetched with Fetch (1), see `fetch`.
"""

from tailrace.protocol.messages.fetch import WireSnapshotId
from tailrace.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Records, UInt16, Uuid, field, message, struct


@struct
class VotePartition:
    """A candidate and how far its log reaches. v2 adds the pre-vote (KIP-996)."""

    partition_index: Int32
    replica_epoch: Int32
    replica_id: Int32
    replica_directory_id: Uuid = field(versions="1+", default=ZERO_UUID)
    voter_directory_id: Uuid = field(versions="1+", default=ZERO_UUID)
    last_offset_epoch: Int32
    last_offset: Int64
    """The end offset of its log."""
    pre_vote: bool = field(versions="2+", default=False)


@struct
class VoteTopic:
    topic_name: str
    partitions: tuple[VotePartition, ...]


@message(api_key=52, versions="0-2", flexible="0+")
class VoteRequest:
    """Asks the voter `voter_id` for its vote."""

    cluster_id: str | None = None
    voter_id: Int32 = field(versions="1+", default=-1)
    topics: tuple[VoteTopic, ...]
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this candidate (`model.proofs`)."""


@struct
class LeaderEndpoint:
    """An address at which a leader listens for other voters."""

    node_id: Int32 = field(versions="1+", default=0)
    host: str = field(versions="1+", default="")
    port: UInt16 = field(versions="1+", default=0)


@struct
class VotedPartition:
    partition_index: Int32
    error_code: Int16
    leader_id: Int32
    leader_epoch: Int32
    vote_granted: bool


@struct
class VotedTopic:
    topic_name: str
    partitions: tuple[VotedPartition, ...]


@message(api_key=52, versions="0-2", flexible="0+")
class VoteResponse:
    """Whether the vote is granted, and which epoch and leader the voter knows."""

    error_code: Int16 = 0
    topics: tuple[VotedTopic, ...]
    node_endpoints: tuple[LeaderEndpoint, ...] = field(versions="1+", tag=0, default=())


@struct
class NamedEndpoint:
    """A listener of a voter, by its name."""

    name: str = field(versions="1+", default="")
    host: str = field(versions="1+", default="")
    port: UInt16 = field(versions="1+", default=0)


@struct
class BeginEpochPartition:
    partition_index: Int32
    voter_directory_id: Uuid = field(versions="1+", default=ZERO_UUID)
    leader_id: Int32
    leader_epoch: Int32


@struct
class BeginEpochTopic:
    topic_name: str
    partitions: tuple[BeginEpochPartition, ...]


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochRequest:
    """A new leader tells the voter `voter_id` of itself."""

    cluster_id: str | None = None
    voter_id: Int32 = field(versions="1+", default=-1)
    topics: tuple[BeginEpochTopic, ...]
    leader_endpoints: tuple[NamedEndpoint, ...] = field(versions="1+", default=())
    secret: Uuid = field(versions="1+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this leader (`model.proofs`)."""


@struct
class EpochPartition:
    """The epoch and leader that a voter knows."""

    partition_index: Int32
    error_code: Int16
    leader_id: Int32
    leader_epoch: Int32


@struct
class EpochTopic:
    topic_name: str
    partitions: tuple[EpochPartition, ...]


@message(api_key=53, versions="0-1", flexible="1+")
class BeginQuorumEpochResponse:
    error_code: Int16 = 0
    topics: tuple[EpochTopic, ...]
    node_endpoints: tuple[LeaderEndpoint, ...] = field(versions="1+", tag=0, default=())


@struct
class PreferredCandidate:
    candidate_id: Int32 = field(versions="1+", default=0)
    candidate_directory_id: Uuid = field(versions="1+", default=ZERO_UUID)


@struct
class EndEpochPartition:
    """A leader that resigns, and its successors, the best first: by id in v0, by id and directory from v1 on."""

    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32
    preferred_successors: tuple[Int32, ...] = field(versions="0", default=())
    preferred_candidates: tuple[PreferredCandidate, ...] = field(versions="1+", default=())


@struct
class EndEpochTopic:
    topic_name: str
    partitions: tuple[EndEpochPartition, ...]


@message(api_key=54, versions="0-1", flexible="1+")
class EndQuorumEpochRequest:
    """A leader resigns."""

    cluster_id: str | None = None
    topics: tuple[EndEpochTopic, ...]
    leader_endpoints: tuple[NamedEndpoint, ...] = field(versions="1+", default=())
    secret: Uuid = field(versions="1+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this leader (`model.proofs`)."""


@message(api_key=54, versions="0-1", flexible="1+")
class EndQuorumEpochResponse:
    error_code: Int16 = 0
    topics: tuple[EpochTopic, ...]
    node_endpoints: tuple[LeaderEndpoint, ...] = field(versions="1+", tag=0, default=())


@struct
class DescribedQuorumPartition:
    partition_index: Int32


@struct
class DescribedQuorumTopic:
    topic_name: str
    partitions: tuple[DescribedQuorumPartition, ...]


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumRequest:
    """Asks the leader for the state of the quorum."""

    topics: tuple[DescribedQuorumTopic, ...]


@struct
class QuorumReplica:
    """A voter or an observer. v1 adds times (KIP-836), v2 the directory (KIP-853)."""

    replica_id: Int32
    replica_directory_id: Uuid = field(versions="2+", default=ZERO_UUID)
    log_end_offset: Int64
    """-1: not known."""
    last_fetch_timestamp: Int64 = field(versions="1+", default=-1)
    last_caught_up_timestamp: Int64 = field(versions="1+", default=-1)


@struct
class QuorumPartition:
    partition_index: Int32
    error_code: Int16
    error_message: str | None = field(versions="2+", default="")
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]


@struct
class QuorumTopic:
    topic_name: str
    partitions: tuple[QuorumPartition, ...]


@struct
class QuorumListener:
    name: str = field(versions="2+", default="")
    host: str = field(versions="2+", default="")
    port: UInt16 = field(versions="2+", default=0)


@struct
class QuorumNode:
    """An address at which a voter listens."""

    node_id: Int32 = field(versions="2+", default=0)
    listeners: tuple[QuorumListener, ...] = field(versions="2+", default=())


@message(api_key=55, versions="0-2", flexible="0+")
class DescribeQuorumResponse:
    error_code: Int16 = 0
    error_message: str | None = field(versions="2+", default="")
    topics: tuple[QuorumTopic, ...]
    nodes: tuple[QuorumNode, ...] = field(versions="2+", default=())


@struct
class RaftVoterListener:
    name: str
    host: str
    port: UInt16


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterRequest:
    """A replica that has caught up shall vote. v1: may be answered before the change is committed (KIP-1186)."""

    cluster_id: str | None
    timeout_ms: Int32
    voter_id: Int32
    voter_directory_id: Uuid
    listeners: tuple[RaftVoterListener, ...]
    ack_when_committed: bool = field(versions="1+", default=True)


@message(api_key=80, versions="0-1", flexible="0+")
class AddRaftVoterResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterRequest:
    """A replica shall vote no more."""

    cluster_id: str | None
    voter_id: Int32
    voter_directory_id: Uuid


@message(api_key=81, versions="0", flexible="0+")
class RemoveRaftVoterResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


@struct
class KRaftVersionRange:
    """The versions of `kraft.version` that a voter supports."""

    min_supported_version: Int16
    max_supported_version: Int16


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterRequest:
    """A voter has other listeners now, or supports other versions of `kraft.version`."""

    cluster_id: str | None
    current_leader_epoch: Int32
    voter_id: Int32
    voter_directory_id: Uuid
    listeners: tuple[RaftVoterListener, ...]
    k_raft_version_feature: KRaftVersionRange
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this voter (`model.proofs`)."""


@struct
class RaftLeader:
    """The leader, for a client that asked another node."""

    leader_id: Int32 = -1
    leader_epoch: Int32 = -1
    host: str = ""
    port: Int32 = 0


@message(api_key=82, versions="0", flexible="0+")
class UpdateRaftVoterResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    current_leader: RaftLeader = field(tag=0, default=RaftLeader())


@struct
class SnapshotPosition:
    """A snapshot of a partition, and the byte to read from. v1 adds the replica's directory (KIP-853)."""

    partition: Int32
    current_leader_epoch: Int32
    """-1: not known."""
    snapshot_id: WireSnapshotId
    position: Int64
    replica_directory_id: Uuid = field(versions="1+", tag=0, default=ZERO_UUID)


@struct
class SnapshotTopic:
    name: str
    partitions: tuple[SnapshotPosition, ...]


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotRequest:
    """Bytes of several snapshots; all together at most `max_bytes`, evenly shared."""

    cluster_id: str | None = field(tag=0, default=None)
    replica_id: Int32 = -1
    max_bytes: Int32 = 0x7FFFFFFF
    topics: tuple[SnapshotTopic, ...]
    secret: Uuid = field(versions="0+", tag=10100, default=ZERO_UUID)
    """Ours: proves that the sender is this replica (`model.proofs`)."""


@struct
class SnapshotLeader:
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


@struct
class SnapshotPart:
    """Some bytes of a snapshot; a part may begin and end in the middle of a batch."""

    index: Int32
    error_code: Int16 = 0
    snapshot_id: WireSnapshotId
    current_leader: SnapshotLeader = field(tag=0, default=SnapshotLeader())
    size: Int64
    """The size of the whole snapshot, in bytes."""
    position: Int64
    unaligned_records: Records = field(nullable="none")
    """Never null: empty if there are no bytes."""


@struct
class SnapshotPartTopic:
    name: str
    partitions: tuple[SnapshotPart, ...]


@struct
class SnapshotLeaderEndpoint:
    """An address at which a leader listens for other voters."""

    node_id: Int32 = field(versions="1+", default=0)
    host: str = field(versions="1+", default="")
    port: UInt16 = field(versions="1+", default=0)


@message(api_key=59, versions="0-1", flexible="0+")
class FetchSnapshotResponse:
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: tuple[SnapshotPartTopic, ...]
    node_endpoints: tuple[SnapshotLeaderEndpoint, ...] = field(versions="1+", tag=0, default=())
