"""Outgoing records, gathered into batches per partition. Pure; the sender has the clock and the sockets."""

from collections.abc import Iterator

from tailrace.client.writing.outgoing import Completion, HeaderPairs, OutgoingBatch
from tailrace.client.writing.partition_queue import PartitionQueue
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.batch import HEADER_SIZE, MAX_RECORDS_PER_BATCH, read_header, seal
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import BatchBuilder
from tailrace.protocol.schema import Buffer

_FOREVER_MS = 2**63
_LARGEST_BATCH = 262_144
"""The size that a batch may grow to, beyond batch.size, while its partition has the most batches in flight that it may
have."""


class Accumulator:
    """The queues of all partitions, with the limits that they share, by Kafka's names."""

    def __init__(
        self,
        *,
        batch_size: int,
        linger_ms: int,
        delivery_timeout_ms: int,
        max_request_size: int,
        codec: Codec,
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
        headers: HeaderPairs,
        cost: int,
        completion: Completion,
        now_ms: int,
    ) -> bool:
        """Add a record. True if the record began or sealed a batch: the sender must look again.

        Raises KafkaError(MESSAGE_TOO_LARGE) for a record above max.request.size.
        """
        if cost + HEADER_SIZE > self.max_request_size:
            detail = f"a record of {cost} bytes for {topic_partition}; max.request.size is {self.max_request_size}"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, detail)
        queue = self._active.get(topic_partition) or self._activate(topic_partition)
        batch = queue.open
        news = batch is None
        # While the broker is slower than the producer, a further small batch would only wait: the open batch fills up.
        is_busy = len(queue.in_flight) >= queue.most_in_flight
        limit = self.largest_batch if is_busy and queue.may_grow else self.batch_size
        if batch is not None and (batch.size_bytes + cost > limit or batch.count >= MAX_RECORDS_PER_BATCH):
            queue.seal_open()
            batch, news = None, True
        if batch is None:
            batch = self._new_batch(topic_partition, BatchBuilder(codec=self._codec), now_ms)
        assert batch.builder is not None, "an open batch takes records"
        batch.builder.append(timestamp, key, value, headers)
        queue.open = batch  # after the append: a refused record leaves no empty batch
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
        self._next_number += MAX_RECORDS_PER_BATCH
        return OutgoingBatch(topic_partition, builder, self._next_number, now_ms, now_ms + self.delivery_timeout_ms)

    # the sender's side

    def ready(self, now_ms: int) -> Iterator[PartitionQueue]:
        """The queues that have a batch to send now, the least recently served first."""
        linger_ms = self.effective_linger_ms
        for queue in list(self._active.values()):
            if queue.can_send(now_ms, linger_ms):
                yield queue

    def served(self, queue: PartitionQueue) -> None:
        """Move this queue behind every other queue: one of its batches has just been sent."""
        self._active[queue.topic_partition] = self._active.pop(queue.topic_partition)

    def expire(self, now_ms: int) -> list[OutgoingBatch]:
        """Remove and return the batches that have waited for delivery.timeout.ms."""
        late = [batch for queue in self._active.values() for batch in queue.expire(now_ms)]
        self.forget_empty()
        return late

    def forget_empty(self) -> None:
        """Make empty queues inactive; their identity and sequence numbers are kept."""
        for partition in [partition for partition, queue in self._active.items() if queue.is_empty]:
            del self._active[partition]

    def queue(self, topic_partition: TopicPartition) -> PartitionQueue:
        return self._queues[topic_partition]

    @property
    def incomplete(self) -> list[TopicPartition]:
        """The partitions with batches that are unsent or in flight."""
        return [partition for partition, queue in self._active.items() if not queue.is_empty]

    @property
    def is_empty(self) -> bool:
        return all(queue.is_empty for queue in self._active.values())

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """The time of the sender's next turn if no record and no answer comes before."""
        linger_ms = self.effective_linger_ms
        times = (queue.next_deadline_ms(now_ms, linger_ms) for queue in self._active.values())
        return min((time for time in times if time is not None), default=None)

    @property
    def effective_linger_ms(self) -> int:
        """linger.ms; 0 during a flush."""
        return 0 if self._flushing else self.linger_ms

    def begin_flush(self) -> list[OutgoingBatch]:
        """Suspend linger.ms until `end_flush`. Seals the open batches and returns all incomplete batches."""
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

    def give_up_all(self) -> list[OutgoingBatch]:
        """Return every batch, in flight or not, after the sender has ended."""
        in_flight = [batch for queue in self._active.values() for batch in queue.in_flight]
        return [*in_flight, *self.give_up_unsent()]

    def restart(self) -> None:
        """Begin again in every partition with a new producer id: the cluster is another cluster."""
        for queue in self._queues.values():
            queue.restart()
