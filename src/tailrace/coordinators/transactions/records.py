"""Records of `__transaction_state`, in Kafka's formats: the state of each transactional id, and of each sink.

A key starts with an int16, 0; a value with an int16, its version. A null value is a tombstone. Other keys are skipped.
Version 0 of a value is only read; the fields of KIP-890 have their defaults then.

The record of a sink (decision 0063) is the record of a transactional id without producer and transaction, with a tagged
field. So Kafka's tools show a sink as a transactional id in state Empty.
"""

from dataclasses import dataclass
from itertools import groupby

from tailrace.coordinators.transactions.sink import Sink
from tailrace.coordinators.transactions.transaction import NO_EPOCH, TRANSITIONS, Transaction, TransactionState
from tailrace.model.errors import CorruptRecords, KafkaError, MalformedMessage
from tailrace.model.ids import NO_PRODUCER_ID
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import RowsDigest, sink_key, sink_of_key
from tailrace.protocol.schema import (
    PREFIX_BYTES,
    Buffer,
    Int8,
    Int16,
    Int32,
    Int64,
    decode,
    encode_prefixed,
    field,
    message,
    prefix_of,
    struct,
)

TRANSACTION_KEY = 0
"""The version that a key starts with."""
_VALUE_VERSION = 1


@message(versions="0")
class TransactionLogKey:
    transactional_id: str


@struct
class PartitionsSchema:
    topic: str
    partition_ids: tuple[Int32, ...]


@struct
class RowsSchema:
    """The rows of a sink's last batch: see `RowsDigest`."""

    row_count: Int64
    digest: Int64
    scheme: Int8


@struct
class SinkSchema:
    """The state of a sink: see `Sink`."""

    last_batch: Int64
    run: str
    past_runs: tuple[Int64, ...]
    origin: str | None
    rows: RowsSchema | None = field(versions="1+", tag=0, default=None)
    """Brokers of releases before this field skip the field, and write the record of the next batch without it."""


@message(versions="0-1", flexible="1+")
class TransactionLogValue:
    """The state of one transactional id. Timestamps in ms since 1970."""

    producer_id: Int64
    previous_producer_id: Int64 = field(versions="1+", tag=0, default=-1)
    next_producer_id: Int64 = field(versions="1+", tag=1, default=-1)
    producer_epoch: Int16
    next_producer_epoch: Int16 = field(versions="1+", tag=3, default=-1)
    """The producer of a transaction with two-phase commit (KIP-939), which is not supported."""
    transaction_timeout_ms: Int32
    transaction_status: Int8
    transaction_partitions: tuple[PartitionsSchema, ...] | None
    transaction_last_update_timestamp_ms: Int64
    transaction_start_timestamp_ms: Int64
    client_transaction_version: Int16 = field(versions="1+", tag=2, default=0)
    last_producer_epoch: Int16 = field(versions="1+", tag=10_000, default=NO_EPOCH)
    """A field of ours. Kafka keeps this epoch only in memory, so in Kafka a retry after a change of the coordinator is
    fenced (KIP-360)."""
    sink: SinkSchema | None = field(versions="1+", tag=10_010, default=None)
    """A field of Tailrace, only in the record of a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """The new state of a transactional id; None deletes the id."""

    transactional_id: str
    transaction: Transaction | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRecord:
    """The new state of a sink; None deletes the sink."""

    sink_id: str
    sink: Sink | None

    @property
    def transactional_id(self) -> str:
        """The transactional id that is the key of the sink's record."""
        return sink_key(self.sink_id)


CoordinatorRecord = TransactionRecord | SinkRecord


def encode_record(record: CoordinatorRecord) -> tuple[bytes, bytes | None]:
    """The record as key and value of a log record."""
    key = encode_prefixed(TransactionLogKey(transactional_id=record.transactional_id), TRANSACTION_KEY)
    if isinstance(record, SinkRecord):
        value = None if record.sink is None else _sink_value(record.sink)
    else:
        value = None if record.transaction is None else _value(record.transaction)
    return key, None if value is None else encode_prefixed(value, _VALUE_VERSION)


_RECORD_BYTES = 160
"""The bytes of a record besides its texts and partitions: the fields of fixed size with their tags, and 21 bytes of the
record's own frame."""
_ROWS_BYTES = 24
"""The rows of a sink: the numbers, and the frame of their tagged field."""
_TOPIC_BYTES = 10
_PARTITION_BYTES = 4
_LONGEST_SIGN = 4
"""The most bytes of a character in UTF-8."""


def most_bytes(record: CoordinatorRecord) -> int:
    """The most bytes that the record may take in a batch, found without encoding the record."""
    size = _RECORD_BYTES + _text_bytes(record.transactional_id)
    if isinstance(record, SinkRecord):
        if record.sink is not None:
            texts = _text_bytes(record.sink.run) + _text_bytes(record.sink.origin or "")
            size += texts + 8 * len(record.sink.past_runs) + _ROWS_BYTES
    elif record.transaction is not None:
        partitions = record.transaction.partitions
        topics = {partition.topic for partition in partitions}
        size += _PARTITION_BYTES * len(partitions) + sum(_TOPIC_BYTES + _text_bytes(topic) for topic in topics)
    return size


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else _LONGEST_SIGN * len(text)


def _sink_value(sink: Sink) -> TransactionLogValue:
    schema = SinkSchema(
        last_batch=sink.last_batch,
        run=sink.run,
        past_runs=sink.past_runs,
        origin=sink.origin,
        rows=None if sink.rows is None else RowsSchema(**sink.rows._asdict()),
    )
    return TransactionLogValue(
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_EPOCH,
        transaction_timeout_ms=0,
        transaction_status=TransactionState.EMPTY,
        transaction_partitions=None,
        transaction_last_update_timestamp_ms=sink.updated_at_ms,
        transaction_start_timestamp_ms=-1,
        sink=schema,
    )


def _value(transaction: Transaction) -> TransactionLogValue:
    by_topic = groupby(sorted(transaction.partitions), key=lambda partition: partition.topic)
    partitions = tuple(
        PartitionsSchema(topic=topic, partition_ids=tuple(partition.partition for partition in group))
        for topic, group in by_topic
    )
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else partitions,
        transaction_last_update_timestamp_ms=transaction.updated_at_ms,
        transaction_start_timestamp_ms=transaction.started_at_ms,
        client_transaction_version=transaction.client_version,
        last_producer_epoch=transaction.last_producer_epoch,
    )


def decode_record(key: Buffer | None, value: Buffer | None) -> CoordinatorRecord | None:
    """The record; None for an unknown kind. Raises CorruptRecords.

    A record that has a sink's key and no sink is of an unknown kind: older brokers give such ids to any producer.
    """
    try:
        if key is None:
            raise MalformedMessage("a record without a key")
        if prefix_of(key) != TRANSACTION_KEY:
            return None
        transactional_id = decode(TransactionLogKey, TRANSACTION_KEY, key, PREFIX_BYTES).transactional_id
        stored = None if value is None else decode(TransactionLogValue, prefix_of(value), value, PREFIX_BYTES)
        sink_id = sink_of_key(transactional_id)
        if sink_id is None:
            transaction = None if stored is None else _transaction(stored)
            return TransactionRecord(transactional_id=transactional_id, transaction=transaction)
    except KafkaError as fault:
        raise CorruptRecords(f"a record of the transaction topic cannot be read: {fault.detail}") from None
    if stored is None:
        return SinkRecord(sink_id=sink_id, sink=None)
    return None if stored.sink is None else SinkRecord(sink_id=sink_id, sink=_sink(stored, stored.sink))


def _sink(stored: TransactionLogValue, schema: SinkSchema) -> Sink:
    return Sink(
        last_batch=schema.last_batch,
        run=schema.run,
        past_runs=schema.past_runs,
        origin=schema.origin,
        rows=None if schema.rows is None else RowsDigest(schema.rows.row_count, schema.rows.digest, schema.rows.scheme),
        updated_at_ms=stored.transaction_last_update_timestamp_ms,
    )


def _transaction(stored: TransactionLogValue) -> Transaction:
    if stored.transaction_status not in TRANSITIONS:
        raise MalformedMessage(f"the state {stored.transaction_status}")
    return Transaction(
        producer_id=stored.producer_id,
        producer_epoch=stored.producer_epoch,
        last_producer_epoch=stored.last_producer_epoch,
        previous_producer_id=stored.previous_producer_id,
        next_producer_id=stored.next_producer_id,
        timeout_ms=stored.transaction_timeout_ms,
        state=TransactionState(stored.transaction_status),
        partitions=frozenset(
            TopicPartition(group.topic, partition)
            for group in stored.transaction_partitions or ()
            for partition in group.partition_ids
        ),
        started_at_ms=stored.transaction_start_timestamp_ms,
        updated_at_ms=stored.transaction_last_update_timestamp_ms,
        client_version=stored.client_transaction_version,
    )
