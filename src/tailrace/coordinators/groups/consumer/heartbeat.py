"""The decision on a ConsumerGroupHeartbeat, given the group (KIP-848; pure), by the steps in `steps`."""

from dataclasses import dataclass, replace
from typing import Final

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.consumer import steps
from tailrace.coordinators.groups.consumer.assignment import NOTHING, Assignment
from tailrace.coordinators.groups.consumer.assignors import ASSIGNORS
from tailrace.coordinators.groups.consumer.change import ConsumerGroupDecision, GroupChange, Kind
from tailrace.coordinators.groups.consumer.group import (
    NOT_THERE,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Topics,
)
from tailrace.coordinators.groups.consumer_records import ConsumerGroupMemberMetadataValue
from tailrace.coordinators.groups.history import GroupEventKind
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

HeartbeatDecision = ConsumerGroupDecision[ConsumerGroupHeartbeatResponse]

JOINING, LEAVING = 0, -1
WAITING_INTERVAL_MS: Final = 250
"""The heartbeat interval of a member that waits for partitions of other members: its next heartbeat brings them."""
SHARING_INTERVAL_MS: Final = 500
"""The longest heartbeat interval of a member that shares topics by key: a key that another member has given up waits
for the next heartbeat of its new owner."""
_MEMBER_MS: Final = 5
"""In a large group many members have such short intervals at once: the least time between heartbeats for each
member."""
MOST_EXPRESSIONS: Final = 100
"""The most different regular expressions of a group: at a change of topics every expression is matched again."""
MOST_NAMES: Final = 50_000
"""The most names of topics in the different subscriptions of a group: any change of a subscription reads every name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """A heartbeat and its client. `check_heartbeat` has accepted the request."""

    request: ConsumerGroupHeartbeatRequest
    client_id: str
    client_host: str
    principal: str = ""
    """The principal of the client; empty where no rules decide on access."""
    must_check_topics: bool = True
    """Whether the topics may have changed since the last check of this group."""


def heartbeat(
    group: ConsumerGroup | None, command: ConsumerHeartbeat, topics: Topics, config: GroupConfig
) -> HeartbeatDecision:
    """The decision on the heartbeat. Raises KafkaError with Kafka's code."""
    request = command.request
    if group is None and request.member_epoch != JOINING:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id!r}")
    change = GroupChange(request.group_id, group or ConsumerGroup())
    if request.member_epoch < 0:
        return _leave(change, request, topics, config)
    owned = None if request.topic_partitions is None else Assignment.read(request.topic_partitions)
    before = _find_member(change, request, owned, config)
    is_changed = _subscribe(change, before, command)
    steps.settle(
        change,
        topics,
        newly_subscribed=request.member_id if is_changed else None,
        must_check_topics=command.must_check_topics,
    )
    member = steps.advance(change, request.member_id, owned)
    says_topics = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    is_full = request.rebalance_timeout_ms != -1 and says_topics and owned is not None
    is_news = request.member_epoch == JOINING or before is None or before.assigned != member.assigned or is_full
    return change.decided(
        ConsumerGroupHeartbeatResponse(
            member_id=member.member_id,
            member_epoch=member.epoch,
            heartbeat_interval_ms=_interval_ms(change.group, member, config.heartbeat_interval_ms(request.group_id)),
            assignment=member.assigned.answered() if is_news else None,
        )
    )


def _interval_ms(group: ConsumerGroup, member: ConsumerMember, configured_ms: int) -> int:
    """The time to the next heartbeat. No key may wait for long between two owners (decision 0105)."""
    if member.state is MemberState.UNRELEASED_PARTITIONS:
        longest_ms = WAITING_INTERVAL_MS
    elif member.shares_by_key:
        longest_ms = SHARING_INTERVAL_MS
    else:
        return configured_ms
    return min(configured_ms, max(longest_ms, _MEMBER_MS * len(group.members)))


def _find_member(
    change: GroupChange, request: ConsumerGroupHeartbeatRequest, owned: Assignment | None, config: GroupConfig
) -> ConsumerMember | None:
    """The member of the request, None for a new member. If a static member is back, the new id replaces the former id
    here."""
    group, member_id = change.group, request.member_id
    known = group.members.get(member_id)
    former = group.static_member(request.instance_id) if request.instance_id is not None else None
    if request.member_epoch != JOINING:
        member = _existing(request, known, former)
        if member.is_classic:
            detail = f"member {member.member_id} speaks the classic protocol; join with epoch 0 to speak this one"
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)
        _check_epoch(member, request.member_epoch, owned)
        return member
    if former is not None and (former.epoch == NOT_THERE or (former.is_classic and former is not known)):
        return steps.take_place(change, former, member_id)
    if former is not None and former is not known:
        detail = f"group.instance.id {request.instance_id!r} is in use by member {former.member_id}"
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID, detail)
    if known is None:
        steps.check_size(change, config)
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
    """Check the epoch that the member names: the member's epoch or, if the answer with this epoch may have been lost,
    the previous epoch."""
    if epoch == member.epoch:
        return
    may_have_missed = (
        epoch == member.previous_epoch and epoch < member.epoch and owned is not None and owned <= member.held
    )
    if not may_have_missed:
        detail = (
            f"member {member.member_id} is in epoch {member.epoch}, not {epoch}; drop all partitions and join again"
        )
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, detail)


def _subscribe(change: GroupChange, before: ConsumerMember | None, command: ConsumerHeartbeat) -> bool:
    """Record a changed subscription of the member; returns whether the group therefore needs a new assignment."""
    old = before.subscription if before is not None else None
    is_changed = steps.subscribe(change, command.request.member_id, old, _merged(old, command))
    if is_changed and len(change.group.subscribed_expressions) > MOST_EXPRESSIONS:
        detail = f"group {change.group_id!r} has {MOST_EXPRESSIONS} regular expressions already; use a known expression"
        raise KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
    if is_changed and (names := sum(map(len, change.group.subscriptions))) > MOST_NAMES:
        detail = f"the members of group {change.group_id!r} would subscribe to {names} names; {MOST_NAMES} is the limit"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, detail)
    return is_changed


def _merged(
    old: ConsumerGroupMemberMetadataValue | None, command: ConsumerHeartbeat
) -> ConsumerGroupMemberMetadataValue:
    """The fields of the request, with the previous values for fields that the request leaves out."""
    request = command.request
    names, expression = request.subscribed_topic_names, request.subscribed_topic_regex
    before = old or ConsumerGroupMemberMetadataValue(client_id="", client_host="")
    return ConsumerGroupMemberMetadataValue(
        instance_id=before.instance_id if request.instance_id is None else request.instance_id,
        rack_id=before.rack_id if request.rack_id is None else request.rack_id,
        client_id=command.client_id,
        client_host=command.client_host,
        principal=command.principal,
        subscribed_topic_names=before.subscribed_topic_names if names is None else tuple(sorted(set(names))),
        # An empty expression: the member subscribes to no expression any more.
        subscribed_topic_regex=before.subscribed_topic_regex if expression is None else expression or None,
        rebalance_timeout_ms=request.rebalance_timeout_ms
        if request.rebalance_timeout_ms >= 0 or old is None
        else old.rebalance_timeout_ms,
        server_assignor=before.server_assignor if request.server_assignor is None else request.server_assignor,
        classic_member_metadata=None,
    )


def _leave(
    change: GroupChange, request: ConsumerGroupHeartbeatRequest, topics: Topics, config: GroupConfig
) -> HeartbeatDecision:
    group, member_id = change.group, request.member_id
    former = group.static_member(request.instance_id) if request.instance_id is not None else None
    member = _existing(request, group.members.get(member_id), former)
    if member.is_classic:
        detail = f"member {member_id} speaks the classic protocol, and leaves with LeaveGroup"
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, detail)
    if request.member_epoch == NOT_THERE:
        away = replace(member, epoch=NOT_THERE, previous_epoch=member.epoch, pending_revocation=NOTHING)
        change.emit(Kind.CURRENT, away.current(), member_id)
        change.add_event(GroupEventKind.LEAVE, "static member, expected back within its session", member_id)
    else:
        change.add_event(GroupEventKind.LEAVE, "it left", member_id)
        steps.remove(change, (member_id,), topics, config)
    return change.decided(ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=request.member_epoch))


def removal(
    group_id: str, group: ConsumerGroup, member_id: str, reason: str, topics: Topics, config: GroupConfig
) -> HeartbeatDecision:
    """Remove a member that is in the group; `reason` is a text for `describe`."""
    change = GroupChange(group_id, group)
    change.add_event(GroupEventKind.EXPIRED, reason, member_id)
    steps.remove(change, (member_id,), topics, config)
    return change.decided(ConsumerGroupHeartbeatResponse(member_id=member_id, member_epoch=LEAVING))


_FIRST_WITH_OWN_MEMBER_ID = 1
_LONGEST_NAME = 8191
"""Characters: a longer name does not fit into the group's records."""


def check_heartbeat(request: ConsumerGroupHeartbeatRequest, version: int, *, max_bytes: int) -> None:
    """Raises KafkaError INVALID_REQUEST (42), UNSUPPORTED_ASSIGNOR (112)."""
    fault = _fault(request, version) or _fault_of_size(request, max_bytes)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    if request.server_assignor is not None and request.server_assignor not in ASSIGNORS:
        detail = f"assignor {request.server_assignor!r} is not served; known are {', '.join(ASSIGNORS)}"
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR, detail)


def _fault(request: ConsumerGroupHeartbeatRequest, version: int) -> str | None:
    if not request.group_id.strip():
        return "the group id is empty"
    if request.instance_id == "" or request.rack_id == "":
        return "an instance id or a rack id is null or not empty"
    if any(len(name or "") > _LONGEST_NAME for name in (request.member_id, request.instance_id, request.rack_id)):
        return f"a name in the request has more than {_LONGEST_NAME} characters"
    if request.member_epoch < NOT_THERE:
        return f"member epoch {request.member_epoch} means nothing"
    if not request.member_id.strip() and (request.member_epoch != 0 or version >= _FIRST_WITH_OWN_MEMBER_ID):
        return "the member id is empty"
    if request.member_epoch == NOT_THERE and request.instance_id is None:
        return "only a static member, with an instance id, leaves temporarily"
    if request.member_epoch == 0:
        return _fault_of_join(request)
    return None


def _fault_of_size(request: ConsumerGroupHeartbeatRequest, max_bytes: int) -> str | None:
    """The fault of a subscription that is too large for one record."""
    names = request.subscribed_topic_names or ()
    if sum(len(name.encode()) + 4 for name in names) > max_bytes:
        return f"the names of the subscribed topics take more than group.max.metadata.bytes={max_bytes}"
    return None


def _fault_of_join(request: ConsumerGroupHeartbeatRequest) -> str | None:
    if request.rebalance_timeout_ms == -1:
        return "a member that joins needs a rebalance timeout"
    if request.topic_partitions is None or request.topic_partitions:
        return "a member that joins owns no partitions: the list is empty, not null"
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        return "a member that joins needs a subscription"
    return None
