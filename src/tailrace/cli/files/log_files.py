"""The files beside a log, in the format of Kafka's own dump: indexes, producer snapshots, leader epochs.

Files are read and not repaired. Indexes are compared with the batches of their log.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.producers.snapshot_format import snapshot_entries
from tailrace.storage.segment_files.transaction_index import aborted_transactions

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")


class IndexEntry(NamedTuple):
    """An entry of an offset index: the last offset of a batch, and its position in the log."""

    offset: int
    position: int

    def __str__(self) -> str:
        return f"offset: {self.offset} position: {self.position}"


class TimeEntry(NamedTuple):
    """An entry of a time index: the largest timestamp of a segment up to this offset."""

    timestamp: int
    offset: int

    def __str__(self) -> str:
        return f"timestamp: {self.timestamp} offset: {self.offset}"


class LogBatch(NamedTuple):
    """The index entry of one batch."""

    position: int
    last_offset: int
    max_timestamp: int


def offset_entries(data: bytes, base_offset: int) -> Iterator[IndexEntry]:
    """The entries of an .index file. Zeros after the last entry are the reserved space of a running broker."""
    for number, (relative, position) in enumerate(_entries(_OFFSET_ENTRY, data)):
        if number and not relative:
            return
        yield IndexEntry(base_offset + relative, position)


def time_entries(data: bytes, base_offset: int) -> Iterator[TimeEntry]:
    """The entries of a .timeindex file."""
    for number, (timestamp, relative) in enumerate(_entries(_TIME_ENTRY, data)):
        if number and not relative:
            return
        yield TimeEntry(timestamp, base_offset + relative)


def offset_index_faults(path: str, entries: Sequence[IndexEntry], batches: Sequence[LogBatch]) -> list[str]:
    """Entries without a batch at their position that ends with their offset, under a line that names the index."""
    starts = {batch.position: batch.last_offset for batch in batches}
    lines = [
        f"  Index offset: {entry.offset}, log offset: {starts.get(entry.position, 'no batch starts there')}"
        for entry in entries
        if starts.get(entry.position) != entry.offset
    ]
    return [f"Mismatches in :{path}", *lines] if lines else []


def time_index_faults(path: str, entries: Sequence[TimeEntry], batches: Sequence[LogBatch]) -> list[str]:
    """Entries whose timestamp differs from that of the batch with their last offset, or does not rise."""
    last_offsets = [batch.last_offset for batch in batches]
    wrong, falling, missing, previous = [], [], [], -1
    for timestamp, offset in entries:
        at = bisect_left(last_offsets, offset)
        if at == len(batches) or last_offsets[at] != offset:
            found = last_offsets[at] if at < len(batches) else -1
            missing.append(f"Indexed offset: {offset}, found log offset: {found}")
        else:
            if batches[at].max_timestamp != timestamp:
                wrong.append(f"  Index timestamp: {timestamp}, log timestamp: {batches[at].max_timestamp}")
            if timestamp <= previous:
                falling.append(f"  Index timestamp: {timestamp}, Previously indexed timestamp: {previous}")
        previous = timestamp
    faults = [f"Found timestamp mismatch in :{path}", *wrong] if wrong else []
    faults += [f"Found out of order timestamp in :{path}", *falling] if falling else []
    faults += ["The following indexed offsets are not found in the log.", *missing] if missing else []
    return faults


def transaction_lines(data: bytes) -> Iterator[str]:
    """The aborted transactions of a .txnindex file. Raises CorruptRecords for a partial file."""
    for aborted in aborted_transactions(data):
        yield (
            f"version: 0 producerId: {aborted.producer_id} firstOffset: {aborted.first_offset} "
            f"lastOffset: {aborted.last_offset} lastStableOffset: {aborted.last_stable_offset}"
        )


def snapshot_lines(data: bytes) -> Iterator[str]:
    """The producers of a .snapshot file. Raises CorruptRecords for a partial file."""
    for producer_id, entry in snapshot_entries(data):
        begun = entry.current_txn_first_offset
        line = (
            f"producerId: {producer_id} producerEpoch: {entry.producer_epoch} "
            f"coordinatorEpoch: {entry.coordinator_epoch} "
            f"currentTxnFirstOffset: {f'OptionalLong[{begun}]' if begun >= 0 else 'OptionalLong.empty'} "
            f"lastTimestamp: {entry.last_timestamp} "
        )
        for batch in entry.batches:
            line += (
                f"firstSequence: {batch.base_sequence} lastSequence: {batch.last_sequence} "
                f"lastOffset: {batch.last_offset} offsetDelta: {batch.last_offset - batch.base_offset} "
                f"timestamp: {batch.timestamp}"
            )
        yield line


def epoch_lines(data: bytes) -> Iterator[str]:
    """The lines of the dump of leader-epoch-checkpoint, a file that Kafka's tool does not read. Raises CorruptRecords
    if `data` is no such file."""
    for entry in EpochCache.from_bytes(data).entries:
        yield f"leaderEpoch: {entry.epoch} startOffset: {entry.start_offset}"


def _entries(form: struct.Struct, data: bytes) -> Iterator[tuple[int, ...]]:
    whole = len(data) - len(data) % form.size
    yield from form.iter_unpack(data[:whole])
