"""Details of a group beyond Kafka's: an extension that DescribeGroups carries in fields tagged from 10000.

A client that asks sets `include_details`; a server that knows the extension answers with exactly one `GroupDetails`.
Any other server passes over the question, and any other client never sees an answer. Ages in ms, -1: not known.
"""

from tailrace.protocol.schema import Int32, Int64, struct

DETAILS_FEATURE = "tailrace.group.details"
"""Announced as a supported feature, level 1."""


@struct
class GroupEventDetails:
    """One thing that happened to the group; `count` times in a row, the last time `last_ms_ago`."""

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
    """The extension's answer for one group. `now_ms` is the coordinator's wall clock."""

    now_ms: Int64
    events: tuple[GroupEventDetails, ...]
    members: tuple[MemberDetails, ...]
    topics: tuple[TopicProgress, ...]
