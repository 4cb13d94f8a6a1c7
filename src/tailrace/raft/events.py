"""The events of a replica. `token` is the host's own name for a request that waits for an answer: the answer has the
same token."""

from dataclasses import dataclass

from tailrace.model.machines import Tick
from tailrace.raft.rpc import Request, Response, SnapshotId
from tailrace.raft.voters import ReplicaKey, Voter, VotersAt, VoterSet


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """The request of a peer. A SendResponse with this token answers the request once, at once or later."""

    token: object
    request: Request


@dataclass(frozen=True, slots=True)
class ResponseReceived:
    """A peer answered the SendRequest of this id."""

    request_id: int
    response: Response


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The SendRequest of this id will not be answered: there is no connection, or the connection has broken."""

    request_id: int


@dataclass(frozen=True, slots=True)
class QuorumStatePersisted:
    """The Persist of this number and every earlier Persist are durable."""

    number: int


@dataclass(frozen=True, slots=True)
class LogAppended:
    """AppendFetched was carried out: the log ends here now, after a record of this epoch.

    `voters` are the sets of voters among the new records, by ascending offset.
    """

    end_offset: int
    last_epoch: int
    voters: tuple[VotersAt, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendRejected:
    """AppendFetched was not carried out: the records are damaged or do not fit. They will be fetched again."""

    detail: str


@dataclass(frozen=True, slots=True)
class LogFlushed:
    """The Flush of this number is done: every append and cut before the Flush is durable."""

    number: int


@dataclass(frozen=True, slots=True)
class SnapshotWritten:
    """This node has written a snapshot of its own: committed records only, durable, whole."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    """InstallSnapshot was carried out: the log is empty and starts and ends at the snapshot, durably."""

    snapshot_id: SnapshotId
    voters: VoterSet | None
    """The voters that the snapshot states."""


@dataclass(frozen=True, slots=True)
class SnapshotRejected:
    """InstallSnapshot found damage: the part file is removed, and the log is unchanged."""

    snapshot_id: SnapshotId
    detail: str


@dataclass(frozen=True, slots=True)
class ClientAppend:
    """Append these records as leader of `epoch`, in one batch or not at all. Answer: AppendAsLeader or AppendRefused.

    The records are committed when the high watermark has passed the batch; if leadership ends before, the fate of the
    records is open.
    """

    token: object
    epoch: int
    records: object
    count: int


@dataclass(frozen=True, slots=True)
class AddVoter:
    voter: Voter


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    key: ReplicaKey


@dataclass(frozen=True, slots=True)
class UpdateVoter:
    """New endpoints or versions of a voter. The directory does not change: a voter with another directory is another
    replica."""

    voter: Voter


VoterChange = AddVoter | RemoveVoter | UpdateVoter


@dataclass(frozen=True, slots=True)
class ChangeVoters:
    """Answered by VoterChangeDone: when the new set is committed, or with an error.

    Without `ack_when_committed` the answer comes when the set is appended, and the fate of the set is open (KIP-1186).
    """

    token: object
    change: VoterChange
    timeout_ms: int
    ack_when_committed: bool


@dataclass(frozen=True, slots=True)
class DescribeQuorum:
    """Answered by a SendResponse with a QuorumDescription."""

    token: object


@dataclass(frozen=True, slots=True)
class Resign:
    """Resign, if this replica still leads in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Leave in good order. Answered by ShutdownDone."""


@dataclass(frozen=True, slots=True)
class StorageFailed:
    """The disk is full, failed or damaged: this node neither leads nor votes any more (until its restart)."""

    detail: str


Event = (
    Tick
    | RequestReceived
    | ResponseReceived
    | RequestFailed
    | QuorumStatePersisted
    | LogAppended
    | AppendRejected
    | LogFlushed
    | SnapshotWritten
    | SnapshotInstalled
    | SnapshotRejected
    | ClientAppend
    | ChangeVoters
    | DescribeQuorum
    | Resign
    | Shutdown
    | StorageFailed
)
