"""A Spark data source that yields the rows of a topic from memory: the cost of Spark for these rows, without a broker.

A process of Spark's makes the rows once; only their offsets differ from batch to batch.
"""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from benchmarks.spark.topics import SparkTopic, body
from tailrace.client.arrow import MAX_ROWS
from tailrace.spark.source import ROW


class ConstantSource(DataSource):
    """`spark.read.format("constant")` with the fields of a SparkTopic as options."""

    @classmethod
    def name(cls) -> str:
        return "constant"

    def schema(self) -> StructType:
        return ROW

    def reader(self, schema: StructType) -> DataSourceReader:
        numbers = (int(self.options[name]) for name in SparkTopic._fields[1:])
        return ConstantReader(schema, SparkTopic(self.options["name"], *numbers))


class ConstantReader(DataSourceReader):
    """A task for each partition, as with Spark's connector."""

    def __init__(self, schema: StructType, topic: SparkTopic) -> None:
        self._schema = schema
        self._topic = topic

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._topic.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(self._schema, timezone="UTC")
        each = self._topic.rows_each
        columns = dict(_columns(self._topic, partition.value, min(MAX_ROWS, each)))
        for start in range(0, each, MAX_ROWS):
            columns["offset"] = pa.array(np.arange(start, start + min(MAX_ROWS, each)))
            arrays = [columns[name].slice(0, each - start) for name in schema.names]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


@cache
def _columns(topic: SparkTopic, partition: int, count: int) -> dict[str, pa.Array]:
    keys, values = _bodies(count)
    return {
        "key": keys,
        "value": values,
        "topic": pa.array([topic.name] * count),
        "partition": pa.array(np.full(count, partition, np.int32)),
        "timestamp": pa.array(np.full(count, topic.moment_ms * 1000), pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array(np.zeros(count, np.int32)),
    }


@cache
def _bodies(count: int) -> tuple[pa.Array, pa.Array]:
    keys, values = zip(*map(body, range(count)), strict=True)
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())
