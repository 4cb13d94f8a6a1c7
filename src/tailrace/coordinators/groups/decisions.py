"""Decisions on commits, deletions and expiry, given the latest state of a group; they change nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups import offsets
from tailrace.coordinators.groups.commands import (
    MOST_RECORDS_OF_A_SWEEP,
    Command,
    CommitOffsets,
    CommitOffsetsInTransaction,
    DeleteGroup,
    DeleteOffsets,
    ExpireOffsets,
    ForgetLostTopics,
)
from tailrace.coordinators.groups.consumer.change import retirement
from tailrace.coordinators.groups.consumer.coordinator import fault_of_commit
from tailrace.coordinators.groups.group import ClassicGroup, GroupState
from tailrace.coordinators.groups.membership import GroupMembership
from tailrace.coordinators.groups.offsets import OffsetCommits, subscribed_topics
from tailrace.coordinators.groups.records import GroupLogRecord, GroupRecord, OffsetCommitValue, OffsetRecord
from tailrace.coordinators.groups.shared_offsets import SharedOffsets
from tailrace.coordinators.groups.store import LatestGroups, StoredGroup
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.schema import replace

GroupDecision = Decision[GroupLogRecord, tuple[ErrorCode, ...]]


class GroupDecisions:
    """Decisions for one coordinator partition: `latest` has its log, `memberships` the members of its groups."""

    def __init__(
        self,
        latest: LatestGroups,
        memberships: Mapping[str, GroupMembership],
        config: GroupConfig,
        shared: SharedOffsets,
    ) -> None:
        self._latest = latest
        self._memberships = memberships
        self._config = config
        self._commits = OffsetCommits(latest, shared, max_metadata=config.offset_metadata_max_bytes)

    def decide(self, command: Command, now_ms: int) -> GroupDecision:
        """The records and the answer; `now_ms` since 1970. Raises KafkaError if the command fails as a whole."""
        match command:
            case CommitOffsets():
                fault = self._fault_of_commit(command)
                if fault:
                    raise KafkaError(fault, f"group {command.group_id} does not take offsets of this member now")
                return self._commits.commit(command, now_ms)
            case CommitOffsetsInTransaction():
                fault = self._fault_of_transactional_commit(command)
                if fault:
                    raise KafkaError(fault, f"group {command.group_id} does not take offsets of this member now")
                return self._commits.commit_in_transaction(command, now_ms)
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

    def _fault_of_commit(self, command: CommitOffsets) -> ErrorCode:
        consumer = self._latest.consumer(command.group_id)
        if consumer is not None:
            return fault_of_commit(
                consumer,
                command.member_id,
                command.generation_id,
                knows_epochs=command.knows_epochs,
                instance_id=command.group_instance_id,
            )
        membership = self._memberships.get(command.group_id)
        if membership is not None:
            return membership.fault_of_commit(
                generation_id=command.generation_id,
                member_id=command.member_id,
                group_instance_id=command.group_instance_id,
            )
        if command.generation_id < 0:
            return ErrorCode.NONE
        is_known = self._latest.get(command.group_id) is not None
        return ErrorCode.UNKNOWN_MEMBER_ID if is_known else ErrorCode.GROUP_ID_NOT_FOUND

    def _fault_of_transactional_commit(self, command: CommitOffsetsInTransaction) -> ErrorCode:
        """As for other commits, but a request without a member may commit for any group, as before KIP-447."""
        if command.generation_id < 0 and not command.member_id and command.group_instance_id is None:
            return ErrorCode.NONE
        consumer = self._latest.consumer(command.group_id)
        if consumer is not None:
            return fault_of_commit(
                consumer,
                command.member_id,
                command.generation_id,
                knows_epochs=True,
                instance_id=command.group_instance_id,
            )
        membership = self._memberships.get(command.group_id)
        if membership is not None:
            return membership.fault_of_transactional_commit(
                generation_id=command.generation_id,
                member_id=command.member_id,
                group_instance_id=command.group_instance_id,
            )
        if command.generation_id < 0:
            return ErrorCode.NONE
        is_known = self._latest.get(command.group_id) is not None
        return ErrorCode.UNKNOWN_MEMBER_ID if is_known else ErrorCode.ILLEGAL_GENERATION

    def _delete(self, group_id: str) -> GroupDecision:
        membership, stored = self._memberships.get(group_id), self._latest.get(group_id)
        if membership is None and stored is None:
            raise no_such_group(group_id)
        has_members = stored is not None and stored.consumer is not None and bool(stored.consumer.members)
        if has_members or (membership is not None and membership.group.state is not GroupState.EMPTY):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {group_id} has members; stop them first")
        return Decision(records=tuple(offsets.deletion(group_id, stored)), response=(ErrorCode.NONE,))

    def _delete_offsets(self, command: DeleteOffsets) -> GroupDecision:
        membership, stored = self._memberships.get(command.group_id), self._latest.get(command.group_id)
        if membership is None and stored is None:
            raise no_such_group(command.group_id)
        return offsets.delete(command, stored, None if membership is None else membership.group)

    def _lost(self, command: ForgetLostTopics) -> Iterator[GroupLogRecord]:
        for group_id, stored in self._latest.groups_in(command.topics):
            yield from offsets.lost(group_id, stored, command.topics)

    def _expired(self, command: ExpireOffsets, now_ms: int) -> Iterator[GroupLogRecord]:
        retention_ms = self._config.offsets_retention_ms
        for group_id in command.group_ids:
            stored = self._latest.get(group_id)
            if stored is None:
                continue
            membership = self._memberships.get(group_id)
            group, is_idle = (None, True) if membership is None else (membership.group, membership.is_idle)
            expiry = expiry_of(group, stored, is_idle=is_idle)
            if expiry is not None:
                yield from expired(group_id, stored, expiry, now_ms=now_ms, retention_ms=retention_ms)
            elif group is not None and _is_end_missing(group, stored):
                emptied = replace(group.metadata({}), current_state_timestamp=now_ms)
                yield GroupRecord(group_id=group_id, value=emptied)


def _is_end_missing(group: ClassicGroup, stored: StoredGroup) -> bool:
    """Whether the last member is gone but not in the log: the write of the empty group has failed."""
    return group.state is GroupState.EMPTY and stored.metadata is not None and bool(stored.metadata.members)


def _sweep(records: Iterator[GroupLogRecord]) -> GroupDecision:
    return Decision(records=tuple(islice(records, MOST_RECORDS_OF_A_SWEEP)), response=())


def no_such_group(group_id: str) -> KafkaError:
    """GROUP_ID_NOT_FOUND (69)."""
    return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id!r}")


_CONSUMER = "consumer"

KeptSince = Callable[[OffsetCommitValue], int]
"""Returns the start of an offset's retention time, in ms since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The rule by which the offsets of a group expire."""

    kept_since: KeptSince
    kept_topics: frozenset[str] = frozenset()
    """Topics with a subscription: offsets in these do not expire."""
    is_group_gone_too: bool = False
    """The group is deleted with its last offset."""


def expiry_of(group: ClassicGroup | None, stored: StoredGroup, *, is_idle: bool) -> Expiry | None:
    """The rule for a group; None if no offset of it expires. `group` is None if it never had a member.

    `is_idle`: there is no member, and none is joining.

    | The group | Its offsets expire |
    |---|---|
    | has no members | `offsets.retention.minutes` after the last one left |
    | is stable and of type "consumer" | for topics that no member subscribes to: that long after the commit |
    | is a consumer group (KIP-848) | for topics that no member subscribes to: that long after the commit |
    | was never joined: consumers that assign themselves | that long after the commit |
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
            # The empty group is not in the log yet; if its write has failed, the sweep writes it.
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
    """Tombstones for the expired offsets, and for the group if it is deleted with them."""
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
