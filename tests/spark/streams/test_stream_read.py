"""`spark.readStream.format("tailrace")`: queries, their restarts and their refusals."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark.reading import positions
from spark.streams.stream_reads import Stream
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import from_json_dict

Send = Callable[..., None]


def test_available_now_reads_to_the_end_in_limited_batches(stream: Stream, send: Send) -> None:
    """A source without SupportsTriggerAvailableNow would run one batch and ignore the limit."""
    for partition in range(3):
        send(range(100), partition=partition)
    progress = stream.run(maxOffsetsPerTrigger=70)
    assert [p["numInputRows"] for p in progress if p["numInputRows"]] == [70, 70, 70, 70, 20]
    assert [(p, o) for p, o, _ in stream.rows()] == [(p, o) for p in range(3) for o in range(100)]


def test_a_restarted_query_goes_on_where_its_checkpoint_ends(stream: Stream, send: Send) -> None:
    send(range(10))
    stream.run()
    send(range(10, 25))
    stream.run()
    stream.run()
    assert [value for _, _, value in stream.rows()] == [str(n) for n in range(25)]


def test_offsets_of_a_query_are_sparks_kafka_json_in_one_order_and_never_repeat(stream: Stream, send: Send) -> None:
    """Spark compares the JSON text; the same positions in another order would run an empty batch."""
    send(range(30), partition=2)
    send(range(30), partition=0)
    stream.run(maxOffsetsPerTrigger=25)
    written = stream.offsets()
    assert from_json_dict(written[-1]) == {TopicPartition(stream.topic, n): end for n, end in enumerate((30, 0, 30))}
    assert list(written[-1][stream.topic]) == ["0", "1", "2"]
    assert all(before != after for before, after in pairwise(written))


def test_the_progress_of_a_query_has_its_lag(stream: Stream, send: Send) -> None:
    send(range(10))
    (source,) = stream.run()[-1]["sources"]
    assert source["latestOffset"][stream.topic]["0"] == 10
    assert source["endOffset"][stream.topic]["0"] == 10


@pytest.mark.parametrize("schema", [None, "value binary"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "earlyest"}, "option startingOffsets: "),
        ({"endingOffsets": "latest"}, "option endingOffsets: a streaming read has no end"),
        ({"endingTimestamp": "1"}, "option endingTimestamp: a streaming read has no end"),
        ({"assign": '{"a":[0]}'}, "option subscribe: exactly one of"),
    ],
)
def test_a_wrong_option_of_a_stream_is_named_in_the_last_line(
    spark: SparkSession, bootstrap: str, topic: str, options: dict[str, str], message: str, schema: str | None
) -> None:
    reader = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    frame = (reader if schema is None else reader.schema(schema)).options(**options).load()
    with pytest.raises(PySparkException) as refusal:
        frame.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
    before_state = str(refusal.value).split(" SQLSTATE")[0]  # Spark adds the state of the query
    assert f"INVALID_REQUEST: {message}" in before_state.strip().splitlines()[-1]


def test_a_missing_topic_ends_the_query_with_its_name(stream: Stream) -> None:
    with pytest.raises(PySparkException, match="no-such-topic"):
        stream.run(subscribe="no-such-topic")


def test_a_continuous_query_sees_records_as_they_come(
    spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path, send: Send
) -> None:
    send(range(3))
    frame = (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    query = frame.writeStream.format("memory").queryName("as_they_come").start()
    try:
        query.processAllAvailable()
        send(range(3, 6))
        query.processAllAvailable()
        assert [value for _, _, value in positions(spark.table("as_they_come"))] == [str(n) for n in range(6)]
    finally:
        query.stop()
