"""A Spark driver that copies a topic exactly once, and ends when all of it is copied.

    python -m crash.spark.copier SERVERS SOURCE TARGET CHECKPOINT BATCH [STEP]

BATCH is the most records of a micro-batch. At a STEP of its second batch the driver is killed, with its JVM and its
workers: `begin`, `written`, `commit`, `committing` or `committed`.
"""

import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from crash.spark.driver import kill_session
from tailrace.spark.session import local_session
from tailrace.spark.source import TailraceDataSource
from tailrace.spark.writing.sink import OnceStreamWriter, WrittenOnce
from tailrace.spark.writing.sink_options import SinkOptions, SinkTransactions, parse_sink_options

DYING_BATCH = 1


def die() -> None:
    """Kill driver, JVM and workers."""
    kill_session(os.getsid(0))


class DyingWriter(OnceStreamWriter):
    """Kills its driver at a step of a batch."""

    def __init__(self, schema: StructType, options: SinkOptions, transactions: SinkTransactions, step: str) -> None:
        super().__init__(schema, options, transactions)
        self._step = step

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenOnce:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        is_due = task.getLocalProperty("streaming.sql.batchId") == str(DYING_BATCH)
        if is_due and self._step == "begin":
            die()
        written = super().write(iterator)
        if is_due and self._step == "written":
            die()
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        is_due = batchId == DYING_BATCH
        if is_due and self._step == "commit":
            die()
        if is_due and self._step == "committing":
            threading.Timer(0.005, die).start()
        super().commit(messages, batchId)
        if is_due and self._step in ("committing", "committed"):
            die()


class DyingDataSource(TailraceDataSource):
    """The data source with such a writer."""

    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = parse_sink_options(dict(self.options))
        assert options.transactions is not None
        return DyingWriter(schema, options, options.transactions, self.options["step"])


def main(servers: str, source: str, target: str, checkpoint: str, batch: str, step: str = "") -> None:
    settings: dict[str, Any] = {"spark.master": "local[2,4]"}  # a task may fail three times
    spark = local_session("copier", brief=True, **settings)
    if step:
        spark.dataSource.register(DyingDataSource)
    reader = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
    frame = reader.option("maxOffsetsPerTrigger", batch).load()
    writer = (
        frame.selectExpr("key", "value")
        .writeStream.format("dying" if step else "tailrace")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", checkpoint)
        .option("step", step)
    )
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
