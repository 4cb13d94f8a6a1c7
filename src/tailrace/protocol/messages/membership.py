"""JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14): life in a classic consumer group."""

from tailrace.protocol.schema import Int16, Int32, field, message, struct


@struct
class JoinGroupRequestProtocol:
    """An assignor that the member can run, with the member's subscription for this assignor."""

    name: str
    metadata: bytes


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupRequest:
    """Joins or rejoins a classic group; answered when all members have joined, or the rebalance time is over.

    v1 adds the rebalance timeout, v4 asks newcomers to come again with an id from the coordinator (KIP-394), v5 adds
    static members (KIP-345), v8 the reason (KIP-800).
    """

    group_id: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32 = field(versions="1+", default=-1)
    member_id: str
    group_instance_id: str | None = field(versions="5+", default=None)
    protocol_type: str
    protocols: tuple[JoinGroupRequestProtocol, ...]
    reason: str | None = field(versions="8+", default=None)


@struct
class JoinGroupResponseMember:
    """A member and its subscription; only the leader of the group gets members."""

    member_id: str
    group_instance_id: str | None = field(versions="5+", default=None)
    metadata: bytes


@message(api_key=11, versions="0-9", flexible="6+")
class JoinGroupResponse:
    """The new generation. v7 adds the protocol type, v9 lets a rejoining leader skip the assignment (KIP-814)."""

    throttle_time_ms: Int32 = field(versions="2+", default=0)
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: str | None = field(versions="7+", default=None)
    protocol_name: str | None = field(nullable="7+")
    leader: str
    skip_assignment: bool = field(versions="9+", default=False)
    member_id: str
    members: tuple[JoinGroupResponseMember, ...]


@struct
class SyncGroupRequestAssignment:
    """The assignment that the leader gives to one member."""

    member_id: str
    assignment: bytes


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupRequest:
    """The leader brings the assignments, the other members wait for their own. v5 names the protocol that the member
    expects (KIP-559)."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None = field(versions="3+", default=None)
    protocol_type: str | None = field(versions="5+", default=None)
    protocol_name: str | None = field(versions="5+", default=None)
    assignments: tuple[SyncGroupRequestAssignment, ...]


@message(api_key=14, versions="0-5", flexible="4+")
class SyncGroupResponse:
    """The member's assignment."""

    throttle_time_ms: Int32 = field(versions="1+", default=0)
    error_code: Int16 = 0
    protocol_type: str | None = field(versions="5+", default=None)
    protocol_name: str | None = field(versions="5+", default=None)
    assignment: bytes


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatRequest:
    """Says that a member lives. v3 adds static members (KIP-345)."""

    group_id: str
    generation_id: Int32
    member_id: str
    group_instance_id: str | None = field(versions="3+", default=None)


@message(api_key=12, versions="0-4", flexible="4+")
class HeartbeatResponse:
    """Error 27 tells the member to rejoin."""

    throttle_time_ms: Int32 = field(versions="1+", default=0)
    error_code: Int16 = 0


@struct
class MemberIdentity:
    """A member that leaves. v5 adds why (KIP-800)."""

    member_id: str = field(versions="3+", default="")
    group_instance_id: str | None = field(versions="3+", default=None)
    reason: str | None = field(versions="5+", default=None)


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupRequest:
    """Leaves a group. v3 lets an administrator remove many members at once (KIP-345)."""

    group_id: str
    member_id: str = field(versions="0-2", default="")
    members: tuple[MemberIdentity, ...] = field(versions="3+", default=())


@struct
class MemberResponse:
    """The outcome of the removal of one member."""

    member_id: str = field(versions="3+", default="")
    group_instance_id: str | None = field(versions="3+", default="")
    error_code: Int16 = field(versions="3+", default=0)


@message(api_key=13, versions="0-5", flexible="4+")
class LeaveGroupResponse:
    """The outcome of the removal, from v3 on for each member."""

    throttle_time_ms: Int32 = field(versions="1+", default=0)
    error_code: Int16 = 0
    members: tuple[MemberResponse, ...] = field(versions="3+", default=())
