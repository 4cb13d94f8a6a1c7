"""Nodes that are killed and restarted during queries: a short outage only delays them."""

import shutil
import time
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession

from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.model.errors import KafkaError
from tailrace.spark.reading.readers import TailraceReader
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.source import ROW
from tailrace.testing import Cluster

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TOPIC = "survivors"
OUTAGE_S = 1.0
"""Long enough that the planner and the workers of a query meet the outage. No verdict depends on that."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics({TOPIC: 2})
        yield cluster


def _send(cluster: Cluster, values: range) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for value in values:
            producer.send(TOPIC, str(value).encode())


def _outage(cluster: Cluster) -> None:
    cluster.kill()
    time.sleep(OUTAGE_S)
    cluster.restart()


def _values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())


@pytest.fixture
def load(spark: SparkSession, cluster: Cluster) -> Callable[[], DataFrame]:
    reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    return lambda: reader.option("subscribe", TOPIC).load()


def test_a_running_stream_survives_a_node_that_is_killed_and_started_again(
    spark: SparkSession, cluster: Cluster
) -> None:
    _send(cluster, range(5))
    source = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
    frame = source.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
    query = frame.writeStream.format("memory").queryName("survived").start()
    try:
        query.processAllAvailable()
        _outage(cluster)
        _send(cluster, range(5, 10))
        query.processAllAvailable()
        assert _values(spark.table("survived")) == list(range(10))
    finally:
        query.stop()


def test_a_task_whose_broker_is_gone_names_the_partition_and_the_way_out() -> None:
    """The plan was made with all three brokers; the task reads from the two that are left."""
    with Cluster(brokers=3) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name=TOPIC, partitions=3, replication_factor=1)])
            (topic,) = admin.describe_topics([TOPIC])
        with Producer(cluster.bootstrap_servers) as producer:
            for number in range(30):
                producer.send(TOPIC, b"%d" % number, partition=number % 3)
        options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": TOPIC, "minPartitions": "3"}
        given = parse_source_options({**options, "kafkaConsumer.pollTimeoutMs": "1000"}, streaming=False)
        reader = TailraceReader(ROW, given)
        works = reader.partitions()
        assert len(works) == 3
        lost = topic.partitions[0]
        cluster.kill(lost.leader)
        for work in works:
            (piece,) = work.value
            if piece.topic_partition.partition != lost.partition:
                assert sum(batch.num_rows for batch in reader.read(work)) == piece.size
                continue
            with pytest.raises(KafkaError, match="survivors-0: no record.*tailrace doctor --spark.*pollTimeoutMs"):
                list(reader.read(work))


def test_connections_that_workers_keep_are_made_anew(
    spark: SparkSession, cluster: Cluster, load: Callable[[], DataFrame]
) -> None:
    def write(values: range) -> None:
        frame = spark.range(values.start, values.stop).selectExpr("CAST(id AS STRING) AS value")
        writer = frame.write.format("tailrace").option("kafka.bootstrap.servers", cluster.bootstrap_servers)
        writer.option("topic", TOPIC).mode("append").save()

    write(range(5))
    assert _values(load()) == list(range(5))
    _outage(cluster)
    write(range(5, 10))
    assert _values(load()) == list(range(10))
    # Another cluster at the same address, with a topic of another shape: the workers know the old topic.
    cluster.kill()
    shutil.rmtree(cluster.data_dir())
    cluster.restart()
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({TOPIC: 1})
    write(range(100, 105))
    assert _values(load()) == list(range(100, 105))
