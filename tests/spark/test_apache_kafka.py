"""Options of Tailrace's alone, on Apache Kafka.

`exactlyOnce` is refused before a task runs, with the way out, since Kafka has no sinks. `keyRangesPerPartition` has the
tasks filter, since Kafka's brokers do not.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from interop.differential.apache import ApacheKafka
from interop.kafka_tools import absent
from tailrace.client.blocking import Admin, Producer
from tailrace.client.offsets import LATEST
from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SINKS_FEATURE

pytestmark = [pytest.mark.spark, pytest.mark.interop, pytest.mark.timeout(300)]

SOURCE, TARGET = TopicPartition("orders", 0), TopicPartition("copies", 0)
REFUSAL = rf"option exactlyOnce: .* has no feature {SINKS_FEATURE}: .* leave the option out to write at least once"


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """The address of a broker with two topics, the first of which has rows."""
    if why := absent():
        pytest.skip(why)
    with ApacheKafka({"node.id": "1"}) as broker:
        with Admin(broker.address) as admin:
            admin.create_topics({SOURCE.topic: 1, TARGET.topic: 1})
        yield broker.address


@pytest.fixture(autouse=True)
def nothing_is_written(kafka: str) -> Iterator[None]:
    yield
    with Admin(kafka) as admin:
        assert admin.list_offsets({TARGET: LATEST})[TARGET].offset == 0


def test_tasks_by_key_read_each_record_once_and_each_key_in_one_task(spark: SparkSession, kafka: str) -> None:
    with Admin(kafka) as admin, Producer(kafka) as producer:
        admin.create_topics({"keyed": 2})
        for number in range(2_000):
            key = None if number % 10 == 0 else b"k%d" % (number % 300)
            producer.send("keyed", b"%d" % number, key=key, partition=number % 2)
        producer.flush()
    reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", kafka).option("subscribe", "keyed")
    frame = reader.option("keyRangesPerPartition", 3).load()
    value = "CAST(CAST(value AS STRING) AS INT) AS value"
    rows = frame.selectExpr("spark_partition_id() AS task", "partition", "key", value).collect()
    assert sorted(row.value for row in rows) == list(range(2_000))
    tasks = {(row.task, row.partition, bytes(row.key)) for row in rows if row.key is not None}
    assert len({task for task, _, _ in tasks}) == 6
    assert len({(partition, key) for _, partition, key in tasks}) == len(tasks)


def test_a_batch_write_is_refused(spark: SparkSession, kafka: str) -> None:
    writer = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("tailrace")
    writer = writer.option("kafka.bootstrap.servers", kafka).option("topic", TARGET.topic)
    with pytest.raises(PySparkException, match=REFUSAL):
        writer.option("exactlyOnce", "true").mode("append").save()


def test_a_stream_is_refused_in_its_first_batch(spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("tailrace")
    rows.option("kafka.bootstrap.servers", kafka).option("topic", SOURCE.topic).mode("append").save()
    reader = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", kafka)
    frame = reader.option("subscribe", SOURCE.topic).option("startingOffsets", "earliest").load()
    writer = frame.select("value").writeStream.format("tailrace").option("kafka.bootstrap.servers", kafka)
    writer = writer.option("topic", TARGET.topic).option("checkpointLocation", str(tmp_path))
    with pytest.raises(StreamingQueryException, match=REFUSAL):
        writer.option("exactlyOnce", "true").trigger(availableNow=True).start().awaitTermination()
    assert not list(tmp_path.glob("commits/[0-9]*"))
