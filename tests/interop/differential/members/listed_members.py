"""The list of differences: conversations of our own members with the coordinator of a group."""

from interop.differential.differences import ANY, MISSING, ONLY_HERE, Difference

_EXPRESSION = "pattern: a member subscribes by an expression: heidi, ConsumerGroupHeartbeat"
_KEYED = "keyed: a member works on all records and stops: judy"

_RESOLVED_LATER = "Kafka resolves an expression beside the heartbeats: the assignment comes with a later heartbeat"

MEMBERS: tuple[Difference, ...] = (
    Difference(
        "ConsumerGroupHeartbeat",
        (f"{_EXPRESSION} 1",),
        {"answer.assignment.topic_partitions": ONLY_HERE},
        _RESOLVED_LATER,
    ),
    Difference(
        "ConsumerGroupHeartbeat",
        (f"{_EXPRESSION} 2",),
        {
            "asked.topic_partitions": (ANY, None),
            "answer.assignment": (None, ANY),
            "answer.member_epoch": ("<epoch 1>", "<epoch 2>"),
        },
        _RESOLVED_LATER,
    ),
    Difference("ConsumerGroupHeartbeat", (f"{_EXPRESSION} 3",), {"exchange": MISSING}, _RESOLVED_LATER),
    Difference(
        "OffsetFetch",
        (f"{_KEYED}, OffsetFetch *",),
        {"exchange": ONLY_HERE},
        "KIP-X: the ranges of a partition are read at first",
    ),
    Difference(
        "OffsetCommit",
        (f"{_KEYED}, OffsetCommit *",),
        {
            "asked.topics.partitions.committed_offset": (-1, 2),
            "asked.topics.partitions.committed_leader_epoch": (-1, 0),
            "asked.topics.partitions.ranges": ONLY_HERE,
            "answer.topics.partitions.range_budget.limit": (4096, 0),
        },
        "KIP-X: a server that takes ranges gets them",
    ),
)
