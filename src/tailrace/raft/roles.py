"""The roles of a replica, the memory of each role, and the changes from role to role.

                 +-------------- higher epoch, from any role ---------------+
                 v                                                          |
    Unattached -----> Prospective -----> Candidate -----> Leader -----> Resigned
       ^  ^  ^           |    ^              |                             |
       |  |  |           |    +--------------+                             |
       |  |  +-----------+   lost or timed out                             |
       |  +----------------------------------------------------------------+  the epoch is given up
       v
    Follower <------ a leader is known, from any role but Leader and Resigned of the same epoch
       |
       +-----------> Prospective: no answer of the leader for the fetch timeout

*Prospective* asks whether it would win before it raises the epoch (KIP-996), so that a node that was cut off does not
depose a leader that works. *Resigned* led in this epoch and must not lead in this epoch again: the replica may have
lost records that a reader has seen. Observers are Unattached or Follower, nothing else.
"""

from dataclasses import dataclass, field

from tailrace.raft.events import ChangeVoters
from tailrace.raft.progress import ProgressTable
from tailrace.raft.rpc import FetchRecords, SnapshotId
from tailrace.raft.voters import ReplicaKey, Tally


@dataclass(slots=True)
class Unattached:
    """No leader is known in this epoch."""

    election_deadline_ms: int
    next_peer: int = 0
    """Index of the node that is asked next for the leader."""
    next_ask_ms: int = 0
    """The time to ask the next node even if the last node has not answered."""


@dataclass(slots=True)
class Prospective:
    """The replica asks for pre-votes, which bind no voter (KIP-996)."""

    tally: Tally
    deadline_ms: int


@dataclass(slots=True)
class Candidate:
    """The replica has raised the epoch and voted for itself, and asks the other voters for votes."""

    tally: Tally
    deadline_ms: int
    is_backing_off: bool = False
    """Whether the election is lost: then the deadline is the time of the next try."""


@dataclass(slots=True)
class SnapshotDownload:
    """A snapshot that is fetched in place of the log."""

    id: SnapshotId
    position: int = 0


@dataclass(slots=True)
class Follower:
    """The replica fetches from the leader."""

    leader_id: int
    fetch_deadline_ms: int
    has_fetched: bool = False
    """Whether the leader has answered a fetch: then the leader is alive, and no candidate gets a pre-vote."""
    is_appending: bool = False
    """Whether the host is appending fetched records."""
    leader_high_watermark: int = -1
    leader_log_start_offset: int = 0
    download: SnapshotDownload | None = None


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that had nothing to read when it came."""

    token: object
    request: FetchRecords
    deadline_ms: int


@dataclass(slots=True)
class PendingChange:
    """A change of voters that is appended and not committed."""

    command: ChangeVoters
    offset: int
    deadline_ms: int


@dataclass(slots=True)
class Leader:
    """The replica appends records, and tracks the progress of the other replicas."""

    epoch_start_offset: int
    started_ms: int
    replicas: ProgressTable
    parked: list[ParkedFetch] = field(default_factory=list)
    announced_ms: dict[int, int] = field(default_factory=dict)
    """The time at which the leader was last announced to each voter."""
    pending: PendingChange | None = None
    served: dict[SnapshotId, int] = field(default_factory=dict)
    """The time at which each snapshot was last asked for."""


@dataclass(slots=True)
class Resigned:
    """A leader that has resigned in this epoch."""

    deadline_ms: int
    preferred: tuple[ReplicaKey, ...]
    unacknowledged: set[int]
    """Voters that have not acknowledged the resignation."""


Role = Unattached | Prospective | Candidate | Follower | Leader | Resigned

_SAME_EPOCH: dict[type[Role], tuple[type[Role], ...]] = {
    Unattached: (Unattached, Prospective, Follower),
    Prospective: (Unattached, Follower),
    Candidate: (Prospective, Leader, Follower, Unattached),
    Follower: (Prospective, Follower, Unattached),
    Leader: (Resigned,),
    Resigned: (),
}
_NEXT_EPOCH: dict[type[Role], tuple[type[Role], ...]] = {Prospective: (Candidate, Unattached, Follower)}
_HIGHER_EPOCH: tuple[type[Role], ...] = (Unattached, Follower)


def may_follow(before: Role, after: Role, epoch_rises: bool) -> bool:
    """Whether a replica may change from the role `before` to the role `after`."""
    if epoch_rises:
        return type(after) in _NEXT_EPOCH.get(type(before), _HIGHER_EPOCH)
    return type(after) in _SAME_EPOCH[type(before)]
