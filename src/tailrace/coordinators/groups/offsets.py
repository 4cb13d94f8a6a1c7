"""Committing and forgetting offsets: what becomes of a command, given the group as it stands (pure)."""

from collections.abc import Iterator, Mapping

from tailrace.coordinators.groups.commands import CommitOffsets, OffsetToCommit
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord, OffsetCommitValue, OffsetRecord
from tailrace.coordinators.groups.store import StoredGroup
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId
from tailrace.model.machines import Decision

CommitDecision = Decision[GroupLogRecord, tuple[ErrorCode, ...]]


def commit(command: CommitOffsets, now_ms: int, *, max_metadata: int) -> CommitDecision:
    """A record for each offset that is acceptable, and an error code for each that was asked for."""
    codes = tuple(
        ErrorCode.OFFSET_METADATA_TOO_LARGE if len(offset.metadata) > max_metadata else ErrorCode.NONE
        for offset in command.offsets
    )
    records = tuple(
        OffsetRecord(
            group_id=command.group_id,
            topic=offset.topic,
            partition=offset.partition,
            value=_value(offset, command.retention_time_ms, now_ms),
        )
        for offset, code in zip(command.offsets, codes, strict=True)
        if code is ErrorCode.NONE
    )
    return Decision(records=records, response=codes)


def _value(offset: OffsetToCommit, retention_time_ms: int, now_ms: int) -> OffsetCommitValue:
    return OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=now_ms,
        expire_timestamp=now_ms + retention_time_ms if retention_time_ms >= 0 else -1,
        topic_id=offset.topic_id,
    )


def deletion(group_id: str, group: StoredGroup | None) -> Iterator[GroupLogRecord]:
    """Tombstones for all that the log has of this group."""
    for topic, partition in group.offsets if group is not None else ():
        yield OffsetRecord(group_id=group_id, topic=topic, partition=partition, value=None)
    yield GroupRecord(group_id=group_id, value=None)


def lost(group_id: str, group: StoredGroup, topics: Mapping[str, TopicId]) -> Iterator[GroupLogRecord]:
    """Tombstones for the group's offsets in topics that are not these."""
    for (topic, partition), value in group.offsets.items():
        topic_id = topics.get(topic)
        if topic_id is None or value.topic_id not in (topic_id, ZERO_TOPIC_ID):
            yield OffsetRecord(group_id=group_id, topic=topic, partition=partition, value=None)
