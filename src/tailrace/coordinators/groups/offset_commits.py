"""Decisions on commits of offsets: whether a member may commit now, and the records and codes of its offsets."""

from collections.abc import Mapping

from tailrace.coordinators.groups.commands import CommitOffsets, OffsetToCommit
from tailrace.coordinators.groups.membership import GroupMembership
from tailrace.coordinators.groups.range_commits import BehindTheEnd
from tailrace.coordinators.groups.ranged_offsets import RangedOffsets
from tailrace.coordinators.groups.records import GroupLogRecord, OffsetCommitValue, OffsetRecord, pending_offset
from tailrace.coordinators.groups.store import LatestGroups, belongs_to
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.partitions import TopicPartition

GroupDecision = Decision[GroupLogRecord, tuple[ErrorCode, ...]]


class OffsetCommits:
    """Decisions for one coordinator partition: `latest` has its log, `memberships` the members of classic groups."""

    def __init__(
        self,
        latest: LatestGroups,
        memberships: Mapping[str, GroupMembership],
        ranged: RangedOffsets,
        *,
        max_metadata: int,
    ) -> None:
        """`max_metadata` is offset.metadata.max.bytes."""
        self._latest = latest
        self._memberships = memberships
        self._ranged = ranged
        self._max_metadata = max_metadata

    def commit(self, command: CommitOffsets, now_ms: int) -> GroupDecision:
        """A record for each acceptable offset, and an error code for each offset of the command.

        `check_member` has admitted the command.
        """
        find = self._latest.offsets(command.group_id)
        records: list[GroupLogRecord] = []
        codes = []
        for offset in command.offsets:
            before = find(TopicPartition(offset.topic, offset.partition))
            if before is not None and not belongs_to(before.topic_id, offset.topic_id):
                before = None  # the topic was deleted and created again
            code, value = ErrorCode.NONE, None
            try:
                value = self._after(command, offset, before, now_ms)
            except BehindTheEnd as refusal:
                code = refusal.code
                if before is not None and offset.ranges is not None:
                    # The leader has just reported that its log ends before ranges of the group: those ranges are lost.
                    value = self._ranged.within(before, offset.ranges.end_offset)
            except KafkaError as refusal:
                code = refusal.code
            codes.append(code)
            if value is not None:
                record = OffsetRecord(
                    group_id=command.group_id, topic=offset.topic, partition=offset.partition, value=value
                )
                producer_id = command.producer_id
                records.append(record if producer_id is None else pending_offset(record, producer_id, value))
        return Decision(records=tuple(records), response=tuple(codes))

    def check_member(self, command: CommitOffsets) -> None:
        """Raises KafkaError if the member may not commit now.

        A request that names no member may commit for any group in a transaction, as before KIP-447. Outside of a
        transaction it may commit only for a group without members: its consumers assign partitions themselves.
        """
        generation_id, member_id, instance_id = command.generation_id, command.member_id, command.group_instance_id
        in_transaction = command.producer_id is not None
        consumer, membership = self._latest.consumer(command.group_id), self._memberships.get(command.group_id)
        fault = ErrorCode.NONE
        if in_transaction and generation_id < 0 and not member_id and instance_id is None:
            return
        if consumer is not None:
            fault = consumer.fault_of_commit(
                member_id, generation_id, knows_epochs=command.knows_epochs, instance_id=instance_id
            )
        elif membership is not None:
            fault = membership.group.fault_of_commit(
                member_id, generation_id, instance_id, in_transaction=in_transaction
            )
        elif generation_id >= 0 and self._latest.get(command.group_id) is not None:
            fault = ErrorCode.UNKNOWN_MEMBER_ID
        elif generation_id >= 0:
            fault = ErrorCode.ILLEGAL_GENERATION if in_transaction else ErrorCode.GROUP_ID_NOT_FOUND
        if fault:
            raise KafkaError(fault, f"group {command.group_id} does not take offsets of this member now")

    def _after(
        self, command: CommitOffsets, offset: OffsetToCommit, before: OffsetCommitValue | None, now_ms: int
    ) -> OffsetCommitValue:
        """The value after this commit. Raises KafkaError if the commit is refused."""
        if len(offset.metadata) > self._max_metadata:
            raise KafkaError(
                ErrorCode.OFFSET_METADATA_TOO_LARGE,
                f"{len(offset.metadata)} characters of metadata; {self._max_metadata} at most",
            )
        retention_ms = command.retention_time_ms
        plain = OffsetCommitValue(
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            commit_timestamp=now_ms,
            expire_timestamp=now_ms + retention_ms if retention_ms >= 0 else -1,
            topic_id=offset.topic_id,
        )
        if offset.ranges is not None:
            partition = TopicPartition(offset.topic, offset.partition)
            if self._latest.has_pending(command.group_id, partition):
                # Otherwise the end of the transaction would replace the ranges, or the ranges would replace the
                # transaction's offset.
                raise KafkaError(ErrorCode.UNSTABLE_OFFSET_COMMIT, f"a transaction has set the offset of {partition}")
            return self._ranged.with_ranges(before, plain, offset)
        if before is None or not (before.ranges or before.state_epoch or offset.offset < before.offset):
            # The last condition: a reader of ranges may have begun at the earlier offset, even if no range was
            # committed beyond it.
            return plain
        # No ranges are committed while a transaction is open: at its end, its offset meets the present ranges.
        is_member = command.generation_id >= 0 or command.producer_id is not None
        return self._ranged.with_offset(before, plain, offset.hashes, is_member=is_member)
