"""Decisions on deletions: of groups, of offsets, of offsets in deleted topics, and of expired offsets (KIP-211)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import assert_never

from tailrace.coordinators.groups.commands import (
    MOST_RECORDS_OF_A_SWEEP,
    DeleteGroup,
    DeleteOffsets,
    ExpireOffsets,
    ForgetLostTopics,
)
from tailrace.coordinators.groups.consumer.change import retirement
from tailrace.coordinators.groups.group import ClassicGroup, GroupState
from tailrace.coordinators.groups.membership import GroupMembership
from tailrace.coordinators.groups.offset_commits import GroupDecision
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord, OffsetCommitValue, OffsetRecord
from tailrace.coordinators.groups.store import LatestGroups, StoredGroup, belongs_to
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.ids import TopicId
from tailrace.model.machines import Decision
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, decode_prefixed
from tailrace.protocol.schema import replace

_CONSUMER = "consumer"


class GroupRemovals:
    """Decisions for one coordinator partition: `latest` has its log, `memberships` the members of classic groups."""

    def __init__(self, latest: LatestGroups, memberships: Mapping[str, GroupMembership], *, retention_ms: int) -> None:
        """`retention_ms` is offsets.retention.minutes."""
        self._latest = latest
        self._memberships = memberships
        self._retention_ms = retention_ms

    def decide(
        self, command: DeleteGroup | DeleteOffsets | ForgetLostTopics | ExpireOffsets, now_ms: int
    ) -> GroupDecision:
        """The tombstones, and a code per group or partition; a sweep has no codes. Raises KafkaError for a refusal."""
        match command:
            case DeleteGroup():
                return self._delete(command.group_id)
            case DeleteOffsets():
                return self._delete_offsets(command)
            case ForgetLostTopics():
                return _sweep(self._lost(command))
            case ExpireOffsets():
                return _sweep(self._expired(command, now_ms))
            case _:
                assert_never(command)

    def _found(self, group_id: str) -> tuple[ClassicGroup | None, StoredGroup | None]:
        membership, stored = self._memberships.get(group_id), self._latest.get(group_id)
        if membership is None and stored is None:
            raise no_such_group(group_id)
        return None if membership is None else membership.group, stored

    def _delete(self, group_id: str) -> GroupDecision:
        group, stored = self._found(group_id)
        has_members = stored is not None and stored.consumer is not None and bool(stored.consumer.members)
        if has_members or (group is not None and group.state is not GroupState.EMPTY):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members; stop them first")
        return Decision(records=tuple(_tombstones(group_id, stored)), response=(ErrorCode.NONE,))

    def _delete_offsets(self, command: DeleteOffsets) -> GroupDecision:
        """A tombstone for each offset without a subscription, and an error code for each partition of the command."""
        group, stored = self._found(command.group_id)
        read = _topics_read(command.group_id, group, stored)
        codes = tuple(
            ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if read is None or partition.topic in read else ErrorCode.NONE
            for partition in command.partitions
        )
        known = _partitions(stored)
        records = tuple(
            OffsetRecord(group_id=command.group_id, topic=partition.topic, partition=partition.partition, value=None)
            for partition, code in dict(zip(command.partitions, codes, strict=True)).items()
            if code is ErrorCode.NONE and partition in known
        )
        return Decision(records=records, response=codes)

    def _lost(self, command: ForgetLostTopics) -> Iterator[GroupLogRecord]:
        for group_id, stored in self._latest.groups_in(command.topics):
            yield from _lost(group_id, stored, command.topics)

    def _expired(self, command: ExpireOffsets, now_ms: int) -> Iterator[GroupLogRecord]:
        for group_id in command.group_ids:
            stored = self._latest.get(group_id)
            if stored is None:
                continue
            membership = self._memberships.get(group_id)
            group, is_idle = (None, True) if membership is None else (membership.group, membership.is_idle)
            expiry = _expiry_of(group, stored, is_idle=is_idle)
            if expiry is not None:
                yield from _expired(group_id, stored, expiry, now_ms=now_ms, retention_ms=self._retention_ms)
            elif group is not None and _is_end_missing(group, stored):
                emptied = replace(group.metadata({}), current_state_timestamp=now_ms)
                yield GroupRecord(group_id=group_id, value=emptied)


def _sweep(records: Iterator[GroupLogRecord]) -> GroupDecision:
    return Decision(records=tuple(islice(records, MOST_RECORDS_OF_A_SWEEP)), response=())


def no_such_group(group_id: str) -> KafkaError:
    """GROUP_ID_NOT_FOUND (69)."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


def _tombstones(group_id: str, group: StoredGroup | None) -> Iterator[GroupLogRecord]:
    """Tombstones for all records of this group."""
    for topic, partition in _partitions(group):
        yield OffsetRecord(group_id=group_id, topic=topic, partition=partition, value=None)
    if group is not None and group.consumer is not None:
        yield from retirement(group_id, group.consumer)
    if group is None or group.consumer is None or group.metadata is not None:
        yield GroupRecord(group_id=group_id, value=None)


def _partitions(group: StoredGroup | None) -> Sequence[TopicPartition]:
    """Partitions with an offset of the group, committed or pending."""
    if group is None:
        return ()
    return tuple(dict.fromkeys((*group.offsets, *sorted(group.pending.partitions))))


def _topics_read(group_id: str, group: ClassicGroup | None, stored: StoredGroup | None) -> frozenset[str] | None:
    """The topics that members subscribe to; None: any topic may be read.

    Raises KafkaError(NON_EMPTY_GROUP) for a group with members that are not consumers.
    """
    has_members = group is not None and bool(group.members)
    if group is not None and has_members and group.protocol_type != _CONSUMER:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members; stop them first")
    if stored is not None and stored.consumer is not None:
        return stored.consumer.topics
    if group is None or not has_members:
        return frozenset()
    return None if group.protocol_name is None else _subscribed_topics(group)


def _subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that any member subscribes to; None if a member's metadata is not the consumer protocol's."""
    try:
        return frozenset(
            topic
            for member in group.members.values()
            for topic in decode_prefixed(ConsumerProtocolSubscription, member.metadata_for(group.protocol_name)).topics
        )
    except MalformedMessage:
        return None


def _lost(group_id: str, group: StoredGroup, topics: Mapping[str, TopicId | None]) -> Iterator[GroupLogRecord]:
    """Tombstones for the group's offsets in these topics that belong to another topic id than the given id.

    Pending offsets count too. If one offset of a partition belongs to the present topic, no tombstone is written for
    the partition, since the tombstone would delete this offset as well.
    """
    found: dict[TopicPartition, list[OffsetCommitValue]] = {}
    for partition, value in chain(group.offsets.items(), group.pending.waiting()):
        if partition.topic in topics:
            found.setdefault(partition, []).append(value)
    for (topic, number), values in found.items():
        if not any(belongs_to(value.topic_id, topics[topic]) for value in values):
            yield OffsetRecord(group_id=group_id, topic=topic, partition=number, value=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The rule by which the offsets of a group expire."""

    kept_since: Callable[[OffsetCommitValue], int]
    """Returns the start of an offset's retention time, in ms since 1970."""
    kept_topics: frozenset[str] = frozenset()
    """Topics with a subscription: offsets in these do not expire."""
    is_group_gone_too: bool = False
    """Whether the group is deleted with its last offset."""

    def is_over(self, offset: OffsetCommitValue, now_ms: int, retention_ms: int) -> bool:
        """Whether the retention time of this offset is over."""
        if offset.expire_timestamp >= 0:
            return now_ms >= offset.expire_timestamp
        return now_ms - self.kept_since(offset) >= retention_ms


def _expiry_of(group: ClassicGroup | None, stored: StoredGroup, *, is_idle: bool) -> Expiry | None:
    """The rule for a group; None if no offset of the group expires. `group` is None for a group that never had a
    member.

    `is_idle`: the group has no member, and no member is joining.

    | The group | Its offsets expire |
    |---|---|
    | has no members | `offsets.retention.minutes` after the last member left |
    | is stable and of type "consumer" | for topics that no member subscribes to: `offsets.retention.minutes` after the
    commit |
    | is a consumer group (KIP-848) | for topics that no member subscribes to: `offsets.retention.minutes` after the
    commit |
    | was never joined: consumers that assign themselves | `offsets.retention.minutes` after the commit |
    | anything else | not at all |

    An offset with a retention time of its own (OffsetCommit v2 to v4) expires after that time, if offsets of the group
    expire at all. A group without members and without offsets is deleted.
    """
    consumer, metadata = stored.consumer, stored.metadata
    if consumer is not None:
        return Expiry(kept_since=_committed_at, kept_topics=consumer.topics, is_group_gone_too=not consumer.members)
    if group is None or (metadata is None and group.state is GroupState.EMPTY):
        return Expiry(kept_since=_committed_at)
    if group.state is GroupState.EMPTY:
        if metadata is None or metadata.members:
            # The empty group is not in the log yet; if the write has failed, the sweep writes the group.
            return None
        emptied_at = metadata.current_state_timestamp
        return Expiry(kept_since=_committed_at if emptied_at < 0 else lambda _: emptied_at, is_group_gone_too=is_idle)
    if group.state is GroupState.STABLE and group.protocol_type == _CONSUMER:
        topics = _subscribed_topics(group)
        return None if topics is None else Expiry(kept_since=_committed_at, kept_topics=topics)
    return None


def _is_end_missing(group: ClassicGroup, stored: StoredGroup) -> bool:
    """Whether the last member has left, but the log still has members: the write of the empty group has failed."""
    return group.state is GroupState.EMPTY and stored.metadata is not None and bool(stored.metadata.members)


def _committed_at(offset: OffsetCommitValue) -> int:
    return offset.commit_timestamp


def _expired(
    group_id: str, stored: StoredGroup, expiry: Expiry, *, now_ms: int, retention_ms: int
) -> Iterator[GroupLogRecord]:
    """Tombstones for the expired offsets, and for the group if the sweep deletes the group too."""
    is_all = not stored.pending
    for (topic, partition), offset in stored.offsets.items():
        is_kept = topic in expiry.kept_topics or stored.pending.has(TopicPartition(topic, partition))
        if is_kept or not expiry.is_over(offset, now_ms, retention_ms):
            is_all = False
        else:
            yield OffsetRecord(group_id=group_id, topic=topic, partition=partition, value=None)
    if is_all and expiry.is_group_gone_too:
        if stored.consumer is not None:
            yield from retirement(group_id, stored.consumer)
        else:
            yield GroupRecord(group_id=group_id, value=None)
