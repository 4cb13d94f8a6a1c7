"""JoinGroup: admission of members, and their ids."""

from collections.abc import Callable
from typing import Final

from tailrace.coordinators.config import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupConfig
from tailrace.coordinators.groups import answers
from tailrace.coordinators.groups.events import GroupEffects, JoinAsked, WriteId
from tailrace.coordinators.groups.group import ClassicGroup, GroupState, Member, RequestId, size_of
from tailrace.coordinators.groups.history import GroupEventKind, GroupHistory, in_clients_words
from tailrace.coordinators.groups.rebalance import Rebalance
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.membership import JoinGroupRequest, JoinGroupResponse

MOST_PROTOCOLS: Final = 100
"""The most protocols of a member; clients have 1 to 3."""

NewMemberId = Callable[[str], str]
"""A new member id: the given prefix and a random part."""


def fault_of_size(request: JoinGroupRequest, config: GroupConfig) -> ErrorCode:
    """The error if the member's protocols are too large for the group, or NONE."""
    is_too_much = (
        size_of(request.protocols) > config.group_max_metadata_bytes or len(request.protocols) > MOST_PROTOCOLS
    )
    return ErrorCode.INVALID_REQUEST if is_too_much else ErrorCode.NONE


class Joining:
    """The part of a group's machine that admits members."""

    def __init__(
        self,
        group: ClassicGroup,
        rebalance: Rebalance,
        effects: GroupEffects,
        *,
        config: GroupConfig,
        history: GroupHistory,
        new_member_id: NewMemberId,
    ) -> None:
        self._group = group
        self._rebalance = rebalance
        self._effects = effects
        self._config = config
        self._history = history
        self._new_member_id = new_member_id
        self._returning: dict[WriteId, tuple[str, RequestId, JoinGroupResponse]] = {}
        """Static members that came back to a stable group, with their answers, until their new ids are committed."""

    def join(self, event: JoinAsked, now_ms: int) -> None:
        """Answer, or keep the request until the rebalance is over."""
        member_id = event.request.member_id
        fault = self._fault_of_join(event)
        if fault:
            self._history.add_refusal("JoinGroup", fault, now_ms, member_id)
            self._effects.answer(event.request_id, answers.join_refused(fault, member_id))
        elif not member_id:
            self._join_without_id(event, now_ms)
        elif self._group.pending_members.pop(member_id, None) is not None:
            self._admit(event, member_id, now_ms)
        else:
            self._join_again(event, self._group.members[member_id], now_ms)

    def _fault_of_join(self, event: JoinAsked) -> ErrorCode:
        request, group, config = event.request, self._group, self._config
        shortest, longest = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
        if not shortest <= request.session_timeout_ms <= longest:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if fault := fault_of_size(request, config):
            return fault
        if self._is_full_for(request) or self._is_too_much(request):
            group.pending_members.pop(request.member_id, None)
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if not group.supports(request.protocol_type, request.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not request.member_id:
            return ErrorCode.NONE
        if request.member_id in group.pending_members:
            # A static member is admitted without a pending id, so the pending id is not that of the request's static
            # member.
            return ErrorCode.NONE if request.group_instance_id is None else ErrorCode.UNKNOWN_MEMBER_ID
        return group.fault_of_member(request.member_id, request.group_instance_id)

    def _is_full_for(self, request: JoinGroupRequest) -> bool:
        group = self._group
        if request.member_id in group.members or request.group_instance_id in group.static_members:
            return False
        # Pending ids count against the limit of members too.
        size = len(group.members) if request.member_id else max(len(group.members), len(group.pending_members))
        return size >= self._config.group_max_size

    def _is_too_much(self, request: JoinGroupRequest) -> bool:
        """Whether the metadata of all members together would be larger than the record of a generation may be."""
        group = self._group
        member_id = group.static_members.get(request.group_instance_id or "", request.member_id)
        former = group.members.get(member_id)
        others_bytes = group.metadata_bytes - (former.metadata_bytes if former is not None else 0)
        return others_bytes + size_of(request.protocols) > self._config.group_max_total_metadata_bytes

    def _join_without_id(self, event: JoinAsked, now_ms: int) -> None:
        group, instance_id = self._group, event.request.group_instance_id
        member_id = self._new_member_id(event.client_id if instance_id is None else instance_id)
        if instance_id is not None and instance_id in group.static_members:
            self._static_member_returns(event, group.members[group.static_members[instance_id]], member_id, now_ms)
        elif instance_id is None and event.must_know_its_id:
            lapses_ms = now_ms + event.request.session_timeout_ms
            group.pending_members[member_id] = lapses_ms
            group.wake_by(lapses_ms)
            self._effects.answer(event.request_id, answers.join_refused(ErrorCode.MEMBER_ID_REQUIRED, member_id))
        else:
            self._admit(event, member_id, now_ms)

    def _admit(self, event: JoinAsked, member_id: str, now_ms: int) -> None:
        request = event.request
        kind = f"a static member {request.group_instance_id!r}" if request.group_instance_id else "a new member"
        reason = f"{kind} of client {event.client_id!r} at {event.client_host}{in_clients_words(request.reason)}"
        self._history.add(GroupEventKind.JOIN, now_ms, reason, member_id)
        member = Member(
            member_id=member_id,
            group_instance_id=request.group_instance_id,
            client_id=event.client_id,
            client_host=event.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            session_deadline_ms=now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS,
            joining=event.request_id,
            is_new=True,
        )
        self._rebalance.admit(member, request.protocol_type, now_ms)

    def _join_again(self, event: JoinAsked, member: Member, now_ms: int) -> None:
        group = self._group
        self._rebalance.release_join(member, ErrorCode.REBALANCE_IN_PROGRESS)
        if not member.is_new:  # a new member cannot send heartbeats: the timeout of its first join goes on
            group.keep_alive(member, now_ms)
        is_unchanged = member.protocols == event.request.protocols
        # A leader that joins again in a stable group requests a rebalance, perhaps because of new partitions.
        is_repetition = is_unchanged and (
            group.state is GroupState.COMPLETING_REBALANCE
            or (group.state is GroupState.STABLE and group.leader != member.member_id)
        )
        if is_repetition:
            self._effects.answer(event.request_id, answers.joined(group, member))
        else:
            cause = "joined again" if is_unchanged else "changed its subscription or protocols"
            self._renew(event, member)
            self._rebalance.membership_changed(
                now_ms, f"{member.member_id} {cause}{in_clients_words(event.request.reason)}"
            )

    def _renew(self, event: JoinAsked, member: Member) -> None:
        self._group.change_protocols(member, event.request.protocols)
        member.session_timeout_ms = event.request.session_timeout_ms
        member.rebalance_timeout_ms = event.request.rebalance_timeout_ms
        member.joining = event.request_id

    def _static_member_returns(self, event: JoinAsked, member: Member, member_id: str, now_ms: int) -> None:
        """Replace the former process with this instance id. The assignment stays if the vote for a protocol does not
        change."""
        group = self._group
        fenced = f"another process came as {member.group_instance_id!r}, and is {member_id} now"
        self._history.add(GroupEventKind.FENCED, now_ms, fenced, member.member_id)
        old_leader = group.leader or ""
        self._rebalance.release_join(member, ErrorCode.FENCED_INSTANCE_ID)
        self._rebalance.release_sync(member, ErrorCode.FENCED_INSTANCE_ID)
        self._rebalance.synced(member.member_id)
        group.rename(member, member_id)
        member.client_id, member.client_host = event.client_id, event.client_host
        self._renew(event, member)
        member.is_new = False  # its instance id identifies the member, so the session does not end during the wait
        group.keep_alive(member, now_ms)
        if group.state is GroupState.STABLE and group.vote() == group.protocol_name:
            assignments = {other.member_id: other.assignment for other in group.members.values()}
            write_id = self._effects.persist(group.metadata(assignments))
            response = answers.returned(
                group, member, old_leader=old_leader, may_skip_assignment=event.may_skip_assignment
            )
            self._returning[write_id] = (member_id, event.request_id, response)
        else:
            self._rebalance.membership_changed(now_ms, f"static member {member.group_instance_id!r} came back")

    def metadata_committed(self, write_id: WriteId, now_ms: int) -> None:
        """Answer the static member that waits for this write, if a member waits."""
        member, response = self._returned_by(write_id)
        if member is not None and member.joining is not None and response is not None:
            self._effects.answer(member.joining, response)
            member.joining = None
            self._group.keep_alive(member, now_ms)

    def metadata_failed(self, write_id: WriteId, code: ErrorCode, now_ms: int) -> None:
        """Begin a rebalance: the log still has the former id of a static member, and only a new generation corrects the
        log."""
        member, _ = self._returned_by(write_id)
        if member is not None:
            self._rebalance.release_join(member, code)
            self._group.keep_alive(member, now_ms)
            self._rebalance.prepare(now_ms, f"a returning static member could not be committed: {code.name}")

    def _returned_by(self, write_id: WriteId) -> tuple[Member, JoinGroupResponse] | tuple[None, None]:
        """The static member whose JoinGroup waits for this write, and the answer to that JoinGroup; None and None if a
        rebalance or a newer process of the member has replaced the JoinGroup. The write is forgotten."""
        if write_id not in self._returning:
            return None, None
        member_id, request_id, response = self._returning.pop(write_id)
        member = self._group.members.get(member_id)
        if member is None or member.joining != request_id or self._group.state is not GroupState.STABLE:
            return None, None
        return member, response
