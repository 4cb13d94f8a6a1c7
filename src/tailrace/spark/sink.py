"""The Spark sink: Arrow batches become record batches without a Python object per row.

At least once: a task that Spark repeats writes its rows again. A retried request does not, since the producer is
idempotent. A task ends only when all in-sync replicas have acknowledged its records.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tailrace.client.arrow import Partitions, partitions_for_keys
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.options import SinkOptions
from tailrace.spark.task_sender import SinkRows, TaskSender

_TYPES = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": ("array<struct<key:string,value:binary>>",),
}


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The acknowledged writes of one task."""

    rows: int


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raise KafkaError(INVALID_REQUEST), with the name of the column, if the sink cannot write such rows.

    Unknown columns are ignored, as in Spark's connector.
    """
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a row needs the column `value`, a string or binary")
    if "topic" not in types and options.topic is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "say where to: option topic, or a column `topic`")
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"column {name!r} must be {' or '.join(allowed)}, not {types[name]}"
            )


class _Writer:
    """The common part of both writers, pickled to the tasks: writes Arrow batches on an executor."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        check_schema(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = _Task(self._options)
        rows = 0
        for batch in iterator:
            task.send(batch)
            rows += batch.num_rows
        task.finish()
        return Written(rows)


class TailraceWriter(_Writer, DataSourceArrowWriter):
    """A batch write."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: what the tasks wrote is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to undo: a log cannot take records back."""


class TailraceStreamWriter(_Writer, DataSourceStreamArrowWriter):
    """A streaming write."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Nothing to do: what the tasks wrote is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing to undo: Spark repeats the batch, and its rows are written again."""


class _Task:
    """The writes of one task."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._outbox = TaskSender(options)
        self._partition_counts: dict[str, int] = {}
        self._keyless = os.getpid()

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
            headers=columns.get("headers") if self._options.include_headers else None,
            partitions=self._partitions(topic, batch.num_rows, columns),
        )
        self._outbox.send(topic, rows, timestamp_ms=time.time_ns() // 1_000_000)

    def _partitions(self, topic: str, rows: int, columns: dict[str, pa.Array]) -> Partitions:
        """The partition of each row: its column `partition`, else the hash of its key, else one per batch in turn."""
        if topic not in self._partition_counts:
            self._partition_counts[topic] = self._outbox.partition_count(topic)
        count = self._partition_counts[topic]
        self._keyless += 1
        keyless = self._keyless % count
        key = columns.get("key")
        by_key = np.full(rows, keyless) if key is None else partitions_for_keys(key, count, keyless=keyless)
        named = columns.get("partition")
        if named is None:
            return by_key
        is_null = named.is_null().to_numpy(zero_copy_only=False)
        chosen = np.where(is_null, by_key, named.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
        if illegal := [int(number) for number in np.unique(chosen) if not 0 <= number < count]:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"column 'partition' names partition {illegal[0]} of topic {topic!r}, which has {count}",
            )
        return chosen

    def finish(self) -> None:
        """Return when all rows are acknowledged; raise the first failure."""
        self._outbox.finish()
