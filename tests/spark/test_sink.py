"""`df.write|writeStream.format("tailrace")`: the partition and content of each row's record."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from spark.reading import positions
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.errors import KafkaError
from tailrace.model.key_hash import partition_for_key
from tailrace.spark.writing.sink import TailraceWriter
from tailrace.spark.writing.sink_options import parse_sink_options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Load = Callable[..., DataFrame]
Send = Callable[..., None]


@pytest.fixture
def save(bootstrap: str, topic: str) -> Callable[..., None]:
    def save(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        for name, value in {"topic": topic, **options}.items():
            writer = writer.option(name, value)
        writer.mode("append").save()

    return save


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_rows_are_written_once_in_every_codec(
    spark: SparkSession, save: Callable[..., None], load: Load, codec: str
) -> None:
    frame = spark.range(5000).selectExpr("CAST(id AS STRING) AS key", "repeat(CAST(id AS STRING), 20) AS value")
    save(frame, **{"kafka.compression.type": codec})
    rows = load().selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition").collect()
    assert sorted(int(row.key) for row in rows) == list(range(5000))
    assert all(row.value == row.key * 20 for row in rows)
    assert all(row.partition == partition_for_key(row.key.encode(), 3) for row in rows)


def test_a_column_names_the_partition_and_null_leaves_it_to_the_key(
    spark: SparkSession, save: Callable[..., None], load: Load
) -> None:
    frame = spark.createDataFrame([("a", "x", 2), ("a", "y", None)], "key string, value string, partition int")
    save(frame)
    found = {value: partition for partition, _, value in positions(load())}
    assert found == {"x": 2, "y": partition_for_key(b"a", 3)}


def test_a_column_names_the_topic(spark: SparkSession, bootstrap: str, admin, topic: str) -> None:  # type: ignore[no-untyped-def]
    admin.create_topics({f"{topic}-a": 1, f"{topic}-b": 1})
    frame = spark.createDataFrame([(f"{topic}-a", b"1"), (f"{topic}-b", b"2")], "topic string, value binary")
    frame.write.format("tailrace").option("kafka.bootstrap.servers", bootstrap).mode("append").save()
    reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
    rows = reader.option("subscribe", f"{topic}-a,{topic}-b").load().collect()
    assert {(row.topic, bytes(row.value)) for row in rows} == {(f"{topic}-a", b"1"), (f"{topic}-b", b"2")}


def test_the_option_overrides_a_column_topic_of_any_type(
    spark: SparkSession, save: Callable[..., None], load: Load, topic: str
) -> None:
    save(spark.sql("SELECT 'v' AS value, 1 AS topic"), topic=f" {topic} ")  # as in Spark's connector
    assert [value for _, _, value in positions(load())] == ["v"]


def test_nulls_and_headers_survive(spark: SparkSession, save: Callable[..., None], load: Load) -> None:
    kind = "key binary, value binary, headers array<struct<key:string,value:binary>>"
    frame = spark.createDataFrame([(None, b"v", [("h", b"1"), ("h", None)]), (b"k", None, None)], kind)
    save(frame)  # as in Spark's connector, includeHeaders is for reads
    rows = {row.key if row.key is None else bytes(row.key): row for row in load(includeHeaders="true").collect()}
    assert bytes(rows[None].value) == b"v"
    assert [(h.key, h.value if h.value is None else bytes(h.value)) for h in rows[None].headers] == [
        ("h", b"1"),
        ("h", None),
    ]
    assert rows[b"k"].value is None


def test_a_stream_is_written_and_goes_on_after_a_restart(
    spark: SparkSession,
    bootstrap: str,
    admin: Admin,
    topic: str,
    tmp_path: Path,
    send: Send,
    load: Load,
) -> None:
    target = f"{topic}-copy"
    admin.create_topics({target: 2})

    def run() -> None:
        source = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
        (
            frame.selectExpr("key", "value")
            .writeStream.format("tailrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )

    send(range(10))
    run()
    send(range(10, 30), partition=1)
    run()
    copied = load(subscribe=target)
    assert sorted(int(value) for _, _, value in positions(copied)) == list(range(30))


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("SELECT 'k' AS key", {}, "needs the column `value`"),
        ("SELECT 1 AS value", {}, "column 'value' must be binary or string"),
        ("SELECT 'v' AS value", {"kafka.acks": "2"}, "kafka.acks"),
        ("SELECT 'v' AS value", {"kafka.transactional.id": "t"}, "kafka.transactional.id: .*exactlyOnce=true"),
        ("SELECT 'v' AS value", {"kafka.compression.type": "rar"}, "kafka.compression.type"),
        ("SELECT 'v' AS value, 17 AS partition", {}, "names partition 17"),
    ],
)
def test_rows_that_cannot_be_written_are_refused_by_name(
    spark: SparkSession, save: Callable[..., None], query: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        save(spark.sql(query), **options)


def test_a_row_may_be_as_large_as_the_option_says(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(name=f"{topic}-large", partitions=1, configs={"max.message.bytes": "3000000"})])
    options = {"kafka.bootstrap.servers": bootstrap, "topic": f"{topic}-large"}
    schema = StructType([StructField("value", BinaryType())])
    rows = pa.record_batch({"value": pa.array([b"x" * 1_500_000])})
    with pytest.raises(KafkaError, match="max.request.size is 1048576"):
        TailraceWriter(schema, parse_sink_options(options)).write(iter([rows]))
    larger = parse_sink_options({**options, "kafka.max.request.size": "2000000"})
    assert TailraceWriter(schema, larger).write(iter([rows])).rows == 1


def test_a_log_is_not_overwritten(spark: SparkSession, bootstrap: str, topic: str) -> None:
    writer = spark.sql("SELECT 'v' AS value").write.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
    with pytest.raises(PySparkException, match="append"):
        writer.option("topic", topic).mode("overwrite").save()
