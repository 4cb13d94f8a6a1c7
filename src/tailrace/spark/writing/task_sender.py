"""Sends the rows of a task to their topics, in batches as large as each topic accepts.

1. The rows of a partition are written in the order of the task. After a batch larger than any that its topic has
   accepted, the task waits for the answer: if the batch is refused, its smaller parts still precede later rows.
2. The accepted batch size of a topic is learnt from refusals and kept for the process: the next task begins with this
   size.
3. The bytes of a batch are kept until the acknowledgement, and no longer.
"""

import os
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from tailrace.client.arrow import PartitionBatch, Partitions, partition_batches, record_batches
from tailrace.client.blocking.admin import Admin
from tailrace.client.blocking.producer import Producer
from tailrace.client.writer_settings import ProducerSettings
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.compression import Codec
from tailrace.spark.cluster_access import ClusterAccess
from tailrace.spark.writing.sink_options import SinkOptions

BATCH_BYTES = 900_000
"""The size of a batch. It is below the default of max.message.bytes (1,048,588), with space for the batch's header and
for codecs that expand."""

_BATCH_OVERHEAD = 16_384
"""Bytes kept free in a batch for its header and for codecs that expand."""

_CODECS = {"none": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


class SinkRows(NamedTuple):
    """Columns of one length, and the partition of each row."""

    key: pa.Array | None
    value: pa.Array
    headers: pa.Array | None
    partitions: Partitions


@dataclass
class _Size:
    """The sizes of batches that a topic accepts, as far as known."""

    limit: int
    """The target size of batches, in bytes before compression."""
    taken: int = 0
    """The size of the largest accepted batch, on the wire."""


_producers: dict[tuple[int, ProducerSettings], Producer] = {}
_sizes: dict[tuple[int, ClusterAccess], dict[str, _Size]] = defaultdict(dict)
"""The largest batch sizes by topic, for each cluster. The process id is in the keys, since Spark forks and reuses its
workers."""


def _shared_producer(options: SinkOptions) -> Producer:
    """This process's producer for all tasks."""
    settings = ProducerSettings.on(options.cluster.settings(), linger_ms=0, max_request_size=options.max_request_size)
    key = os.getpid(), settings
    if key not in _producers:
        _producers[key] = Producer.of(settings)
    return _producers[key]


class _Sent:
    """A batch in flight."""

    def __init__(self, topic: str, made: PartitionBatch, limit: int, answer: "Future[RecordMetadata]") -> None:
        self.topic = topic
        self.partition = made.partition
        self.row_count = made.row_count
        self.size_bytes = len(made.batch)
        self.batch: bytearray | None = made.batch
        self.limit = limit
        """The limit of the batch's size when it was built."""
        self.answer = answer
        answer.add_done_callback(self._answered)

    def _answered(self, answer: "Future[RecordMetadata]") -> None:
        if answer.exception() is None:
            self.batch = None


class TaskSender:
    """The batches that a task sends. `finish` ends the sender."""

    def __init__(self, options: SinkOptions, producer: Producer | None = None) -> None:
        """`producer` is a transaction's producer, where smaller batches cannot follow a refused batch."""
        self._producer = _shared_producer(options) if producer is None else producer
        self._is_in_transaction = producer is not None
        self._cluster = options.cluster
        self._sizes = _sizes[os.getpid(), options.cluster]
        self._codec = _CODECS[options.compression]
        self._first_limit = min(BATCH_BYTES, options.max_request_size)
        self._sent: deque[_Sent] = deque()

    def partition_count(self, topic: str) -> int:
        return self._producer.partition_count(topic)

    def send(self, topic: str, rows: SinkRows, *, timestamp_ms: int) -> None:
        """Send rows; may raise the failure of rows that were sent before."""
        limit = self._size(topic).limit
        made = partition_batches(
            rows.key,
            rows.value,
            rows.partitions,
            headers=rows.headers,
            default_timestamp=timestamp_ms,
            max_bytes=limit,
            codec=self._codec,
        )
        self._send_all(topic, made, limit)

    def finish(self) -> None:
        """Return when all rows are acknowledged; raise the first failure."""
        while self._sent:
            self._settle_first()

    def _size(self, topic: str) -> _Size:
        size = self._sizes.get(topic)
        if size is None:
            limit = self._first_limit
            if self._is_in_transaction:
                limit = min(limit, _room_for_records(self._cluster, topic))
            size = self._sizes[topic] = _Size(limit)
        return size

    def _send_all(self, topic: str, batches: Iterator[PartitionBatch], limit: int) -> None:
        for made in batches:
            answer = self._producer.send_batch(topic, made.partition, made.batch)
            self._sent.append(_Sent(topic, made, limit, answer))
            if len(made.batch) > self._size(topic).taken:
                self.finish()
            while self._sent and self._sent[0].answer.done():
                self._settle_first()

    def _settle_first(self) -> None:
        sent = self._sent.popleft()
        try:
            sent.answer.result()
        except KafkaError as fault:
            if fault.code != ErrorCode.MESSAGE_TOO_LARGE or sent.row_count == 1:
                raise
            if self._is_in_transaction:
                raise self._to_be_tried_again(sent) from fault
            self._send_smaller(sent)
        else:
            size = self._size(sent.topic)
            size.taken = max(size.taken, sent.size_bytes)

    def _to_be_tried_again(self, refused: _Sent) -> KafkaError:
        """The fault that ends the task, since max.message.bytes has fallen; the next attempt of the task has smaller
        batches."""
        size = self._size(refused.topic)
        size.limit = max(1, min(size.limit, refused.size_bytes) // 2)
        return KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"{refused.topic} takes no batches of {refused.size_bytes} bytes; the next attempt of this task has smaller"
            " ones (spark.task.maxFailures above 1)",
        )

    def _send_smaller(self, refused: _Sent) -> None:
        """Send the same rows in batches of about half the size, or of the topic's accepted size if that is smaller."""
        assert refused.batch is not None, "a batch is kept until it is acknowledged"
        size = self._size(refused.topic)
        columns = ("key", "value", "headers", "timestamp")
        for rows in record_batches(
            [refused.batch], topic=refused.topic, partition=refused.partition, columns=("partition", *columns)
        ):
            size.limit = min(size.limit, max(1, min(refused.limit, rows.nbytes) // 2))
            key, value, headers, timestamps = map(rows.column, columns)
            made = partition_batches(
                key,
                value,
                rows.column("partition").to_numpy().astype("int64"),
                headers=headers,
                timestamps=timestamps,
                default_timestamp=0,
                max_bytes=size.limit,
                codec=self._codec,
            )
            self._send_all(refused.topic, made, size.limit)


def _room_for_records(cluster: ClusterAccess, topic: str) -> int:
    """The bytes of records that a batch of this topic may have, as its settings say now."""
    with Admin.of(cluster.settings()) as admin:
        settings = admin.describe_topic_configs([topic])
    most = next(setting.value for setting in settings[topic] if setting.name == "max.message.bytes")
    return max(1, int(most or BATCH_BYTES) - _BATCH_OVERHEAD)
