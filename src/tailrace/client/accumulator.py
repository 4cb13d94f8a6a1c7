"""Records on their way out: gathered into batches per partition, numbered, sent in order, retried. Pure; the sender has
the clock and the sockets.

A batch is open (takes records) -> waiting -> in flight -> done, or back to retrying and in flight again. Invariants of
one partition, which are what makes an idempotent producer write each record once and in order (KIP-98):

1. A batch gets its sequence numbers when it is first taken, and keeps them in every retry.
2. While a batch is retrying, nothing else of that partition is sent before it, and it is sent alone.
3. A batch given up leaves a gap in the numbers; so its partition sends nothing until all in flight has come back, then
   starts again at number 0 under the next epoch.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import (
    HEADER_SIZE,
    MAX_RECORDS_PER_BATCH,
    read_header,
    seal,
    stamp_producer,
)
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import BatchBuilder
from tailrace.protocol.schema import Buffer

MAX_IN_FLIGHT = 5
"""Batches of one partition: as many as a broker remembers to recognise a repetition (KIP-98)."""
_MAX_EPOCH = 0x7FFF
_RECORD_OVERHEAD = 24
_FOREVER_MS = 2**63
_LARGEST_BATCH = 262_144
"""What a batch may grow to, beyond batch.size, while its partition has as much in flight as it may."""

Headers = Sequence[tuple[str, bytes | None]]


class RecordMetadata(NamedTuple):
    """Where a record has been written. Offset -1: the broker did not say (acks=0, or a repetition it recognised)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Completion(Protocol):
    """Whoever waits for a record: an asyncio or a concurrent future."""

    def done(self) -> bool: ...

    def set_result(self, result: RecordMetadata, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


class Identity(NamedTuple):
    """What a broker knows an idempotent producer by."""

    producer_id: int
    producer_epoch: int


class Verdict(Enum):
    """What an answer means for a batch."""

    DONE = auto()
    RETRY = auto()
    RENEW = auto()
    """Retry under another producer id: the broker does not accept this one any more, and has not written the batch."""
    FAIL = auto()


def record_cost(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Bytes of buffer.memory that a record counts for."""
    cost = _RECORD_OVERHEAD + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        cost += len(name) + (len(content) if content else 0) + 4
    return cost


class OutgoingBatch:
    """One batch of one partition, with those who wait for it."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "builder",
        "completions",
        "cost",
        "count",
        "created_at_ms",
        "deadline_ms",
        "identity",
        "is_settled",
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
        """Counts up per partition: the order of sending."""
        self.payload = bytearray()
        self.count = 0
        self.cost = 0
        self.created_at_ms = now_ms
        self.deadline_ms = deadline_ms
        self.attempts = 0
        self.is_settled = False
        self.identity: Identity | None = None
        self.base_sequence = -1
        self.completions: list[Completion] = []
        self.timestamps: list[int] = []

    @property
    def size_bytes(self) -> int:
        """As it will be sent; before compression while it is open."""
        return self.builder.size_bytes if self.builder is not None else len(self.payload)

    def close(self) -> None:
        """Turn the records into bytes; none can be added afterwards."""
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
        )

    def succeed(self, base_offset: int, log_append_time_ms: int) -> None:
        """Tell everybody where the records are."""
        self.is_settled = True
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
        """Tell everybody that the records are not written, or that nobody knows."""
        self.is_settled = True
        for completion in self.completions:
            if not completion.done():
                completion.set_exception(KafkaError(fault.code, fault.detail))


class PartitionQueue:
    """The batches of one partition, from the first record to the last answer."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.open: OutgoingBatch | None = None
        self.waiting: deque[OutgoingBatch] = deque()
        self.retrying: list[OutgoingBatch] = []
        self.in_flight: list[OutgoingBatch] = []
        self.identity: Identity | None = None
        self.next_sequence = 0
        self.must_renew = False
        self.not_before_ms = 0
        """No attempt before this: the pause after a failed one."""

    @property
    def is_empty(self) -> bool:
        return not (self.open or self.waiting or self.retrying or self.in_flight)

    def can_send(self, now_ms: int, linger_ms: int) -> bool:
        """Whether `take` would give a batch now."""
        if now_ms < self.not_before_ms:
            return False
        if self.retrying or self.must_renew:
            return not self.in_flight and bool(self.retrying or self._has_ready(now_ms, linger_ms))
        return len(self.in_flight) < MAX_IN_FLIGHT and self._has_ready(now_ms, linger_ms)

    def _has_ready(self, now_ms: int, linger_ms: int) -> bool:
        return bool(self.waiting) or (self.open is not None and now_ms - self.open.created_at_ms >= linger_ms)

    def take(self, identity: Identity | None) -> OutgoingBatch:
        """The next batch to send, now in flight. `identity` is the producer's, None without idempotence."""
        if self.must_renew:
            self._renew()
        if self.retrying:
            batch = self.retrying.pop(0)
        else:
            if not self.waiting:
                self.seal_open()
            batch = self.waiting.popleft()
        batch.close()
        if identity is not None and batch.identity is None:
            if self.identity is None:
                self.identity, self.next_sequence = identity, 0
            batch.number_records(self.identity, self.next_sequence)
            self.next_sequence = (self.next_sequence + batch.count) & 0x7FFFFFFF
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch

    def _renew(self) -> None:
        """Start again at sequence number 0 under the next epoch, or under another id where that is asked for."""
        assert not self.in_flight, "numbers are given anew only while nothing is on its way"
        self.must_renew = False
        self.next_sequence = 0
        if self.identity is not None:
            producer_id, epoch = self.identity
            self.identity = Identity(producer_id, epoch + 1) if epoch < _MAX_EPOCH else None
        for batch in self.retrying:
            batch.identity = None

    def seal_open(self) -> None:
        """The open batch takes no more records."""
        if self.open is not None:
            self.waiting.append(self.open)
            self.open = None

    def verdict(self, batch: OutgoingBatch, code: ErrorCode) -> Verdict:
        """What this answer means for a batch in flight (KIP-98, KIP-360)."""
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            return Verdict.DONE
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            # A batch behind one that failed is out of order only until that one is settled. The first one is so
            # because the broker has lost records it had acknowledged: that must be seen.
            is_first = self.in_flight[0] is batch and not self.retrying and not self.must_renew
            return Verdict.FAIL if is_first else Verdict.RETRY
        if code in (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH):
            return Verdict.RENEW if batch.identity is not None else Verdict.FAIL
        return Verdict.RETRY if code.retriable else Verdict.FAIL

    def settle(self, batch: OutgoingBatch, verdict: Verdict, *, not_before_ms: int = 0) -> None:
        """A batch in flight has come back."""
        self.in_flight.remove(batch)
        if verdict is Verdict.FAIL:
            self._gave_up(batch)
        elif verdict is not Verdict.DONE:
            self.not_before_ms = not_before_ms
            self.retrying.append(batch)
            self.retrying.sort(key=lambda each: each.number)
            if verdict is Verdict.RENEW:
                self._drop_identity(batch)

    def _drop_identity(self, batch: OutgoingBatch) -> None:
        if self.identity is not None and batch.identity == self.identity:
            self.identity = None
            self.must_renew = True

    def _gave_up(self, batch: OutgoingBatch) -> None:
        if batch.identity is not None and batch.identity == self.identity:
            self.must_renew = True

    def expire(self, now_ms: int) -> list[OutgoingBatch]:
        """Remove and return what has been here for delivery.timeout.ms and is not in flight."""
        late = [batch for batch in (*self.retrying, *self.waiting) if batch.deadline_ms <= now_ms]
        for batch in late:
            if batch in self.retrying:
                self.retrying.remove(batch)
                self._gave_up(batch)
            else:
                self.waiting.remove(batch)
        if self.open is not None and self.open.deadline_ms <= now_ms:
            late.append(self.open)
            self.open = None
        return late

    def next_deadline_ms(self, now_ms: int, linger_ms: int) -> int | None:
        """When there may be something to do although nothing happened; what is due already waits for an answer."""
        times = [self.not_before_ms]
        times += [batch.deadline_ms for batch in self.retrying[:1]]
        if self.waiting:
            times.append(self.waiting[0].deadline_ms)
        if self.open is not None:
            times += (self.open.created_at_ms + linger_ms, self.open.deadline_ms)
        return min((time for time in times if time > now_ms), default=None)


class Accumulator:
    """All partitions' queues, with the limits they share (Kafka's names and defaults)."""

    def __init__(
        self,
        *,
        batch_size: int = 16_384,
        linger_ms: int = 5,
        delivery_timeout_ms: int = 120_000,
        max_request_size: int = 1_048_576,
        codec: Codec = Codec.NONE,
    ) -> None:
        self.batch_size = batch_size
        self.linger_ms = linger_ms
        self.delivery_timeout_ms = delivery_timeout_ms
        self.max_request_size = max_request_size
        self.largest_batch = max(batch_size, min(_LARGEST_BATCH, max_request_size // 4))
        self._codec = codec
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._active: dict[TopicPartition, PartitionQueue] = {}
        self._next_number = 0
        self._flushing = 0

    def append(
        self,
        topic_partition: TopicPartition,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        cost: int,
        completion: Completion,
        now_ms: int,
    ) -> bool:
        """Add a record. True if this may have made something to send, or started a wait for linger.ms.

        Raises KafkaError(MESSAGE_TOO_LARGE) for a record above max.request.size.
        """
        if cost + HEADER_SIZE > self.max_request_size:
            detail = f"a record of {cost} bytes for {topic_partition}; max.request.size is {self.max_request_size}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)
        queue = self._active.get(topic_partition) or self._activate(topic_partition)
        batch = queue.open
        news = batch is None
        # While the broker is the slow one, another small batch would only wait: the open one goes on filling.
        limit = self.batch_size if len(queue.in_flight) < MAX_IN_FLIGHT else self.largest_batch
        if batch is not None and (batch.size_bytes + cost > limit or batch.count >= MAX_RECORDS_PER_BATCH):
            queue.seal_open()
            batch, news = None, True
        if batch is None:
            batch = queue.open = self._new_batch(topic_partition, BatchBuilder(codec=self._codec), now_ms)
        assert batch.builder is not None, "an open batch takes records"
        batch.builder.append(timestamp, key, value, headers)
        batch.count += 1
        batch.cost += cost
        batch.completions.append(completion)
        batch.timestamps.append(timestamp)
        return news

    def append_prebuilt(
        self, topic_partition: TopicPartition, payload: Buffer, completion: Completion, now_ms: int
    ) -> OutgoingBatch:
        """Add a whole batch (format v2, offsets from 0). Its bytes are copied; the records are not looked at."""
        header = read_header(payload)
        if header.size_bytes != len(payload) or header.records_count != header.last_offset_delta + 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"not one whole batch of records for {topic_partition}")
        if len(payload) > self.max_request_size:
            detail = (
                f"a batch of {len(payload)} bytes for {topic_partition}; max.request.size is {self.max_request_size}"
            )
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)
        queue = self._active.get(topic_partition) or self._activate(topic_partition)
        queue.seal_open()
        batch = self._new_batch(topic_partition, None, now_ms)
        batch.payload = bytearray(payload)
        if header.base_offset:
            batch.payload[:8] = bytes(8)
        seal(batch.payload)
        batch.count = header.records_count
        batch.cost = len(payload)
        batch.completions.append(completion)
        batch.timestamps.append(header.max_timestamp)
        queue.waiting.append(batch)
        return batch

    def _activate(self, topic_partition: TopicPartition) -> PartitionQueue:
        queue = self._queues.get(topic_partition)
        if queue is None:
            queue = self._queues[topic_partition] = PartitionQueue(topic_partition)
        self._active[topic_partition] = queue
        return queue

    def _new_batch(self, topic_partition: TopicPartition, builder: BatchBuilder | None, now_ms: int) -> OutgoingBatch:
        self._next_number += 1
        return OutgoingBatch(topic_partition, builder, self._next_number, now_ms, now_ms + self.delivery_timeout_ms)

    # the sender's side

    def ready(self, now_ms: int) -> Iterator[PartitionQueue]:
        """The queues that have a batch to send now."""
        linger_ms = self.effective_linger_ms
        for queue in list(self._active.values()):
            if queue.can_send(now_ms, linger_ms):
                yield queue

    def expire(self, now_ms: int) -> list[OutgoingBatch]:
        """Remove and return all that has waited for delivery.timeout.ms."""
        late = [batch for queue in self._active.values() for batch in queue.expire(now_ms)]
        self.forget_empty()
        return late

    def forget_empty(self) -> None:
        """Stop looking at queues with nothing in them; their identity and numbers are kept."""
        for partition in [partition for partition, queue in self._active.items() if queue.is_empty]:
            del self._active[partition]

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        return self._queues[topic_partition]

    @property
    def is_empty(self) -> bool:
        return all(queue.is_empty for queue in self._active.values())

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When the sender must look again although nothing happened."""
        linger_ms = self.effective_linger_ms
        times = (queue.next_deadline_ms(now_ms, linger_ms) for queue in self._active.values())
        return min((time for time in times if time is not None), default=None)

    @property
    def effective_linger_ms(self) -> int:
        """linger.ms, or nothing during a flush."""
        return 0 if self._flushing else self.linger_ms

    def begin_flush(self) -> list[OutgoingBatch]:
        """Wait for no linger.ms until `end_flush`. Returns all batches that are not settled; none takes records now."""
        self._flushing += 1
        batches: list[OutgoingBatch] = []
        for queue in self._active.values():
            queue.seal_open()
            batches += (*queue.in_flight, *queue.retrying, *queue.waiting)
        return batches

    def end_flush(self) -> None:
        self._flushing -= 1

    def give_up_unsent(self) -> list[OutgoingBatch]:
        """Remove and return every batch that is not in flight."""
        return self.expire(_FOREVER_MS)


class StickyPartitioner:
    """Partitions for records without a key: one partition until batch.size bytes went there, then another (KIP-794).

    `choose(n)` gives a number in [0, n): chance comes from outside.
    """

    def __init__(self, choose: Callable[[int], int], sticky_bytes: int) -> None:
        self._choose = choose
        self._sticky_bytes = sticky_bytes
        self._current: dict[str, tuple[int, int]] = {}

    def partition(self, topic: str, available: Sequence[int], cost: int) -> int:
        """A partition out of those available (which is not empty)."""
        current, sent = self._current.get(topic, (-1, 0))
        if current not in available or sent >= self._sticky_bytes:
            others = [partition for partition in available if partition != current] or list(available)
            current, sent = others[self._choose(len(others))], 0
        self._current[topic] = (current, sent + cost)
        return current
