"""The list of differences: groups and their offsets."""

from interop.differential.differences import ANY, MISSING, Difference

_OK = "NONE (0)"
_NO_GROUP = "GROUP_ID_NOT_FOUND (69)"
_BAD_GROUP = "INVALID_GROUP_ID (24)"
_NO_NAME = "a group without a name is deprecated since KIP-289, and is refused everywhere"
_KEPT_BY_REFUSED = "a refused member leaves no group behind"
_ONCE = "answered once: a small request must not have a large answer"

GROUPS = (
    Difference(
        "DescribeGroups",
        ("a group without a name",),
        {"groups.error_code": (_BAD_GROUP, ANY), "groups.group_state": ("", "Dead")},
        _NO_NAME,
    ),
    Difference(
        "DeleteGroups",
        ("a group without a name is deleted",),
        {"results.error_code": (_BAD_GROUP, _NO_GROUP)},
        _NO_NAME,
    ),
    Difference(
        "OffsetCommit",
        ("a group without a name",),
        {"topics.partitions.error_code": (_BAD_GROUP, _OK)},
        _NO_NAME,
    ),
    Difference(
        "OffsetFetch",
        ("offsets of a group without a name",),
        {
            "topics.partitions.error_code": (_BAD_GROUP, _OK),
            "topics.partitions.committed_offset": (-1, 1),
            "error_code": (_BAD_GROUP, _OK),
            "groups.error_code": (_BAD_GROUP, _OK),
            "groups.topics": MISSING,
        },
        _NO_NAME,
    ),
    Difference("ListGroups", ("groups of both kinds",), {"groups": MISSING}, _NO_NAME),
    Difference(
        "DescribeGroups",
        ("a group that only refused joins have named",),
        {"groups.error_code": (_NO_GROUP, _OK), "groups.group_state": ("Dead", "Empty")},
        _KEPT_BY_REFUSED,
    ),
    Difference(
        "DeleteGroups",
        ("a group that only refused joins have named is deleted",),
        {"results.error_code": (_NO_GROUP, _OK)},
        _KEPT_BY_REFUSED,
    ),
    Difference("DescribeGroups", ("a group described twice",), {"groups": MISSING}, _ONCE),
    Difference(
        "ConsumerGroupHeartbeat",
        ("pair: the second joins", "pair: the second still waits"),
        {"heartbeat_interval_ms": (250, 5_000)},
        "a member that waits for partitions of others asks again soon",
    ),
    Difference("ConsumerGroupDescribe", ("groups of both kinds described",), {"groups": MISSING}, _ONCE),
    Difference(
        "DescribeGroups",
        ("words: described before the sync",),
        {"groups.members.member_assignment": (b"all of it", b"")},
        "the last assignment is shown until there is another; Kafka forgets it when two rebalances follow each other",
    ),
    Difference("OffsetFetch", ("offsets of several groups",), {"groups": MISSING}, _ONCE),
    Difference(
        "ConsumerGroupHeartbeat",
        ("life: the node makes an id",),
        {"member_id": (ANY, ANY)},
        "begins with the client's id, as in classic groups, so that people recognize the member",
    ),
    Difference(
        "JoinGroup",
        ("mixed: a classic member joins",),
        {"member_id": (ANY, ANY)},
        "begins with the client's id, as in classic groups, so that people recognize the member",
    ),
    Difference(
        "ConsumerGroupDescribe",
        ("*described*",),
        {"groups.members.subscribed_topic_regex": (None, "")},
        "null without an expression; Kafka answers null or empty",
    ),
)
