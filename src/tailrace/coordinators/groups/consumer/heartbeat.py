"""What becomes of a ConsumerGroupHeartbeat, given the group as it stands (KIP-848; pure).

A heartbeat may take four steps, each with its records: the member's subscription is new; that, or a change of the
topics, begins a new group epoch; a new epoch needs a new target; and the member goes one step towards its target.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Final

from tailrace.coordinators.groups.config import GroupConfig
from tailrace.coordinators.groups.consumer.assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Subscriber, TopicInfo
from tailrace.coordinators.groups.consumer.group import (
    NOT_THERE,
    NOTHING,
    Assignment,
    ConsumerGroup,
    ConsumerMember,
    read_assignment,
    stored,
)
from tailrace.coordinators.groups.consumer.reconciliation import reconcile
from tailrace.coordinators.groups.consumer.records import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerRecord,
    ConsumerRecordKind,
    ConsumerValue,
    RegularExpressionValue,
    StoredTopicPartitions,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
    of_modern_member,
)
from tailrace.coordinators.groups.history import GroupEventKind
from tailrace.coordinators.groups.records import GroupLogRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    HeartbeatAssignment,
    HeartbeatTopicPartitions,
)

FindTopic = Callable[[str], TopicInfo | None]
FindMatches = Callable[[str], RegularExpressionValue | None]
"""The topics that a regular expression matches now; None: that is not known yet, and the topics' version is another
when it is."""
Kind = ConsumerRecordKind

JOINING, LEAVING = 0, -1
MOST_EXPRESSIONS: Final = 100
"""Regular expressions of one group that differ: each is looked at whenever the topics change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat, with who sent it and what topics there are. The request is valid in itself."""

    request: ConsumerGroupHeartbeatRequest
    client_id: str
    client_host: str
    find_topic: FindTopic
    find_matches: FindMatches
    must_check_topics: bool = True
    """The topics may have changed since this group was last looked at."""


@dataclass(slots=True, kw_only=True)
class HeartbeatDecision:
    """The records and the answer, and what the coordinator has to remember."""

    group: ConsumerGroup
    """As it will be."""
    response: ConsumerGroupHeartbeatResponse
    records: tuple[GroupLogRecord, ...]
    events: tuple[tuple[GroupEventKind, str, str], ...]
    """Kind, member id and reason, for the history."""


@dataclass(slots=True)
class _Change:
    """A group that is being changed: copied when the first record comes, so that most heartbeats copy nothing."""

    group_id: str
    group: ConsumerGroup
    records: list[ConsumerRecord] = field(default_factory=list)
    events: list[tuple[GroupEventKind, str, str]] = field(default_factory=list)

    def emit(self, kind: ConsumerRecordKind, value: ConsumerValue | None, member_id: str = "") -> None:
        record = ConsumerRecord(kind=kind, group_id=self.group_id, member_id=member_id, value=value)
        self._take(record)

    def resolve(self, expression: str, value: RegularExpressionValue | None) -> None:
        """The expression matches these topics now; None: no member subscribes to it any more."""
        self._take(
            ConsumerRecord(
                kind=ConsumerRecordKind.EXPRESSION, group_id=self.group_id, regular_expression=expression, value=value
            )
        )

    def _take(self, record: ConsumerRecord) -> None:
        if not self.records:
            self.group = self.group.copy()
        self.records.append(record)
        self.group.apply(record)

    def note(self, kind: GroupEventKind, reason: str, member_id: str = "") -> None:
        self.events.append((kind, member_id, reason))

    def decided(self, response: ConsumerGroupHeartbeatResponse) -> HeartbeatDecision:
        return HeartbeatDecision(
            group=self.group, response=response, records=tuple(self.records), events=tuple(self.events)
        )


def heartbeat(group: ConsumerGroup | None, command: ConsumerHeartbeat, config: GroupConfig) -> HeartbeatDecision:
    """The decision. Raises KafkaError with what Kafka answers."""
    request = command.request
    if group is None and request.member_epoch != JOINING:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id!r}")
    change = _Change(request.group_id, group or ConsumerGroup())
    if request.member_epoch < 0:
        return _leave(change, request)
    owned = _owned(request)
    before = _find_member(change, request, owned, config)
    is_changed = _subscribe(change, before, command)
    if is_changed or command.must_check_topics:
        _resolve_expressions(change, command.find_matches)
    _begin_epoch(change, command, is_changed)
    if (change.group.epoch or 0) > change.group.target_epoch:
        _assign(change, command.find_topic)
    member = _step(change, request.member_id, owned)
    says_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    is_full = request.rebalance_timeout_ms != -1 and says_topics and owned is not None
    is_news = request.member_epoch == JOINING or before is None or before.assigned != member.assigned or is_full
    return change.decided(
        ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=config.heartbeat_interval_ms(request.group_id),
            assignment=_answered(member.assigned) if is_news else None,
        )
    )


def _owned(request: ConsumerGroupHeartbeatRequest) -> Assignment | None:
    if request.topic_partitions is None:
        return None
    return read_assignment(
        StoredTopicPartitions(topic_id=topic.topic_id, partitions=topic.partitions)
        for topic in request.topic_partitions
    )


def _answered(assignment: Assignment) -> HeartbeatAssignment:
    return HeartbeatAssignment(
        topic_partitions=tuple(
            HeartbeatTopicPartitions(topic_id=topic_id, partitions=tuple(sorted(assignment[topic_id])))
            for topic_id in sorted(assignment)
        )
    )


def _find_member(
    change: _Change, request: ConsumerGroupHeartbeatRequest, owned: Assignment | None, config: GroupConfig
) -> ConsumerMember | None:
    """The member that asks, None for a new one. A static member that is back has taken its former self's place."""
    group, member_id = change.group, request.member_id
    known = group.members.get(member_id)
    former = group.static_member(request.instance_id) if request.instance_id is not None else None
    if request.member_epoch != JOINING:
        member = _existing(request, known, former)
        _check_epoch(member, request.member_epoch, owned)
        return member
    if former is not None and former.epoch == NOT_THERE:
        return _take_place(change, former, member_id)
    if former is not None and former is not known:
        detail = f"group.instance.id {request.instance_id!r} is in use by member {former.member_id}"
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, detail)
    if known is None and len(group.members) >= config.group_consumer_max_size:
        detail = (
            f"group {request.group_id!r} has {len(group.members)} members, as many as group.consumer.max.size lets in"
        )
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)
    return known


def _existing(
    request: ConsumerGroupHeartbeatRequest, known: ConsumerMember | None, former: ConsumerMember | None
) -> ConsumerMember:
    if request.instance_id is not None:
        if former is None:
            detail = f"group.instance.id {request.instance_id!r} is in no member of group {request.group_id!r}"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)
        if former.member_id != request.member_id:
            detail = f"group.instance.id {request.instance_id!r} belongs to member {former.member_id} now"
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, detail)
    if known is None:
        detail = f"{request.member_id!r} is no member of group {request.group_id!r}; join again with epoch 0"
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)
    return known


def _check_epoch(member: ConsumerMember, epoch: int, owned: Assignment | None) -> None:
    """The member's epoch; or the one before, if the answer with the new one may have been lost."""
    if epoch == member.epoch:
        return
    may_have_missed = (
        epoch == member.previous_epoch
        and epoch < member.epoch
        and owned is not None
        and all(partitions <= member.assigned.get(topic_id, frozenset()) for topic_id, partitions in owned.items())
    )
    if not may_have_missed:
        detail = (
            f"member {member.member_id} is in epoch {member.epoch}, not {epoch}; drop all partitions and join again"
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, detail)


def _take_place(change: _Change, former: ConsumerMember, member_id: str) -> ConsumerMember:
    target = change.group.targets.get(former.member_id)
    forget(change.emit, former.member_id)
    change.emit(Kind.MEMBER, former.subscription, member_id)
    if target is not None:
        change.emit(Kind.TARGET_MEMBER, TargetAssignmentMemberValue(topic_partitions=stored(target)), member_id)
    back = replace(former, member_id=member_id, epoch=0, previous_epoch=0)
    change.emit(Kind.CURRENT, back.current(), member_id)
    change.note(GroupEventKind.JOIN, f"static member {former.subscription.instance_id!r} is back", member_id)
    return change.group.members[member_id]


def forget(emit: Callable[[ConsumerRecordKind, None, str], None], member_id: str) -> None:
    """Tombstones for all that is recorded of a member."""
    for kind in (Kind.CURRENT, Kind.TARGET_MEMBER, Kind.MEMBER):
        emit(kind, None, member_id)


def _subscribe(change: _Change, before: ConsumerMember | None, command: ConsumerHeartbeat) -> bool:
    """Record what the member wants, if that is new; True if the group needs another assignment for it."""
    request = command.request
    old = before.subscription if before is not None else None
    new = _merged(old, command)
    if old == new:
        return False
    if old is None:
        reason = f"a new member of client {command.client_id!r} at {command.client_host}"
        change.note(GroupEventKind.JOIN, reason, request.member_id)
    change.emit(Kind.MEMBER, new, request.member_id)
    if len(change.group.subscribed_expressions) > MOST_EXPRESSIONS:
        detail = f"group {request.group_id!r} has {MOST_EXPRESSIONS} regular expressions already; use one of those"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
    return (
        old is None
        or set(old.subscribed_topic_names) != set(new.subscribed_topic_names)
        or old.subscribed_topic_regex != new.subscribed_topic_regex
    )


def _merged(
    old: ConsumerGroupMemberMetadataValue | None, command: ConsumerHeartbeat
) -> ConsumerGroupMemberMetadataValue:
    """What the request says, and where it is silent what was said before."""
    request = command.request
    names = request.subscribed_topic_names
    wanted = ConsumerGroupMemberMetadataValue(
        instance_id=request.instance_id if request.instance_id is not None else (old.instance_id if old else None),
        rack_id=request.rack_id if request.rack_id is not None else (old.rack_id if old else None),
        client_id=command.client_id,
        client_host=command.client_host,
        subscribed_topic_names=tuple(sorted(set(names)))
        if names is not None
        else (old.subscribed_topic_names if old else ()),
        subscribed_topic_regex=(request.subscribed_topic_regex or None)  # empty: none from now on
        if request.subscribed_topic_regex is not None
        else (old.subscribed_topic_regex if old else None),
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms >= 0 or old is None
        else old.rebalance_timeout_ms,
        server_assignor=request.server_assignor
        if request.server_assignor is not None
        else (old.server_assignor if old else None),
    )
    return of_modern_member(wanted)


def _resolve_expressions(change: _Change, find_matches: FindMatches) -> None:
    """Record what the group's regular expressions match where that is not what it was."""
    subscribed = change.group.subscribed_expressions
    for expression in sorted(subscribed):
        found = find_matches(expression)
        if found is not None and change.group.expressions.get(expression) != frozenset(found.topics):
            change.resolve(expression, found)
    _forget_expressions(change, subscribed)


def _forget_expressions(change: _Change, subscribed: frozenset[str]) -> None:
    for expression in sorted(change.group.expressions.keys() - subscribed):
        change.resolve(expression, None)


def _begin_epoch(change: _Change, command: ConsumerHeartbeat, is_changed: bool) -> None:
    """A new group epoch, if subscriptions or topics are not what they were."""
    group = change.group
    if not is_changed and not command.must_check_topics:
        return
    metadata_hash = _hash(group.topics, command.find_topic)
    if is_changed or metadata_hash != group.metadata_hash:
        bump_epoch(change, metadata_hash)
        cause = f"{command.request.member_id} joined or subscribed anew" if is_changed else "topics changed"
        change.note(GroupEventKind.REBALANCE, f"epoch {change.group.epoch}: {cause}")


def bump_epoch(change: _Change, metadata_hash: int) -> None:
    """The next group epoch."""
    epoch = (change.group.epoch or 0) + 1
    change.emit(Kind.GROUP, ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash))


def _hash(names: frozenset[str], find_topic: FindTopic) -> int:
    """Other topics, other partition counts: another number. 0 for no topics."""
    found = [(name, topic) for name in sorted(names) if (topic := find_topic(name)) is not None]
    if not found:
        return 0
    digest = blake2b(digest_size=8)
    for name, topic in found:
        digest.update(f"{name}\0{topic.partition_count}\0".encode() + topic.topic_id)
    return int.from_bytes(digest.digest(), "big", signed=True)


def _assign(change: _Change, find_topic: FindTopic) -> None:
    """A target for everybody, for the group's present epoch."""
    group = change.group
    topics = {name: topic for name in group.topics if (topic := find_topic(name)) is not None}
    wishes = {_wish(member) for member in group.members.values()}
    ids = {
        (names, expression): frozenset(
            topics[name].topic_id for name in group.matches(expression).union(names) if name in topics
        )
        for names, expression in wishes
    }
    members = [
        Subscriber(
            member_id=member.member_id,
            order=member.subscription.instance_id or member.member_id,
            topic_ids=ids[_wish(member)],
            target=group.targets.get(member.member_id, NOTHING),
        )
        for member in group.members.values()
    ]
    name = group.assignor(DEFAULT_ASSIGNOR)
    counts = {topic.topic_id: topic.partition_count for topic in topics.values()}
    for member_id, target in ASSIGNORS[name](members, counts).items():
        if group.targets.get(member_id) != target:
            value = TargetAssignmentMemberValue(topic_partitions=stored(target))
            change.emit(Kind.TARGET_MEMBER, value, member_id)
    change.emit(Kind.TARGET, TargetAssignmentMetadataValue(assignment_epoch=group.epoch or 0))
    change.note(GroupEventKind.ASSIGNED, f"epoch {group.epoch}: assignor: {name}, members: {len(members)}")


def _wish(member: ConsumerMember) -> tuple[tuple[str, ...], str | None]:
    """What it subscribes to: by name, and by an expression."""
    return member.subscription.subscribed_topic_names, member.subscription.subscribed_topic_regex


def _step(change: _Change, member_id: str, owned: Assignment | None) -> ConsumerMember:
    group = change.group
    member = group.members[member_id]
    if member.is_at(group.target_epoch):
        return member
    step = reconcile(
        member,
        group.targets.get(member_id, NOTHING),
        group.target_epoch,
        owned=owned,
        held_by_others=group.held_by_others(member_id),
    )
    if step is not member:
        change.emit(Kind.CURRENT, step.current(), member_id)
    return step


def _leave(change: _Change, request: ConsumerGroupHeartbeatRequest) -> HeartbeatDecision:
    group, member_id = change.group, request.member_id
    former = group.static_member(request.instance_id) if request.instance_id is not None else None
    member = _existing(request, group.members.get(member_id), former)
    if request.member_epoch == NOT_THERE:
        away = replace(member, epoch=NOT_THERE, previous_epoch=member.epoch, pending_revocation={})
        change.emit(Kind.CURRENT, away.current(), member_id)
        change.note(GroupEventKind.LEAVE, "static member, expected back within its session", member_id)
    else:
        change.note(GroupEventKind.LEAVE, "it left", member_id)
        _remove(change, member_id)
    return change.decided(ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch))


def _remove(change: _Change, member_id: str) -> None:
    metadata_hash = change.group.metadata_hash
    forget(change.emit, member_id)
    _forget_expressions(change, change.group.subscribed_expressions)
    bump_epoch(change, metadata_hash)
    change.note(GroupEventKind.REBALANCE, f"epoch {change.group.epoch}: {member_id} is gone")


def removal(group_id: str, group: ConsumerGroup, member_id: str, reason: str) -> HeartbeatDecision:
    """A member that is in the group is thrown out, for a reason that people read."""
    change = _Change(group_id, group)
    change.note(GroupEventKind.EXPIRED, reason, member_id)
    _remove(change, member_id)
    return change.decided(ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=LEAVING))


def retirement(group_id: str, group: ConsumerGroup) -> tuple[ConsumerRecord, ...]:
    """Tombstones for all that is recorded of the group."""
    change = _Change(group_id, group)
    for member_id in group.member_ids:
        forget(change.emit, member_id)
    _forget_expressions(change, frozenset())
    change.emit(Kind.TARGET, None)
    change.emit(Kind.GROUP, None)
    return tuple(change.records)
