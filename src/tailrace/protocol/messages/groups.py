"""FindCoordinator (10), DescribeGroups (15), ListGroups (16), DeleteGroups (42): groups for an administrator."""

from tailrace.protocol.schema import Int8, Int16, Int32, Int64, field, message, struct


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorRequest:
    """Asks for the coordinator of a group (type 0), transaction (1) or share group (2). v4 has many keys (KIP-699)."""

    key: str = field(versions="0-3", default="")
    key_type: Int8 = field(versions="1+", default=0)
    coordinator_keys: tuple[str, ...] = field(versions="4+", default=())


@struct
class Coordinator:
    """The coordinator of one key, or an error."""

    key: str = field(versions="4+", default="")
    node_id: Int32 = field(versions="4+", default=0)
    host: str = field(versions="4+", default="")
    port: Int32 = field(versions="4+", default=0)
    error_code: Int16 = field(versions="4+", default=0)
    error_message: str | None = field(versions="4+", default="")


@message(api_key=10, versions="0-6", flexible="3+")
class FindCoordinatorResponse:
    """The coordinators' addresses: until v3 in the message itself, from v4 one entry per key."""

    throttle_time_ms: Int32 = field(versions="1+", default=0)
    error_code: Int16 = field(versions="0-3", default=0)
    error_message: str | None = field(versions="1-3", default="")
    node_id: Int32 = field(versions="0-3", default=0)
    host: str = field(versions="0-3", default="")
    port: Int32 = field(versions="0-3", default=0)
    coordinators: tuple[Coordinator, ...] = field(versions="4+", default=())


# Details of a group beyond Kafka's: an extension that DescribeGroups carries in fields tagged from 10000.
#
# A client that asks sets `include_details`; a server that knows the extension answers with exactly one `GroupDetails`.
# Any other server skips `include_details`, and any other client never gets the details. Ages in ms, -1: not known.

DETAILS_FEATURE = "tailrace.group.details"
"""Announced as a supported feature, level 1."""


@struct
class GroupEventDetails:
    """An event of the group that happened `count` times in a row, the last time `last_ms_ago`."""

    kind: str
    member_id: str
    reason: str
    first_ms_ago: Int64
    last_ms_ago: Int64
    count: Int32


@struct
class MemberDetails:
    """The time since a member's last heartbeat, and its session timeout."""

    member_id: str
    silent_ms: Int64
    session_timeout_ms: Int32


@struct
class PartitionProgress:
    """When the committed offset last went forward, and an earlier commit for the pace. Times in ms since 1970."""

    partition_index: Int32
    offset: Int64
    moved_at_ms: Int64
    earlier_offset: Int64
    earlier_at_ms: Int64


@struct
class TopicProgress:
    """Partitions of one topic."""

    name: str
    partitions: tuple[PartitionProgress, ...]


@struct
class GroupDetails:
    """The extension's answer for one group. `now_ms` is the coordinator's wall clock, `max_ranges` the limit of ranges
    that are committed beyond an offset (KIP-X)."""

    now_ms: Int64
    events: tuple[GroupEventDetails, ...]
    members: tuple[MemberDetails, ...]
    topics: tuple[TopicProgress, ...]
    max_ranges: Int32 = field(versions="5+", tag=0, default=0)


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsRequest:
    """Asks for the groups that this broker coordinates. v4 filters by state (KIP-518), v5 by type (KIP-848)."""

    states_filter: tuple[str, ...] = field(versions="4+", default=())
    types_filter: tuple[str, ...] = field(versions="5+", default=())


@struct
class ListedGroup:
    """A group in short."""

    group_id: str
    protocol_type: str
    group_state: str = field(versions="4+", default="")
    group_type: str = field(versions="5+", default="")


@message(api_key=16, versions="0-5", flexible="3+")
class ListGroupsResponse:
    """The groups that this broker coordinates."""

    throttle_time_ms: Int32 = field(versions="1+", default=0)
    error_code: Int16 = 0
    groups: tuple[ListedGroup, ...]


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsRequest:
    """Asks for descriptions of groups; this broker must coordinate every group."""

    groups: tuple[str, ...]
    include_authorized_operations: bool = field(versions="3+", default=False)
    include_details: bool = field(versions="5+", tag=10000, default=False)


@struct
class DescribedGroupMember:
    """A member, with its subscription and assignment in the bytes of the members."""

    member_id: str
    group_instance_id: str | None = field(versions="4+", default=None)
    client_id: str
    client_host: str
    member_metadata: bytes
    member_assignment: bytes


@struct
class DescribedGroup:
    """A classic group. v6 adds an error message and tells a missing group (69) from a dead one (KIP-1043)."""

    error_code: Int16 = 0
    error_message: str | None = field(versions="6+", default=None)
    group_id: str
    group_state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedGroupMember, ...]
    authorized_operations: Int32 = field(versions="3+", default=-2147483648)
    details: tuple[GroupDetails, ...] = field(versions="5+", tag=10000, default=())


@message(api_key=15, versions="0-6", flexible="5+")
class DescribeGroupsResponse:
    """The groups asked for, in the order of the request."""

    throttle_time_ms: Int32 = field(versions="1+", default=0)
    groups: tuple[DescribedGroup, ...]


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsRequest:
    """Deletes groups that have no members, with their offsets (KIP-229)."""

    groups_names: tuple[str, ...]


@struct
class DeletableGroupResult:
    """The outcome of the deletion of one group."""

    group_id: str
    error_code: Int16 = 0


@message(api_key=42, versions="0-2", flexible="2+")
class DeleteGroupsResponse:
    """The outcome for each group."""

    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...]
