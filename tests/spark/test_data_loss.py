"""Records that retention removed before they were read: an error that names them, or with an option a warning."""

import json
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.reading import positions
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.client.reading import ranged_fetch
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import OffsetRange
from tailrace.spark.reading.readers import TailraceReader, Work
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader
from tailrace.spark.source import ROW
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TOPIC = "short-lived"
PARTITION = TopicPartition(TOPIC, 0)
RECORDS = 60

KEPT_FROM = 48
"""A segment of 1,000 bytes holds three batches of 273; twelve batches are the least that retention.bytes=3000 leaves:
without their oldest segment they would be fewer than 3,000 bytes."""


@pytest.fixture(scope="module")
def lossy() -> Iterator[tuple[str, int]]:
    """A node whose topic has lost its first records, and the offset at which the log starts."""
    config = {"log.retention.check.interval.ms": "100", "log.segment.delete.delay.ms": "0"}
    with Cluster(config=config) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            settings = {"segment.bytes": "1000", "retention.bytes": "3000"}
            admin.create_topics([NewTopic(name=TOPIC, partitions=1, configs=settings)])
            for number in range(RECORDS):
                with Producer(cluster.bootstrap_servers) as producer:
                    producer.send(TOPIC, f"{number:0>200}".encode()).result()
            wait_until(lambda: admin.list_offsets({PARTITION: -2})[PARTITION].offset == KEPT_FROM, "retention is done")
        yield cluster.bootstrap_servers, KEPT_FROM


def _options(bootstrap: str, **options: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, **options}


def _load(spark: SparkSession, bootstrap: str, **options: str) -> DataFrame:
    return spark.read.format("tailrace").options(**_options(bootstrap, **options)).load()


def test_a_read_below_the_log_start_fails_and_says_what_is_gone(spark: SparkSession, lossy: tuple[str, int]) -> None:
    bootstrap, first = lossy
    start = json.dumps({TOPIC: {"0": 3}})
    with pytest.raises(PySparkException, match=f"offset 3 to {first - 1} are gone.*failOnDataLoss=false"):
        _load(spark, bootstrap, startingOffsets=start).count()


def test_a_read_without_fail_on_data_loss_starts_at_the_log_start(spark: SparkSession, lossy: tuple[str, int]) -> None:
    bootstrap, first = lossy
    start = json.dumps({TOPIC: {"0": 3}})
    found = positions(_load(spark, bootstrap, startingOffsets=start, failOnDataLoss="false"))
    assert [offset for _, offset, _ in found] == list(range(first, RECORDS))


def test_a_stream_below_the_log_start_fails_or_goes_on_there(lossy: tuple[str, int]) -> None:
    bootstrap, first = lossy
    at = {TOPIC: {"0": 3}}
    strict = TailraceStreamReader(ROW, parse_source_options(_options(bootstrap), streaming=True))
    end = strict.latestOffset(at, ReadAllAvailable())
    with pytest.raises(Exception, match="are gone"):
        strict.partitions(at, end)
    strict.stop()
    options = _options(bootstrap, failOnDataLoss="false")
    lenient = TailraceStreamReader(ROW, parse_source_options(options, streaming=True))
    (work,) = lenient.partitions(at, end)
    assert [piece[:3] for piece in work.value] == [(PARTITION, first, RECORDS)]
    lenient.stop()


def test_retention_may_overtake_a_plan(lossy: tuple[str, int]) -> None:
    """The range was there when it was planned and is gone when a task reads it."""
    bootstrap, first = lossy
    work = OffsetRange(PARTITION, 1, RECORDS)
    strict = TailraceReader(ROW, parse_source_options(_options(bootstrap), streaming=False))
    partition = strict.partitions()[0]
    partition.value = (work,)
    with pytest.raises(Exception, match="failOnDataLoss=false"):
        list(strict.read(partition))
    options = _options(bootstrap, failOnDataLoss="false")
    lenient = TailraceReader(ROW, parse_source_options(options, streaming=False))
    read = [offset for batch in lenient.read(partition) for offset in batch.column("offset").to_pylist()]
    assert read == list(range(first, RECORDS))


def test_a_range_of_a_topic_created_again_that_is_shorter_has_no_rows(lossy: tuple[str, int]) -> None:
    """The topic is created again between plan and task: only the task can notice, and it must not fail for ever."""
    bootstrap, _ = lossy
    work = OffsetRange(PARTITION, RECORDS + 5, RECORDS + 9)
    strict = TailraceReader(ROW, parse_source_options(_options(bootstrap), streaming=False))
    partition = strict.partitions()[0]
    partition.value = (work,)
    with pytest.raises(Exception, match="does not exist.*failOnDataLoss=false"):
        list(strict.read(partition))
    lenient = TailraceReader(ROW, parse_source_options(_options(bootstrap, failOnDataLoss="false"), streaming=False))
    assert list(lenient.read(partition)) == []


def test_records_of_a_new_partition_that_are_gone_before_the_query_meets_it_are_a_loss(
    bootstrap: str, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The partition was added while the query was stopped, and retention was faster than the next start."""
    options = _options(bootstrap, subscribe=topic, startingOffsets="earliest")
    strict = TailraceStreamReader(ROW, parse_source_options(options, streaming=True))
    start = strict.initialOffset()
    admin.create_partitions({topic: 4})
    with Producer(bootstrap) as producer:
        for _ in range(9):
            producer.send(topic, b"v", partition=3).result()
    admin.delete_records({TopicPartition(topic, 3): 4})
    with pytest.raises(KafkaError, match=f"{topic}-3 is new .* from offset 0 to 3 are gone.*failOnDataLoss=false"):
        strict.latestOffset(start, ReadAllAvailable())
    strict.stop()
    lenient = TailraceStreamReader(ROW, parse_source_options({**options, "failOnDataLoss": "false"}, streaming=True))
    end = lenient.latestOffset(start, ReadAllAvailable())
    assert end[topic]["3"] == 4
    assert caplog.text.count("data loss: ") == 1
    (work,) = lenient.partitions(end, lenient.latestOffset(end, ReadAllAvailable()))
    assert [piece[:3] for piece in work.value] == [(TopicPartition(topic, 3), 4, 9)]
    lenient.stop()


@pytest.fixture
def deleted(bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch) -> InputPartition:
    """The work of a task whose topic has been deleted since it was planned."""
    monkeypatch.setattr(ranged_fetch, "UNKNOWN_WAIT_MS", 200, raising=False)
    with Producer(bootstrap) as producer:
        for partition in range(3):
            producer.send(topic, b"v", partition=partition).result()
    strict = TailraceReader(ROW, parse_source_options(_options(bootstrap, subscribe=topic), streaming=False))
    ranges = [piece for work in strict.partitions() for piece in work.value]
    assert len(ranges) == 3
    admin.delete_topics([topic])
    return Work(tuple(ranges))


def test_a_topic_that_is_deleted_while_it_is_read_fails_the_task_with_the_way_out(
    deleted: InputPartition, bootstrap: str, topic: str
) -> None:
    options = _options(bootstrap, subscribe=topic, **{"kafkaConsumer.pollTimeoutMs": "60000"})
    strict = TailraceReader(ROW, parse_source_options(options, streaming=False))
    with pytest.raises(KafkaError, match=f"{topic}-0: .* are gone.*failOnDataLoss=false"):
        list(strict.read(deleted))


def test_without_fail_on_data_loss_a_deleted_topic_has_no_rows(
    deleted: InputPartition, bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = _options(bootstrap, subscribe=topic, failOnDataLoss="false", **{"kafkaConsumer.pollTimeoutMs": "60000"})
    lenient = TailraceReader(ROW, parse_source_options(options, streaming=False))
    assert list(lenient.read(deleted)) == []
    assert caplog.text.count("data loss: ") == 3


@pytest.fixture
def made_anew(bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch) -> InputPartition:
    """The work of a task whose topic has been deleted since it was planned, and created again with more records."""
    monkeypatch.setattr(ranged_fetch, "UNKNOWN_WAIT_MS", 200, raising=False)
    with Producer(bootstrap) as producer:
        producer.send(topic, b"old", partition=0).result()
        strict = TailraceReader(ROW, parse_source_options(_options(bootstrap, subscribe=topic), streaming=False))
        (work,) = strict.partitions()
        admin.delete_topics([topic])
        admin.create_topics({topic: 3})
        for _ in range(5):
            producer.send(topic, b"new", partition=0).result()
    return work


def test_a_task_does_not_read_a_topic_that_was_made_anew_for_the_planned_one(
    made_anew: InputPartition, bootstrap: str, topic: str
) -> None:
    strict = TailraceReader(ROW, parse_source_options(_options(bootstrap, subscribe=topic), streaming=False))
    with pytest.raises(
        KafkaError, match=f"{topic}-0: .* the topic was deleted and created again.*failOnDataLoss=false"
    ):
        list(strict.read(made_anew))
    options = _options(bootstrap, subscribe=topic, failOnDataLoss="false")
    lenient = TailraceReader(ROW, parse_source_options(options, streaming=False))
    assert list(lenient.read(made_anew)) == []
