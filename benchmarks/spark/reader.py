"""A Spark session that reads topics as batches: `python -m benchmarks.spark.reader JAR...` answers reads."""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.spark.constant_source import ConstantSource
from benchmarks.spark.program import SparkProgram, serve
from benchmarks.spark.topics import AGGREGATES, COUNT_AND_LENGTHS, KEYED, SCHEMAS, SparkTopic

OURS, CONNECTORS, CONSTANT = "tailrace", "kafka", "constant"
"""Formats."""


class Read(NamedTuple):
    """A read of a whole topic, with these columns."""

    format: str
    columns: str
    options: Mapping[str, str]
    python_us: int = 0
    """CPU time that a task spends in Python on each row."""


def whole(address: str, topic: SparkTopic) -> dict[str, str]:
    """The options of a read of a whole topic, with either format."""
    return {"kafka.bootstrap.servers": address, "subscribe": topic.name, "startingOffsets": "earliest"}


def from_memory(topic: SparkTopic) -> dict[str, str]:
    """The options of a read of the same rows with the format CONSTANT."""
    return {name: str(value) for name, value in topic._asdict().items()}


class Found(NamedTuple):
    """The time of a read, planning included, and the aggregates of its columns."""

    seconds: float
    sums: Mapping[str, int]


class SparkReader(SparkProgram):
    """The process, from the side of its user."""

    def __init__(self, jars: Sequence[Path]) -> None:
        super().__init__("benchmarks.spark.reader", jars)

    def read(self, read: Read) -> Found:
        """Do the read. Raises RuntimeError with the last lines of the process if the read fails."""
        return Found(*self.ask(read))


def busy(batches: Iterable[pa.RecordBatch], python_us: int) -> Iterator[pa.RecordBatch]:
    """The count and the lengths of each batch, after `python_us` of CPU time of this thread per row."""
    for batch in batches:
        due = time.thread_time_ns()
        keys = values = 0
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
            due += python_us * 1_000
            keys, values = keys + len(key), values + len(value)
            while time.thread_time_ns() < due:
                pass
        yield pa.RecordBatch.from_pydict({"count": [batch.num_rows], "keys": [keys], "values": [values]})


def loaded(spark: SparkSession, read: Read) -> DataFrame:
    """The frame of a read. The connector takes no schema: its frame always has every column."""
    reader = spark.read.format(read.format).options(**read.options)
    schema = SCHEMAS[read.columns]
    return (reader.schema(schema) if schema and read.format != CONNECTORS else reader).load()


def aggregates(columns: str) -> list[Column]:
    """The aggregates that a read of these columns computes."""
    return [fn.expr(COUNT_AND_LENGTHS[name]).alias(name) for name in AGGREGATES[columns]]


def _read(spark: SparkSession, request: list[Any]) -> Found:
    read = Read(*request)
    began = time.perf_counter()
    frame = loaded(spark, read)
    totals = aggregates(read.columns)
    if read.python_us:
        python_us = read.python_us
        frame = frame.select("key", "value").mapInArrow(
            lambda batches: busy(batches, python_us), "count bigint, keys bigint, values bigint"
        )
        totals = [fn.sum(name).alias(name) for name in AGGREGATES[KEYED]]
    (row,) = frame.agg(*totals).collect()
    return Found(time.perf_counter() - began, row.asDict())


def _serve(jars: Sequence[str]) -> None:
    is_registered = False

    def answer(spark: SparkSession, request: Any) -> Found:
        nonlocal is_registered
        if not is_registered:
            spark.dataSource.register(ConstantSource)
            is_registered = True
        return _read(spark, request)

    serve(jars, answer)


if __name__ == "__main__":
    _serve(sys.argv[1:])
