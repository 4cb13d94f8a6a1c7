"""The records of a log that stay when it is compacted: two passes over its batches, as in Kafka's cleaner. Pure.

`KeyCollector` sees the dirty batches in order and learns the last offset of every key; `TransactionEnds` has seen the
batches of transactions before, and the markers, and knows which transactions are visible. `BatchFilter` then sees all
batches from the log's first one on, and gives every batch in the form to store:

1. A record stays if no later record has its key. A record without a key goes: no record can ever replace a null key.
2. A tombstone stays until its batch's delete horizon. The horizon is set when a compaction first keeps the tombstone:
   from then on a reader has delete.retention.ms to see it (KIP-534).
3. The records of an aborted transaction go, and replace nothing. A marker stays until no batch of its transaction is
   left, and then like a tombstone.
4. The last batch of a producer stays, emptied if need be: it tells the producer's next sequence number.
5. The last batch of the rewritten part stays too: behind this batch there may be nothing that leads a reader past the
   gap.
6. A batch whose records cannot be read stays as it is: its sender wrote it before the topic was compacted.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Final

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import BatchHeader, check_crc
from tailrace.protocol.records.control import ControlType, control_type
from tailrace.protocol.records.spans import (
    STEP_RECORDS,
    BatchRecords,
    RecordSpan,
    Steps,
    batch_in_steps,
    emptied,
    spans_in_steps,
)
from tailrace.storage.file_system import Buffer

_MARKERS: Final = (ControlType.ABORT, ControlType.COMMIT)

_MAX_TIMESTAMP: Final = 2**63 - 1

IsLastOfProducer = Callable[[BatchHeader], bool]
"""Whether the state of the batch's producer rests on this batch."""


class AbortedTransactions:
    """The batches that belong to aborted transactions."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def add(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        """Note a transaction. A producer's transactions come in order: a producer has one transaction at a time."""
        self._ranges.setdefault(producer_id, []).append((first_offset, marker_offset))

    def has(self, header: BatchHeader) -> bool:
        """Whether this batch of a producer belongs to a noted transaction."""
        ranges = self._ranges.get(header.producer_id)
        if ranges is None:
            return False
        at = bisect_right(ranges, header.base_offset, key=itemgetter(0))
        return at > 0 and header.base_offset < ranges[at - 1][1]


class TransactionEnds:
    """The ends of the transactions of the dirty part, so that no key waits for an end. Feed batches and markers.

    Takes memory for aborted transactions and for producers, not for their records. The next compaction uses the known
    ends too, if this compaction had not the memory for all keys and the log was not cut since.
    """

    def __init__(self) -> None:
        self.aborted = AbortedTransactions()
        self.end_offset = 0
        """The offset up to which every batch of the dirty part was seen."""
        self.undecided_from: int | None = None
        """The start of the first transaction without an end below `end_offset`; None if every end is known."""
        self._open: dict[int, int] = {}  # producer id -> the start of its transaction

    def go_on(self) -> None:
        """Expect more batches: an open transaction may end in these batches."""
        self.undecided_from = None

    def end_at(self, end_offset: int) -> None:
        """Note that every batch below this offset was seen."""
        self.end_offset = end_offset
        self.undecided_from = min(self._open.values(), default=None)

    def add(self, header: BatchHeader, marker: ControlType | None) -> None:
        """Take the next batch of a transaction, or its marker."""
        if not header.is_control:
            self._open.setdefault(header.producer_id, header.base_offset)
        elif marker in _MARKERS:
            first_offset = self._open.pop(header.producer_id, None)
            if first_offset is not None and marker is ControlType.ABORT:
                self.aborted.add(header.producer_id, first_offset, header.base_offset)

    def is_visible(self, header: BatchHeader) -> bool:
        """Whether readers of committed data get the records of this batch."""
        if not header.is_transactional:
            return True
        first_offset = self._open.get(header.producer_id)
        return (first_offset is None or header.base_offset < first_offset) and not self.aborted.has(header)


class KeyCollector:
    """The first pass. Feed it the batches from the first dirty offset on, until `is_full`.

    Before the first batch of a transaction, `ends` must know all ends up to the end of the dirty part.
    """

    def __init__(self, first_dirty_offset: int, *, memory_bytes: int, ends: TransactionEnds) -> None:
        """`ends` has the known ends of transactions."""
        self.keys = KeyMap(memory_bytes)
        self.ends = ends
        self._first_dirty_offset = first_dirty_offset
        self._end_offset = first_dirty_offset

    @property
    def end_offset(self) -> int:
        """The offset below which every key, and the end of every transaction, is known."""
        undecided_from = self.ends.undecided_from
        return self._end_offset if undecided_from is None else min(self._end_offset, undecided_from)

    @property
    def is_full(self) -> bool:
        """Whether the rest is for the next compaction. False until this compaction has a key, if there can be a key."""
        undecided_from = self.ends.undecided_from
        if undecided_from is not None and undecided_from <= self._first_dirty_offset:
            return True
        return self.keys.is_full and self.end_offset > self._first_dirty_offset

    def skip_to(self, offset: int) -> None:
        """Note that nothing is stored between the last batch and this offset."""
        self._end_offset = max(self._end_offset, offset)

    def add(self, buffer: Buffer, header: BatchHeader) -> Steps[None]:
        """Take the next batch, in steps. Raises CorruptRecords if its checksum is wrong."""
        self._end_offset = header.end_offset
        records = yield from _readable(buffer, header)
        if records is None or header.is_control or not self.ends.is_visible(header):
            return
        for number, span in enumerate(records.spans, 1):
            if not number % STEP_RECORDS:
                yield None
            if span.key is not None:
                self.keys.put(span.key, span.offset)


class BatchFilter:
    """The second pass. Feed it every batch, from the log's first one on."""

    def __init__(
        self,
        collected: KeyCollector,
        *,
        is_last_of_producer: IsLastOfProducer,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._keys = collected.keys
        self._aborted = collected.ends.aborted
        self._end_offset = collected.end_offset
        self._is_last_of_producer = is_last_of_producer
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, _MAX_TIMESTAMP)
        self._in_transaction: set[int] = set()
        """The producers with a batch of a transaction whose marker has not come yet."""
        self.needed_markers: set[int] = set()
        """The offsets of markers of whose transactions the log had a batch before this compaction. The user of the set
        clears it."""

    def is_needed(self, marker_offset: int) -> bool:
        """Whether readers have to know of the transaction that this marker ends, if it was aborted."""
        return marker_offset >= self._end_offset or marker_offset in self.needed_markers

    def rewrite(self, buffer: Buffer, header: BatchHeader, *, keep_header: bool) -> Steps[Buffer | None]:
        """The batch to store, made in steps: this very buffer if nothing changes, None if nothing is left.

        With `keep_header` at least the header is left. Raises CorruptRecords if the batch's checksum is wrong.
        """
        if header.base_offset >= self._end_offset:
            return buffer
        records = yield from _readable(buffer, header)
        if records is None:
            if header.is_transactional and not header.is_control:
                self._in_transaction.add(header.producer_id)  # aborted or not, it needs its marker
            return buffer
        rewrite = self._rewrite_control if header.is_control else self._rewrite_data
        stored = yield from rewrite(buffer, records)
        if stored is None and (keep_header or (header.has_producer_id and self._is_last_of_producer(header))):
            return emptied(header) if header.records_count else buffer
        return stored

    def _rewrite_control(self, buffer: Buffer, records: BatchRecords) -> Steps[Buffer | None]:
        header = records.header
        if not records.spans:
            return None
        if _marker(records) is None:
            return buffer
        if header.producer_id in self._in_transaction:
            self._in_transaction.discard(header.producer_id)
            self.needed_markers.add(header.last_offset)
            return buffer
        if not header.has_delete_horizon:
            return (yield from self._with_horizon(buffer, records, records.spans))
        return buffer if header.base_timestamp > self._now_ms else None

    def _rewrite_data(self, buffer: Buffer, records: BatchRecords) -> Steps[Buffer | None]:
        header = records.header
        if header.is_transactional:
            self._in_transaction.add(header.producer_id)
            if self._aborted.has(header):
                return None
        keeps_tombstones = not header.has_delete_horizon or header.base_timestamp > self._now_ms
        last_offset = self._keys.last_offset
        kept: list[RecordSpan] = []
        for number, span in enumerate(records.spans, 1):
            if not number % STEP_RECORDS:
                yield None
            if span.key is not None and span.offset >= last_offset(span.key) and (span.has_value or keeps_tombstones):
                kept.append(span)
        if not kept:
            return None
        if not header.has_delete_horizon and not all(span.has_value for span in kept):
            return (yield from self._with_horizon(buffer, records, kept))
        return (yield from _with_records(buffer, records, kept))

    def _with_horizon(self, buffer: Buffer, records: BatchRecords, kept: Sequence[RecordSpan]) -> Steps[Buffer]:
        try:
            return (yield from batch_in_steps(records, kept, delete_horizon_ms=self._horizon_ms))
        except OverflowError:
            return (
                yield from _with_records(buffer, records, kept)
            )  # impossible timestamps: the tombstones of the batch stay for good


def _with_records(buffer: Buffer, records: BatchRecords, kept: Sequence[RecordSpan]) -> Steps[Buffer]:
    if len(kept) == len(records.spans):
        return buffer
    return (yield from batch_in_steps(records, kept))


def _readable(buffer: Buffer, header: BatchHeader) -> Steps[BatchRecords | None]:
    """The batch's records, None if intact bytes hold no readable records."""
    check_crc(buffer, 0, header)
    try:
        return (yield from spans_in_steps(buffer, header))
    except CorruptRecords:
        return None


def _marker(records: BatchRecords) -> ControlType | None:
    """The marker of this control batch; None for a control batch of another type."""
    try:
        kind = control_type(records.spans[0].key)
    except CorruptRecords:
        return None
    return kind if kind in _MARKERS else None


DIGEST_BYTES: Final = 32
_ENTRY_BYTES: Final = 180
"""The approximate bytes of a dictionary's slot, the bytes object and the number; measured on CPython 3.11."""


class KeyMap:
    """Key -> the last offset that was put for the key.

    Kafka's map holds 16-byte digests. Here a short key stands for itself and a long key for its 32-byte BLAKE2b digest,
    so that no producer can make up two keys that count as the same key. The lengths keep the two kinds apart.
    """

    __slots__ = ("_left_bytes", "_offsets")

    def __init__(self, memory_bytes: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._left_bytes = memory_bytes

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether the memory is used up. One more batch still fits, so that there is always progress."""
        return self._left_bytes <= 0

    def put(self, key: bytes, offset: int) -> None:
        """Note that the key occurs at this offset; the largest offset counts."""
        name = name_of(key)
        known = self._offsets.get(name)
        if known is None:
            self._left_bytes -= _ENTRY_BYTES + len(name)
        elif known >= offset:
            return
        self._offsets[name] = offset

    def last_offset(self, key: bytes) -> int:
        """The last offset of this key, -1 if it was never put."""
        return self._offsets.get(name_of(key), -1)


def name_of(key: bytes) -> bytes:
    """The entry of the map for a key."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
