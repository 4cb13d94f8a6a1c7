"""A group's offsets that wait for the end of a producer's transaction (KIP-98, KIP-447).

A pending offset takes effect if it is the last one in the log for its partition when its transaction commits: a later
commit, in another transaction or in none, replaces it. Offsets that the group deletes meanwhile do not come back with
the transaction.
"""

from collections.abc import Iterator

from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.model.partitions import TopicPartition


class PendingOffsets:
    """Those of one group, by producer."""

    __slots__ = ("_next_place", "_producers")

    def __init__(self) -> None:
        self._producers: dict[int, dict[TopicPartition, tuple[int, OffsetCommitValue] | None]] = {}
        """With its place among all that were added; None: another one has taken its place, and it waits for nothing."""
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
        """The producer's transaction will set this offset."""
        self._producers.setdefault(producer_id, {})[partition] = (self._next_place, value)
        self._next_place += 1

    def supersede(self, partition: TopicPartition) -> None:
        """An offset was committed outside of transactions: those of before do not count any more."""
        if self._producers:
            self._supersede(partition, self._next_place)

    def forget(self, partition: TopicPartition) -> None:
        """The group forgets the partition: no transaction sets its offset any more."""
        for producer_id, offsets in tuple(self._producers.items()):
            offsets.pop(partition, None)
            if not offsets:
                del self._producers[producer_id]

    def end(self, producer_id: int, *, is_committed: bool) -> list[tuple[TopicPartition, OffsetCommitValue]]:
        """The producer's transaction has ended; the offsets that the group has because of it."""
        counting = self.offsets_of(producer_id) if is_committed else []
        offsets = self._producers.pop(producer_id, {})
        for partition, found in offsets.items():
            if is_committed and found is not None:
                self._supersede(partition, found[0])
        return counting

    def offsets_of(self, producer_id: int) -> list[tuple[TopicPartition, OffsetCommitValue]]:
        """The offsets that the group will have if this producer's transaction commits."""
        offsets = self._producers.get(producer_id, {})
        return [(partition, found[1]) for partition, found in offsets.items() if found is not None]

    def _supersede(self, partition: TopicPartition, below: int) -> None:
        for offsets in self._producers.values():
            found = offsets.get(partition)
            if found is not None and found[0] < below:
                offsets[partition] = None

    def has(self, partition: TopicPartition) -> bool:
        """Whether a transaction is open that has set this partition's offset."""
        return any(partition in offsets for offsets in self._producers.values())

    def waiting(self) -> Iterator[tuple[TopicPartition, OffsetCommitValue]]:
        """The offsets that wait; perhaps several for one partition."""
        for producer_id in self._producers:
            yield from self.offsets_of(producer_id)

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        """Partitions for which an open transaction has set the offset."""
        return frozenset().union(*self._producers.values())
