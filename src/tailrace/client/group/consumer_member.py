"""A member of a group whose coordinator assigns the partitions (KIP-848), as a machine. Pure.

    outside --Polled--> joining --ConsumerHeartbeatAnswered--> joined
    joined --TargetGiven--> --Polled--> Release, while partitions leave --Released--> a heartbeat without the partitions
                            --Polled--> Own, when partitions come, and a heartbeat with the partitions

1. The partitions of a member change only when its user polls: the poll declares the records of the poll before as
   processed. A member whose user does not poll for max.poll.interval.ms leaves.
2. Partitions that stay are read all the time. The coordinator gives a partition to another member when a heartbeat of
   this member does not name the partition any more. Until the user has committed and released the partition, heartbeats
   name it and go on; the coordinator waits for the rebalance timeout, which is max.poll.interval.ms.
3. Partitions that come are not read while the answer to a heartbeat that did not name them is awaited: at that
   heartbeat the coordinator may have given them to another member. A partition that comes back while it is being
   released is read anew when its release has ended. Other releases keep nothing back that comes: Apache Kafka's
   coordinator gives a member nothing new before all is released, the coordinator of Tailrace gives slots (decision
   0105).
4. The epoch fences: a member that the coordinator does not know in its epoch loses all partitions at once, and so does
   a member that gets no answer for a session timeout. It joins again at the next poll.
5. A heartbeat names what has changed since the last answered heartbeat. After a heartbeat without an answer the next
   heartbeat names everything. After a target that the member has already, the next heartbeat names the partitions: a
   partition may have come and gone between two polls, and the coordinator waits to hear that the member has it not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, assert_never

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
from tailrace.model.ids import TopicId
from tailrace.model.machines import Tick

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
LEAVE_FOR_A_WHILE_EPOCH: Final = -2
"""A static member leaves and is expected back: nothing of it is given to other members before its session ends."""

_INSTANCE_RETRY_MS: Final = 1_000
"""The pause before a static member asks again whether the former process of its id has left."""


class TopicIdPartition(NamedTuple):
    """A partition by the id of its topic: a topic that is deleted and made again has other partitions."""

    topic_id: TopicId
    partition: int


Partitions = frozenset[TopicIdPartition]
_NOTHING: Final[Partitions] = frozenset()


class ConsumerState(Enum):
    """The state of a member."""

    OUTSIDE = auto()
    JOINING = auto()
    JOINED = auto()
    LEAVING = auto()
    """The user has closed the consumer; partitions are being released."""
    LEFT = auto()
    FAILED = auto()


# Events


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatAnswered:
    """An answer to the last heartbeat, or the code of a request without an answer."""

    code: ErrorCode
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0


@dataclass(frozen=True, slots=True)
class TargetGiven:
    """The coordinator wants the member to have these partitions, as far as the names of their topics are known."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Released:
    """The user has committed, and reads these partitions no more."""

    partitions: Partitions


ConsumerEvent = (
    Polled | Tick | SubscriptionChanged | ConsumerHeartbeatAnswered | TargetGiven | Released | PollOverdue | Leave
)


# Effects


@dataclass(frozen=True, slots=True)
class SendConsumerHeartbeat:
    """Send a heartbeat. A heartbeat with `is_full` also names the subscription and all settings."""

    member_epoch: int
    owned: Partitions | None
    """None: as in the last heartbeat."""
    is_full: bool
    is_withdrawn: bool = False
    """Whether the member subscribes to no topic any more."""


@dataclass(frozen=True, slots=True)
class SendConsumerLeave:
    """Send a heartbeat that leaves the group. The answer changes nothing."""

    member_epoch: int


@dataclass(frozen=True, slots=True)
class Release:
    """Return no more records of these partitions; let what runs end, commit, then pass `Released`."""

    partitions: Partitions


@dataclass(frozen=True, slots=True)
class Own:
    """Read exactly these partitions. Partitions that were owned before keep their positions."""

    partitions: Partitions


ConsumerEffect = SendConsumerHeartbeat | SendConsumerLeave | Release | Own | Lost | Removed | ForgetCoordinator | Failed

_REMOVALS = {
    ErrorCode.UNKNOWN_MEMBER_ID: RemovalCause.UNKNOWN_MEMBER,
    ErrorCode.GROUP_ID_NOT_FOUND: RemovalCause.UNKNOWN_MEMBER,
    ErrorCode.FENCED_MEMBER_EPOCH: RemovalCause.OLD_GENERATION,
}
_LATER = frozenset(
    (
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    )
)
"""The codes after which a member that joins tries again, beside the retriable codes."""

_IN_GROUP = (ConsumerState.JOINED, ConsumerState.LEAVING)


@dataclass(slots=True)
class ConsumerMembership:
    """The machine. Times in ms."""

    session_timeout_ms: int
    """The silence of the coordinator after which the member gives its partitions up. The session itself is a setting of
    the group at its broker."""
    retry_backoff_ms: int
    is_static: bool

    state: ConsumerState = ConsumerState.OUTSIDE
    member_epoch: int = JOIN_EPOCH
    owned: Partitions = _NOTHING
    """The partitions that the next heartbeat names: read now, or being released."""
    _target: Partitions | None = None
    _releasing: Partitions = _NOTHING
    _reported: Partitions | None = None
    """The owned partitions in the last heartbeat that named partitions."""
    _is_new: bool = True
    """Whether the user has not received an assignment since the member joined."""
    _is_full_due: bool = True
    _is_withdrawn: bool = False
    """Whether the member, which leaves, subscribes to nothing any more."""
    _is_asking: bool = False
    _is_naming: bool = False
    """Whether the heartbeat that has no answer yet names partitions."""
    _interval_ms: int = 0
    _not_before_ms: int = 0
    _next_heartbeat_ms: int = 0
    _heard_at_ms: int = 0

    @property
    def releasing(self) -> Partitions:
        """The owned partitions that are being released: they are held, and not read."""
        return self._releasing

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next Tick."""
        if self.state not in _IN_GROUP:
            return None
        silence_ends_ms = self._heard_at_ms + self.session_timeout_ms
        return silence_ends_ms if self._is_asking else min(self._next_heartbeat_ms, silence_ends_ms)

    def step(self, event: ConsumerEvent, now_ms: int) -> Sequence[ConsumerEffect]:
        """Apply one event; returns the effects in order."""
        if self.state in (ConsumerState.LEFT, ConsumerState.FAILED):
            return ()
        match event:
            case Polled():
                return self._polled(now_ms)
            case Tick():
                return self._tick(now_ms)
            case SubscriptionChanged():
                self._is_full_due = True
                return self._beat_now(now_ms)
            case ConsumerHeartbeatAnswered():
                return self._answered(event, now_ms)
            case TargetGiven(partitions):
                if self.state in _IN_GROUP:
                    self._target = partitions
                    if partitions == self.owned:
                        self._reported = None
                return ()
            case Released(partitions):
                return self._released(partitions, now_ms)
            case PollOverdue():
                return self._poll_overdue()
            case Leave():
                return self._leave(now_ms)
            case _:
                assert_never(event)

    # the user

    def _polled(self, now_ms: int) -> Sequence[ConsumerEffect]:
        if self.state is ConsumerState.OUTSIDE:
            return self._join() if now_ms >= self._not_before_ms else ()
        if self.state is not ConsumerState.JOINED or self._target is None:
            return ()
        removed = self.owned - self._target - self._releasing
        if removed:
            self._releasing |= removed
            return (Release(removed),)
        comes = self._target - self.owned
        if comes and (self._is_naming or self._is_full_due):
            return ()
        if not comes and not self._is_new:
            return ()
        self.owned |= comes
        self._is_new = False
        return (Own(self.owned - self._releasing), *self._beat_now(now_ms))

    def _join(self) -> Sequence[ConsumerEffect]:
        if self._is_asking:
            return ()  # the answer to an earlier heartbeat is still to come
        self.state = ConsumerState.JOINING
        self.member_epoch, self._is_new = JOIN_EPOCH, True
        return (self._heartbeat(is_full=True),)

    def _released(self, partitions: Partitions, now_ms: int) -> Sequence[ConsumerEffect]:
        released = partitions & self._releasing
        if not released:
            return ()  # the member was thrown out meanwhile
        self._releasing -= released
        self.owned -= released
        if self.state is ConsumerState.LEAVING:
            if not self._releasing:
                return self._go()
            self._is_full_due = self._is_full_due or not (self._is_withdrawn or self.is_static)
        return (Own(self.owned - self._releasing), *self._beat_now(now_ms))

    def _poll_overdue(self) -> Sequence[ConsumerEffect]:
        was_in_group = self.state is not ConsumerState.OUTSIDE
        leave = (SendConsumerLeave(self._leave_epoch),) if was_in_group else ()
        return (*self._lost(RemovalCause.POLL_OVERDUE), *leave)

    def _leave(self, now_ms: int) -> Sequence[ConsumerEffect]:
        if self.state is ConsumerState.OUTSIDE:
            self.state = ConsumerState.LEFT
            return ()
        if self.state is ConsumerState.JOINING or not self.owned:
            return self._go()
        self.state = ConsumerState.LEAVING
        rest = self.owned - self._releasing
        self._releasing = self.owned
        return (Release(rest),) if rest else ()

    def _go(self) -> Sequence[ConsumerEffect]:
        self.state = ConsumerState.LEFT
        return (Own(_NOTHING), SendConsumerLeave(self._leave_epoch))

    @property
    def _leave_epoch(self) -> int:
        return LEAVE_FOR_A_WHILE_EPOCH if self.is_static else LEAVE_EPOCH

    # heartbeats

    def _tick(self, now_ms: int) -> Sequence[ConsumerEffect]:
        if self.state not in _IN_GROUP:
            return ()
        if now_ms - self._heard_at_ms >= self.session_timeout_ms:
            return (ForgetCoordinator(), *self._lost(RemovalCause.SILENCE))
        if self._is_asking or now_ms < self._next_heartbeat_ms:
            return ()
        return (self._heartbeat(is_full=self._is_full_due),)

    def _beat_now(self, now_ms: int) -> Sequence[ConsumerEffect]:
        """A heartbeat with the news; if an answer is still to come, the heartbeat follows the answer."""
        if self.state not in _IN_GROUP:
            return ()
        self._next_heartbeat_ms = now_ms
        return () if self._is_asking else (self._heartbeat(is_full=self._is_full_due),)

    def _heartbeat(self, *, is_full: bool) -> SendConsumerHeartbeat:
        self._is_asking, self._is_full_due = True, False
        owned = self.owned if is_full or self.owned != self._reported else None
        self._reported = self.owned
        self._is_naming = owned is not None
        self._is_withdrawn = (
            self.state is ConsumerState.LEAVING and not self.is_static and (is_full or self._is_withdrawn)
        )
        return SendConsumerHeartbeat(self.member_epoch, owned, is_full, is_full and self._is_withdrawn)

    def _answered(self, event: ConsumerHeartbeatAnswered, now_ms: int) -> Sequence[ConsumerEffect]:
        self._is_asking = self._is_naming = False
        if self.state is ConsumerState.OUTSIDE:
            return ()  # the member was thrown out meanwhile
        if event.code is ErrorCode.NONE:
            return self._accepted(event, now_ms)
        self._is_full_due = True
        if event.code in _REMOVALS and self.state in _IN_GROUP:
            return self._lost(_REMOVALS[event.code])
        pause_ms = self.retry_backoff_ms
        if event.code is ErrorCode.UNRELEASED_INSTANCE_ID:
            pause_ms = max(pause_ms, _INSTANCE_RETRY_MS)
        elif event.code not in _LATER and not event.code.retriable:
            lost = self._lost_partitions()
            self.state = ConsumerState.FAILED
            return (*lost, Failed(event.code))
        self._next_heartbeat_ms = self._not_before_ms = now_ms + pause_ms
        if self.state is ConsumerState.JOINING:
            self.state = ConsumerState.OUTSIDE
        return (ForgetCoordinator(),) if event.code in COORDINATOR_MOVED else ()

    def _accepted(self, event: ConsumerHeartbeatAnswered, now_ms: int) -> Sequence[ConsumerEffect]:
        if self.state is ConsumerState.JOINING:
            self.state = ConsumerState.JOINED
        self.member_epoch = event.member_epoch
        self._heard_at_ms = now_ms
        self._interval_ms = event.heartbeat_interval_ms
        if self._is_full_due or self.owned != self._reported:
            return self._beat_now(now_ms)
        self._next_heartbeat_ms = now_ms + self._interval_ms
        return ()

    # the end

    def _lost(self, cause: RemovalCause) -> Sequence[ConsumerEffect]:
        lost = self._lost_partitions()
        is_leaving = self.state is ConsumerState.LEAVING
        self.state = ConsumerState.LEFT if is_leaving else ConsumerState.OUTSIDE
        return (Removed(cause), *lost)

    def _lost_partitions(self) -> Sequence[ConsumerEffect]:
        lost = (Lost(),) if self.owned else ()
        self.owned = self._releasing = _NOTHING
        self._target = self._reported = None
        self.member_epoch, self._is_full_due = JOIN_EPOCH, True
        return lost
