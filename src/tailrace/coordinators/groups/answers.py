"""The responses of the membership requests, as functions of the group."""

from typing import assert_never

from tailrace.coordinators.groups.events import (
    Asked,
    HeartbeatAsked,
    JoinAsked,
    LeaveAsked,
    MembershipResponse,
    SyncAsked,
)
from tailrace.coordinators.groups.group import ClassicGroup, Member
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.membership import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeaveGroupResponse,
    MemberResponse,
    SyncGroupResponse,
)


def joined(group: ClassicGroup, member: Member) -> JoinGroupResponse:
    """The answer to a member of the current generation. Only the leader gets the list of members."""
    leads = group.leader == member.member_id
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=group.leader or "",
        member_id=member.member_id,
        members=group.described_members() if leads else (),
    )


def returned(group: ClassicGroup, member: Member, *, old_leader: str, may_skip_assignment: bool) -> JoinGroupResponse:
    """The answer to a static member that is back in a stable group: the group keeps its generation and its assignments.

    A leader that is back must not assign again. With `may_skip_assignment` the answer has the flag of KIP-814;
    otherwise the answer names the member's former id as the leader, so that the member acts as a follower.
    """
    leads = group.leader == member.member_id
    skips = leads and may_skip_assignment
    return JoinGroupResponse(
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        leader=(group.leader or "") if may_skip_assignment else old_leader,
        skip_assignment=skips,
        member_id=member.member_id,
        members=group.described_members() if skips else (),
    )


def join_refused(code: ErrorCode, member_id: str = "") -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code, protocol_name=None, leader="", member_id=member_id, members=())


def assigned(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol_name, assignment=member.assignment
    )


def sync_refused(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code, assignment=b"")


def refused(event: Asked, code: ErrorCode) -> MembershipResponse:
    """The refusal of a request of any kind."""
    match event:
        case JoinAsked():
            return join_refused(code, event.request.member_id)
        case SyncAsked():
            return sync_refused(code)
        case HeartbeatAsked():
            return HeartbeatResponse(error_code=code)
        case LeaveAsked():
            return LeaveGroupResponse(
                members=tuple(
                    MemberResponse(
                        member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=code
                    )
                    for member in event.request.members
                )
            )
        case _:
            assert_never(event)
