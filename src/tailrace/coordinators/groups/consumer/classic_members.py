"""Members of a consumer group that speak the classic protocol (KIP-848, "Upgrading"; pure).

Members with the classic protocol get their assignments by the same steps as other members, with other messages: the
answer to a Heartbeat demands a new JoinGroup, a JoinGroup has the member's subscription and owned partitions, and the
answer to a SyncGroup has the member's assignment. No member leads or waits for another: a JoinGroup is answered after
its commit. A member's epoch is its generation.
"""

from collections.abc import Callable

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups import answers
from tailrace.coordinators.groups.consumer import steps
from tailrace.coordinators.groups.consumer.assignment import NOTHING
from tailrace.coordinators.groups.consumer.change import ConsumerGroupDecision, GroupChange
from tailrace.coordinators.groups.consumer.conversion import (
    assignment_bytes,
    by_id,
    classic_subscription,
    protocols_of,
    subscription_of,
)
from tailrace.coordinators.groups.consumer.group import ConsumerGroup, ConsumerMember, MemberState, Topics
from tailrace.coordinators.groups.events import (
    Asked,
    HeartbeatAsked,
    JoinAsked,
    LeaveAsked,
    MembershipResponse,
    SyncAsked,
)
from tailrace.coordinators.groups.history import GroupEventKind, in_clients_words
from tailrace.coordinators.groups.joining import NewMemberId, fault_of_size
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.consumer_protocol import PROTOCOL_TYPE
from tailrace.protocol.messages.membership import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupResponse,
)

ClassicDecision = ConsumerGroupDecision[MembershipResponse]

_LONGEST_MEMBER_ID = 8191
"""Characters: a longer id does not fit into the group's records."""


class ClassicMembers:
    """The requests of classic members to one consumer group that has members."""

    def __init__(
        self,
        group_id: str,
        group: ConsumerGroup,
        *,
        topics: Topics,
        must_check_topics: bool,
        config: GroupConfig,
        new_member_id: NewMemberId,
    ) -> None:
        self._group = group
        self._change = GroupChange(group_id, group)
        self._topics = topics
        self._must_check_topics = must_check_topics
        self._config = config
        self._new_member_id = new_member_id

    def decide(self, event: Asked) -> ClassicDecision:
        """The decision. Raises KafkaError with Kafka's code."""
        handlers: dict[type[Asked], Callable[..., MembershipResponse]] = {
            JoinAsked: self._join,
            SyncAsked: self._sync,
            HeartbeatAsked: self._heartbeat,
            LeaveAsked: self._leave,
        }
        response = handlers[type(event)](event)
        return self._change.decided(response)

    def _join(self, event: JoinAsked) -> MembershipResponse:
        request = event.request
        protocols = self._checked_protocols(event)
        before, member_id = self._joining_member(event)
        if member_id is None:
            given = self._new_member_id(event.client_id)
            return answers.join_refused(ErrorCode.MEMBER_ID_REQUIRED, given)
        new = classic_subscription(
            protocols,
            instance_id=request.group_instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
        )
        is_changed = steps.subscribe(self._change, member_id, None if before is None else before.subscription, new)
        if steps.downgrade(self._change, self._topics, self._config):
            # A static member has replaced the last member with the other protocol: next the static member joins the
            # classic group.
            return answers.join_refused(ErrorCode.REBALANCE_IN_PROGRESS, member_id)
        self._settle(member_id if is_changed else None)
        owned = subscription_of(next(iter(protocols.values()))).owned_partitions
        member = steps.advance(self._change, member_id, by_id(owned, self._topics))
        return JoinGroupResponse(
            generation_id=member.epoch,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=next(iter(protocols)),
            leader="",
            member_id=member_id,
            members=(),
        )

    def _settle(self, newly_subscribed: str | None) -> None:
        steps.settle(
            self._change,
            self._topics,
            newly_subscribed=newly_subscribed,
            must_check_topics=self._must_check_topics,
        )

    def _checked_protocols(self, event: JoinAsked) -> dict[str, bytes]:
        request, config = event.request, self._config
        shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            raise KafkaError(ErrorCode.INVALID_SESSION_TIMEOUT, f"session.timeout.ms={request.session_timeout_ms}")
        fault = fault_of_size(request, config)
        if fault or len(request.member_id) > _LONGEST_MEMBER_ID:
            raise KafkaError(fault or ErrorCode.UNKNOWN_MEMBER_ID, "the member's protocols or id are too large")
        protocols = {protocol.name: protocol.metadata for protocol in request.protocols}
        others = [m for m in self._group.classic_members if m.member_id != request.member_id]
        common = set(protocols).intersection(*map(protocols_of, others)) if others else set(protocols)
        if request.protocol_type != PROTOCOL_TYPE or not common:
            detail = f"group {self._change.group_id!r} is one of consumers that share an assignor"
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, detail)
        for metadata in protocols.values():
            subscription_of(metadata)
        return protocols

    def _joining_member(self, event: JoinAsked) -> tuple[ConsumerMember | None, str | None]:
        """The present member, or None for a new member; and the member id, or None if the member has to join again with
        an id."""
        request, group = event.request, self._group
        if request.member_id:
            former = group.static_member(request.group_instance_id) if request.group_instance_id is not None else None
            known = group.members.get(request.member_id)
            if request.group_instance_id is not None or (known is not None and not known.is_classic):
                return _existing(known, former, request.member_id, request.group_instance_id), request.member_id
            if known is None:
                # The id was given by this group, or by the classic group before the conversion.
                steps.check_size(self._change, self._config)
            return known, request.member_id
        if request.group_instance_id is None:
            steps.check_size(self._change, self._config)
            return None, None if event.must_know_its_id else self._new_member_id(event.client_id)
        member_id = self._new_member_id(request.group_instance_id)
        former = group.static_member(request.group_instance_id)
        if former is not None:
            return steps.take_place(self._change, former, member_id), member_id
        steps.check_size(self._change, self._config)
        return None, member_id

    def _member(self, member_id: str, instance_id: str | None) -> ConsumerMember:
        former = None if instance_id is None else self._group.static_member(instance_id)
        return _existing(self._group.members.get(member_id), former, member_id, instance_id)

    def _sync(self, event: SyncAsked) -> SyncGroupResponse:
        request = event.request
        member = self._member(request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        protocol_name, metadata = next(iter(protocols_of(member).items()), ("", b""))
        if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, protocol_name):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"the member joined with {protocol_name!r}")
        is_behind = (self._group.epoch or 0) > member.epoch
        if is_behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            return answers.sync_refused(ErrorCode.REBALANCE_IN_PROGRESS)
        return SyncGroupResponse(
            protocol_type=PROTOCOL_TYPE,
            protocol_name=protocol_name,
            assignment=assignment_bytes(member.assigned, self._topics, metadata),
        )

    def _heartbeat(self, event: HeartbeatAsked) -> HeartbeatResponse:
        request = event.request
        member = self._member(request.member_id, request.group_instance_id)
        _check_generation(member, request.generation_id)
        # Classic members except a leader do not check for changes of topics: the coordinator does.
        self._settle(None)
        group = self._change.group
        must_join = (
            member.epoch < (group.epoch or 0)
            or member.state is MemberState.UNREVOKED_PARTITIONS
            or (member.state is MemberState.UNRELEASED_PARTITIONS and _is_all_free(group, member))
        )
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if must_join else ErrorCode.NONE)

    def _leave(self, event: LeaveAsked) -> LeaveGroupResponse:
        leaving: dict[str, None] = {}
        results = tuple(self._leaving(identity, leaving) for identity in event.request.members)
        if leaving:
            steps.remove(self._change, tuple(leaving), self._topics, self._config)
        return LeaveGroupResponse(members=results)

    def _leaving(self, identity: MemberIdentity, leaving: dict[str, None]) -> MemberResponse:
        code = ErrorCode.NONE
        try:
            member = self._member_that_leaves(identity)
        except KafkaError as fault:
            code = fault.code
        else:
            if member.member_id in leaving:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                leaving[member.member_id] = None
                reason = f"it left{in_clients_words(identity.reason)}"
                self._change.add_event(GroupEventKind.LEAVE, reason, member.member_id)
        return MemberResponse(
            member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=code
        )

    def _member_that_leaves(self, identity: MemberIdentity) -> ConsumerMember:
        if not identity.member_id and identity.group_instance_id is not None:
            # An administrator removes a static member, of either protocol, by its instance id alone.
            member = self._group.static_member(identity.group_instance_id)
            if member is not None:
                return member
        return self._member(identity.member_id, identity.group_instance_id)


def _existing(
    known: ConsumerMember | None, former: ConsumerMember | None, member_id: str, instance_id: str | None
) -> ConsumerMember:
    """A member with the classic protocol; `former` is the member with this instance id."""
    if former is not None and former.member_id != member_id:
        detail = f"group.instance.id {instance_id!r} belongs to member {former.member_id} now"
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID, detail)
    if known is None or not known.is_classic or (instance_id is not None and former is None):
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id!r} is no member with the classic protocol")
    return known


def _check_generation(member: ConsumerMember, generation_id: int) -> None:
    if generation_id != member.epoch:
        detail = f"member {member.member_id} is in generation {member.epoch}, not {generation_id}"
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION, detail)


def _is_all_free(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Whether the other members have given up all partitions of the member's target."""
    return group.targets.get(member.member_id, NOTHING).isdisjoint(group.held_by_others(member.member_id))
