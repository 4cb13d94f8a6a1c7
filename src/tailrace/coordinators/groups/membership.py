"""Membership of a classic group: one machine per group, for JoinGroup, SyncGroup, Heartbeat, LeaveGroup, expiry.

Rules:
1. Every request is answered exactly once. JoinGroup may wait for the end of PreparingRebalance, SyncGroup for Stable; a
   repeated request replaces the waiting request, which is answered REBALANCE_IN_PROGRESS.
2. A session lasts while the member sends heartbeats or commits within its timeout, or has a waiting request.
3. States and their changes are in `rebalance`; this module checks which requests a member may send.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from tailrace.coordinators.config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupConfig
from tailrace.coordinators.groups import answers
from tailrace.coordinators.groups.events import (
    Abandoned,
    Effect,
    Event,
    GroupEffects,
    HeartbeatAsked,
    JoinAsked,
    LeaveAsked,
    MetadataCommitted,
    MetadataFailed,
    OffsetsCommitted,
    SyncAsked,
)
from tailrace.coordinators.groups.group import ClassicGroup, GroupState, Member
from tailrace.coordinators.groups.history import GroupEventKind, GroupHistory, in_clients_words
from tailrace.coordinators.groups.joining import Joining, NewMemberId
from tailrace.coordinators.groups.rebalance import Rebalance
from tailrace.model.errors import ErrorCode
from tailrace.model.machines import Tick
from tailrace.protocol.messages.membership import (
    HeartbeatResponse,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
    SyncGroupRequest,
)


class GroupMembership:
    """The machine of one group. Times in ms of the host's monotonic clock."""

    def __init__(
        self,
        group: ClassicGroup,
        *,
        config: GroupConfig,
        history: GroupHistory,
        new_member_id: NewMemberId,
        write_ids: Iterator[int],
    ) -> None:
        self.group = group
        self._config = config
        self._history = history
        self._effects = GroupEffects(group.group_id, write_ids)
        self._rebalance = Rebalance(group, self._effects, config, history)
        self._joining = Joining(
            group, self._rebalance, self._effects, config=config, history=history, new_member_id=new_member_id
        )

    @property
    def next_deadline_ms(self) -> int | None:
        """A time that is not later than the next deadline. A Tick that comes too early does nothing."""
        deadlines = (self.group.session_alarm_ms, self._rebalance.join_deadline_ms, self._rebalance.sync_deadline_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def is_idle(self) -> bool:
        """Whether the membership has no state besides the state in the log."""
        return self.group.state is GroupState.EMPTY and not self.group.pending_members

    def begin_rebalance(self, now_ms: int, cause: str) -> None:
        """Make all members of a stable group join again."""
        self._rebalance.prepare(now_ms, cause)

    def step(self, event: Event, now_ms: int) -> Sequence[Effect]:
        """Handle one event; returns the effects, in order."""
        match event:
            case JoinAsked():
                self._joining.join(event, now_ms)
            case SyncAsked():
                self._sync(event, now_ms)
            case HeartbeatAsked():
                self._effects.answer(event.request_id, HeartbeatResponse(error_code=self._heartbeat(event, now_ms)))
            case LeaveAsked():
                self._leave(event, now_ms)
            case OffsetsCommitted():
                member = self.group.members.get(event.member_id)
                if member is not None:
                    self.group.keep_alive(member, now_ms)
            case MetadataCommitted():
                self._rebalance.metadata_committed(event.write_id, now_ms)
                self._joining.metadata_committed(event.write_id, now_ms)
            case MetadataFailed():
                self._rebalance.metadata_failed(event.write_id, event.code, now_ms)
                self._joining.metadata_failed(event.write_id, event.code, now_ms)
            case Tick():
                self._tick(now_ms)
            case Abandoned():
                self._abandon(event.code)
            case _:
                assert_never(event)
        return self._effects.drain()

    def _sync(self, event: SyncAsked, now_ms: int) -> None:
        request, group = event.request, self.group
        fault = self._fault_of_sync(request)
        if fault:
            self._note_if_fenced("SyncGroup", fault, now_ms, request.member_id)
            self._effects.answer(event.request_id, answers.sync_refused(fault))
            return
        member = group.members[request.member_id]
        self._rebalance.synced(member.member_id)
        group.keep_alive(member, now_ms)
        if group.state is GroupState.STABLE:
            self._effects.answer(event.request_id, answers.assigned(group, member))
            return
        self._rebalance.release_sync(member, ErrorCode.REBALANCE_IN_PROGRESS)
        member.syncing = event.request_id
        if group.leader == member.member_id:
            self._rebalance.assign({given.member_id: given.assignment for given in request.assignments})

    def _fault_of_sync(self, request: SyncGroupRequest) -> ErrorCode:
        group = self.group
        fault = group.fault_of_member(request.member_id, request.group_instance_id)
        if fault:
            return fault
        if not group.is_current(request.generation_id):
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, group.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol_name not in (None, group.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return self._fault_of_assignments([len(given.assignment) for given in request.assignments])

    def _fault_of_assignments(self, sizes: Sequence[int]) -> ErrorCode:
        config, group = self._config, self.group
        if max(sizes, default=0) > config.group_max_metadata_bytes:
            return ErrorCode.INVALID_REQUEST
        said_bytes = sum(len(member.metadata_for(group.protocol_name)) for member in group.members.values())
        if sum(sizes) + (said_bytes if sizes else 0) > config.group_max_total_metadata_bytes:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _heartbeat(self, event: HeartbeatAsked, now_ms: int) -> ErrorCode:
        request, group = event.request, self.group
        fault = group.fault_of_member(request.member_id, request.group_instance_id)
        if fault:
            self._note_if_fenced("Heartbeat", fault, now_ms, request.member_id)
            return fault
        if not group.is_current(request.generation_id):
            return ErrorCode.ILLEGAL_GENERATION
        group.keep_alive(group.members[request.member_id], now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _note_if_fenced(self, request: str, fault: ErrorCode, now_ms: int, member_id: str) -> None:
        # The other errors follow from events that are in the history already.
        if fault is ErrorCode.FENCED_INSTANCE_ID:
            self._history.add_refusal(request, fault, now_ms, member_id)

    def _leave(self, event: LeaveAsked, now_ms: int) -> None:
        size_before = len(self.group.members)
        results = tuple(
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=self._remove(identity, now_ms),
            )
            for identity in event.request.members
        )
        self._effects.answer(event.request_id, LeaveGroupResponse(members=results))
        left = [result.member_id or result.group_instance_id for result in results if not result.error_code]
        self._members_went(size_before, now_ms, f"{', '.join(map(str, left[:_MOST_NAMED]))} left")

    def _remove(self, identity: MemberIdentity, now_ms: int) -> ErrorCode:
        group, instance_id = self.group, identity.group_instance_id
        if not identity.member_id and instance_id in group.static_members:
            # An administrator removes a static member by its instance id alone.
            member_id = group.static_members[instance_id]
            reason = f"static member {instance_id!r} was removed by an administrator{in_clients_words(identity.reason)}"
            self._history.add(GroupEventKind.LEAVE, now_ms, reason, member_id)
            self._rebalance.remove(member_id)
            return ErrorCode.NONE
        if group.pending_members.pop(identity.member_id, None) is not None:
            return ErrorCode.NONE
        fault = group.fault_of_member(identity.member_id, instance_id)
        if not fault:
            reason = f"it left{in_clients_words(identity.reason)}"
            self._history.add(GroupEventKind.LEAVE, now_ms, reason, identity.member_id)
            self._rebalance.remove(identity.member_id)
        return fault

    def _members_went(self, size_before: int, now_ms: int, cause: str) -> None:
        """Begin a rebalance if members have left. Complete the present rebalance if members or pending ids have gone,
        and no other member is missing."""
        if len(self.group.members) != size_before or self.group.state is GroupState.PREPARING_REBALANCE:
            self._rebalance.membership_changed(now_ms, cause)

    def _tick(self, now_ms: int) -> None:
        group = self.group
        if group.session_alarm_ms is not None and group.session_alarm_ms <= now_ms:
            size_before = len(group.members)
            expired = [member for member in group.members.values() if member.is_expired(now_ms)]
            for member in expired:
                self._history.add(GroupEventKind.EXPIRED, now_ms, _why_expired(member), member.member_id)
                self._rebalance.remove(member.member_id)
            for member_id in [name for name, lapses_ms in group.pending_members.items() if lapses_ms <= now_ms]:
                reason = "it was given this id and did not join with it within its session.timeout.ms"
                self._history.add(GroupEventKind.EXPIRED, now_ms, reason, member_id)
                del group.pending_members[member_id]
            group.reset_alarm(now_ms)
            named = ", ".join(member.member_id for member in expired[:_MOST_NAMED])
            self._members_went(size_before, now_ms, f"{named} expired")
        self._rebalance.tick(now_ms)

    def _abandon(self, code: ErrorCode) -> None:
        for member in self.group.members.values():
            self._rebalance.release_join(member, code)
            self._rebalance.release_sync(member, code)


_MOST_NAMED = 5


def _why_expired(member: Member) -> str:
    if member.is_new:
        return (
            f"its first JoinGroup waited for {NEW_MEMBER_JOIN_TIMEOUT_MS} ms, and such a member cannot send heartbeats"
        )
    return f"no heartbeat within session.timeout.ms={member.session_timeout_ms}"
