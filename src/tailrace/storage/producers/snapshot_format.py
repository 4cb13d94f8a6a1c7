"""The `.snapshot` file of a log's producers, in Kafka's format: an entry per remembered batch, the newest batch last.

Kafka writes only the newest batch of a producer, and of several entries of a producer reads the last. The older entries
are for us: a producer whose five batches were not answered before a clean stop sends all five again. Kafka does not
know the number of a decision either. The number has an entry of its own, the first entry of its producer: it stands as
the offset of a batch, in an epoch that no batch has.
"""

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Final

from tailrace.model.checksum import crc32c
from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.control import NO_DECISION
from tailrace.storage.producers.entries import (
    MAX_SEQUENCE,
    NO_BATCH,
    REMEMBERED_BATCHES,
    ProducerEntry,
    SequencedBatch,
)

_HEAD: Final = Struct(">hIi")
_CRC_END: Final = 6
_ENTRY: Final = Struct(">qhiqiqiq")
_VERSION: Final = 1
_DECISION_EPOCH: Final = -2
"""The value in place of the producer's epoch, in the entry that has the number of a decision."""


def encode_snapshot(producers: Mapping[int, ProducerEntry]) -> bytes:
    """The file of these producers."""
    entries = [row for producer_id, entry in producers.items() for row in _pack(producer_id, entry)]
    body = len(entries).to_bytes(4, "big") + b"".join(entries)
    return _HEAD.pack(_VERSION, crc32c(body), len(entries)) + body[4:]


def _pack(producer_id: int, entry: ProducerEntry) -> Iterator[bytes]:
    """The producer's entries in a snapshot; the last entry holds the whole state except for the older batches."""
    if entry.decision_offset != NO_DECISION:
        yield _ENTRY.pack(
            producer_id,
            _DECISION_EPOCH,
            0,
            entry.decision_offset,
            0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            -1,
        )
    *older, newest = entry.batches or (NO_BATCH,)
    rows = [(batch, batch.timestamp, -1) for batch in older]
    rows.append((newest, entry.last_timestamp, entry.current_txn_first_offset))
    for batch, timestamp, open_since in rows:
        yield _ENTRY.pack(
            producer_id,
            entry.producer_epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.last_offset - batch.base_offset,
            timestamp,
            entry.coordinator_epoch,
            open_since,
        )


def parse_snapshot(data: bytes) -> dict[int, ProducerEntry]:
    """The inverse of `encode_snapshot`. Raises CorruptRecords if version, length or checksum are wrong."""
    producers: dict[int, ProducerEntry] = {}
    decisions: dict[int, int] = {}
    for producer_id, entry in snapshot_entries(data):
        known = producers.get(producer_id)
        if entry.producer_epoch == _DECISION_EPOCH:
            decisions[producer_id] = entry.batches[0].last_offset if entry.batches else NO_DECISION
        elif known is not None and known.producer_epoch == entry.producer_epoch:
            batches = (known.batches + entry.batches)[-REMEMBERED_BATCHES:]
            producers[producer_id] = entry._replace(batches=batches)
        else:
            producers[producer_id] = entry
    for producer_id, decision_offset in decisions.items():
        if producer_id in producers:
            producers[producer_id] = producers[producer_id]._replace(decision_offset=decision_offset)
    return producers


def snapshot_entries(data: bytes) -> Iterator[tuple[int, ProducerEntry]]:
    """The raw entries of a `.snapshot` file, with at most one batch per entry. Raises CorruptRecords."""
    if len(data) < _HEAD.size:
        raise CorruptRecords(f"{len(data)} bytes are too few for a producer snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION:
        raise CorruptRecords(f"producer snapshot of version {version}; only {_VERSION} is read")
    if crc32c(memoryview(data)[_CRC_END:]) != crc:
        raise CorruptRecords("the checksum of a producer snapshot does not match")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptRecords(f"a producer snapshot of {len(data)} bytes claims {count} entries")
    return map(_entry, _ENTRY.iter_unpack(data[_HEAD.size :]))


def _entry(row: tuple[int, ...]) -> tuple[int, ProducerEntry]:
    producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, open_since = row
    batches: tuple[SequencedBatch, ...] = ()
    if last_offset >= 0:
        base_sequence = last_sequence - delta
        if base_sequence < 0 <= last_sequence:
            base_sequence += MAX_SEQUENCE + 1
        batches = (SequencedBatch(base_sequence, last_sequence, last_offset - delta, last_offset, timestamp),)
    return producer_id, ProducerEntry(epoch, batches, timestamp, coordinator_epoch, open_since)
