"""The partitions that are assigned to a consumer, by state: with records, without a position, changed. Pure.

Everything that changes a partition's position, records or pause goes through here, or is followed by `note`. So a poll
finds the partitions that concern it, and looks at no other partition.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence

from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.client.reading.position import UNKNOWN_EPOCH, FetchPosition, PositionState, Truncation
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, joined
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.record import Record


class AssignedPartitions:
    """The partitions by name."""

    def __init__(self, corrupt: CorruptBatches | None = None) -> None:
        """`corrupt` decides about batches that cannot be decoded; without `corrupt` such a batch raises."""
        self.corrupt = corrupt or CorruptBatches()
        self._partitions: dict[TopicPartition, ConsumedPartition] = {}
        self.topics: frozenset[str] = frozenset()
        self.paused: frozenset[TopicPartition] = frozenset()
        """Partitions from which nothing is fetched or returned until a `resume`."""
        self.has_end = False
        """Whether reading has an end: a partition is read once its end is known."""
        self.records_consumed = 0
        self._changed: dict[TopicPartition, None] = {}
        self._ready: OrderedDict[TopicPartition, None] = OrderedDict()
        """Partitions with records to return, in the order of their turns."""
        self._undecided: dict[TopicPartition, None] = {}
        self._unvalidated: dict[TopicPartition, None] = {}
        self._endless: dict[TopicPartition, None] = {}
        self._unfinished: dict[TopicPartition, None] = {}

    @property
    def by_name(self) -> Mapping[TopicPartition, ConsumedPartition]:
        """The partitions. Only to look at."""
        return self._partitions

    def get(self, name: TopicPartition) -> ConsumedPartition | None:
        """The partition, if assigned."""
        return self._partitions.get(name)

    def assign(
        self, partitions: Mapping[TopicPartition, Sequence[KeyRange]] | Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Read exactly these partitions; partitions assigned before keep their positions and pauses.

        Of a partition with key ranges (KIP-X) the records of the ranges are read, else every record. Returns the
        partitions that leave; their records are dropped.
        """
        ranges = partitions if isinstance(partitions, Mapping) else {}
        before = self._partitions
        self._partitions = {
            name: before.get(name) or ConsumedPartition(name, self.corrupt) for name in sorted(partitions)
        }
        self.topics = frozenset(name.topic for name in self._partitions)
        self.paused = self.paused.intersection(self._partitions)
        for name, partition in self._partitions.items():
            partition.change_key_ranges(joined(ranges.get(name, ())))
            partition.awaits_end = self.has_end and partition.until is None
        for name in {**before, **self._partitions}:
            self.note(name)
        left = [name for name in before if name not in self._partitions]
        for name in left:
            before[name].drop_records()
        return left

    def note(self, name: TopicPartition) -> None:
        """Note that the state or the assignment of this partition may have changed."""
        partition = self._partitions.get(name)
        position = None if partition is None else partition.position
        _put(self._undecided, name, partition is not None and partition.awaits_start)
        _put(self._unvalidated, name, position is not None and position.state is PositionState.AWAITING_VALIDATION)
        _put(self._endless, name, partition is not None and partition.awaits_end)
        _put(self._unfinished, name, partition is not None and not partition.is_at_end)
        is_ready = partition is not None and not partition.is_drained and partition.may_be_read
        _put(self._ready, name, is_ready)
        self._changed[name] = None

    def note_all(self) -> None:
        """Note every partition: with new metadata the next fetch of any partition may differ."""
        self._changed.update(dict.fromkeys(self._partitions))

    def take_changed(self) -> Iterable[TopicPartition]:
        """The partitions that were noted since the last call, among them some that are not assigned any more."""
        changed = self._changed
        if changed:
            self._changed = {}
        return changed

    def check_assigned(self, name: TopicPartition) -> None:
        """Raise KafkaError INVALID_REQUEST unless the partition is assigned."""
        self._assigned(name)

    def _assigned(self, name: TopicPartition) -> ConsumedPartition:
        if name not in self._partitions:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name} is not assigned to this consumer")
        return self._partitions[name]

    # positions

    def seek(self, name: TopicPartition, offset: int, epoch: int = UNKNOWN_EPOCH) -> None:
        """Read on from this offset; fetched records are dropped. `epoch`: the leader epoch of the record before this
        offset."""
        self._assigned(name).start_at(offset, epoch)
        self.note(name)

    def start_at(
        self, name: TopicPartition, offset: int, epoch: int = UNKNOWN_EPOCH, *, valid_under: int = UNKNOWN_EPOCH
    ) -> bool:
        """Set the position of an undecided partition; False if it was revoked or sought meanwhile.

        For `valid_under` see `FetchPosition.start_at`.
        """
        if name not in self._undecided:
            return False
        self._partitions[name].start_at(offset, epoch, valid_under=valid_under)
        self.note(name)
        return True

    def end_at(self, name: TopicPartition, until: int) -> None:
        """Return no record of this partition from the offset `until` on, if the partition is assigned."""
        partition = self._partitions.get(name)
        if partition is not None:
            partition.until, partition.awaits_end = until, False
            self.note(name)

    @property
    def endless(self) -> tuple[TopicPartition, ...]:
        """The partitions whose end of reading is not known yet."""
        return tuple(self._endless)

    @property
    def are_at_end(self) -> bool:
        """Whether every record is returned, up to the ends of reading."""
        return not self._unfinished

    def undecided(self) -> dict[TopicPartition, bool]:
        """The partitions without a usable position or a record; True for a partition whose offset is not in the log."""
        return {name: self._partitions[name].position.state is PositionState.AWAITING_RESET for name in self._undecided}

    def truncation(self, name: TopicPartition) -> Truncation | None:
        """The truncation of the log that has left this partition without a usable position; None after any other
        cause."""
        partition = self._partitions.get(name)
        return None if partition is None else partition.position.truncation

    def reset_replica(self, name: TopicPartition) -> int | None:
        """The follower whose log start is the earliest offset for this partition; None for the leader."""
        partition = self._partitions.get(name)
        return None if partition is None else partition.reset_replica

    def position(self, name: TopicPartition) -> int | None:
        """The offset of the next record to return; None while undecided."""
        partition = self._partitions.get(name)
        return None if partition is None else partition.next_offset

    def positions(self) -> dict[TopicPartition, int]:
        """Decided positions, by partition."""
        return {
            name: partition.next_offset
            for name, partition in self._partitions.items()
            if partition.next_offset is not None
        }

    def epoch_before(self, name: TopicPartition, offset: int) -> int:
        """The leader epoch of the last record before this offset; -1: unknown."""
        partition = self._partitions.get(name)
        return UNKNOWN_EPOCH if partition is None else partition.epoch_before(offset)

    # validation

    @property
    def has_unvalidated(self) -> bool:
        return bool(self._unvalidated)

    def unvalidated(self) -> dict[TopicPartition, FetchPosition]:
        """The positions to compare with the leader's log."""
        return {name: self._partitions[name].position for name in self._unvalidated}

    def check_leader(self, partition: ConsumedPartition, leader_epoch: int) -> bool:
        """Whether the partition may be fetched under this leader epoch; if not, its position awaits validation."""
        may_fetch = partition.position.check_leader(leader_epoch)
        if not may_fetch:
            self._unvalidated[partition.name] = None
        return may_fetch

    def doubt(self, name: TopicPartition) -> None:
        """Compare this position with the leader's log once more: the log may have changed."""
        if name in self._partitions:
            self._partitions[name].position.doubt()
            self.note(name)

    def validated(
        self, name: TopicPartition, offset: int, epoch: int, end_offset: int, *, leader_epoch: int, resets: bool
    ) -> Truncation | None:
        """The leader's answer for a position at this offset; see `FetchPosition.validated`. Returns a truncation."""
        if name not in self._unvalidated or self._partitions[name].position.offset != offset:
            return None  # a seek or a revocation came meanwhile
        partition = self._partitions[name]
        truncation = partition.position.validated(epoch, end_offset, leader_epoch=leader_epoch, resets=resets)
        if truncation is not None and truncation.diverging_offset is not None:
            partition.truncate(truncation.diverging_offset)
        self.note(name)
        return truncation

    def skip_validation(self, name: TopicPartition, *, leader_epoch: int) -> None:
        """The leader cannot compare this position with its log."""
        if name in self._unvalidated:
            self._partitions[name].position.skip_validation(leader_epoch)
            self.note(name)

    # records

    @property
    def has_ready(self) -> bool:
        """Whether there are records to return."""
        return bool(self._ready)

    def take(self, limit: int) -> list[tuple[TopicPartition, Record]]:
        """Up to `limit` records. Raises CorruptRecords if a damaged batch comes first."""
        taken: list[tuple[TopicPartition, Record]] = []
        damaged: set[TopicPartition] = set()
        while self._ready and len(taken) < limit:
            name = next(iter(self._ready))
            if name in damaged:
                break
            partition = self._partitions[name]
            try:
                while len(taken) < limit and not partition.is_drained:
                    partition.take(limit - len(taken), taken)
            except KafkaError:
                # Records of other partitions are returned first; the next turn of this partition meets the damage
                # again.
                self._ready.move_to_end(name)
                damaged.add(name)
                if not taken:
                    raise
            if partition.is_drained:
                self.note(name)
        if taken and taken[0][0] in self._ready:
            # The partition that was served first comes last next time.
            self._ready.move_to_end(taken[0][0])
        self.records_consumed += len(taken)
        return taken

    def put_back(self, name: TopicPartition, records: Sequence[Record]) -> None:
        """Return these records once more: the last records that `take` gave of this partition, in their order."""
        partition = self._partitions.get(name)
        if partition is not None and records:
            partition.put_back(records)
            self.records_consumed -= len(records)
            self.note(name)

    def pause(self, names: Iterable[TopicPartition]) -> None:
        """Fetch and return nothing of these partitions; positions and fetched records stay."""
        self._set_paused(names, True)

    def resume(self, names: Iterable[TopicPartition]) -> None:
        """Read on in these partitions where they stand."""
        self._set_paused(names, False)

    def hold(self, names: Iterable[TopicPartition]) -> None:
        """Fetch and return nothing more of these partitions: they leave."""
        for name in names:
            if name in self._partitions:
                self._partitions[name].is_leaving = True
                self.note(name)

    def _set_paused(self, names: Iterable[TopicPartition], is_paused: bool) -> None:
        partitions = [self._assigned(name) for name in names]
        for partition in partitions:
            partition.is_paused = is_paused
            self.note(partition.name)
        changed = {partition.name for partition in partitions}
        self.paused = self.paused | changed if is_paused else self.paused - changed


def _put(names: dict[TopicPartition, None], name: TopicPartition, belongs: bool) -> None:
    if belongs:
        names.setdefault(name, None)
    else:
        names.pop(name, None)
