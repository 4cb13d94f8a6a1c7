"""A member of a classic consumer group, as a machine: answers and ticks in, requests to send and assignments out. Pure.

    outside --Polled--> joining --JoinAnswered--> syncing --SyncAnswered--> stable
    stable --HeartbeatAnswered(27)--> must rejoin --Polled--> revoking --Revoked--> joining

1. A member joins only when its user polls. The poll declares the records of the poll before as processed, so their
   offsets may be committed and the partitions revoked (eager rebalance).
2. A member sends heartbeats between polls too, also while it must rejoin, and while its user gives the partitions up;
   otherwise its session would end.
3. A member loses its assignment at once when the group may have removed it (unknown member, illegal generation, no
   answer for a session timeout): another member may read the partitions already.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import assert_never

from tailrace.client.group.membership import (
    COORDINATOR_MOVED,
    Failed,
    ForgetCoordinator,
    Leave,
    Lost,
    Polled,
    PollOverdue,
    RemovalCause,
    Removed,
    SubscriptionChanged,
)
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_prefixed,
)
from tailrace.protocol.schema import encode_prefixed

_WRITTEN = 1
"""The version that is written: enough for eager rebalances, and known to clients of 2018."""


class State(Enum):
    """The state of a member."""

    OUTSIDE = auto()
    JOINING = auto()
    SYNCING = auto()
    STABLE = auto()
    MUST_REJOIN = auto()
    REVOKING = auto()
    """The user gives the partitions up. Then the member joins again."""
    LEAVING = auto()
    """The user gives the partitions up. Then the member leaves the group."""
    LEFT = auto()
    FAILED = auto()


# Events


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswered:
    code: ErrorCode
    member_id: str = ""
    generation_id: int = -1
    protocol_name: str = ""
    leader: str = ""
    members: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class AssignmentMade:
    """This member leads, and has made the assignment."""

    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncAnswered:
    code: ErrorCode
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    code: ErrorCode


@dataclass(frozen=True, slots=True)
class Revoked:
    """The user has committed, and reads the partitions no more."""


Event = (
    Polled
    | Tick
    | SubscriptionChanged
    | JoinAnswered
    | AssignmentMade
    | SyncAnswered
    | HeartbeatAnswered
    | Revoked
    | PollOverdue
    | Leave
)


# Effects


@dataclass(frozen=True, slots=True)
class Revoke:
    """Let the user commit, and stop reading the partitions; then pass `Revoked`."""


@dataclass(frozen=True, slots=True)
class SendJoin:
    member_id: str


@dataclass(frozen=True, slots=True)
class MakeAssignment:
    """This member leads: make the assignment, then pass AssignmentMade."""

    protocol_name: str
    members: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SendSync:
    member_id: str
    generation_id: int
    protocol_name: str
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    member_id: str
    generation_id: int


@dataclass(frozen=True, slots=True)
class SendLeave:
    member_id: str


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]


Effect = (
    Revoke
    | Lost
    | Removed
    | SendJoin
    | MakeAssignment
    | SendSync
    | SendHeartbeat
    | SendLeave
    | Assigned
    | ForgetCoordinator
    | Failed
)

_REMOVALS = {
    ErrorCode.UNKNOWN_MEMBER_ID: RemovalCause.UNKNOWN_MEMBER,
    ErrorCode.ILLEGAL_GENERATION: RemovalCause.OLD_GENERATION,
}
_LATER = frozenset((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REBALANCE_IN_PROGRESS))
_IN_GENERATION = (State.STABLE, State.MUST_REJOIN, State.REVOKING, State.LEAVING)
"""The states in which a member sends heartbeats."""


@dataclass(slots=True)
class ClassicMembership:
    """The machine. Times in ms; names of the settings are Kafka's."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    retry_backoff_ms: int
    is_static: bool
    """A static member, with a group.instance.id, does not send LeaveGroup: it is expected back (KIP-345)."""

    state: State = State.OUTSIDE
    member_id: str = ""
    generation_id: int = -1
    protocol_name: str = ""
    _holds_partitions: bool = False
    _not_before_ms: int = 0
    _next_heartbeat_ms: int = 0
    _heard_at_ms: int = 0
    is_beating: bool = False
    """Whether the answer to a heartbeat is still to come."""

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next Tick."""
        if self.state not in _IN_GENERATION or self.generation_id < 0:
            return None
        silence_ends_ms = self._heard_at_ms + self.session_timeout_ms
        return silence_ends_ms if self.is_beating else min(self._next_heartbeat_ms, silence_ends_ms)

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Apply one event; returns the effects in order."""
        if self.state in (State.LEFT, State.FAILED):
            return ()
        match event:
            case Polled():
                return self._polled(now_ms)
            case Tick():
                return self._tick(now_ms)
            case SubscriptionChanged():
                if self.state is State.STABLE:
                    self.state = State.MUST_REJOIN
                return ()
            case JoinAnswered():
                return self._join_answered(event, now_ms) if self.state is State.JOINING else ()
            case AssignmentMade(assignments):
                return self._sync(assignments) if self.state is State.SYNCING else ()
            case SyncAnswered():
                return self._sync_answered(event, now_ms) if self.state is State.SYNCING else ()
            case HeartbeatAnswered(code):
                return self._heartbeat_answered(code, now_ms)
            case Revoked():
                return self._revoked()
            case PollOverdue():
                leave = (SendLeave(self.member_id),) if self.member_id else ()
                self._forget_identity()
                return (*self._lost(RemovalCause.POLL_OVERDUE), *leave)
            case Leave():
                return self._leave()
            case _:
                assert_never(event)

    def _polled(self, now_ms: int) -> Sequence[Effect]:
        if self.state not in (State.OUTSIDE, State.MUST_REJOIN) or now_ms < self._not_before_ms:
            return ()
        if self._holds_partitions:
            self.state = State.REVOKING
            return (Revoke(),)
        return self._join()

    def _join(self) -> Sequence[Effect]:
        self.state = State.JOINING
        return (SendJoin(self.member_id),)

    def _revoked(self) -> Sequence[Effect]:
        if self.state is State.REVOKING:
            self._holds_partitions = False
            return self._join()
        return self._go() if self.state is State.LEAVING else ()

    def _join_answered(self, event: JoinAnswered, now_ms: int) -> Sequence[Effect]:
        match event.code:
            case ErrorCode.NONE:
                self.state = State.SYNCING
                self.member_id, self.generation_id = event.member_id, event.generation_id
                self.protocol_name = event.protocol_name
                if event.leader == event.member_id:
                    return (MakeAssignment(event.protocol_name, event.members),)
                return self._sync(())
            case ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = event.member_id
                return (SendJoin(self.member_id),)
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION:
                removed = (Removed(_REMOVALS[event.code]),) if self.generation_id >= 0 else ()
                self._forget_identity()
                return (*removed, SendJoin(""))
            case code:
                return self._try_again(code, now_ms)

    def _sync(self, assignments: tuple[tuple[str, bytes], ...]) -> Sequence[Effect]:
        return (SendSync(self.member_id, self.generation_id, self.protocol_name, assignments),)

    def _sync_answered(self, event: SyncAnswered, now_ms: int) -> Sequence[Effect]:
        match event.code:
            case ErrorCode.NONE:
                self.state = State.STABLE
                self._holds_partitions = True
                self.is_beating = False
                self._heard_at_ms = now_ms
                self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
                return (Assigned(decode_assignment(event.assignment)),)
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION:
                self._forget_identity()
                self.state = State.OUTSIDE
                return ()
            case code:
                return self._try_again(code, now_ms)

    def _try_again(self, code: ErrorCode, now_ms: int) -> Sequence[Effect]:
        """A join or sync has failed: join again at a later poll, or fail for good."""
        self.state = State.OUTSIDE
        self._not_before_ms = now_ms + self.retry_backoff_ms
        if code in COORDINATOR_MOVED:
            return (ForgetCoordinator(),)
        if code in _LATER or code.retriable:
            return ()
        self.state = State.FAILED
        return (Failed(code),)

    def _heartbeat_answered(self, code: ErrorCode, now_ms: int) -> Sequence[Effect]:
        self.is_beating = False
        self._next_heartbeat_ms = now_ms + self.heartbeat_interval_ms
        if self.state not in _IN_GENERATION:
            return ()
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._heard_at_ms = now_ms
            if code == ErrorCode.REBALANCE_IN_PROGRESS and self.state is State.STABLE:
                self.state = State.MUST_REJOIN
            return ()
        if code in _REMOVALS:
            self._forget_identity()
            return self._lost(_REMOVALS[code])
        if code in COORDINATOR_MOVED:
            self._next_heartbeat_ms = now_ms + self.retry_backoff_ms
            return (ForgetCoordinator(),)
        if code in _LATER or code.retriable:
            return ()
        self.state = State.FAILED
        return (*self._lost_partitions(), Failed(code))

    def _tick(self, now_ms: int) -> Sequence[Effect]:
        if self.state not in _IN_GENERATION or self.generation_id < 0:
            return ()
        if now_ms - self._heard_at_ms >= self.session_timeout_ms:
            self.generation_id = -1
            return (ForgetCoordinator(), *self._lost(RemovalCause.SILENCE))
        if self.is_beating or now_ms < self._next_heartbeat_ms:
            return ()
        self.is_beating = True
        return (SendHeartbeat(self.member_id, self.generation_id),)

    def _leave(self) -> Sequence[Effect]:
        """Revoke the partitions, with a commit; then leave the group."""
        if not self._holds_partitions:
            return self._go()
        is_revoking = self.state is State.REVOKING
        self.state = State.LEAVING
        return () if is_revoking else (Revoke(),)

    def _go(self) -> Sequence[Effect]:
        """Leave the group; a static member is expected back, and leaves without a word (KIP-345)."""
        self.state = State.LEFT
        self._holds_partitions = False
        return (SendLeave(self.member_id),) if self.member_id and not self.is_static else ()

    def _forget_identity(self) -> None:
        self.member_id = ""
        self.generation_id = -1

    def _lost(self, cause: RemovalCause) -> Sequence[Effect]:
        self.state = State.LEFT if self.state is State.LEAVING else State.OUTSIDE
        return (Removed(cause), *self._lost_partitions())

    def _lost_partitions(self) -> Sequence[Effect]:
        held, self._holds_partitions = self._holds_partitions, False
        return (Lost(),) if held else ()


# The bytes that members exchange


def encode_subscription(topics: Iterable[str], owned: Iterable[TopicPartition] = ()) -> bytes:
    """The metadata of a member that subscribes to these topics."""
    subscription = ConsumerProtocolSubscription(topics=tuple(sorted(topics)), owned_partitions=_by_topic(owned))
    return encode_prefixed(subscription, _WRITTEN)


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """The topics of a member's subscription. Raises MalformedMessage."""
    return decode_prefixed(ConsumerProtocolSubscription, data).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The assignment of a member."""
    return encode_prefixed(ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)), _WRITTEN)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions assigned to a member; none for no bytes. Raises MalformedMessage."""
    if not data:
        return ()
    assignment = decode_prefixed(ConsumerProtocolAssignment, data)
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[ConsumerTopicPartitions, ...]:
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        topics[partition.topic].append(partition.partition)
    return tuple(ConsumerTopicPartitions(topic=name, partitions=tuple(indexes)) for name, indexes in topics.items())
