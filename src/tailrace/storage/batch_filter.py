"""Which records of a log stay when it is compacted: two passes over its batches, as Kafka's cleaner makes them. Pure.

`KeyCollector` sees the dirty batches in order and learns the last offset of every key. `BatchFilter` then sees all
batches from the log's first one on, and gives each as it is to be stored:

1. A record stays if no later one has its key. One without a key goes: nothing can ever replace it.
2. A tombstone stays until its batch's delete horizon. The horizon is set when a compaction first keeps the tombstone:
   from then on a reader has delete.retention.ms to see it (KIP-534).
3. The records of an aborted transaction go, and replace nothing. A marker stays until no batch of its transaction is
   left, and then like a tombstone.
4. The last batch of a producer stays, emptied if need be: it says which sequence number comes next.
5. The last batch of each rewritten segment stays too, emptied: so a reader always finds the way past a gap.
6. A batch whose records cannot be read stays as it is: its sender wrote it before the topic was compacted.
"""

from collections.abc import Callable, Sequence
from typing import Final

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import BatchHeader, check_crc
from tailrace.protocol.records.control import ControlType, control_type
from tailrace.protocol.records.spans import BatchRecords, RecordSpan, batch_with, emptied, read_spans
from tailrace.storage.files import Buffer
from tailrace.storage.key_map import KeyMap

_MARKERS: Final = (ControlType.ABORT, ControlType.COMMIT)

_MAX_TIMESTAMP: Final = 2**63 - 1

IsLastOfProducer = Callable[[BatchHeader], bool]
"""Whether what is known of the batch's producer rests on this batch."""


class AbortedTransactions:
    """Which batches belong to transactions that were aborted."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}

    def add(self, producer_id: int, first_offset: int, marker_offset: int) -> None:
        self._ranges.setdefault(producer_id, []).append((first_offset, marker_offset))

    def has(self, header: BatchHeader) -> bool:
        ranges = self._ranges.get(header.producer_id, ())
        return any(first <= header.base_offset < marker for first, marker in ranges)


class KeyCollector:
    """The first pass. Feed it the batches from the first dirty offset on, until `is_full`."""

    def __init__(self, first_dirty_offset: int, *, memory_bytes: int) -> None:
        self.keys = KeyMap(memory_bytes)
        self.aborted = AbortedTransactions()
        self._first_dirty_offset = first_dirty_offset
        self._end_offset = first_dirty_offset
        self._open: dict[int, list[tuple[int, bytes]]] = {}
        """Per producer in a transaction: first its first offset, then the keys that count if it is committed."""

    @property
    def end_offset(self) -> int:
        """Below it all is known: every key, and how every transaction ended."""
        return min([self._end_offset, *(entries[0][0] for entries in self._open.values())])

    @property
    def is_full(self) -> bool:
        """Whether the rest is for the next compaction. Never before there is something for this one."""
        return self.keys.is_full and self.end_offset > self._first_dirty_offset

    def add(self, buffer: Buffer, header: BatchHeader) -> None:
        """Take the next batch. Raises CorruptRecords if its checksum is wrong."""
        self._end_offset = header.end_offset
        records = _readable(buffer, header)
        if records is None or not records.spans:
            return
        if header.is_control:
            self._end_transaction(records)
        elif header.is_transactional:
            entries = self._open.setdefault(header.producer_id, [(header.base_offset, b"")])
            entries += [(span.offset, span.key) for span in records.spans if span.key is not None]
            self.keys.charge(sum(len(span.key or b"") for span in records.spans), len(records.spans))
        else:
            for span in records.spans:
                if span.key is not None:
                    self.keys.put(span.key, span.offset)

    def _end_transaction(self, records: BatchRecords) -> None:
        kind = _marker(records)
        entries = self._open.pop(records.header.producer_id, None) if kind is not None else None
        if entries is None:
            return
        if kind is ControlType.ABORT:
            self.aborted.add(records.header.producer_id, entries[0][0], records.header.base_offset)
            return
        for offset, key in entries[1:]:
            self.keys.put(key, offset)


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
        self._aborted = collected.aborted
        self._end_offset = collected.end_offset
        self._is_last_of_producer = is_last_of_producer
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, _MAX_TIMESTAMP)
        self._in_transaction: set[int] = set()
        """Producers of whose transaction, the one we are in the middle of, a batch is left."""
        self.needed_markers: set[int] = set()
        """The offsets of markers whose transactions had a batch left. Whoever has made use of them clears it."""

    def is_needed(self, marker_offset: int) -> bool:
        """Whether readers have to know of the transaction that this marker ends, if it was aborted."""
        return marker_offset >= self._end_offset or marker_offset in self.needed_markers

    def rewrite(self, buffer: Buffer, header: BatchHeader, *, keep_header: bool) -> Buffer | None:
        """The batch as it is to be stored: this very buffer if nothing changes, None if nothing is left of it.

        With `keep_header` something is. Raises CorruptRecords if the batch's checksum is wrong.
        """
        if header.base_offset >= self._end_offset:
            return buffer
        records = _readable(buffer, header)
        if records is None:
            if header.is_transactional and not header.is_control:
                self._in_transaction.add(header.producer_id)  # aborted or not, it needs its marker
            return buffer
        stored = self._rewrite_control(buffer, records) if header.is_control else self._rewrite_data(buffer, records)
        if stored is None and (keep_header or (header.has_producer_id and self._is_last_of_producer(header))):
            return emptied(header) if header.records_count else buffer
        return stored

    def _rewrite_control(self, buffer: Buffer, records: BatchRecords) -> Buffer | None:
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
            return self._with_horizon(buffer, records, records.spans)
        return buffer if header.base_timestamp > self._now_ms else None

    def _rewrite_data(self, buffer: Buffer, records: BatchRecords) -> Buffer | None:
        header = records.header
        if header.is_transactional:
            self._in_transaction.add(header.producer_id)
            if self._aborted.has(header):
                return None
        keeps_tombstones = not header.has_delete_horizon or header.base_timestamp > self._now_ms
        last_offset = self._keys.last_offset
        kept = [
            span
            for span in records.spans
            if span.key is not None and span.offset >= last_offset(span.key) and (span.has_value or keeps_tombstones)
        ]
        if not kept:
            return None
        if not header.has_delete_horizon and not all(span.has_value for span in kept):
            return self._with_horizon(buffer, records, kept)
        return _with_records(buffer, records, kept)

    def _with_horizon(self, buffer: Buffer, records: BatchRecords, kept: Sequence[RecordSpan]) -> Buffer:
        try:
            return batch_with(records, kept, delete_horizon_ms=self._horizon_ms)
        except OverflowError:
            return _with_records(buffer, records, kept)  # timestamps from another world: its tombstones stay for good


def _with_records(buffer: Buffer, records: BatchRecords, kept: Sequence[RecordSpan]) -> Buffer:
    return buffer if len(kept) == len(records.spans) else batch_with(records, kept)


def _readable(buffer: Buffer, header: BatchHeader) -> BatchRecords | None:
    """The batch's records, None if they cannot be read although the bytes are those that were written."""
    check_crc(buffer, 0, header)
    try:
        return read_spans(buffer, header)
    except CorruptRecords:
        return None


def _marker(records: BatchRecords) -> ControlType | None:
    """How the transaction ended that this control batch ends; None if it is about something else."""
    try:
        kind = control_type(records.spans[0].key)
    except CorruptRecords:
        return None
    return kind if kind in _MARKERS else None
