"""A Spark session that writes to topics: `python -m benchmarks.spark.writer JAR...` answers with seconds."""

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from benchmarks.spark.program import SparkProgram, serve

TASKS = 4
VALUE_BYTES = 100
BATCHES = 4
"""The batches of a stream."""


class Write(NamedTuple):
    """A write: rows that Spark makes, or the rows of a topic as a stream that ends."""

    format: str
    address: str
    topic: str
    rows: int
    is_exactly_once: bool = False
    source: str | None = None


class SparkWriter(SparkProgram):
    """The process, from the side of its user."""

    def __init__(self, jars: Sequence[Path]) -> None:
        super().__init__("benchmarks.spark.writer", jars)

    def seconds(self, write: Write) -> float:
        """Do the write. Raises RuntimeError with the last lines of the process if the write fails."""
        return float(self.ask(write))


def _timed(spark: SparkSession, request: list[Any]) -> float:
    began = time.perf_counter()
    _write(spark, Write(*request))
    return time.perf_counter() - began


def _write(spark: SparkSession, write: Write) -> None:
    options = {"kafka.bootstrap.servers": write.address, "topic": write.topic}
    if write.is_exactly_once:
        options["exactlyOnce"] = "true"
    if write.source is None:
        # The same value in each row: making rows is not what is measured.
        columns = ("CAST(id AS STRING) AS key", f"repeat('x', {VALUE_BYTES}) AS value")
        frame = spark.range(0, write.rows, 1, TASKS).selectExpr(*columns)
        frame.write.format(write.format).options(**options).mode("append").save()
    else:
        _copy(_stream(spark, write, write.source), write.format, options)


def _stream(spark: SparkSession, write: Write, source: str) -> DataFrame:
    reader = spark.readStream.format(write.format).option("kafka.bootstrap.servers", write.address)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", str(write.rows // BATCHES)).load().select("key", "value")


def _copy(frame: DataFrame, kind: str, options: dict[str, str]) -> None:
    checkpoint = tempfile.mkdtemp(prefix="tailrace-bench-")
    try:
        writer = frame.writeStream.format(kind).options(**options).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


if __name__ == "__main__":
    serve(sys.argv[1:], _timed)
