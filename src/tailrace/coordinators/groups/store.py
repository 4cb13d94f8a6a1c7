"""The two states of a coordinator's log: `GroupStore` is the committed state, `LatestGroups` the appended state.

Invariants:
1. `GroupStore` changes by `apply` only, in log order, so the store equals the replay of the committed log.
2. A group is in the store iff the group has metadata or at least one offset, committed or pending.
3. `GroupStore.topics` equals an index made from all committed offsets.
4. A staged change leaves `LatestGroups` in one of two ways: committed (applied to the store) or discarded (the append
   failed, so it has no effect).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tailrace.coordinators.groups.consumer.group import ConsumerGroup, with_record
from tailrace.coordinators.groups.consumer_records import ConsumerGroupRecord
from tailrace.coordinators.groups.records import (
    GroupLogRecord,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitValue,
    OffsetRecord,
    PendingOffset,
    TransactionEnd,
)
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId
from tailrace.model.partitions import TopicPartition


class StoredGroup:
    """A group, made by its records."""

    __slots__ = ("consumer", "metadata", "offsets", "pending")

    def __init__(self) -> None:
        self.metadata: GroupMetadataValue | None = None
        """The last generation of a classic group; None for other groups."""
        self.consumer: ConsumerGroup | None = None
        """The state of a consumer group (KIP-848); None for other groups."""
        self.offsets: dict[TopicPartition, OffsetCommitValue] = {}
        self.pending = PendingOffsets()

    @property
    def is_empty(self) -> bool:
        return self.metadata is None and self.consumer is None and not self.offsets and not self.pending

    def apply(self, record: GroupLogRecord) -> None:
        if isinstance(record, GroupRecord):
            self.metadata = record.value
        elif isinstance(record, ConsumerGroupRecord):
            self.consumer = with_record(self.consumer, record)
        elif isinstance(record, PendingOffset):
            partition = TopicPartition(record.topic, record.partition)
            self.pending.add(record.producer_id, partition, record.value)
        elif isinstance(record, TransactionEnd):
            self.offsets.update(self.pending.end(record.producer_id, is_committed=record.is_committed))
        else:
            self._set_offset(TopicPartition(record.topic, record.partition), record.value)

    def _set_offset(self, partition: TopicPartition, value: OffsetCommitValue | None) -> None:
        if value is None:
            self.pending.forget(partition)
            self.offsets.pop(partition, None)
        else:
            self.pending.supersede(partition)
            self.offsets[partition] = value

    def copy(self) -> "StoredGroup":
        twin = StoredGroup()
        twin.metadata = self.metadata
        twin.consumer = None if self.consumer is None else self.consumer.copy()
        twin.offsets = dict(self.offsets)
        twin.pending = self.pending.copy()
        return twin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredGroup) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]  # it changes


class GroupStore:
    """The groups of one partition of `__consumer_offsets`, as committed."""

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.topics = TopicIndex()
        self._in_transactions: dict[int, set[str]] = {}
        """For each producer id, the groups with pending offsets of the producer's transaction."""

    def apply(self, record: GroupLogRecord) -> Sequence[OffsetRecord]:
        """Apply one committed record; returns the changed offsets. The only place where the store changes."""
        group = self.groups.get(record.group_id)
        if group is None:
            group = self.groups[record.group_id] = StoredGroup()
        changed: Sequence[OffsetRecord] = ()
        if isinstance(record, OffsetRecord):
            changed = (record,)
        elif isinstance(record, PendingOffset):
            self._in_transactions.setdefault(record.producer_id, set()).add(record.group_id)
        elif isinstance(record, TransactionEnd):
            changed = self._end_transaction(group, record)
        for offset in changed:
            before = group.offsets.get(TopicPartition(offset.topic, offset.partition))
            self.topics.replace(offset.group_id, offset.topic, before, offset.value)
        group.apply(record)
        if group.is_empty:
            del self.groups[record.group_id]
        return changed

    def _end_transaction(self, group: StoredGroup, record: TransactionEnd) -> list[OffsetRecord]:
        waiting = self._in_transactions.get(record.producer_id, set())
        waiting.discard(record.group_id)
        if not waiting:
            self._in_transactions.pop(record.producer_id, None)
        return [
            OffsetRecord(group_id=record.group_id, topic=topic, partition=partition, value=value)
            for (topic, partition), value in group.pending.offsets_of(record.producer_id)
            if record.is_committed
        ]

    def groups_waiting_for(self, producer_id: int) -> frozenset[str]:
        """The groups that have offsets in the producer's transaction."""
        return frozenset(self._in_transactions.get(producer_id, ()))

    @property
    def waiting_groups(self) -> frozenset[str]:
        """The groups that have pending offsets, and perhaps groups whose pending offsets have ended. Pending offsets
        are not in `topics`."""
        return frozenset().union(*self._in_transactions.values())

    @property
    def topic_names(self) -> frozenset[str]:
        """The topics in which any group has an offset, committed or pending."""
        waiting = (self.groups[group_id] for group_id in self.waiting_groups if group_id in self.groups)
        return self.topics.names.union(partition.topic for group in waiting for partition, _ in group.pending.waiting())


_NOTHING: dict[int, GroupLogRecord] = {}


class StagedOffsets:
    """The staged records of one group that concern offsets, by partition."""

    __slots__ = ("_ends", "_pending", "_records")

    def __init__(self) -> None:
        self._records: dict[TopicPartition, dict[int, OffsetRecord]] = {}
        """The records in the order of the log, by object identity."""
        self._pending: Counter[TopicPartition] = Counter()
        self._ends = 0

    def add(self, record: GroupLogRecord) -> None:
        if isinstance(record, OffsetRecord):
            partition = TopicPartition(record.topic, record.partition)
            self._records.setdefault(partition, {})[id(record)] = record
        elif isinstance(record, PendingOffset):
            self._pending[TopicPartition(record.topic, record.partition)] += 1
        elif isinstance(record, TransactionEnd):
            self._ends += 1

    def remove(self, record: GroupLogRecord) -> None:
        if isinstance(record, OffsetRecord):
            partition = TopicPartition(record.topic, record.partition)
            of_partition = self._records[partition]
            del of_partition[id(record)]
            if not of_partition:
                del self._records[partition]
        elif isinstance(record, PendingOffset):
            self._pending[TopicPartition(record.topic, record.partition)] -= 1
        elif isinstance(record, TransactionEnd):
            self._ends -= 1

    @property
    def has_ends(self) -> bool:
        """Whether the end of a transaction is among the staged records: such an end may set any offset."""
        return self._ends > 0

    def has_pending(self, partition: TopicPartition) -> bool:
        return self._pending[partition] > 0

    def latest(self, partition: TopicPartition) -> OffsetRecord | None:
        """The last record of this partition's offset."""
        of_partition = self._records.get(partition)
        return None if of_partition is None else next(reversed(of_partition.values()))


class LatestGroups:
    """The store with all appended records that are not committed yet, for decisions only."""

    def __init__(self, committed: GroupStore) -> None:
        self._committed = committed
        self._staged: defaultdict[str, dict[int, GroupLogRecord]] = defaultdict(dict)
        """For each group, the records in the order of the log, by object identity: two commits of one offset may be
        equal values, and are completed separately."""
        self._staged_offsets: defaultdict[str, StagedOffsets] = defaultdict(StagedOffsets)

    def stage(self, records: Iterable[GroupLogRecord]) -> None:
        """Add appended records, which are not committed yet."""
        for record in records:
            self._staged[record.group_id][id(record)] = record
            self._staged_offsets[record.group_id].add(record)

    def commit(self, records: Sequence[GroupLogRecord]) -> list[OffsetRecord]:
        """Staged records are committed: apply them to the store; returns the changed offsets."""
        changed = [offset for record in records for offset in self._committed.apply(record)]
        self.discard(records)
        return changed

    def discard(self, records: Iterable[GroupLogRecord]) -> None:
        """Remove staged records, which are in the store by now, or are not in the log."""
        for record in records:
            staged = self._staged[record.group_id]
            del staged[id(record)]
            self._staged_offsets[record.group_id].remove(record)
            if not staged:
                del self._staged[record.group_id]
                del self._staged_offsets[record.group_id]

    def get(self, group_id: str) -> StoredGroup | None:
        """The group with the staged records; None if there is no such group."""
        group = self._committed.groups.get(group_id)
        staged = self._staged.get(group_id)
        if not staged:
            return group
        group = group.copy() if group is not None else StoredGroup()
        for record in staged.values():
            group.apply(record)
        return None if group.is_empty else group

    def offsets(self, group_id: str) -> Callable[[TopicPartition], OffsetCommitValue | None]:
        """Returns a function that finds the group's offset in a partition, with the staged records. The function is
        valid until more records are staged."""
        staged, group = self._staged_offsets.get(group_id), self._committed.groups.get(group_id)
        if staged is not None and staged.has_ends:
            staged, group = None, self.get(group_id)
        committed = {} if group is None else group.offsets
        if staged is None:
            return committed.get

        def find(partition: TopicPartition) -> OffsetCommitValue | None:
            record = staged.latest(partition)
            return committed.get(partition) if record is None else record.value

        return find

    def has_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether an open transaction may have set the group's offset in this partition."""
        committed, staged = self._committed.groups.get(group_id), self._staged_offsets.get(group_id)
        return (committed is not None and committed.pending.has(partition)) or (
            staged is not None and staged.has_pending(partition)
        )

    def consumer(self, group_id: str) -> ConsumerGroup | None:
        """The consumer group with the staged records, which must not be changed; None if there is no such group."""
        stored = self._committed.groups.get(group_id)
        group = None if stored is None else stored.consumer
        staged = self._staged.get(group_id, _NOTHING)
        records = [record for record in staged.values() if isinstance(record, ConsumerGroupRecord)]
        if records and group is not None:
            group = group.copy()
        for record in records:
            group = with_record(group, record)
        return group

    def has_generation(self, group_id: str) -> bool:
        """Whether the group is a classic group with the staged records."""
        for record in reversed(self._staged.get(group_id, _NOTHING).values()):
            if isinstance(record, GroupRecord):
                return record.value is not None
        group = self._committed.groups.get(group_id)
        return group is not None and group.metadata is not None

    def groups_waiting_for(self, producer_id: int) -> frozenset[str]:
        """The groups that have offsets in the producer's transaction, in committed or staged records."""
        staged = (
            group_id
            for group_id, records in self._staged.items()
            if any(isinstance(each, PendingOffset) and each.producer_id == producer_id for each in records.values())
        )
        return self._committed.groups_waiting_for(producer_id).union(staged)

    def groups_in(self, topics: Mapping[str, TopicId | None]) -> Iterator[tuple[str, StoredGroup]]:
        """The groups, as `get` returns them, that may have an offset in any of these topics under another topic id."""
        candidates = self._committed.topics.groups_beside(topics)
        # Staged and pending offsets, which are few, are not in the index.
        for group_id in dict.fromkeys((*candidates, *sorted(self._committed.waiting_groups), *self._staged)):
            group = self.get(group_id)
            if group is not None:
                yield group_id, group


class PendingOffsets:
    """The pending offsets of one group, by producer.

    A pending offset becomes committed with its transaction, unless a later offset of its partition was committed
    before, in another transaction or outside of transactions. A deleted offset does not come back with the transaction.
    """

    __slots__ = ("_next_place", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, dict[TopicPartition, tuple[int, OffsetCommitValue] | None]] = {}
        """The offsets of each producer, with their places in the order of all offsets; None: a later commit has
        superseded the offset."""
        self._next_place = 0

    def __bool__(self) -> bool:
        return bool(self._producers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PendingOffsets) and self._producers == other._producers

    __hash__ = None  # type: ignore[assignment]  # it changes

    def copy(self) -> "PendingOffsets":
        twin = PendingOffsets()
        twin._next_place = self._next_place
        twin._producers = {producer_id: dict(offsets) for producer_id, offsets in self._producers.items()}
        return twin

    def add(self, producer_id: int, partition: TopicPartition, value: OffsetCommitValue) -> None:
        """Add an offset of the producer's transaction."""
        self._producers.setdefault(producer_id, {})[partition] = (self._next_place, value)
        self._next_place += 1

    def supersede(self, partition: TopicPartition) -> None:
        """Drop the pending offsets of a partition whose offset was committed outside of transactions."""
        if self._producers:
            self._supersede(partition, self._next_place)

    def forget(self, partition: TopicPartition) -> None:
        """Drop all pending offsets of a partition whose offset is deleted."""
        for producer_id, offsets in tuple(self._producers.items()):
            offsets.pop(partition, None)
            if not offsets:
                del self._producers[producer_id]

    def end(self, producer_id: int, *, is_committed: bool) -> list[tuple[TopicPartition, OffsetCommitValue]]:
        """End the producer's transaction; returns the offsets that become committed."""
        counting = self.offsets_of(producer_id) if is_committed else []
        offsets = self._producers.pop(producer_id, {})
        for partition, found in offsets.items():
            if is_committed and found is not None:
                self._supersede(partition, found[0])
        return counting

    def offsets_of(self, producer_id: int) -> list[tuple[TopicPartition, OffsetCommitValue]]:
        """The offsets that become committed if this producer's transaction commits."""
        offsets = self._producers.get(producer_id, {})
        return [(partition, found[1]) for partition, found in offsets.items() if found is not None]

    def _supersede(self, partition: TopicPartition, below: int) -> None:
        for offsets in self._producers.values():
            found = offsets.get(partition)
            if found is not None and found[0] < below:
                offsets[partition] = None

    def has(self, partition: TopicPartition) -> bool:
        """Whether an open transaction has set this partition's offset."""
        return any(partition in offsets for offsets in self._producers.values())

    def waiting(self) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        """The pending offsets; perhaps several for one partition."""
        for producer_id in self._producers:
            yield from self.offsets_of(producer_id)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Partitions for which an open transaction has set the offset."""
        return frozenset().union(*self._producers.values())


def belongs_to(offset_topic_id: bytes, topic_id: TopicId | None) -> bool:
    """Whether an offset belongs to the topic with this id; None if no topic has the name."""
    return topic_id is not None and offset_topic_id in (topic_id, ZERO_TOPIC_ID)


class TopicIndex:
    """Topic name -> topic id -> group -> number of partitions with an offset of the group."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[bytes, dict[str, int]]] = {}

    @property
    def names(self) -> frozenset[str]:
        """The topics in which any group has an offset."""
        return frozenset(self._topics)

    def groups_beside(self, topics: Mapping[str, TopicId | None]) -> Iterator[str]:
        """The groups with an offset in any of these topics under another topic id; perhaps with repetitions."""
        for name, topic_id in topics.items():
            for found_id, groups in self._topics.get(name, {}).items():
                if not belongs_to(found_id, topic_id):
                    yield from groups

    def replace(
        self, group_id: str, topic: str, before: OffsetCommitValue | None, after: OffsetCommitValue | None
    ) -> None:
        """Replace an offset of the group in one partition of the topic; None without an offset."""
        if before is not None and after is not None and before.topic_id == after.topic_id:
            return
        if before is not None:
            self._remove(group_id, topic, before.topic_id)
        if after is not None:
            groups = self._topics.setdefault(topic, {}).setdefault(after.topic_id, {})
            groups[group_id] = groups.get(group_id, 0) + 1

    def _remove(self, group_id: str, topic: str, topic_id: bytes) -> None:
        ids = self._topics[topic]
        groups = ids[topic_id]
        groups[group_id] -= 1
        if not groups[group_id]:
            del groups[group_id]
        if not groups:
            del ids[topic_id]
        if not ids:
            del self._topics[topic]
