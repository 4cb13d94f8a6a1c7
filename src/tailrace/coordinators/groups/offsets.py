"""Records and codes of commands on offsets, given the group (pure): commits, deletions, offsets of deleted topics."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from tailrace.coordinators.groups.commands import (
    CommitOffsets,
    CommitOffsetsInTransaction,
    DeleteOffsets,
    OffsetToCommit,
)
from tailrace.coordinators.groups.consumer.change import retirement
from tailrace.coordinators.groups.group import ClassicGroup
from tailrace.coordinators.groups.range_commits import BehindTheEnd
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupRecord,
    OffsetCommitValue,
    OffsetRecord,
    PendingOffset,
)
from tailrace.coordinators.groups.shared_offsets import SharedOffsets, needs_rules
from tailrace.coordinators.groups.store import LatestGroups, StoredGroup, belongs_to
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.ids import TopicId
from tailrace.model.machines import Decision
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, decode_prefixed

_CONSUMER = "consumer"
NO_RETENTION_TIME = -1

CommitDecision = Decision[GroupLogRecord, tuple[ErrorCode, ...]]


class OffsetCommits:
    """Decisions on commits, given the latest offsets."""

    def __init__(self, latest: LatestGroups, shared: SharedOffsets, *, max_metadata: int) -> None:
        """`max_metadata` is offset.metadata.max.bytes."""
        self._latest = latest
        self._shared = shared
        self._max_metadata = max_metadata

    def commit(self, command: CommitOffsets, now_ms: int) -> CommitDecision:
        """A record for each acceptable offset, and an error code for each offset of the command."""
        find = self._latest.offsets(command.group_id)
        records: list[GroupLogRecord] = []
        codes = []
        for offset in command.offsets:
            plain = _value(offset, command.retention_time_ms, now_ms)
            before = find(TopicPartition(offset.topic, offset.partition))
            value: OffsetCommitValue | None = None
            try:
                value = self._after(command, offset, plain, before)
                codes.append(ErrorCode.NONE)
            except BehindTheEnd as refusal:
                codes.append(refusal.code)
                value = self._without_lost(offset, before)
            except KafkaError as refusal:
                codes.append(refusal.code)
            if value is not None:
                records.append(
                    OffsetRecord(group_id=command.group_id, topic=offset.topic, partition=offset.partition, value=value)
                )
        return Decision(records=tuple(records), response=tuple(codes))

    def _after(
        self, command: CommitOffsets, offset: OffsetToCommit, plain: OffsetCommitValue, before: OffsetCommitValue | None
    ) -> OffsetCommitValue:
        """The value after this commit. Raises KafkaError if it is refused."""
        self._check(offset)
        if before is not None and not belongs_to(before.topic_id, offset.topic_id):
            before = None  # the topic was created anew
        if offset.ranges is not None:
            partition = TopicPartition(offset.topic, offset.partition)
            if self._latest.has_pending(command.group_id, partition):
                # The end of the transaction would replace the ranges, or they would replace its offset.
                raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, f"a transaction has set the offset of {partition}")
            change = self._shared.with_ranges if offset.ranges.rectangles else self._shared.cut
            return change(before, plain, offset)
        if before is not None and needs_rules(before, plain.offset):
            return self._shared.with_offset(before, plain, is_member=command.generation_id >= 0)
        return plain

    def _without_lost(self, offset: OffsetToCommit, before: OffsetCommitValue | None) -> OffsetCommitValue | None:
        """The value without ranges that the log has lost: its leader has just said that it ends before them."""
        if before is None or offset.ranges is None or not belongs_to(before.topic_id, offset.topic_id):
            return None
        return self._shared.within(before, offset.ranges.end_offset)

    def commit_in_transaction(self, command: CommitOffsetsInTransaction, now_ms: int) -> CommitDecision:
        """As `commit`, for offsets that become committed with the transaction."""
        find = self._latest.offsets(command.group_id)
        records: list[GroupLogRecord] = []
        codes = []
        for offset in command.offsets:
            value = _value(offset, NO_RETENTION_TIME, now_ms)
            known = find(TopicPartition(offset.topic, offset.partition))
            try:
                self._check(offset)
                is_known = known is not None and belongs_to(known.topic_id, offset.topic_id)
                if known is not None and is_known and needs_rules(known, value.offset):
                    # No ranges are committed until the transaction ends, so these are the last ones.
                    value = self._shared.with_offset(known, value, is_member=True)
            except KafkaError as refusal:
                codes.append(refusal.code)
            else:
                codes.append(ErrorCode.NONE)
                records.append(
                    PendingOffset(
                        group_id=command.group_id,
                        producer_id=command.producer_id,
                        topic=offset.topic,
                        partition=offset.partition,
                        value=value,
                    )
                )
        return Decision(records=tuple(records), response=tuple(codes))

    def _check(self, offset: OffsetToCommit) -> None:
        if len(offset.metadata) > self._max_metadata:
            raise KafkaError(
                ErrorCode.OFFSET_METADATA_TOO_LARGE,
                f"{len(offset.metadata)} characters of metadata; {self._max_metadata} at most",
            )


def _value(offset: OffsetToCommit, retention_time_ms: int, now_ms: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=now_ms,
        expire_timestamp=now_ms + retention_time_ms if retention_time_ms >= 0 else -1,
        topic_id=offset.topic_id,
    )


def delete(command: DeleteOffsets, stored: StoredGroup | None, group: ClassicGroup | None) -> CommitDecision:
    """A tombstone for each offset without a subscription, and an error code for each partition of the command.

    Raises KafkaError(NON_EMPTY_GROUP) if the subscription of a member is not known.
    """
    read: frozenset[str] | None = frozenset()
    if group is not None and group.members:
        if group.protocol_type != _CONSUMER:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {command.group_id} has members; stop them first")
        read = None if group.protocol_name is None else subscribed_topics(group)
    if stored is not None and stored.consumer is not None:
        read = stored.consumer.topics
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


def deletion(group_id: str, group: StoredGroup | None) -> Iterator[GroupLogRecord]:
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


def lost(group_id: str, group: StoredGroup, topics: Mapping[str, TopicId | None]) -> Iterator[GroupLogRecord]:
    """Tombstones for the group's offsets in these topics that belong to another id than the given one.

    Pending offsets count too. If one of a partition's offsets belongs to the new topic of that name, no tombstone is
    written, since it would delete this offset as well.
    """
    found: dict[TopicPartition, list[OffsetCommitValue]] = {}
    for partition, value in chain(group.offsets.items(), group.pending.waiting()):
        if partition.topic in topics:
            found.setdefault(partition, []).append(value)
    for (topic, number), values in found.items():
        if not any(belongs_to(value.topic_id, topics[topic]) for value in values):
            yield OffsetRecord(group_id=group_id, topic=topic, partition=number, value=None)


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that any member subscribes to; None if a member's metadata is not the consumer protocol's."""
    try:
        return frozenset(
            topic
            for member in group.members.values()
            for topic in decode_prefixed(ConsumerProtocolSubscription, member.metadata_for(group.protocol_name)).topics
        )
    except MalformedMessage:
        return None
