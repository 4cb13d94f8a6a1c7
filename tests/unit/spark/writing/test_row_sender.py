"""The partitions of rows without a key."""

from collections import Counter
from typing import cast

import pyarrow as pa
import pytest

from tailrace.spark.writing.row_sender import RowSender
from tailrace.spark.writing.sink_options import parse_sink_options
from tailrace.spark.writing.task_sender import SinkRows, TaskSender

PARTITIONS = 4


class Outbox:
    """The double of a task's sender: counts the rows of each partition."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()

    def partition_count(self, topic: str) -> int:
        return PARTITIONS

    def send(self, topic: str, rows: SinkRows, *, timestamp_ms: int) -> None:
        self.rows.update(int(number) for number in rows.partitions)


@pytest.mark.parametrize("has_null_keys", [False, True])
def test_tasks_of_one_batch_each_give_every_partition_as_much(has_null_keys: bool) -> None:
    """A task of a small micro-batch has one Arrow batch, and its worker runs many such tasks."""
    options = parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "orders"})
    outbox = Outbox()
    columns = {"value": pa.array([b"v"] * 3, pa.binary())}
    if has_null_keys:
        columns["key"] = pa.nulls(3, pa.binary())
    for _ in range(5 * PARTITIONS):
        RowSender(options, cast(TaskSender, outbox)).send(pa.RecordBatch.from_pydict(columns))
    assert outbox.rows == dict.fromkeys(range(PARTITIONS), 15)
