"""When a committed offset has been kept long enough (KIP-211; pure).

| The group | Its offsets go |
|---|---|
| has no members | `offsets.retention.minutes` after the last one left |
| is stable and of type "consumer" | for topics that no member subscribes to: that long after the commit |
| is a consumer group (KIP-848) | for topics that no member subscribes to: that long after the commit |
| was never joined: consumers that assign themselves | that long after the commit |
| anything else | not at all |

A commit that said how long it counts (OffsetCommit v2 to v4) ends when it said, where the group lets offsets go at all.
A group that is left without members and without offsets is deleted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tailrace.coordinators.groups.consumer.change import retirement
from tailrace.coordinators.groups.group import ClassicGroup, GroupState
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord, OffsetCommitValue, OffsetRecord
from tailrace.coordinators.groups.store import StoredGroup
from tailrace.coordinators.groups.subscriptions import subscribed_topics
from tailrace.model.partitions import TopicPartition

_CONSUMER = "consumer"

KeptSince = Callable[[OffsetCommitValue], int]
"""From when the retention time of an offset counts, in ms since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Whether a group has members, and since when it has none: the basis of its offsets' expiry."""

    kept_since: KeptSince
    kept_topics: frozenset[str] = frozenset()
    """The members read these: their offsets stay."""
    is_group_gone_too: bool = False
    """The group goes with its last offset."""


def expiry_of(group: ClassicGroup | None, stored: StoredGroup, *, is_idle: bool) -> Expiry | None:
    """The rule for a group, or None if all its offsets stay. `group` is None if it never had a member.

    `is_idle`: there is no member, and none is joining.
    """
    consumer, metadata = stored.consumer, stored.metadata
    if consumer is not None:
        return Expiry(kept_since=_committed_at, kept_topics=consumer.topics, is_group_gone_too=not consumer.members)
    if group is None or (metadata is None and group.state is GroupState.EMPTY):
        return Expiry(kept_since=_committed_at)
    if group.state is GroupState.EMPTY:
        if metadata is None or metadata.members:
            # That the last member left is not in the log yet; if its write failed, the sweep writes it.
            return None
        emptied_at = metadata.current_state_timestamp
        return Expiry(kept_since=_committed_at if emptied_at < 0 else lambda _: emptied_at, is_group_gone_too=is_idle)
    if group.state is GroupState.STABLE and group.protocol_type == _CONSUMER:
        topics = subscribed_topics(group)
        return None if topics is None else Expiry(kept_since=_committed_at, kept_topics=topics)
    return None


def _committed_at(offset: OffsetCommitValue) -> int:
    return offset.commit_timestamp


def expired(
    group_id: str, stored: StoredGroup, expiry: Expiry, *, now_ms: int, retention_ms: int
) -> Iterator[GroupLogRecord]:
    """Tombstones for the offsets that are over, and for the group if it goes with them."""
    is_all = not stored.pending
    for (topic, partition), offset in stored.offsets.items():
        if topic in expiry.kept_topics or stored.pending.has(TopicPartition(topic, partition)):
            is_all = False
        elif _is_over(offset, expiry, now_ms, retention_ms):
            yield OffsetRecord(group_id=group_id, topic=topic, partition=partition, value=None)
        else:
            is_all = False
    if is_all and expiry.is_group_gone_too:
        if stored.consumer is not None:
            yield from retirement(group_id, stored.consumer)
        else:
            yield GroupRecord(group_id=group_id, value=None)


def _is_over(offset: OffsetCommitValue, expiry: Expiry, now_ms: int, retention_ms: int) -> bool:
    if offset.expire_timestamp >= 0:
        return now_ms >= offset.expire_timestamp
    return now_ms - expiry.kept_since(offset) >= retention_ms
