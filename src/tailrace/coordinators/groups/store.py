"""The two states of a coordinator's log: `GroupStore` is what is committed, `LatestGroups` is all that is appended.

Invariants:
1. `GroupStore` changes by `apply` only, in log order, so it equals the replay of the committed log.
2. A group is in the store iff it has metadata or at least one offset.
3. What was staged leaves `LatestGroups` in one of two ways: committed (applied to the store) or discarded (the append
   failed, so nothing of it ever was).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from tailrace.coordinators.groups.records import GroupLogRecord, GroupMetadataValue, GroupRecord, OffsetCommitValue
from tailrace.model.partitions import TopicPartition


class StoredGroup:
    """One group as its records tell it."""

    __slots__ = ("metadata", "offsets")

    def __init__(self) -> None:
        self.metadata: GroupMetadataValue | None = None
        self.offsets: dict[TopicPartition, OffsetCommitValue] = {}

    @property
    def is_empty(self) -> bool:
        return self.metadata is None and not self.offsets

    def apply(self, record: GroupLogRecord) -> None:
        if isinstance(record, GroupRecord):
            self.metadata = record.value
        elif record.value is None:
            self.offsets.pop(TopicPartition(record.topic, record.partition), None)
        else:
            self.offsets[TopicPartition(record.topic, record.partition)] = record.value

    def copy(self) -> "StoredGroup":
        twin = StoredGroup()
        twin.metadata = self.metadata
        twin.offsets = dict(self.offsets)
        return twin

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StoredGroup) and (self.metadata, self.offsets) == (other.metadata, other.offsets)

    __hash__ = None  # type: ignore[assignment]  # it changes


class GroupStore:
    """All groups of one partition of `__consumer_offsets`, as committed."""

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}

    def apply(self, record: GroupLogRecord) -> None:
        """Take one committed record. The only place where the store changes."""
        group = self.groups.get(record.group_id)
        if group is None:
            group = self.groups[record.group_id] = StoredGroup()
        group.apply(record)
        if group.is_empty:
            del self.groups[record.group_id]

    def get(self, group_id: str) -> StoredGroup | None:
        return self.groups.get(group_id)


class LatestGroups:
    """The store with all that has been appended and is not yet committed. Only decisions may read it."""

    def __init__(self, committed: GroupStore) -> None:
        self._committed = committed
        self._staged: defaultdict[str, list[GroupLogRecord]] = defaultdict(list)

    def stage(self, records: Iterable[GroupLogRecord]) -> None:
        """These are on their way into the log."""
        for record in records:
            self._staged[record.group_id].append(record)

    def commit(self, records: Sequence[GroupLogRecord]) -> None:
        """These, staged before, are below the high watermark now."""
        for record in records:
            self._committed.apply(record)
        self.discard(records)

    def discard(self, records: Iterable[GroupLogRecord]) -> None:
        """These, staged before, are no longer ahead of the store."""
        for record in records:
            staged = self._staged[record.group_id]
            # By identity: two commits of one offset are equal values, and only one of them has settled.
            del staged[next(i for i, other in enumerate(staged) if other is record)]
            if not staged:
                del self._staged[record.group_id]

    def get(self, group_id: str) -> StoredGroup | None:
        """The group as it will be, or None if it will not be."""
        group = self._committed.get(group_id)
        staged = self._staged.get(group_id)
        if not staged:
            return group
        group = group.copy() if group is not None else StoredGroup()
        for record in staged:
            group.apply(record)
        return None if group.is_empty else group

    def items(self) -> Iterator[tuple[str, StoredGroup]]:
        """Every group, as `get` gives it."""
        for group_id in {*self._committed.groups, *self._staged}:
            group = self.get(group_id)
            if group is not None:
                yield group_id, group
