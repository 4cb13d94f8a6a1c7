"""AddRaftVoter (80), RemoveRaftVoter (81), UpdateRaftVoter (82): one change of the quorum at a time (KIP-853)."""

from tailrace.protocol.schema import Int16, Int32, UInt16, Uuid, field, message, struct


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
    """A voter listens elsewhere now, or understands something else."""

    cluster_id: str | None
    current_leader_epoch: Int32
    voter_id: Int32
    voter_directory_id: Uuid
    listeners: tuple[RaftVoterListener, ...]
    k_raft_version_feature: KRaftVersionRange


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
