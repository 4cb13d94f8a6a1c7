"""The producers that write to a log: sequence numbers, epochs, open transactions (KIP-98).

Invariants:

1. Per producer id the last five batches are known; a batch with the same epoch and the same first and last sequence as
   a remembered batch is a duplicate and is not written again.
2. Otherwise sequences of one epoch are contiguous, from 2^31 - 1 on to 0, and a new epoch starts at 0.
3. `stage` shows batches to `check` before the write. A batch counts only once the log has the batch: `apply_staged`
   takes staged batches over, `discard_staged` forgets staged batches.
4. A transactional batch opens its producer's transaction, a marker ends it; the marker's coordinator epoch and producer
   epoch never fall. The newest batch of a producer does not change with the marker, unless the marker's producer epoch
   is new: then the next batch starts at 0 (KIP-890). A marker ends the transaction that it was written for and no
   other: the marker's producer epoch is above the epoch of the transaction, or, for older producers, the marker's
   decision is newer than every decision that has ended a transaction here.
5. A batch of a producer beyond MOST_PRODUCERS is refused. A marker of such a producer is appended, since a refusal
   would keep the transaction open in other partitions, but the marker is not remembered: this log had no transaction to
   end.

An entry is never changed, only replaced, so that a copy of the table is shallow.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import EPOCH_PER_TRANSACTION
from tailrace.protocol.records.batch import BatchHeader
from tailrace.protocol.records.control import NO_DECISION, ControlType, EndTransactionMarker
from tailrace.storage.producers.entries import MAX_SEQUENCE, REMEMBERED_BATCHES, ProducerEntry, SequencedBatch
from tailrace.storage.segment_files.transaction_index import CompletedTransaction, OngoingTransactions

MOST_PRODUCERS: Final = 10_000
"""Producers that a log remembers at one time. Kafka has no limit: a client that makes ids up can fill its memory."""
CROWDED: Final = MOST_PRODUCERS * 3 // 4
"""From this number of producers on, silent producers are forgotten early. Otherwise programs that write once and end
would fill the table, and new producers would be refused for `producer.id.expiration.ms`, which is a day.
"""
SILENT_MS: Final = 15 * 60_000
"""The time without a batch after which a crowded log forgets a producer, ms. No client repeats a batch so late: Java's
client gives a batch up after two minutes (`delivery.timeout.ms`), librdkafka after five."""


class Duplicate(NamedTuple):
    """A batch that is stored already: its repetition gets the same answer as the first time."""

    base_offset: int
    last_offset: int
    timestamp: int


class ProducerState:
    """The producers of a log."""

    __slots__ = ("_last_batches", "_last_batches_ms", "_producers", "_staged", "stages_transactions", "transactions")

    def __init__(self, producers: Mapping[int, ProducerEntry] | None = None) -> None:
        self._producers: dict[int, ProducerEntry] = dict(producers or {})
        self._staged: dict[int, ProducerEntry] = {}
        self._last_batches: dict[int, tuple[int, tuple[SequencedBatch, ...]]] = {}
        """The epoch and the batches of each producer at the time `_last_batches_ms`; empty while the log is not
        crowded."""
        self._last_batches_ms = 0
        self.stages_transactions = False
        """Whether a staged batch belongs to a transaction; then the batches are to be applied singly."""
        self.transactions = OngoingTransactions(_begun(self._producers))

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def producers(self) -> Mapping[int, ProducerEntry]:
        """The producers by id, staged batches not counted. Do not change the mapping."""
        return self._producers

    @property
    def first_open_offset(self) -> int | None:
        """The start of the oldest open transaction, or None."""
        return self.transactions.first_open_offset

    def has_late_transaction(self, now_ms: int, *, late_ms: int) -> bool:
        """Whether the producer of the oldest open transaction has been silent for this long."""
        producer_id = self.transactions.oldest_producer_id
        return producer_id is not None and now_ms - self._producers[producer_id].last_timestamp > late_ms

    def latest(self, producer_id: int) -> ProducerEntry | None:
        """The state of this producer, staged batches included."""
        return self._staged.get(producer_id) or self._producers.get(producer_id)

    def is_in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether the producer has a transaction open here, of this epoch; staged batches counted."""
        entry = self.latest(producer_id)
        return entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == producer_epoch

    def check(self, header: BatchHeader) -> Duplicate | None:
        """None if a producer's batch may be appended; the Duplicate if the batch is stored already.

        Raises KafkaError: INVALID_PRODUCER_EPOCH (47) for an older epoch, OUT_OF_ORDER_SEQUENCE_NUMBER (45) for a gap,
        a repeated batch that is no longer remembered, or a new epoch that does not start at 0; INVALID_TXN_STATE (48)
        for a plain batch inside a transaction; THROTTLING_QUOTA_EXCEEDED (89) for a producer beyond MOST_PRODUCERS. An
        unknown producer may start anywhere.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        entry = self._staged.get(producer_id) or self._producers.get(producer_id)
        if entry is None:
            self._check_limit(header)
            return None
        duplicate = _duplicate_of(header, entry)
        if duplicate is None:
            _check_epoch(header, entry)
            _check_order(header, entry)
        return duplicate

    def is_duplicate(self, header: BatchHeader) -> bool:
        """Whether `check` will find that the batch is stored already."""
        entry = self.latest(header.producer_id)
        return entry is not None and _duplicate_of(header, entry) is not None

    def check_offsets(self, header: BatchHeader) -> None:
        """Check that a coordinator may append this batch of a transaction. Raises KafkaError for an older epoch
        (47)."""
        entry = self.latest(header.producer_id)
        if entry is not None:
            _check_epoch(header, entry)

    def is_repeated(self, header: BatchHeader, marker: EndTransactionMarker, *, transaction_version: int) -> bool:
        """Whether this marker is here already, and has nothing to end. False: the marker may be appended.

        `transaction_version` is the producer's. Raises KafkaError INVALID_PRODUCER_EPOCH (47) for an older epoch of the
        producer, and for the marker of a transaction before the open transaction; TRANSACTION_COORDINATOR_FENCED (52)
        for a coordinator that another coordinator has followed.
        """
        entry = self.latest(header.producer_id)
        if entry is None:
            return False
        _check_epoch(header, entry)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"producer {header.producer_id}: coordinator epoch {marker.coordinator_epoch} is older than "
                f"{entry.coordinator_epoch}",
            )
        if not _is_old_marker(header, marker, entry, transaction_version):
            return False
        if entry.current_txn_first_offset >= 0:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id}: the marker of epoch {header.producer_epoch} was written for an "
                f"earlier transaction than the transaction that is open since offset {entry.current_txn_first_offset}",
            )
        return True

    def _check_limit(self, header: BatchHeader) -> None:
        known = self._producers
        if len(known) + len(self._staged) < MOST_PRODUCERS:
            return
        if len(known) + sum(producer_id not in known for producer_id in self._staged) >= MOST_PRODUCERS:
            raise KafkaError(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"producer {header.producer_id}: {MOST_PRODUCERS} producers have written here lately; write with fewer"
                " or without idempotence; producers that write no more are forgotten after a quarter of an hour",
            )

    def stage(self, header: BatchHeader, marker: EndTransactionMarker | None = None) -> None:
        """Let later checks see this batch, which is about to be written at its base offset."""
        producer_id = header.producer_id
        if producer_id >= 0:
            if header.is_transactional:
                self.stages_transactions = True
            entry = self._staged.get(producer_id) or self._producers.get(producer_id)
            if entry is None and header.is_control and len(self._producers) + len(self._staged) >= MOST_PRODUCERS:
                return
            self._staged[producer_id] = _advanced(entry, header, marker)

    def discard_staged(self) -> None:
        """Forget the staged batches, which are not going to be written."""
        self._staged.clear()
        self.stages_transactions = False

    def apply_staged(self) -> None:
        """Take over the staged batches, which are in the log and without transactions."""
        assert not self.stages_transactions, "transactions are applied batch by batch"
        self._producers.update(self._staged)
        self._staged.clear()

    @property
    def has_staged(self) -> bool:
        return bool(self._staged)

    def apply(self, header: BatchHeader, marker: EndTransactionMarker | None = None) -> CompletedTransaction | None:
        """Take over a batch of the log; returns the transaction that the batch completes. The leader has checked the
        batch.

        `marker` is the marker of a control batch; None if a compaction has emptied the batch.
        """
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        entry = self._producers.get(producer_id)
        if entry is None and header.is_control and len(self._producers) >= MOST_PRODUCERS:
            return None
        self._producers[producer_id] = _advanced(entry, header, marker)
        if not header.is_transactional:
            return None
        open_since = -1 if entry is None else entry.current_txn_first_offset
        if header.is_control:
            return self._completed(header, open_since, marker) if open_since >= 0 else None
        if open_since < 0:
            self.transactions.begin(header.base_offset, producer_id)
        return None

    def _completed(
        self, header: BatchHeader, first_offset: int, marker: EndTransactionMarker | None
    ) -> CompletedTransaction:
        last_offset = header.last_offset
        self.transactions.end(first_offset, last_offset)
        still_open = self.transactions.first_open_offset
        return CompletedTransaction(
            header.producer_id,
            first_offset,
            last_offset,
            is_aborted=marker is not None and marker.type is ControlType.ABORT,
            last_stable_offset=last_offset + 1 if still_open is None else still_open,
        )

    def copy_producers(self) -> dict[int, ProducerEntry]:
        """A copy of the present table, for `replace`."""
        return dict(self._producers)

    def replace(self, producers: Mapping[int, ProducerEntry], *, end_offset: int) -> None:
        """Replace all producers by these producers, with no batch staged: the log was cut at `end_offset`."""
        self._producers = dict(producers)
        self.discard_staged()
        self.transactions.restart(_begun(self._producers), end_offset=end_offset)

    def expire(self, now_ms: int, *, expiration_ms: int) -> int:
        """Forget producers silent for `producer.id.expiration.ms` and without an open transaction; returns the count.

        A producer whose records have no time counts as active now: otherwise an active producer would be forgotten. A
        crowded log forgets the producers that have written nothing for SILENT_MS, whatever the times of records.
        """
        silent = self._silent(now_ms)
        for producer_id, entry in list(self._producers.items()):
            if entry.last_timestamp < 0:
                self._producers[producer_id] = entry._replace(last_timestamp=now_ms)
        gone = [
            producer_id
            for producer_id, entry in self._producers.items()
            if entry.current_txn_first_offset < 0
            and (producer_id in silent or now_ms - entry.last_timestamp >= expiration_ms)
            and producer_id not in self._staged
        ]
        for producer_id in gone:
            del self._producers[producer_id]
        return len(gone)

    def _silent(self, now_ms: int) -> Collection[int]:
        """The producers of a crowded log that have written nothing since an earlier call, SILENT_MS ago at least."""
        if len(self._producers) < CROWDED:
            self._last_batches = {}
            return ()
        earlier = self._last_batches
        if earlier and now_ms - self._last_batches_ms < SILENT_MS:
            return ()
        self._last_batches_ms = now_ms
        self._last_batches = {
            producer_id: (entry.producer_epoch, entry.batches) for producer_id, entry in self._producers.items()
        }
        return {producer_id for producer_id, last in self._last_batches.items() if earlier.get(producer_id) == last}


def _begun(producers: Mapping[int, ProducerEntry]) -> Iterator[tuple[int, int]]:
    """The starts of the open transactions, and their producers."""
    for producer_id, entry in producers.items():
        if entry.current_txn_first_offset >= 0:
            yield entry.current_txn_first_offset, producer_id


def _duplicate_of(header: BatchHeader, entry: ProducerEntry) -> Duplicate | None:
    if header.producer_epoch == entry.producer_epoch:
        for batch in entry.batches:
            if batch.base_sequence == header.base_sequence and batch.last_sequence == header.last_sequence:
                return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp)
    return None


def _check_epoch(header: BatchHeader, entry: ProducerEntry) -> None:
    if header.producer_epoch < entry.producer_epoch:
        raise KafkaError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            f"producer {header.producer_id} at offset {header.base_offset}: epoch {header.producer_epoch} is older than"
            f" {entry.producer_epoch}; a newer instance writes",
        )


def _is_old_marker(
    header: BatchHeader, marker: EndTransactionMarker, entry: ProducerEntry, transaction_version: int
) -> bool:
    """Whether a marker is old: the producer's state in this log is already past the transaction of the marker.

    From KIP-890 on the coordinator raises the producer's epoch at each end of a transaction, and the marker has the
    raised epoch (KIP-1228): a marker with the producer's present epoch is old. An older producer keeps its epoch, so
    the coordinator numbers the ends of its transactions (`decision_offset`): a marker is old if its number is not above
    the highest number here from the same coordinator epoch. A marker without a number, from Kafka or an administrator,
    is never old.
    """
    if transaction_version >= EPOCH_PER_TRANSACTION:
        return header.producer_epoch == entry.producer_epoch
    if marker.decision_offset == NO_DECISION or marker.coordinator_epoch != entry.coordinator_epoch:
        return False
    return marker.decision_offset <= entry.decision_offset


def _check_order(header: BatchHeader, entry: ProducerEntry) -> None:
    producer = f"producer {header.producer_id} at offset {header.base_offset}"
    if entry.current_txn_first_offset >= 0 and not header.is_transactional:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f"{producer}: a plain batch while its transaction is open")
    sequence = header.base_sequence
    if header.producer_epoch > entry.producer_epoch:
        if sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{producer}: epoch {header.producer_epoch} is new and must start with sequence 0, not {sequence}",
            )
        return
    last_sequence = entry.batches[-1].last_sequence if entry.batches else -1
    expected = 0 if last_sequence == MAX_SEQUENCE else last_sequence + 1
    if sequence != expected:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{producer}: sequence {sequence} where {expected} was expected"
        )


def _advanced(entry: ProducerEntry | None, header: BatchHeader, marker: EndTransactionMarker | None) -> ProducerEntry:
    """The state of a producer after one more batch."""
    epoch = header.producer_epoch
    batches: tuple[SequencedBatch, ...] = ()
    coordinator_epoch = open_since = -1
    decision_offset = NO_DECISION
    if entry is not None:
        coordinator_epoch, decision_offset = entry.coordinator_epoch, entry.decision_offset
        open_since = entry.current_txn_first_offset
        if entry.producer_epoch == epoch:
            batches = entry.batches
    if header.is_control:
        if marker is not None:
            is_same = marker.coordinator_epoch == coordinator_epoch
            decision_offset = max(decision_offset, marker.decision_offset) if is_same else marker.decision_offset
            coordinator_epoch = marker.coordinator_epoch
        return ProducerEntry(epoch, batches, header.max_timestamp, coordinator_epoch, -1, decision_offset)
    last_offset = header.base_offset + header.last_offset_delta
    batch = SequencedBatch(
        header.base_sequence, header.last_sequence, header.base_offset, last_offset, header.max_timestamp
    )
    if header.is_transactional and open_since < 0:
        open_since = header.base_offset
    remembered = (*batches[1 - REMEMBERED_BATCHES :], batch)
    return ProducerEntry(epoch, remembered, header.max_timestamp, coordinator_epoch, open_since, decision_offset)
