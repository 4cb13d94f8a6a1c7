"""Reads of key ranges: a partition's records of some key hashes alone (KIP-X; decision 0054).

A read goes on from chunk to chunk until the reader's limit is reached, the readable end, or the limits of the scan. A
chunk is read as for any reader, and split for all ranges that are being read of the partition.

A batch that cannot be split in bounded time, or whose header is wrong about its records, stays whole: the reader gets
the stored batch, without an echo of the ranges. So the reader itself filters the records, or finds the fault. Readers
of views cannot do that: see `server.fetch.view_reads`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.key_ranges import KeyRange, fault_of, joined, slots_of
from tailrace.protocol.encoder import BY_REFERENCE_FROM, BufferChain
from tailrace.protocol.messages.fetch import WireKeyRange
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.batch import HEADER_SIZE, iter_batches, iter_ends, read_header
from tailrace.protocol.records.kernels import split_by_key
from tailrace.protocol.records.split import Split
from tailrace.replication.outcomes import PartitionRead
from tailrace.replication.partition import Partition
from tailrace.server.fetch.key_splits import KeySplits, Part, Ranges
from tailrace.server.fetch.large_splits import LargeSplits
from tailrace.server.ports import Clock
from tailrace.storage import ReadLimits
from tailrace.storage.keys.batch_slots import IS_COMPILED, BatchSlots, PlainBatch, plain_batch
from tailrace.storage.read_buffers import ReadBuffers

CHUNK_BYTES: Final = 2 << 20 if IS_COMPILED else 256 << 10
"""Stored bytes that are read in one go."""
SPLIT_BYTES: Final = 2 << 20 if IS_COMPILED else 128 << 10
"""Plain bytes that are split in one go; a single batch may have more."""
_KEEP_BYTES: Final = 64 << 20
"""The bytes of buffers for parts, in use or kept for later use: the parts of a chunk for 64 slots take 3 MB, and
readers of a backlog are some chunks apart."""
SCAN_MS: Final = 10
"""The time after which a fetch reads no further chunk: other requests have their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRangeConfig:
    """The settings of key-range fetches."""

    group_key_ranges_enable: bool = True
    """Whether the broker serves key ranges."""
    max_bytes_key_range_hashing: int = 64 << 20
    """Bytes of parts that are kept for their readers."""
    key_range_fetch_max_scan_bytes: int = 4 << 20
    """Plain bytes after which a fetch of one partition ends its scan."""


MURMUR2: Final = 0
"""The hash scheme of key ranges: Kafka's hash of a key."""
MAX_RANGES: Final = 1_024
"""Key ranges of one partition in a fetch."""


def checked_ranges(ranges: Sequence[WireKeyRange], hash_scheme: int) -> Ranges:
    """The ranges of a fetch, joined. Raises KafkaError INVALID_REQUEST (42) for too many ranges, for bad ranges, and
    for a hash that is not known here."""
    if hash_scheme != MURMUR2:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"hash scheme {hash_scheme} is not known; {MURMUR2} is murmur2")
    if len(ranges) > MAX_RANGES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{len(ranges)} key ranges of a partition; {MAX_RANGES} at most")
    found = [KeyRange(wire.first, wire.last) for wire in ranges]
    fault = fault_of(found)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
    return joined(found)


@dataclass(slots=True)
class FilterCounts:
    """The work of the key filter since the start of the broker, for readers of one kind."""

    scanned_bytes: int = 0
    """Plain bytes of batches that were split when a reader reached them."""
    delivered_bytes: int = 0
    """Bytes of batches in answers."""
    unavailable: int = 0
    """Answers with OFFSET_NOT_AVAILABLE (78), since keys had not been looked at."""


class ScanBudget:
    """The limits of the scans of one fetch, for all its partitions together. A fetch begins at least one chunk."""

    __slots__ = ("_clock", "_end_ms", "left_bytes")

    def __init__(self, clock: Clock, max_bytes: int) -> None:
        """`max_bytes` are plain bytes."""
        self._clock = clock
        self._end_ms = clock.monotonic_ms() + SCAN_MS
        self.left_bytes = max_bytes

    @property
    def is_spent(self) -> bool:
        return self.left_bytes <= 0 or self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the time of the scan is over: then the fetch examines no further batch, not even a kept part."""
        return self._clock.monotonic_ms() >= self._end_ms


class KeyRangeRead(NamedTuple):
    """The result of a read."""

    found: Sequence[Buffer]
    """Whole batches, in order."""
    scanned_to: int
    """From the offset of the read up to this offset, the batches have all records of the ranges."""
    last: PartitionRead | None
    """The last chunk that was read from the log; None if kept parts were enough."""
    records_end: int
    """The end offset of the last batch; the offset of the read without a batch."""
    has_more_steps: bool = False
    """Whether the batch that comes next is being split, and needs more steps."""

    @property
    def batches(self) -> Buffer:
        """The batches as a single value on the wire."""
        return as_one(self.found)

    @property
    def reaches_end(self) -> bool:
        """Whether the read ended at the readable end."""
        return self.last is not None and self.last.reaches_end and self.scanned_to == self.last.next_offset


def as_one(buffers: Sequence[Buffer]) -> Buffer:
    """The buffers as a single value on the wire, without a copy of large buffers."""
    if 1 < len(buffers) <= sum(map(len, buffers)) // BY_REFERENCE_FROM:
        return cast(Buffer, BufferChain(buffers))  # the encoder takes the chain for a buffer
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)


class KeyRangeReads:
    """The reads of all partitions of this broker."""

    def __init__(
        self, clock: Clock, config: KeyRangeConfig, *, is_known: Callable[[], bool], chunk_bytes: int = CHUNK_BYTES
    ) -> None:
        """`is_known`: whether all brokers know key ranges."""
        self.chunk_bytes: Final = chunk_bytes
        self._clock = clock
        self._is_allowed = config.group_key_ranges_enable
        self._is_known = is_known
        self.buffers: Final = ReadBuffers(keep_bytes=_KEEP_BYTES, sizes_per_doubling=4)
        """The memory of parts."""
        self.splits: Final = KeySplits(max_bytes=config.max_bytes_key_range_hashing)
        self.large: Final = LargeSplits(clock)
        self.of_ranges: Final = FilterCounts()
        """The work for readers that name key ranges."""
        self.of_views: Final = FilterCounts()
        """The work for readers of views."""
        self._max_scan_bytes = config.key_range_fetch_max_scan_bytes

    @property
    def is_enabled(self) -> bool:
        """Whether key ranges are served here. If not, ranges are ignored, and the answer has no echo: then the reader
        itself filters the records."""
        return self._is_allowed and self._is_known()

    def new_scan(self) -> ScanBudget:
        """The budget of one fetch."""
        return ScanBudget(self._clock, self._max_scan_bytes)

    def read(
        self,
        partition: Partition,
        ranges: Ranges,
        limits: ReadLimits,
        read: Callable[[ReadLimits], PartitionRead],
        budget: ScanBudget,
    ) -> KeyRangeRead | None:
        """The batches of these ranges within the limits; `read` reads the log where no part is kept.

        None if the batch with the offset cannot be split. Raises the errors of `read`.
        """
        scan = _KeyRangeScan(self, partition, ranges, limits, read)
        self.note_reader(partition, ranges, limits)
        while scan.goes_on:
            part = self.splits.find(scan.key, ranges, scan.position)
            if part is None and not budget.is_spent:
                part = scan.split(budget)
            if part is None:
                break
            scan.take(part)
        if scan.is_stuck and scan.position == limits.offset:
            return None
        if scan.nothing_from < scan.position:
            # The next fetch goes on here, though the reader's offset is still the offset behind its last record.
            self.splits.keep(scan.key, ranges, Part(scan.nothing_from, scan.position, b""))
        return KeyRangeRead(scan.found, scan.position, scan.last, scan.nothing_from)

    def note_reader(self, partition: Partition, ranges: Ranges, limits: ReadLimits) -> None:
        """Note that a fetch has named these ranges: chunks are split for these ranges, too."""
        self.splits.being_read(key_of(partition, limits), ranges, limits.offset, self._clock.monotonic_ms())

    def split(
        self,
        partition: Partition,
        key: Hashable,
        ranges: Ranges,
        start: int,
        chunk: PartitionRead,
        budget: ScanBudget,
    ) -> Part | None:
        """Split a chunk for every reader of the partition; the parts of the other readers are kept.

        None if the first batch cannot be split.
        """
        readers = self.splits.wanted(key, ranges, chunk.next_offset)
        batches, plain_bytes = _plain(chunk.records)
        budget.left_bytes -= plain_bytes
        while batches:
            try:
                split = split_by_key([(batch.stored, batch.plain) for batch in batches], readers, self.buffers.lend)
            except CorruptRecords:  # a header is wrong: the batches before it can be split
                batches = batches[: len(batches) // 2]
                continue
            return self._dealt(partition, key, ranges, readers, start, batches, split)
        return None

    def may_split_large(self, partition: Partition, limits: ReadLimits) -> bool:
        """Whether the large batch with this offset is being split, or its split may begin."""
        return self.large.has_room or self.large.find(key_of(partition, limits), limits.offset) is not None

    def split_large(
        self,
        partition: Partition,
        limits: ReadLimits,
        ranges: Ranges,
        read: Callable[[ReadLimits], PartitionRead],
        budget: ScanBudget,
    ) -> Part | None:
        """Split the one batch that has the offset of the limits, whatever its size; None if the split needs more steps.

        `may_split_large` must be true, and the ranges must have whole slots. Raises the errors of `read`, and
        CorruptRecords if the batch is not as its header says.
        """
        key, offset = key_of(partition, limits), limits.offset
        large = self.large.find(key, offset)
        if large is None:
            chunk = read(ReadLimits(offset, 1, limits.isolation, limits.leader_epoch, min_one_message=True))
            readers = self.splits.wanted(key, ranges, chunk.next_offset)
            stored = memoryview(chunk.records)
            large = self.large.begin(key, stored, read_header(stored), readers)
        split = self.large.go_on(large, lambda: budget.is_over)
        if split is None:
            return None
        size_bytes = large.header.size_bytes
        budget.left_bytes -= size_bytes
        batches = [PlainBatch(large.header, large.stored, None, size_bytes)]
        start = min(offset, large.header.base_offset)  # another reader may be further back
        return self._dealt(partition, key, ranges, large.readers, start, batches, split)

    def _dealt(
        self,
        partition: Partition,
        key: Hashable,
        ranges: Ranges,
        readers: Sequence[Ranges],
        start: int,
        batches: Sequence[PlainBatch],
        split: Split,
    ) -> Part | None:
        """The part of the reader of these ranges, None if the chunk was not split for this reader; the parts of the
        other readers are kept.

        The slots that the split has found go into the key index.
        """
        if partition.log.keys.wants(start, batches[0].header.base_offset):
            partition.log.keys.note(start, _slots_found(batches, split))
        end = batches[-1].header.end_offset
        own: Part | None = None
        for reader, batches_found, records_end in zip(readers, split.parts, split.ends, strict=True):
            part = Part(start, end, batches_found, records_end)
            if reader == ranges:
                own = part
            else:
                self.splits.keep(key, reader, part)
        return own


def key_of(partition: Partition, limits: ReadLimits) -> Hashable:
    """The key of the parts of a partition: records of parts of another leader epoch may have been cut from the log, and
    parts of another isolation level have another end."""
    return partition, partition.leader_epoch, limits.isolation


class _KeyRangeScan:
    """A read of key ranges, in progress."""

    def __init__(
        self,
        reads: KeyRangeReads,
        partition: Partition,
        ranges: Ranges,
        limits: ReadLimits,
        read: Callable[[ReadLimits], PartitionRead],
    ) -> None:
        self._reads = reads
        self._partition = partition
        self._ranges = ranges
        self._slots = slots_of(ranges)
        self._limits = limits
        self._read = read
        self.key: Final = key_of(partition, limits)
        self.position = self.nothing_from = limits.offset
        """`position`: the log is scanned up to this offset. `nothing_from`: no record was found from this offset on."""
        self.found: list[Buffer] = []
        self._found_bytes = 0
        self.last: PartitionRead | None = None
        self.goes_on = True
        self.is_stuck = False
        """Whether the batch at the position cannot be split."""

    def split(self, budget: ScanBudget) -> Part | None:
        """Read and split the next chunk; None at the readable end, and before a batch that cannot be split.

        Batches without records of the ranges, by the key index, are skipped.
        """
        limits = self._limits
        end_offset = self._partition.readable_end(limits.isolation)
        next_match = self._partition.log.keys.next_match(self._slots, self.position, end_offset)
        if next_match > self.position:
            return Part(self.position, next_match, b"")
        chunk = self._read(
            ReadLimits(
                self.position, self._reads.chunk_bytes, limits.isolation, limits.leader_epoch, min_one_message=True
            )
        )
        self.last = chunk
        if not chunk.size_bytes:
            return None
        part = self._reads.split(self._partition, self.key, self._ranges, self.position, chunk, budget)
        self.is_stuck = part is None
        return part

    def take(self, part: Part) -> None:
        """Take as much of a part as the limits allow; the rest of the part is kept."""
        if part.start < self.position or self._found_bytes + len(part.batches) > self._limits.max_bytes:
            self._take_batches(part)
            return
        if part.batches:
            self._add(part.batches, part.records_end)
        self.position = part.end

    def _take_batches(self, part: Part) -> None:
        """Take the batches that end above the position, as many as the limits allow."""
        view = memoryview(part.batches)
        left_bytes = self._limits.max_bytes - self._found_bytes
        may_exceed = not self.found and self._limits.min_one_message
        first, last, position = -1, -1, 0
        for end, base_offset, batch_end_offset in iter_ends(view):
            if batch_end_offset > self.position:
                first = position if first < 0 else first
                if end - first > left_bytes and not (may_exceed and position == first):
                    self.position = max(self.position, base_offset)
                    self._reads.splits.keep(self.key, self._ranges, part)
                    self.goes_on = False
                    break
                last, end_offset = end, batch_end_offset
            position = end
        if last > 0:
            self._add(view[first:last], end_offset)
        if self.goes_on:
            self.position = max(self.position, part.end)

    def _add(self, batches: Buffer, end_offset: int) -> None:
        self.found.append(batches)
        self._found_bytes += len(batches)
        self.nothing_from = end_offset


def _plain(records: Buffer) -> tuple[list[PlainBatch], int]:
    """The batches of the chunk that are split in one go, and their plain bytes. A batch that cannot be split ends the
    list."""
    view = memoryview(records)
    batches: list[PlainBatch] = []
    size_bytes = 0
    for position, header in iter_batches(view):
        try:
            batch = plain_batch(view[position : position + header.size_bytes], header)
        except CorruptRecords:
            break
        batches.append(batch)
        size_bytes += batch.size_bytes
        if size_bytes >= SPLIT_BYTES:
            break
    return batches, size_bytes


def _slots_found(batches: Sequence[PlainBatch], split: Split) -> BatchSlots:
    """The slots of these batches, for the key index."""
    last_header = bytes(memoryview(batches[-1].stored)[:HEADER_SIZE])
    return BatchSlots([batch.header for batch in batches], split.slot_maps, split.last_offsets, last_header)
