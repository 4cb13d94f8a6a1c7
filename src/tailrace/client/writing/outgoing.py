"""An outgoing record, or batch of records, and the futures of its records. Pure."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tailrace.client.transactions.producer_transaction import Identity
from tailrace.model.errors import CorruptRecords, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import read_header, stamp_producer
from tailrace.protocol.records.record import BatchBuilder, Record, read_records
from tailrace.protocol.schema import Buffer

_RECORD_OVERHEAD = 24

Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
"""Headers as a caller gives them."""

HeaderPairs = Sequence[tuple[str, bytes | None]]


class RecordMetadata(NamedTuple):
    """The place of a written record. Offset -1: the broker gave no offset (acks=0, or a repeated batch)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class RecordNotWritten(KafkaError):
    """The reason why a record (or batch) was not written. `partition` is -1 if it had not been chosen."""

    def __init__(self, fault: KafkaError, topic: str, partition: int = -1, *, records: int = 1) -> None:
        super().__init__(fault.code, fault.detail)
        self.topic = topic
        self.partition = partition
        self.records = records

    @property
    def place(self) -> str:
        """`orders-0`, or `orders`."""
        return self.topic if self.partition < 0 else f"{self.topic}-{self.partition}"


class Completion(Protocol):
    """The future of a record, of asyncio or of threads."""

    def done(self) -> bool: ...

    def set_result(self, result: RecordMetadata, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Unsent(NamedTuple):
    """A record of the caller."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: HeaderPairs
    timestamp: int
    cost: int
    completion: Completion


class PrebuiltBatch(NamedTuple):
    """A whole record batch of the caller."""

    topic: str
    partition: int
    payload: Buffer
    cost: int
    completion: Completion

    @property
    def records_count(self) -> int:
        """The count of records in the batch's header; 1 for bytes that are no batch."""
        try:
            return max(1, read_header(self.payload).records_count)
        except CorruptRecords:
            return 1


def record_cost(key: bytes | None, value: bytes | None, headers: HeaderPairs) -> int:
    """The bytes of buffer.memory that a record takes."""
    cost = _RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        cost += len(name) + (len(content) if content else 0) + 4
    return cost


class OutgoingBatch:
    """A batch of a partition, with the futures of its records."""

    __slots__ = (
        "_is_complete",
        "attempts",
        "base_sequence",
        "builder",
        "completions",
        "cost",
        "count",
        "created_at_ms",
        "deadline_ms",
        "halves",
        "identity",
        "may_be_written",
        "number",
        "payload",
        "timestamps",
        "topic_partition",
    )

    def __init__(
        self, topic_partition: TopicPartition, builder: BatchBuilder | None, number: int, now_ms: int, deadline_ms: int
    ) -> None:
        self.topic_partition = topic_partition
        self.builder = builder
        self.number = number
        """The place in the order of sending. Numbers of a partition rise by at least the number of records, so that
        each part of a split batch gets a place."""
        self.payload = bytearray()
        self.count = 0
        self.cost = 0
        self.created_at_ms = now_ms
        self.deadline_ms = deadline_ms
        self.attempts = 0
        self._is_complete = False
        self.halves: tuple[OutgoingBatch, ...] = ()
        """The two parts that are sent instead, after a split."""
        self.may_be_written = False
        """Whether an attempt has ended without a clear answer."""
        self.identity: Identity | None = None
        self.base_sequence = -1
        self.completions: list[Completion] = []
        self.timestamps: list[int] = []

    @property
    def size_bytes(self) -> int:
        """The size on the wire; before compression while the batch is open."""
        return self.builder.size_bytes if self.builder is not None else len(self.payload)

    @property
    def is_in_doubt(self) -> bool:
        """Whether other sequence numbers could write the batch a second time."""
        return self.may_be_written and self.identity is not None

    @property
    def is_complete(self) -> bool:
        return self._is_complete or (bool(self.halves) and all(half.is_complete for half in self.halves))

    def split(self) -> None:
        """Make two batches, with half the records apiece, under the same sequence numbers (KIP-126)."""
        records, middle = read_records(self.payload), self.count // 2
        self.halves = (self._part(records, 0, middle), self._part(records, middle, self.count))
        self.halves[1].cost = self.cost - self.halves[0].cost

    def _part(self, records: Sequence[Record], start: int, end: int) -> "OutgoingBatch":
        builder = BatchBuilder(codec=read_header(self.payload).codec)
        part = OutgoingBatch(self.topic_partition, builder, self.number + start, self.created_at_ms, self.deadline_ms)
        for record in records[start:end]:
            builder.append(record.timestamp, record.key, record.value, record.headers)
        part.count = end - start
        part.cost = self.cost * part.count // self.count
        part.attempts = self.attempts
        part.completions, part.timestamps = self.completions[start:end], self.timestamps[start:end]
        part.close()
        if self.identity is not None:
            part.number_records(self.identity, (self.base_sequence + start) & 0x7FFFFFFF)
        return part

    def close(self) -> None:
        """Turn the records into bytes; no record can be added afterwards."""
        if self.builder is not None:
            self.payload = self.builder.build()
            self.builder = None

    def number_records(self, identity: Identity, base_sequence: int) -> None:
        """Write identity and sequence numbers into the bytes."""
        self.identity = identity
        self.base_sequence = base_sequence
        stamp_producer(
            self.payload,
            0,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=base_sequence,
            is_transactional=identity.is_transactional,
        )

    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """Resolve the futures with the places of their records."""
        self._is_complete = True
        topic, partition = self.topic_partition
        appended_at = log_append_time_ms if log_append_time_ms >= 0 else None
        offset = base_offset
        step = 1 if base_offset >= 0 else 0
        for completion, timestamp in zip(self.completions, self.timestamps, strict=True):
            if not completion.done():
                stamp = timestamp if appended_at is None else appended_at
                completion.set_result(RecordMetadata(topic, partition, offset, stamp))
            offset += step

    def fail(self, fault: KafkaError) -> None:
        """Fail every future: the records are not written, or may be written."""
        self._is_complete = True
        topic, partition = self.topic_partition
        records = self.count // max(1, len(self.completions))  # a prebuilt batch has one completion for all its records
        for completion in self.completions:
            if not completion.done():
                completion.set_exception(RecordNotWritten(fault, topic, partition, records=records))
