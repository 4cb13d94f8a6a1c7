"""Batches of a task are as small as their topic, or the user's option, demands. No session is needed here."""

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tailrace.client.blocking import Admin, NewTopic, RangedFetch
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.source import HEADERS
from tailrace.spark.writing.sink import TailraceWriter
from tailrace.spark.writing.sink_options import parse_sink_options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]

SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType()), HEADERS])
LIMIT = 20_000
ROWS = 2_000

Make = Callable[..., TailraceWriter]


@pytest.fixture
def writer(bootstrap: str, admin: Admin, topic: str) -> Make:
    def make(*, max_message_bytes: int = LIMIT, **options: str) -> TailraceWriter:
        name = f"{topic}-narrow"
        configs = {"max.message.bytes": str(max_message_bytes)}
        admin.create_topics([NewTopic(name=name, partitions=1, configs=configs)])
        given = {"kafka.bootstrap.servers": bootstrap, "topic": name, "includeHeaders": "true", **options}
        return TailraceWriter(SCHEMA, parse_sink_options(given))

    return make


@pytest.fixture
def read(bootstrap: str, admin: Admin, topic: str) -> Callable[[], list[dict[str, Any]]]:
    def read() -> list[dict[str, Any]]:
        partition = TopicPartition(f"{topic}-narrow", 0)
        end = admin.list_offsets({partition: -1})[partition].offset
        with RangedFetch(bootstrap) as fetch:
            columns = ("key", "value", "headers")
            return [row for batch in fetch.arrow(partition, 0, end, columns=columns) for row in batch.to_pylist()]

    return read


def _rows(start: int, count: int) -> list[dict[str, Any]]:
    """Numbered by key; of values that no codec makes smaller, some of them null; with headers here and there."""
    headers: list[dict[str, Any]] = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    return [
        {
            "key": f"{number}".encode(),
            "value": None if number % 7 == 0 else os.urandom(100),
            "headers": headers if number % 3 == 0 else None,
        }
        for number in range(start, start + count)
    ]


def _arrow(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    table = pa.RecordBatch.from_pylist(
        rows,
        schema=pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )
    return table.set_column(0, "key", table.column("key").cast(pa.string()))


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_a_topic_of_small_batches_gets_every_row_once_and_in_order(
    writer: Make, read: Callable[[], list[dict[str, Any]]], codec: str
) -> None:
    """The topic would accept the last small batches at once: they wait for the batches before them."""
    stretches = [_rows(0, ROWS), _rows(ROWS, ROWS), _rows(2 * ROWS, 10), _rows(2 * ROWS + 10, 1)]
    task = writer(**{"kafka.compression.type": codec})
    assert task.write(iter([_arrow(rows) for rows in stretches])).rows == 2 * ROWS + 11
    assert read() == [row for rows in stretches for row in rows]


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_requests_may_be_smaller_than_a_batch_is_otherwise(
    writer: Make, read: Callable[[], list[dict[str, Any]]], codec: str
) -> None:
    rows = _rows(0, ROWS)
    task = writer(max_message_bytes=1_000_000, **{"kafka.max.request.size": "50000", "kafka.compression.type": codec})
    task.write(iter([_arrow(rows)]))
    assert read() == rows


def test_a_row_that_its_topic_does_not_take_fails_the_task(writer: Make) -> None:
    rows = [*_rows(0, 10), {"key": b"large", "value": os.urandom(2 * LIMIT), "headers": None}]
    with pytest.raises(KafkaError) as fault:
        writer().write(iter([_arrow(rows)]))
    assert fault.value.code is ErrorCode.MESSAGE_TOO_LARGE
