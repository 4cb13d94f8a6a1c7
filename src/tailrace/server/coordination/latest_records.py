"""The records of the first part of a log that a compaction of this part would keep: a coordinator's checkpoint has
these records.

For every kind of coordinator, a replay of these records gives the same state as a replay of all records. The rules are
the rules of Kafka's compaction:

1. Of each key the last record counts, by its place in the log. A tombstone removes the key's earlier records, also in
   transactions that are open.
2. A record in a transaction counts from the commit on, at the place where it was written: it does not replace a record
   that was written later, perhaps outside of transactions. An aborted record never counts.
3. While a transaction is open, all its records are kept, apart from the committed records.
"""

import heapq
from collections.abc import Iterator

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.protocol.records.record import Record
from tailrace.storage.snapshots.format import CheckpointRecord


class _OpenTransaction:
    """The records of an open transaction: the last of each key, with its place."""

    __slots__ = ("producer_epoch", "records")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.records: dict[bytes, tuple[int, bytes | None]] = {}


class LatestRecords:
    """Receives a log's records in order; at any time `records` has the records that count."""

    def __init__(self) -> None:
        self._committed: dict[bytes, tuple[int, bytes | None]] = {}
        """The place and value of each key's record, in the order in which the records came to count."""
        self._open: dict[int, _OpenTransaction] = {}
        """The open transactions by producer id."""
        self._writers: dict[bytes, set[int]] = {}
        """The producers whose open transactions have a record of the key."""
        self._count = 0

    def on_record(self, record: Record, producer_id: int, producer_epoch: int) -> None:
        """Take the next record. Raises CorruptRecords for a record without a key."""
        key, value = record.key, record.value
        if key is None:
            raise CorruptRecords("a record without a key")
        self._count += 1
        if producer_id >= 0:
            self._add_pending(key, value, producer_id, producer_epoch)
        else:
            self._committed.pop(key, None)  # so that the map stays in order
            if value is not None:
                self._committed[key] = (self._count, value)
            elif key in self._writers:
                self._forget_pending(key)

    def _add_pending(self, key: bytes, value: bytes | None, producer_id: int, producer_epoch: int) -> None:
        transaction = self._open.get(producer_id)
        if transaction is None:
            transaction = self._open[producer_id] = _OpenTransaction(producer_epoch)
        transaction.producer_epoch = producer_epoch
        transaction.records.pop(key, None)
        transaction.records[key] = (self._count, value)
        self._writers.setdefault(key, set()).add(producer_id)

    def _forget_pending(self, key: bytes) -> None:
        for producer_id in self._writers.pop(key):
            records = self._open[producer_id].records
            del records[key]
            if not records:
                del self._open[producer_id]

    def on_marker(self, producer_id: int, marker: EndTransactionMarker) -> None:
        """Take the end of a producer's transaction; does nothing without an open transaction."""
        transaction = self._open.pop(producer_id, None)
        if transaction is None:
            return
        is_commit, committed = marker.type is ControlType.COMMIT, self._committed
        for key, (place, value) in transaction.records.items():
            self._writers[key].discard(producer_id)
            if not self._writers[key]:
                del self._writers[key]
            if is_commit and (key not in committed or committed[key][0] < place):
                committed.pop(key, None)
                committed[key] = (place, value)

    def records(self) -> Iterator[CheckpointRecord]:
        """The records that count, in an order in which a replay gives the state. `on_record` and `on_marker` must not
        be called during the iteration.

        A record of an open transaction stands between the committed records of its key, in the order of their
        writes.
        """
        yield from self._pending(are_superseded=True)
        for key, (_, value) in self._committed.items():
            if value is not None or key in self._writers:
                yield CheckpointRecord(key, value)
        yield from self._pending(are_superseded=False)

    def _pending(self, *, are_superseded: bool) -> Iterator[CheckpointRecord]:
        """The records of open transactions, in order: with `are_superseded` the records whose key has a later committed
        record, else the other records."""
        producers = (self._placed(producer_id, are_superseded=are_superseded) for producer_id in self._open)
        for _, record in heapq.merge(*producers, key=_place):
            yield record

    def _placed(self, producer_id: int, *, are_superseded: bool) -> Iterator[tuple[int, CheckpointRecord]]:
        transaction, committed = self._open[producer_id], self._committed
        for key, (place, value) in transaction.records.items():
            if (key in committed and committed[key][0] > place) == are_superseded:
                yield place, CheckpointRecord(key, value, producer_id, transaction.producer_epoch)


def _place(placed: tuple[int, CheckpointRecord]) -> int:
    return placed[0]
