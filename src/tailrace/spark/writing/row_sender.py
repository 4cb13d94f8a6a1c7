"""The rows of a task on their way to topics and partitions: Arrow batches, without a Python object per row."""

import os
import time
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.client.arrow import Partitions, partitions_for_keys
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.writing.sink_options import SinkOptions
from tailrace.spark.writing.task_sender import SinkRows, TaskSender

_turns = count()
"""The count of batches in this process, which runs tasks in turn: rows without a key go to partitions in turn.
A count per task would give the first partitions more rows if tasks are small, as a stream's tasks are.
"""


class RowSender:
    """The writes of one task."""

    def __init__(self, options: SinkOptions, outbox: TaskSender) -> None:
        self._options = options
        self._outbox = outbox
        self._partition_counts: dict[str, int] = {}

    def send(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch, each to its topic."""
        if not batch.num_rows:
            return
        if self._options.topic is not None:
            self._send_to(self._options.topic, batch)
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "column 'topic' is null in a row and there is no option topic")
        for topic in pc.unique(topics).to_pylist():
            self._send_to(topic, batch.filter(pc.equal(topics, topic)))

    def _send_to(self, topic: str, batch: pa.RecordBatch) -> None:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        rows = SinkRows(
            key=columns.get("key"),
            value=columns["value"],
            headers=columns.get("headers"),
            partitions=self._partitions(topic, batch.num_rows, columns),
        )
        self._outbox.send(topic, rows, timestamp_ms=time.time_ns() // 1_000_000)

    def _partitions(self, topic: str, rows: int, columns: dict[str, pa.Array]) -> Partitions:
        """The partition of each row: by its column `partition`, else by the hash of its key, else the partitions in
        turn, a partition for each batch."""
        if topic not in self._partition_counts:
            self._partition_counts[topic] = self._outbox.partition_count(topic)
        partition_count = self._partition_counts[topic]
        # Workers begin at different partitions: Spark starts them one after the other.
        keyless = (os.getpid() + next(_turns)) % partition_count
        key = columns.get("key")
        by_key = np.full(rows, keyless) if key is None else partitions_for_keys(key, partition_count, keyless=keyless)
        named = columns.get("partition")
        if named is None:
            return by_key
        is_null = named.is_null().to_numpy(zero_copy_only=False)
        chosen = np.where(is_null, by_key, named.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
        if illegal := [int(number) for number in np.unique(chosen) if not 0 <= number < partition_count]:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"column 'partition' names partition {illegal[0]} of topic {topic!r}, which has {partition_count}",
            )
        return chosen

    def finish(self) -> None:
        """Return when all rows are acknowledged; raise the first failure."""
        self._outbox.finish()
