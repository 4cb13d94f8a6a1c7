"""The state of one producer in a log: its last batches, its epochs, and its open transaction."""

from typing import Final, NamedTuple

from tailrace.protocol.records.control import NO_DECISION

MAX_SEQUENCE: Final = 2**31 - 1
"""The largest sequence number; 0 follows."""
REMEMBERED_BATCHES: Final = 5
"""The number of batches that an idempotent producer may have in flight."""


class SequencedBatch(NamedTuple):
    """A stored batch of an idempotent producer."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int
    """The batch's largest timestamp, ms."""


NO_BATCH: Final = SequencedBatch(-1, -1, -1, -1, -1)


class ProducerEntry(NamedTuple):
    """The state of one producer id."""

    producer_epoch: int
    batches: tuple[SequencedBatch, ...] = ()
    """The last five batches of this epoch, oldest first."""
    last_timestamp: int = -1
    coordinator_epoch: int = -1
    """The epoch of the transaction coordinator that wrote the last marker, -1 without a marker."""
    current_txn_first_offset: int = -1
    """The start of the producer's open transaction in this log, -1 for none."""
    decision_offset: int = NO_DECISION
    """The highest decision offset of the markers in this coordinator epoch, see `EndTransactionMarker`."""
