"""A coordinator's knowledge of a group beyond Kafka's answers, as messages."""

from collections import defaultdict

from tailrace.coordinators.groups.commands import GroupInsight
from tailrace.protocol.messages.groups import (
    GroupDetails,
    GroupEventDetails,
    MemberDetails,
    PartitionProgress,
    TopicProgress,
)


def details_of(insight: GroupInsight) -> GroupDetails:
    """The extension's answer for one group."""
    return GroupDetails(
        now_ms=insight.wall_ms,
        events=tuple(
            GroupEventDetails(
                kind=event.kind,
                member_id=event.member_id,
                reason=event.reason,
                first_ms_ago=insight.now_ms - event.first_at_ms,
                last_ms_ago=insight.now_ms - event.last_at_ms,
                count=event.count,
            )
            for event in insight.events
        ),
        members=tuple(
            MemberDetails(
                member_id=member.member_id, silent_ms=member.silent_ms, session_timeout_ms=member.session_timeout_ms
            )
            for member in insight.liveness
        ),
        topics=_topics(insight),
    )


def _topics(insight: GroupInsight) -> tuple[TopicProgress, ...]:
    topics: dict[str, list[PartitionProgress]] = defaultdict(list)
    for (topic, partition), progress in insight.progress.items():
        topics[topic].append(
            PartitionProgress(
                partition_index=partition,
                offset=progress.offset,
                moved_at_ms=progress.moved_at_ms,
                earlier_offset=progress.earlier_offset,
                earlier_at_ms=progress.earlier_at_ms,
            )
        )
    return tuple(TopicProgress(name=name, partitions=tuple(partitions)) for name, partitions in topics.items())
