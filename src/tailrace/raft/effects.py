"""The effects of a replica. The host carries the effects of a step out in their order, before the next event.

- *Persist*, *Flush* and *InstallSnapshot* take time: the host starts the work and reports its end later, in an event.
  Before that event no effect depends on the Persist: the machine itself keeps requests and answers back while the
  quorum state is not durable, so a host cannot send a message too early.
- *AppendAsLeader*, *AppendFetched*, *Truncate*, *RaiseLogStart*, *DeleteSnapshots*, *WriteSnapshotPart* and
  *DiscardSnapshotPart* are carried out before the next event: written, but not durable before the next Flush.
- All other effects are notifications.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tailrace.model.errors import ErrorCode
from tailrace.raft.ports import QuorumState
from tailrace.raft.rpc import Request, Response, SnapshotId
from tailrace.raft.voters import ReplicaKey, VoterSet


@dataclass(frozen=True, slots=True)
class Persist:
    """Write the quorum state durably, then report QuorumStatePersisted. A later number may overtake earlier numbers."""

    number: int
    state: QuorumState


@dataclass(frozen=True, slots=True)
class LeaderChange:
    """The control record that begins a leader's epoch (KIP-595)."""

    leader_id: int
    voters: tuple[ReplicaKey, ...]
    granting_voters: tuple[ReplicaKey, ...]


@dataclass(frozen=True, slots=True)
class KRaftVersion:
    """The control record with kraft.version; from 1 on voters are in the log (KIP-853)."""

    version: int


@dataclass(frozen=True, slots=True)
class Voters:
    """The control record that states the voters (KIP-853)."""

    voters: VoterSet


ControlRecord = LeaderChange | KRaftVersion | Voters


@dataclass(frozen=True, slots=True)
class AppendAsLeader:
    """Append one batch at `base_offset`: records of a client or control records of the quorum, never both."""

    base_offset: int
    leader_epoch: int
    records: object = None
    control: tuple[ControlRecord, ...] = ()
    token: object = None
    """The token of the ClientAppend."""


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """The ClientAppend of this token was not appended."""

    token: object
    error: ErrorCode
    detail: str


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Check and append the records that the leader of `leader_epoch` has sent, then report LogAppended or
    AppendRejected at once.

    The host checks that checksums are right, that base offsets are contiguous from `base_offset`, and that epochs do
    not fall and are not above the leader's.
    """

    base_offset: int
    leader_epoch: int
    records: object


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log so that it ends at this offset, which is never below the high watermark."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class Flush:
    """Make the present log durable, then report LogFlushed. A flush includes every flush with a smaller number."""

    number: int


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send the request. The outcome is a ResponseReceived or RequestFailed with this id.

    A later request to the same peer replaces an earlier request; a late answer to the earlier request is ignored. A
    Fetch may wait at the leader for `max_wait_ms`, so other requests to that peer should not wait behind it.
    """

    request_id: int
    destination: int
    request: Request


class ReadLog(NamedTuple):
    """Records to put into an answer: from this offset on, up to `max_bytes`, but at least one batch."""

    offset: int
    max_bytes: int


class ReadSnapshot(NamedTuple):
    """Bytes of a snapshot to put into an answer."""

    snapshot_id: SnapshotId
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SendResponse:
    """Answer the request of this token; the host carries out `read` now, and puts the result into `records` or `data`
    of the answer."""

    token: object
    response: Response
    read: ReadLog | ReadSnapshot | None = None


@dataclass(frozen=True, slots=True)
class HighWatermarkMoved:
    """Every record below this offset is committed, whatever happens to any minority of the voters."""

    offset: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role, the epoch or the known leader has changed.

    `epoch_start_offset` is the offset of the LeaderChange record of a new leader. The leader may decide on its state
    when it has applied every record below this offset, and the high watermark has passed this offset: after that, no
    more records of earlier epochs can be committed.
    """

    role: str
    epoch: int
    leader_id: int
    epoch_start_offset: int | None = None


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    """Raise the log start to this offset: a snapshot replaces the records below."""

    offset: int


@dataclass(frozen=True, slots=True)
class DeleteSnapshots:
    ids: Sequence[SnapshotId]


@dataclass(frozen=True, slots=True)
class WriteSnapshotPart:
    """Write these bytes at this position of `<id>.checkpoint.part`; at position 0 a new file is begun."""

    snapshot_id: SnapshotId
    position: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class DiscardSnapshotPart:
    """Delete the part file."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Validate, sync and rename the complete part file, in this order; then replace the log by the snapshot.

    Then report SnapshotInstalled. For a damaged file: remove the file, leave the log alone, report SnapshotRejected.
    """

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """The state machine must forget its state and load this snapshot, then go on with the log. Never on a leader."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True)
class VoterChangeDone:
    """The outcome of a ChangeVoters: NONE when the change is committed (or appended, without `ack_when_committed`)."""

    token: object
    error: ErrorCode
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ShutdownDone:
    """The shutdown is complete: no other replica waits for this node."""


Effect = (
    Persist
    | AppendAsLeader
    | AppendRefused
    | AppendFetched
    | Truncate
    | Flush
    | SendRequest
    | SendResponse
    | HighWatermarkMoved
    | RoleChanged
    | RaiseLogStart
    | DeleteSnapshots
    | WriteSnapshotPart
    | DiscardSnapshotPart
    | InstallSnapshot
    | LoadSnapshot
    | VoterChangeDone
    | ShutdownDone
)


class Outbox:
    """The effects of one step, in order; some messages wait in the outbox until the quorum state is durable.

    A vote that was answered and then forgotten in a crash lets two leaders be elected. So a request or an answer leaves
    only when the newest quorum state that was decided before the message is on disk.
    """

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._waiting: deque[tuple[int, SendRequest | SendResponse]] = deque()
        self._decided = 0
        self._durable = 0

    @property
    def is_durable(self) -> bool:
        """Whether the newest quorum state is on disk."""
        return self._durable == self._decided

    def persist(self, state: QuorumState) -> None:
        self._decided += 1
        self._effects.append(Persist(self._decided, state))

    def persisted(self, number: int) -> None:
        """Send the messages that waited for quorum states up to this number, which are durable."""
        assert number <= self._decided, f"quorum state {number} was never decided"
        self._durable = max(self._durable, number)
        while self._waiting and self._waiting[0][0] <= self._durable:
            self._effects.append(self._waiting.popleft()[1])

    def send(self, effect: SendRequest | SendResponse) -> None:
        if self.is_durable:
            self._effects.append(effect)
        else:
            self._waiting.append((self._decided, effect))

    def add(self, effect: Effect) -> None:
        """Add an effect that does not depend on the quorum state."""
        self._effects.append(effect)

    def replace_reads(self, instead: Callable[[SendResponse], SendResponse]) -> None:
        """Replace waiting answers that read the log by `instead(answer)`. For the end of leadership: the log may be cut
        before a waiting answer leaves."""
        self._waiting = deque(
            (number, instead(effect) if isinstance(effect, SendResponse) and effect.read is not None else effect)
            for number, effect in self._waiting
        )

    def drain(self) -> Sequence[Effect]:
        """Remove and return the effects of this step."""
        effects, self._effects = self._effects, []
        return effects
