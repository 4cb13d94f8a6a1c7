"""A consumer group, made by its records, and the topics that its members may subscribe to.

Invariants:
1. The group changes by `apply` only, so the group equals the replay of its records. The group also equals the replay of
   the records that compaction keeps: the last record of each key, at its place.
2. No partition is held by two members: `assigned` and `pending_revocation` of all members are disjoint.
3. A member is in the group iff the member has a subscription, and in state STABLE iff the member has its whole target
   and nothing else.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Protocol

from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRecord,
    ConsumerRecordKind,
    CurrentMemberAssignmentValue,
    RegularExpressionValue,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
)
from tailrace.model.errors import ErrorCode
from tailrace.model.views import parse_view
from tailrace.protocol.declaration import replace as replace_fields

NOT_THERE = -2
"""The epoch of a static member that has left temporarily."""


class MemberState(IntEnum):
    """The state of a member, with its number in records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member has to give up `pending_revocation` and confirm the revocation."""
    UNRELEASED_PARTITIONS = 2
    """The target has partitions that other members still hold."""
    UNKNOWN = 127


_STATES = frozenset(MemberState)


class ConsumerGroupState(StrEnum):
    """The state, with its name for clients."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member: its subscription and its partitions."""

    member_id: str
    subscription: ConsumerGroupMemberMetadataValue
    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = NOTHING
    pending_revocation: Assignment = NOTHING

    def current(self) -> CurrentMemberAssignmentValue:
        """The record of the member's state."""
        return CurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=self.state,
            assigned_partitions=self.assigned.stored(),
            partitions_pending_revocation=self.pending_revocation.stored(),
        )

    @property
    def held(self) -> Assignment:
        """The partitions that the member may be reading."""
        return self.assigned | self.pending_revocation

    @property
    def is_classic(self) -> bool:
        """Whether the member has the classic protocol: the member was in the classic group before the conversion, or
        has joined by JoinGroup."""
        return self.subscription.classic_member_metadata is not None

    @property
    def shares_by_key(self) -> bool:
        """Whether the member subscribes to a view of a topic, by its name (KIP-X)."""
        return _has_view(self.subscription.subscribed_topic_names)

    @property
    def is_withdrawn(self) -> bool:
        """Whether the member subscribes to nothing: it leaves when it has given up its partitions."""
        return not (self.subscription.subscribed_topic_names or self.subscription.subscribed_topic_regex)

    def is_at(self, epoch: int) -> bool:
        """Whether the member holds its whole target of this epoch."""
        return self.state is MemberState.STABLE and self.epoch == epoch


class ConsumerGroup:
    """A group."""

    __slots__ = ("epoch", "expressions", "members", "metadata_hash", "places", "target_epoch", "targets")

    def __init__(self) -> None:
        self.epoch: int | None = None
        """The group epoch; None: the group has ended."""
        self.metadata_hash = 0
        self.expressions: dict[str, frozenset[str]] = {}
        """Subscribed regular expression -> the topics that it matches, as last recorded."""
        self.members: dict[str, ConsumerMember] = {}
        self.places: dict[str, CurrentMemberAssignmentValue] = {}
        """States of members whose subscription comes later in the log, because compaction has removed an earlier record
        of the subscription."""
        self.target_epoch = 0
        self.targets: dict[str, Assignment] = {}

    def copy(self) -> "ConsumerGroup":
        twin = ConsumerGroup()
        twin.epoch, twin.metadata_hash, twin.target_epoch = self.epoch, self.metadata_hash, self.target_epoch
        twin.expressions = dict(self.expressions)
        twin.members, twin.places, twin.targets = dict(self.members), dict(self.places), dict(self.targets)
        return twin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsumerGroup) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    @property
    def is_gone(self) -> bool:
        return self.epoch is None and not (
            self.members or self.places or self.targets or self.target_epoch or self.expressions
        )

    @property
    def member_ids(self) -> list[str]:
        """Every member with a record of any kind."""
        return list(dict.fromkeys((*self.members, *self.places, *self.targets)))

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Apply one record. The only place where the group changes."""
        value, member_id = record.value, record.member_id
        match value:
            case ConsumerGroupMetadataValue():
                self.epoch, self.metadata_hash = value.epoch, value.metadata_hash
            case ConsumerGroupMemberMetadataValue():
                self._subscribe(member_id, value)
            case TargetAssignmentMetadataValue():
                self.target_epoch = value.assignment_epoch
            case TargetAssignmentMemberValue():
                self.targets[member_id] = Assignment.read(value.topic_partitions)
            case CurrentMemberAssignmentValue():
                self._place(member_id, value)
            case RegularExpressionValue():
                self.expressions[record.regular_expression] = frozenset(value.topics)
            case None:
                self._remove(record)

    def _subscribe(self, member_id: str, value: ConsumerGroupMemberMetadataValue) -> None:
        for names in self.subscriptions:
            if names == value.subscribed_topic_names:
                # Most members have the same subscription: its names are stored and examined only once.
                value = replace_fields(value, subscribed_topic_names=names)
                break
        known = self.members.get(member_id)
        if known is not None:
            self.members[member_id] = replace(known, subscription=value)
            return
        self.members[member_id] = ConsumerMember(member_id=member_id, subscription=value)
        place = self.places.pop(member_id, None)
        if place is not None:
            self._place(member_id, place)

    def _place(self, member_id: str, value: CurrentMemberAssignmentValue) -> None:
        member = self.members.get(member_id)
        if member is None:
            self.places[member_id] = value
        else:
            self.members[member_id] = replace(
                member,
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=MemberState(value.state) if value.state in _STATES else MemberState.UNKNOWN,
                assigned=Assignment.read(value.assigned_partitions),
                pending_revocation=Assignment.read(value.partitions_pending_revocation),
            )

    def _remove(self, record: ConsumerGroupRecord) -> None:
        match record.kind:
            case ConsumerRecordKind.GROUP:
                self.epoch, self.metadata_hash = None, 0
            case ConsumerRecordKind.MEMBER:
                self.members.pop(record.member_id, None)
                self.places.pop(record.member_id, None)
            case ConsumerRecordKind.TARGET:
                self.target_epoch = 0
            case ConsumerRecordKind.EXPRESSION:
                self.expressions.pop(record.regular_expression, None)
            case ConsumerRecordKind.TARGET_MEMBER:
                self.targets.pop(record.member_id, None)
            case ConsumerRecordKind.CURRENT:
                self.places.pop(record.member_id, None)
                member = self.members.get(record.member_id)
                if member is not None:
                    self.members[record.member_id] = ConsumerMember(
                        member_id=record.member_id, subscription=member.subscription
                    )

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if (self.epoch or 0) > self.target_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_at(self.target_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    @property
    def topics(self) -> frozenset[str]:
        """The topics that any member subscribes to, by name or by a regular expression."""
        return frozenset().union(*self.subscriptions, *map(self.matches, self.subscribed_expressions))

    @property
    def subscriptions(self) -> Iterable[tuple[str, ...]]:
        """The lists of names that members subscribe to, each once."""
        found = (member.subscription.subscribed_topic_names for member in self.members.values())
        return {id(names): names for names in found}.values()

    @property
    def subscribed_expressions(self) -> frozenset[str]:
        """The regular expressions that any member subscribes to."""
        return frozenset(
            member.subscription.subscribed_topic_regex
            for member in self.members.values()
            if member.subscription.subscribed_topic_regex
        )

    def matches(self, expression: str | None) -> frozenset[str]:
        """The topics that the expression is known to match; no topics for None."""
        return frozenset() if expression is None else self.expressions.get(expression, frozenset())

    def static_member(self, instance_id: str) -> ConsumerMember | None:
        """The member with this instance id, or None."""
        return next((m for m in self.members.values() if m.subscription.instance_id == instance_id), None)

    @property
    def classic_members(self) -> list[ConsumerMember]:
        """The members with the classic protocol."""
        return [member for member in self.members.values() if member.is_classic]

    def held_by_others(self, member_id: str) -> Assignment:
        """Partitions that other members own or have not revoked yet."""
        others = (other for other in self.members.values() if other.member_id != member_id)
        return Assignment.union_of(held for other in others for held in (other.assigned, other.pending_revocation))

    def fault_of_commit(
        self, member_id: str, epoch: int, *, knows_epochs: bool, instance_id: str | None = None
    ) -> ErrorCode:
        """The error of a member's commit, or fetch, of offsets, or NONE. `knows_epochs`: OffsetCommit v9 and later."""
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if instance_id is not None:
            former = self.static_member(instance_id)
            if former is not None and former is not member and former.is_classic:
                return ErrorCode.FENCED_INSTANCE_ID
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.epoch and (member.is_classic or knows_epochs):
            return ErrorCode.NONE
        if member.is_classic:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.STALE_MEMBER_EPOCH if knows_epochs else ErrorCode.UNSUPPORTED_VERSION

    def assignor(self, default: str) -> str:
        """The assignor that most members name."""
        votes = Counter(
            member.subscription.server_assignor
            for member in self.members.values()
            if member.subscription.server_assignor is not None
        )
        return max(votes, key=lambda name: (votes[name], name)) if votes else default


@lru_cache(maxsize=256)
def _has_view(names: tuple[str, ...]) -> bool:
    """Whether a view has any of the names. Asked at each heartbeat; members share the tuple of their names."""
    return any(parse_view(name) is not None for name in names)


def with_record(group: ConsumerGroup | None, record: ConsumerGroupRecord) -> ConsumerGroup | None:
    """The group after the record, changed in place. None as `group`: there was no group; None as the result: there is
    no group any more."""
    group = group or ConsumerGroup()
    group.apply(record)
    return None if group.is_gone else group


@dataclass(frozen=True, slots=True)
class SubscribableTopic:
    """A topic that exists."""

    topic_id: bytes
    partition_count: int


class Topics(Protocol):
    """The present topics of the cluster."""

    @property
    def version(self) -> int:
        """A number that changes with each change of a topic, a rule of access, or the matches of an expression."""
        ...

    def find(self, name: str) -> SubscribableTopic | None:
        """The topic that has this name."""
        ...

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic that has this id."""
        ...

    def matches(self, expression: str) -> RegularExpressionValue | None:
        """The topics that an expression matches; None until the expression is resolved, which changes `version`."""
        ...

    def described_by(self, principal: str, client_host: str, names: frozenset[str]) -> frozenset[str]:
        """The topics of these names that a client may describe; a change of the rules of access changes `version`. An
        empty principal is unknown, and may describe nothing where rules decide."""
        ...
