"""An assigned partition of a consumer: its position, the records from there, and the serving replica. Pure."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from tailrace.client.reading.corrupt_batches import CorruptBatches
from tailrace.client.reading.fetching import Fetched
from tailrace.client.reading.key_filter import filtered
from tailrace.client.reading.position import UNKNOWN_EPOCH, FetchPosition, PositionState
from tailrace.model.errors import CorruptRecords
from tailrace.model.key_ranges import KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.corrupt_batch import CorruptBatch, corrupt_batch
from tailrace.protocol.records.record import Record, read_records
from tailrace.protocol.schema import Buffer

_MAX_EPOCHS: Final = 16
"""Changes of the leader epoch among the records of a partition that are remembered: the oldest are of no use."""


class ConsumedPartition:
    """The state of one partition. Only a drained partition is fetched, of which every fetched record is returned."""

    __slots__ = (
        "_batches",
        "_corrupt",
        "_epochs",
        "_records",
        "awaits_end",
        "is_leaving",
        "is_paused",
        "key_ranges",
        "lease_end_ms",
        "log_start_offset",
        "name",
        "next_offset",
        "position",
        "readable_end",
        "replica",
        "replica_changes",
        "reset_replica",
        "strikes",
        "until",
    )

    def __init__(self, name: TopicPartition, corrupt: CorruptBatches | None = None) -> None:
        """`corrupt` decides about batches that cannot be decoded; without `corrupt` such a batch raises."""
        self.name: Final = name
        self._corrupt: Final = corrupt or CorruptBatches()
        self.position: Final = FetchPosition()
        """The position of the next fetch."""
        self.next_offset: int | None = None
        """The offset of the next record to return; None until decided."""
        self.is_paused = False
        """Whether no records are fetched or returned until the partition is resumed."""
        self.is_leaving = False
        """Whether the group takes the partition away: no records are fetched or returned any more."""
        self.key_ranges: tuple[KeyRange, ...] = ()
        """The key hashes of the records to read, in order and joined (KIP-X); empty for all records."""
        self.replica: int | None = None
        """The follower to read from (KIP-392); None for the leader."""
        self.lease_end_ms = 0
        self.replica_changes = 0
        """The number of changes of the serving replica."""
        self.reset_replica: int | None = None
        """The follower whose log start is the earliest offset now: the follower has refused the position as too
        small."""
        self.strikes = 0
        """Faults in a row."""
        self.awaits_end = False
        """Whether reading has an end that is not known yet: no records are fetched or returned."""
        self.until: int | None = None
        """The offset at which reading ends: records from here on are not returned. None: reading has no end."""
        self.readable_end = -1
        """The end for readers at the last answer; -1: unknown, as with `log_start_offset`."""
        self.log_start_offset = -1
        self._batches: deque[Buffer | CorruptBatch] = deque()
        self._records: deque[Record] = deque()
        self._epochs: deque[tuple[int, int]] = deque(maxlen=_MAX_EPOCHS)
        """(offset, leader epoch) of the first record of each epoch, in order."""

    def change_replica(self, replica: int | None, *, lease_end_ms: int = 0) -> None:
        """Read from this follower, or from the leader, from the next fetch on."""
        self.replica, self.lease_end_ms = replica, lease_end_ms
        self.replica_changes += 1
        self.strikes = 0

    @property
    def may_be_read(self) -> bool:
        return not (self.is_paused or self.is_leaving or self.awaits_end or self.is_at_end)

    @property
    def is_at_end(self) -> bool:
        """Whether every record below `until` is returned."""
        return self.until is not None and self.next_offset is not None and self.next_offset >= self.until

    @property
    def is_drained(self) -> bool:
        return not self._batches and not self._records

    @property
    def awaits_start(self) -> bool:
        """Whether a committed offset or the reset policy has to decide the position now.

        Records that were put back stand before the position and come first: a new position would drop these records.
        """
        return self.position.is_undecided and self.is_drained

    def start_at(self, offset: int, epoch: int = UNKNOWN_EPOCH, *, valid_under: int = UNKNOWN_EPOCH) -> None:
        """Read on from here: fetched records are dropped. For the rest see `FetchPosition.start_at`."""
        self.position.start_at(offset, epoch, valid_under=valid_under)
        self._resume_at_position()

    def truncate(self, end: int) -> None:
        """Note that the log has lost the records from this offset on. Records that were put back stay if they are below
        the offset.

        With a reset policy the position is at this offset already; without a policy the position awaits a seek.
        """
        while self._records and self._records[-1].offset >= end:
            self._records.pop()
        while self._records and self._epochs and self._epochs[-1][0] >= end:
            self._epochs.pop()
        if self.is_drained and self.position.state is PositionState.FETCHING:
            self._resume_at_position()

    def _resume_at_position(self) -> None:
        self.next_offset = self.position.offset
        self.reset_replica = None
        self.drop_records()
        self._epochs.clear()
        if self.position.offset_epoch >= 0:
            self._epochs.append((-1, self.position.offset_epoch))

    def drop_records(self) -> None:
        """Release the fetched records: unread batches keep the whole answer that they came with in memory."""
        self._batches.clear()
        self._records.clear()

    def change_key_ranges(self, ranges: tuple[KeyRange, ...]) -> None:
        """Read the records of these hashes, from the next record to return on."""
        if ranges != self.key_ranges:
            self.key_ranges = ranges
            if not self.is_drained and self.next_offset is not None:
                self.start_at(self.next_offset, self.epoch_before(self.next_offset))

    def store(self, fetched: Fetched) -> None:
        """Keep the records of an answer to a fetch at the position."""
        buffers, corrupt = fetched.buffers, deque(fetched.corrupt)
        if self.key_ranges and not fetched.is_filtered:
            buffers, unfiltered = filtered(buffers, self.key_ranges)
            corrupt = deque(sorted((*corrupt, *unfiltered), key=lambda batch: batch.offset))
        for buffer in buffers:
            for position, header in iter_batches(buffer):
                while corrupt and corrupt[0].offset <= header.base_offset:
                    self._batches.append(corrupt.popleft())
                self._batches.append(memoryview(buffer)[position : position + header.size_bytes])
                self._note_epoch(header.base_offset, header.partition_leader_epoch)
        self._batches.extend(corrupt)
        self.position.advance(fetched.next_offset, fetched.last_epoch)
        if self.is_drained:
            self._settle()

    def _note_epoch(self, offset: int, epoch: int) -> None:
        if epoch >= 0 and (not self._epochs or self._epochs[-1][1] != epoch):
            self._epochs.append((offset, epoch))

    def _settle(self) -> None:
        """Continue at the position of the next fetch, when every record is returned. After a reset, the position may be
        below the returned records. An undecided position is not used.
        """
        if not self.position.is_undecided:
            self.next_offset = self.position.offset
            self._note_epoch(self.next_offset - 1, self.position.offset_epoch)

    def epoch_before(self, offset: int) -> int:
        """The leader epoch of the last record before this offset, as far as remembered; else -1."""
        return next((epoch for first, epoch in reversed(self._epochs) if first < offset), UNKNOWN_EPOCH)

    def take(self, limit: int, taken: list[tuple[TopicPartition, Record]]) -> None:
        """Move up to `limit` records of one batch to `taken`. Raises CorruptRecords, and then takes no record.

        A batch that cannot be decoded gives no record if such batches are skipped.
        """
        assert self.next_offset is not None, "records come from a position"
        if not self._records:
            self._read(self._batches[0], self.next_offset)
            self._batches.popleft()
        records, name = self._records, self.name
        if len(records) <= limit:
            batch = list(records)
            records.clear()
        else:
            batch = [records.popleft() for _ in range(limit)]
        if batch:
            self.next_offset = batch[-1].offset + 1
            if self.until is not None and self.next_offset >= self.until:
                batch = self._end_at(self.until, batch)
            taken += [(name, record) for record in batch]
        if self.is_drained:
            self._settle()

    def _end_at(self, until: int, batch: list[Record]) -> list[Record]:
        """The records below `until`; the position becomes `until`, and what was fetched beyond is dropped."""
        self.start_at(until, self.epoch_before(until))
        return [record for record in batch if record.offset < until]

    def put_back(self, records: Sequence[Record]) -> None:
        """Return these records once more: the last records that `take` gave, in their order."""
        self._records.extendleft(reversed(records))
        self.next_offset = records[0].offset

    def _read(self, batch: Buffer | CorruptBatch, start: int) -> None:
        """Keep the batch's records from this offset on, or step over the batch. Raises CorruptRecords."""
        if not isinstance(batch, CorruptBatch):
            try:
                records = read_records(batch)
                if records and records[0].offset < start:
                    records = [record for record in records if record.offset >= start]
                self._records.extend(records)
                return
            except CorruptRecords as fault:
                batch = corrupt_batch(batch, 0, len(batch), fault)
        self._corrupt.meet(self.name, batch)
        self.next_offset = max(start, batch.next_offset)
