"""Reads of view partitions: a partition's records of one key range, for readers that know nothing of key ranges
(KIP-X; decision 0057).

A read of a view is a read of a key range (`server.fetch.key_reads`) with these additions:

1. The read goes on where the last read without records ended, although the reader names the same offset again. So a
   reader at the end of the view causes no scan, whatever is written to other view partitions.
2. A batch that is too large to be split in one go is split in steps (`server.fetch.large_splits`). A batch whose
   records differ from its header gives CORRUPT_MESSAGE (2), since the reader of a view cannot filter such a batch.
3. A first batch whose records are all below the reader's offset is left out: otherwise it would be sent again and
   again.
4. The last batch ends exactly at the view's end, so the reader's lag is 0. That holds also for an end that is known
   only from batches that were too large to be examined.
5. A reader below the log start is out of range only if a record of the view partition itself was deleted that the
   reader has not had. Any other reader goes on at the log start (decision 0099).
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final, NamedTuple, TypeVar

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, slot_of
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import iter_batches, read_header, set_end_offset
from tailrace.protocol.records.kernels import split_by_key
from tailrace.replication.outcomes import PartitionRead, PendingRead, ScannedRead
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.fetch.key_reads import KeyRangeRead, KeyRangeReads, ScanBudget, as_one, key_of
from tailrace.server.partition_work import PartitionWork
from tailrace.server.ports import Clock
from tailrace.storage import ReadLimits
from tailrace.storage.keys.batch_slots import plain_batch

MOST_STRETCHES: Final = 4
"""The most stretches of a view partition that are remembered."""
MOST_VIEW_PARTITIONS: Final = 50_000
"""The most view partitions with stretches."""

Read = Callable[[ReadLimits], PartitionRead]
T = TypeVar("T")


class ViewEnds:
    """The starts and ends of all view partitions of this broker, and the work on indexes that are not complete.

    The end is 1 + the offset of the last record of the view partition, so that a reader that has every record of the
    view partition shows no lag, whatever else is written to the partition. The end is known when the key index is
    complete. Until then the index is built in slices between other work. The start is 1 + the offset of the last
    deleted record of the view partition, and at most the log start.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._indexing = PartitionWork(clock, self._index_on, lambda partition: partition in self._indexing)

    @property
    def incomplete(self) -> tuple[Partition, ...]:
        """The partitions whose index is being built."""
        return self._indexing.under_way

    def wait(self, partitions: Collection[Partition], on_ready: Callable[[], None]) -> bool:
        """Call `on_ready` once when the indexes of these partitions that are being built are complete, as
        `PartitionWork.wait`."""
        return self._indexing.wait(partitions, on_ready)

    def end(self, partition: Partition, key_range: KeyRange, end_offset: int, budget: ScanBudget) -> int | None:
        """1 + the offset of the last record with such a hash below `end_offset`, a readable end of the partition.

        If there is no such record, 1 + the offset of the last deleted record: at most the log start, and 0 without a
        deleted record. The key index is built further until the time of the budget is over. None: the end is not known
        yet; the partition's watchers of `Change.AVAILABLE` are notified when the index is complete. Raises KafkaError
        as a read of the log.
        """
        keys = partition.log.keys
        return self._ask(lambda: keys.end(key_range.first, key_range.last, end_offset), partition, budget)

    def start(self, partition: Partition, key_range: KeyRange, budget: ScanBudget) -> int | None:
        """The start of the view partition. None: not known yet, as with `end`.

        Without a record it is the end, even if that is behind a deleted control batch: nothing is left to be read.
        """
        keys = partition.log.keys
        start = self._ask(lambda: keys.start(key_range.first, key_range.last), partition, budget)
        if start is None or not keys.ends_behind(start):
            return start
        end = self.end(partition, key_range, partition.high_watermark, budget)
        return end if end is None or end <= partition.log.log_start_offset else start

    def has_lost(
        self, partition: Partition, ranges: Sequence[KeyRange], offset: int, budget: ScanBudget
    ) -> bool | None:
        """Whether a reader of these ranges at this offset, below the log start, has lost a record. None: not known yet,
        as with `end`."""
        return self._ask(lambda: partition.log.keys.has_lost(ranges, offset), partition, budget)

    def _ask(self, ask: Callable[[], T | None], partition: Partition, budget: ScanBudget) -> T | None:
        has_more = True
        while has_more:
            found = ask()
            if found is not None:
                return found
            if partition in self._indexing:
                return None
            if budget.is_over:
                self._indexing.begin(partition, lambda: partition.notify(Change.AVAILABLE))
                return None
            has_more = self._index_on(partition)
        return ask()

    def _index_on(self, partition: Partition) -> bool:
        """Do a step of the index, and return whether there are more steps."""
        return partition.log.keys.index_on(self._clock.monotonic_ms)


class ScannedOffsets:
    """For all view partitions, the stretches that have no records of the view partition, which readers may skip.

    A reader that knows nothing of key ranges names the offset behind its last record again and again, while nothing is
    found. Few readers read a view partition, so a few stretches per view partition are enough; a forgotten stretch is
    scanned again. The key of a view partition changes when its log is cut.
    """

    def __init__(self) -> None:
        self._stretches: OrderedDict[Hashable, OrderedDict[int, int]] = OrderedDict()
        """The ends of stretches by their starts; both levels in the order of their use."""

    def __len__(self) -> int:
        """The number of view partitions with stretches."""
        return len(self._stretches)

    def after(self, where: Hashable, offset: int) -> int:
        """The end of the known stretch without records from this offset on; this offset if no such stretch is known."""
        stretches = self._stretches.get(where)
        if stretches is None or offset not in stretches:
            return offset
        stretches.move_to_end(offset)
        self._stretches.move_to_end(where)
        return stretches[offset]

    def keep(self, where: Hashable, start: int, end: int) -> None:
        """Note that there are no records from `start` up to, not including, `end`."""
        if end <= start:
            return
        stretches = self._stretches.setdefault(where, OrderedDict())
        stretches[start] = max(end, stretches.get(start, end))
        stretches.move_to_end(start)
        self._stretches.move_to_end(where)
        if len(stretches) > MOST_STRETCHES:
            stretches.popitem(last=False)
        if len(self._stretches) > MOST_VIEW_PARTITIONS:
            self._stretches.popitem(last=False)


class ViewReads:
    """The reads of all view partitions of this broker."""

    def __init__(self, key_reads: KeyRangeReads, clock: Clock) -> None:
        self._key_reads = key_reads
        self.ends = ViewEnds(clock)
        self.scanned = ScannedOffsets()

    def read(
        self, partition: Partition, key_range: KeyRange, limits: ReadLimits, read: Read, budget: ScanBudget
    ) -> PartitionRead:
        """The batches of the view partition within the limits; `read` reads the log where no part is kept.

        The log start, the high watermark and the last stable offset belong to the view: see `ViewEnds`. The result is
        pending while these are not known as far as needed, or while the next batch waits until other batches are split.
        Raises the errors of `read`, and CORRUPT_MESSAGE (2).
        """
        end_offset = partition.readable_end(limits.isolation)
        high_watermark = self.ends.end(partition, key_range, partition.high_watermark, budget)
        stable_end = high_watermark
        if partition.last_stable_offset != partition.high_watermark:
            stable_end = self.ends.end(partition, key_range, partition.last_stable_offset, budget)
        if high_watermark is None or stable_end is None:
            return pending(partition, limits)
        log_start_offset = partition.log.log_start_offset
        view_start = partition.log.keys.start(key_range.first, key_range.last)
        ends = high_watermark, stable_end, log_start_offset if view_start is None else view_start
        where = (
            partition.topic_id,
            partition.topic_partition.partition,
            partition.leader_epoch,
            limits.isolation,
            key_range,
        )
        start = min(self.scanned.after(where, limits.offset), max(end_offset, limits.offset))
        if not log_start_offset <= start <= partition.high_watermark:
            if start > log_start_offset:
                outside = read(_at(limits, start))  # raises the error, or is empty
                return PartitionRead(b"", 0, start, outside.reaches_end, *ends)
            within = within_log(partition, (key_range,), _at(limits, start), read, self.ends, budget)
            if within is None:
                return pending(partition, limits)
            start = within.offset
        view_end = high_watermark if end_offset == partition.high_watermark else stable_end
        if limits.offset >= view_end and not partition.log.is_offline:
            self._key_reads.note_reader(partition, (key_range,), limits)
            self.scanned.keep(where, limits.offset, end_offset)
            return PartitionRead(b"", 0, max(start, end_offset), True, *ends)
        got = self._scan(_ViewScan(partition, key_range, limits, read, budget), start)
        if got is None:
            self._key_reads.large.wait(partition)
            return pending(partition, limits)
        found, records_end = got.found, got.records_end
        if found and (records_end > view_end or got.scanned_to >= view_end > records_end):
            found, records_end = _ended_at(found, view_end), view_end
        self.scanned.keep(where, records_end if found else limits.offset, got.scanned_to)
        batches = as_one(found)
        result = ScannedRead if got.scanned_to > start or got.has_more_steps else PartitionRead
        return result(batches, len(batches), got.scanned_to, got.reaches_end, *ends)

    def _scan(self, scan: "_ViewScan", start: int) -> KeyRangeRead | None:
        """The batches from `start` on. The scan ends when batches are found, or at the limits or the readable end.

        None if there is no room for the split of the first batch.
        """
        position, limits = start, scan.limits
        while True:
            got = self._key_reads.read(
                scan.partition, (scan.key_range,), _at(limits, position), scan.read, scan.budget
            ) or self._read_large(scan, position)
            if got is None:
                return None if position == start else KeyRangeRead((), position, None, position)
            found = _without_done(got.found, limits.offset, scan.key_range)
            if found or got.reaches_end or scan.budget.is_spent or got.scanned_to == position:
                return got._replace(found=found)
            position = got.scanned_to

    def _read_large(self, scan: "_ViewScan", position: int) -> KeyRangeRead | None:
        """The part of the one batch that has this offset, whatever its size; None if there is no room for its split.

        Raises KafkaError CORRUPT_MESSAGE (2).
        """
        limits, partition, ranges = _at(scan.limits, position), scan.partition, (scan.key_range,)
        if not self._key_reads.may_split_large(partition, limits):
            return None
        try:
            part = self._key_reads.split_large(partition, limits, ranges, scan.read, scan.budget)
        except CorruptRecords as fault:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch with offset {position} of {partition.topic_partition} cannot be filtered: {fault}",
            ) from fault
        if part is None:
            return KeyRangeRead((), position, None, position, has_more_steps=True)
        if not part.batches:
            return KeyRangeRead((), part.end, None, position)
        if len(part.batches) > limits.max_bytes and not limits.min_one_message:
            self._key_reads.splits.keep(key_of(partition, limits), ranges, part)
            return KeyRangeRead((), position, None, position)
        return KeyRangeRead((part.batches,), part.end, None, part.records_end)


class _ViewScan(NamedTuple):
    """The reader of a view partition, for one read."""

    partition: Partition
    key_range: KeyRange
    limits: ReadLimits
    read: Read
    budget: ScanBudget


def within_log(
    partition: Partition,
    ranges: Sequence[KeyRange],
    limits: ReadLimits,
    read: Read,
    ends: ViewEnds,
    budget: ScanBudget,
) -> ReadLimits | None:
    """For a reader of these ranges whose offset is below the log start: the limits at the log start.

    None while it is not known whether a record of the reader was deleted. Raises KafkaError as `read` does for the
    offset, if a record was deleted, or if this replica cannot answer for offsets below its log start.
    """
    try:
        read(limits)
    except KafkaError as fault:
        if fault.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        has_lost = ends.has_lost(partition, ranges, limits.offset, budget)
        if has_lost:
            raise
        return None if has_lost is None else _at(limits, partition.log.log_start_offset)
    return limits


def pending(partition: Partition, limits: ReadLimits) -> PendingRead:
    """The result of a read that needs keys of the partition which are not known yet."""
    fault = KafkaError(
        ErrorCode.OFFSET_NOT_AVAILABLE, f"the keys of {partition.topic_partition} are being looked at; ask again"
    )
    return PendingRead(limits.offset, partition.log.log_start_offset, fault)


def _at(limits: ReadLimits, offset: int) -> ReadLimits:
    return ReadLimits(offset, limits.max_bytes, limits.isolation, limits.leader_epoch, limits.min_one_message)


def _without_done(found: Sequence[Buffer], offset: int, key_range: KeyRange) -> Sequence[Buffer]:
    """The batches; the first batch is left out if all its records in the range are below the offset."""
    if not found:
        return found
    first = memoryview(found[0])
    header = read_header(first)
    if header.base_offset >= offset or header.is_control:
        return found
    batch, rest = first[: header.size_bytes], first[header.size_bytes :]
    is_dense = header.records_count == header.last_offset_delta + 1
    if header.last_offset >= offset and (is_dense or _last_offset(batch, key_range) >= offset):
        return found
    return (rest, *found[1:]) if len(rest) else found[1:]


def _last_offset(stored: memoryview, key_range: KeyRange) -> int:
    """The offset of the last record in the range, in a batch whose records were examined before; -1 if the batch has no
    record in the range."""
    header = read_header(stored)
    try:
        batch = plain_batch(stored, header)
    except CorruptRecords:  # too large: the batch was split by itself, and ends with its last record
        return header.last_offset
    last_offsets = split_by_key([(stored, batch.plain)], [(key_range,)]).last_offsets
    return max(last_offsets[slot_of(key_range.first) : slot_of(key_range.last) + 1])


def _ended_at(found: Sequence[Buffer], end_offset: int) -> Sequence[Buffer]:
    """The batches, of which the last gets this end: there are no records between its last record and the offset.

    The batches stay unchanged if the last batch begins at the offset or later: then this end of the view is older than
    the batch.
    """
    *before, last_buffer = found
    view = memoryview(last_buffer)
    position, header = max(iter_batches(view), key=lambda place: place[0])
    if header.base_offset >= end_offset:
        return found
    batch = bytearray(view[position:])
    set_end_offset(memoryview(batch), end_offset)
    return (*before, view[:position], batch) if position else (*before, batch)
