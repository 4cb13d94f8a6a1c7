"""The writers of the Spark sink.

At least once: a task that Spark repeats writes its rows again. A retried request does not write rows again, since the
producer is idempotent. A task ends only when all in-sync replicas have acknowledged its records.

Exactly once: see `spark.writing.exactly_once`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tailrace.client.transactions.sinks import WrittenMember
from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import RowsDigest
from tailrace.spark.pickled_plan import PickledPlan
from tailrace.spark.worker import begin_task
from tailrace.spark.writing.exactly_once import ExactlyOnce
from tailrace.spark.writing.row_sender import RowSender
from tailrace.spark.writing.sink_batch import SinkBatch, drivers_mark, of_each_batch, streamed, written_at_once
from tailrace.spark.writing.sink_options import SinkOptions, SinkTransactions
from tailrace.spark.writing.task_sender import TaskSender

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
    if options.topic is not None:
        types.pop("topic", None)  # the option overrides the column, whatever the column's type
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"column {name!r} must be {' or '.join(allowed)}, not {types[name]}"
            )


class _Writer(PickledPlan):
    """The common part of both writers, pickled to the tasks: writes Arrow batches on an executor."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        check_schema(schema, options)
        self._options = options
        self._drivers_version = __version__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        begin_task(self._drivers_version)
        task = RowSender(self._options, TaskSender(self._options))
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

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to do: what the tasks wrote is acknowledged."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing to undo: Spark repeats the batch, and its rows are written again."""


@dataclass(frozen=True)
class WrittenOnce(WriterCommitMessage):
    """The open transaction of one task."""

    batch: SinkBatch
    rows: RowsDigest
    member: WrittenMember | None
    """None if the task had no rows, or if the batch was decided before."""


class _OnceWriter(PickledPlan):
    """The common part of both exactly-once writers, pickled to the tasks and to the commit."""

    def __init__(self, schema: StructType, options: SinkOptions, transactions: SinkTransactions) -> None:
        check_schema(schema, options)
        self._drivers_version = __version__
        self._transactions = transactions
        self._sink = ExactlyOnce(options, transactions)
        self._sink.check_supported()

    @abstractmethod
    def _batch(self, task: TaskContext) -> SinkBatch:
        """The batch that a task writes."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenOnce:
        begin_task(self._drivers_version)
        task = TaskContext.get()
        assert task is not None, "Spark writes in tasks"
        batch = self._batch(task)
        return WrittenOnce(batch, *self._sink.write(batch.member(task), iterator))

    def _commit(self, messages: list[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, WrittenOnce)]
        if written:  # without messages the batch had no task
            members = [message.member for message in written if message.member is not None]
            rows = reduce(RowsDigest.plus, (message.rows for message in written))
            self._sink.commit(written[0].batch, members, rows)


class OnceWriter(_OnceWriter, DataSourceArrowWriter):
    """A batch write. Its rows are one batch of a sink."""

    def __init__(self, schema: StructType, options: SinkOptions, transactions: SinkTransactions) -> None:
        super().__init__(schema, options, transactions)
        self._written = written_at_once(transactions)

    def _batch(self, task: TaskContext) -> SinkBatch:
        return of_each_batch(self._written, task)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the rows of every task; all tasks are done."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Give the write up after a failed task: no row becomes visible."""
        self._sink.give_up(self._written)


class OnceStreamWriter(_OnceWriter, DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, schema: StructType, options: SinkOptions, transactions: SinkTransactions) -> None:
        super().__init__(schema, options, transactions)
        self._mark = drivers_mark(options)

    def _batch(self, task: TaskContext) -> SinkBatch:
        return streamed(task, self._transactions, self._mark)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the rows of the batch, unless it was committed before; all tasks are done."""
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Give the batch up after a failed task, or when the query is stopped: no row of the batch becomes visible, and
        its run has ended."""
        batch = next((message.batch for message in messages if isinstance(message, WrittenOnce)), None)
        self._sink.abort(batch, batchId, self._mark)
