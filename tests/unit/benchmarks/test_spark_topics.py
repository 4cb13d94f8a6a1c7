"""The sums that a read must give are the sums of the topic's records."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from benchmarks.peers.peer import Peer, running, tailrace
from benchmarks.spark.constant_source import ConstantReader
from benchmarks.spark.topics import KEYED, ROWS, VALUE_BYTES, VALUES, SparkTopic, body, check, fill
from tailrace.client.arrow import MAX_ROWS
from tailrace.client.blocking import RangedFetch
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.records.compression import Codec
from tailrace.spark.source import ROW

TOPIC = SparkTopic("t", 3, 2 * MAX_ROWS + 7_000, 1_700_000_000_123)


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with running(tailrace("page-cache")) as node:
        yield node


def sums(table: pa.Table) -> dict[str, int]:
    """As SparkTopic.sums of full rows, computed without Spark."""
    rows = table.to_pylist()
    return {
        "count": len(rows),
        "keys": sum(len(row["key"]) for row in rows),
        "values": sum(len(row["value"]) for row in rows),
        "topics": sum(len(row["topic"]) for row in rows),
        "partitions": sum(row["partition"] for row in rows),
        "offsets": sum(row["offset"] for row in rows),
        "moments": sum(row["timestamp"].microsecond // 1_000 for row in rows),
        "kinds": sum(row["timestampType"] for row in rows),
    }


@pytest.mark.parametrize("number", [0, 15, 99_999_999])
def test_records_have_keys_of_their_own_and_values_of_one_size(number: int) -> None:
    key, value = body(number)
    assert (key, len(value)) == (b"%08d" % number, VALUE_BYTES)
    assert str(number).encode() in value


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_topic_has_the_sums_that_are_said_of_it(node: Peer, codec: Codec) -> None:
    topic = fill(node, f"filled-{codec.name.lower()}", 2, 37_000, codec)
    assert (topic.partitions, topic.rows_each) == (2, 18_000)
    with RangedFetch(node.address) as fetch:
        partitions = [TopicPartition(topic.name, number) for number in range(2)]
        found = [batch for partition in partitions for batch in fetch.arrow(partition, 0, topic.rows_each)]
    assert sums(pa.Table.from_batches(found)) == topic.sums(ROWS)


def test_the_source_from_memory_has_the_rows_of_the_topic() -> None:
    reader = ConstantReader(ROW, TOPIC)
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert max(batch.num_rows for batch in batches) == MAX_ROWS
    assert sums(pa.Table.from_batches(batches)) == TOPIC.sums(ROWS)


def test_the_source_from_memory_yields_only_what_is_asked_for() -> None:
    reader = ConstantReader(type(ROW)([ROW["value"]]), TOPIC)
    (first, *rest) = reader.read(reader.partitions()[1])
    assert (first.schema.names, first.num_rows, [batch.num_rows for batch in rest]) == (
        ["value"],
        MAX_ROWS,
        [MAX_ROWS, 7_000],
    )


@pytest.mark.parametrize("columns", [VALUES, KEYED, ROWS])
def test_a_read_of_all_is_accepted_and_one_that_lacks_a_row_or_a_byte_is_refused(columns: str) -> None:
    right = TOPIC.sums(columns)
    check("ours", right, TOPIC, columns)
    for name in right:
        with pytest.raises(RuntimeError, match=f"ours has read {columns} of t with"):
            check("ours", {**right, name: right[name] - 1}, TOPIC, columns)
