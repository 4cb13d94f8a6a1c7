"""`spark.read.format("tailrace")`, found by Spark itself: nothing here registers or imports it."""

import inspect
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from interop.librdkafka import Message, librdkafka
from spark.reading import positions
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.client.writer_settings import Compression
from tailrace.spark.source import TailraceDataSource

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Load = Callable[..., DataFrame]
Send = Callable[..., None]


def test_a_batch_reads_everything_by_default(load: Load, send: Send) -> None:
    send(range(5), partition=0)
    send(range(5, 8), partition=2)
    assert positions(load()) == [(0, n, str(n)) for n in range(5)] + [(2, n, str(5 + n)) for n in range(3)]


def test_a_read_with_a_rack_returns_the_same_rows(load: Load, send: Send, caplog: pytest.LogCaptureFixture) -> None:
    """A lone node is in every rack and names no other replica. That a task tells its rack is in tests/unit/spark."""
    send(range(5), partition=0)
    assert positions(load(**{"kafka.client.rack": "a"})) == [(0, n, str(n)) for n in range(5)]
    assert not [line for line in caplog.messages if "kafka.client.rack" in line]


def test_the_rows_are_those_of_sparks_kafka_connector(load: Load, bootstrap: str, topic: str) -> None:
    """The Arrow schema must be exactly what Spark derives, or the read fails."""
    with Producer(bootstrap) as producer:
        headers = (("a", b"1"), ("b", None), ("a", b""))
        producer.send(topic, b"value", key=b"key", partition=1, headers=headers, timestamp=1_700_000_000_123)
        producer.send(topic, None, key=None, partition=1, timestamp=1_700_000_000_124)
        producer.flush()
    frame = load(includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    first, second = sorted(frame.collect(), key=lambda row: row.offset)
    assert (bytes(first.key), bytes(first.value)) == (b"key", b"value")
    assert (first.topic, first.partition, first.offset, first.timestampType) == (topic, 1, 0, 0)
    moment = frame.selectExpr("offset", "unix_millis(timestamp)").collect()
    assert dict(tuple(row) for row in moment) == {0: 1_700_000_000_123, 1: 1_700_000_000_124}
    assert [(h.key, None if h.value is None else bytes(h.value)) for h in first.headers] == list(headers)
    assert (second.key, second.value) == (None, None)
    assert not second.headers


def test_only_the_columns_of_the_users_schema_are_read(load: Load, send: Send) -> None:
    send(range(3))
    frame = load("offset bigint, value binary")
    assert frame.columns == ["offset", "value"]
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect()) == [(0, b"0"), (1, b"1"), (2, b"2")]


def test_large_arrow_types_are_served_where_the_session_asks(spark: SparkSession, load: Load, send: Send) -> None:
    send(range(3))
    name = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(name, "true")
    try:
        assert len(positions(load())) == 3
    finally:
        spark.conf.unset(name)


def test_explicit_offsets_bound_a_read(load: Load, send: Send, topic: str) -> None:
    for partition in range(3):
        send(range(10), partition=partition)
    start = json.dumps({topic: {"0": 3, "1": -2, "2": 9}})
    end = json.dumps({topic: {"0": 5, "1": 1, "2": -1}})
    found = [(p, o) for p, o, _ in positions(load(startingOffsets=start, endingOffsets=end))]
    assert found == [(0, 3), (0, 4), (1, 0), (2, 9)]


def test_timestamps_bound_a_read(load: Load, send: Send) -> None:
    send(range(3), timestamp=1000)
    send(range(3, 6), timestamp=2000)
    send(range(6, 9), timestamp=3000)
    found = positions(load(startingTimestamp=1500, endingTimestamp=3000, startingOffsetsByTimestampStrategy="latest"))
    assert [offset for _, offset, _ in found] == [3, 4, 5]


def test_a_start_after_every_record_is_an_error_unless_latest_is_asked_for(load: Load, send: Send) -> None:
    send(range(3), timestamp=1000)
    with pytest.raises(PySparkException, match="startingOffsetsByTimestampStrategy=latest"):
        load(startingTimestamp=5000).count()
    assert load(startingTimestamp=5000, startingOffsetsByTimestampStrategy="latest").count() == 0


def test_timestamps_per_partition(load: Load, send: Send, topic: str) -> None:
    for partition in range(3):
        send(range(2), partition=partition, timestamp=1000)
        send(range(2, 4), partition=partition, timestamp=2000)
    start = json.dumps({topic: {"0": 0, "1": 1001, "2": 2000}})
    found = [(p, o) for p, o, _ in positions(load(startingOffsetsByTimestamp=start))]
    assert found == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3)]


def test_many_tasks_read_one_partition_without_gap_or_double(load: Load, send: Send) -> None:
    send(range(1000))
    frame = load(minPartitions=7)
    assert frame.rdd.getNumPartitions() == 7
    assert [offset for _, offset, _ in positions(frame)] == list(range(1000))
    assert load(maxRecordsPerPartition=300).rdd.getNumPartitions() == 4


@pytest.mark.parametrize("sharing", ["true", "false"])
def test_tasks_by_key_read_each_record_once_and_each_key_in_one_task(
    spark: SparkSession, bootstrap: str, admin: Admin, topic: str, sharing: str
) -> None:
    """Also of a topic whose broker does not filter: then the tasks do."""
    name = f"{topic}-keys"
    admin.create_topics([NewTopic(name=name, partitions=2, configs={"key.ranges.enable": sharing})])
    with Producer(bootstrap) as producer:
        for number in range(4_000):
            key = None if number % 10 == 0 else b"k%d" % (number % 300)
            producer.send(name, b"%d" % number, key=key, partition=number % 2)
        producer.flush()
    reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option("subscribe", name)
    frame = reader.option("keyRangesPerPartition", 3).load()
    assert frame.rdd.getNumPartitions() == 6
    found = frame.selectExpr(
        "spark_partition_id() AS task", "partition", "offset", "key", "CAST(CAST(value AS STRING) AS INT) AS v"
    )
    rows = found.collect()
    assert sorted(row.v for row in rows) == list(range(4_000))
    tasks: dict[tuple[int, bytes], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        if row.key is not None:
            tasks[row.partition, bytes(row.key)].append((row.task, row.offset))
    assert all(len({task for task, _ in places}) == 1 for places in tasks.values())
    assert all([offset for _, offset in places] == sorted(offset for _, offset in places) for places in tasks.values())
    assert len({task for places in tasks.values() for task, _ in places}) == 6


def test_small_partitions_share_a_task(load: Load, admin: Admin, bootstrap: str, topic: str) -> None:
    cores = os.cpu_count() or 1
    admin.create_partitions({topic: max(3, cores) + 1})
    with Producer(bootstrap) as producer:
        for partition in range(max(3, cores) + 1):
            producer.send(topic, b"v", partition=partition)
    assert load().rdd.getNumPartitions() <= cores


def test_compressed_records_are_read(load: Load, bootstrap: str, topic: str) -> None:
    expected = []
    codecs: tuple[Compression, ...] = ("gzip", "snappy", "lz4", "zstd")
    for number, codec in enumerate(codecs):
        with Producer(bootstrap, compression=codec) as producer:
            producer.send(topic, codec.encode() * 50, partition=0)
            producer.flush()
        expected.append((0, number, codec * 50))
    assert positions(load()) == expected


def test_several_topics_by_name_and_by_pattern(spark: SparkSession, bootstrap: str, admin: Admin) -> None:
    admin.create_topics({"pattern-a": 1, "pattern-b": 1, "another": 1})
    with Producer(bootstrap) as producer:
        for name in ("pattern-a", "pattern-b", "another"):
            producer.send(name, name.encode())
        producer.flush()

    def topics(option: str, value: str) -> set[str]:
        reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option(option, value)
        return {row.topic for row in reader.load().collect()}

    assert topics("subscribePattern", "pattern-.*") == {"pattern-a", "pattern-b"}
    assert topics("subscribePattern", " attern-[ab] ") == {"pattern-a", "pattern-b"}  # as with Spark's connector
    assert topics("subscribePattern", "^attern") == set()
    assert topics("subscribePattern", "^pattern-a$") == {"pattern-a"}
    assert topics("subscribe", "another, pattern-a") == {"another", "pattern-a"}
    assert topics("assign", '{"pattern-b": [0]}') == {"pattern-b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "cannot start at latest"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"kafka.group.instance": "x", "minPartitions": "none"}, "minPartitions"),
    ],
)
def test_a_mistake_fails_at_planning_and_names_the_option(load: Load, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        load(**options).count()


def test_an_unknown_column_is_refused(load: Load) -> None:
    with pytest.raises(PySparkException, match="no column 'price'"):
        load("price double").count()


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("end", [None, 9])
def test_a_start_beyond_the_end_of_the_log_is_refused(
    load: Load, topic: str, fail_on_data_loss: str, end: int | None
) -> None:
    """Also without an explicit end: the partition must not be left out in silence."""
    start = json.dumps({topic: {"0": 5, "1": 0, "2": 0}})
    ending = {} if end is None else {"endingOffsets": json.dumps({topic: {"0": end, "1": 0, "2": 0}})}
    with pytest.raises(PySparkException, match=f"startingOffsets: {topic}-0 ends at offset 0, before its start 5"):
        load(startingOffsets=start, failOnDataLoss=fail_on_data_loss, **ending).count()


def test_a_start_behind_its_end_is_refused(load: Load, send: Send, topic: str) -> None:
    send(range(9))
    start = json.dumps({topic: {"0": 7, "1": 0, "2": 0}})
    end = json.dumps({topic: {"0": 3, "1": 0, "2": 0}})
    with pytest.raises(PySparkException, match=f"endingOffsets: {topic}-0 is to be read from offset 7 to 3"):
        load(startingOffsets=start, endingOffsets=end).count()


def test_times_that_are_given_the_wrong_way_round_are_refused(load: Load, send: Send) -> None:
    send(range(3), timestamp=1000)
    send(range(3, 6), timestamp=2000)
    with pytest.raises(PySparkException, match="endingTimestamp: .*-0 is to be read from offset 3 to 0"):
        load(startingTimestamp=1500, endingTimestamp=500, startingOffsetsByTimestampStrategy="latest").count()


def test_an_end_that_the_log_has_not_reached_is_read_as_far_as_it_goes(load: Load, send: Send, topic: str) -> None:
    """With failOnDataLoss=false; without it a task waits, see the next test."""
    send(range(5))
    start = json.dumps({topic: {"0": 2, "1": 0, "2": 0}})
    end = json.dumps({topic: {"0": 9, "1": 0, "2": 4}})
    rows = positions(load(startingOffsets=start, endingOffsets=end, failOnDataLoss="false"))
    assert rows == [(0, offset, str(offset)) for offset in (2, 3, 4)]


def test_a_task_waits_for_records_as_long_as_the_option_says(load: Load, send: Send, topic: str) -> None:
    send(range(5))
    end = json.dumps({topic: {"0": 9, "1": 0, "2": 0}})
    start = json.dumps({topic: {"0": 0, "1": 0, "2": 0}})
    with pytest.raises(PySparkException, match="no record at or after offset 5 .* within 600 ms"):
        load(startingOffsets=start, endingOffsets=end, **{"kafkaConsumer.pollTimeoutMs": 600}).count()


def test_spark_finds_the_data_source_without_loading_what_reads_and_writes() -> None:
    """Spark looks the name up in processes of their own, which need neither Arrow nor a client."""
    program = "import sys, pyspark_tailrace\nprint(*{'pyarrow', 'numpy', 'asyncio'} & sys.modules.keys())"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""


def test_spark_calls_the_data_source_by_these_parameter_names() -> None:
    """`schema=` and `overwrite=` are passed by keyword; another name fails with a misleading error."""
    for method, names in {
        "reader": ["schema"],
        "streamReader": ["schema"],
        "writer": ["schema", "overwrite"],
        "streamWriter": ["schema", "overwrite"],
    }.items():
        assert list(inspect.signature(getattr(TailraceDataSource, method)).parameters)[1:] == names
    assert TailraceDataSource.name() == "tailrace"  # a classmethod, callable without an instance


def test_the_name_kafka_stays_sparks_own(spark: SparkSession, bootstrap: str, topic: str, load: Load) -> None:
    """`format("kafka")` cannot be taken over; ours has its own name and needs no registration."""
    assert load(startingTimestamp="now-10m", startingOffsetsByTimestampStrategy="latest").count() == 0
    theirs = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    # The session may have the connector's jars. Without them Spark says so in its words, which change.
    with pytest.raises(Exception, match="Failed to find (the )?data source: kafka|Expected a single long value"):
        theirs.option("startingTimestamp", "now-10m").load().count()


def test_a_table_of_the_catalog_says_how_its_options_are_given(
    spark: SparkSession, bootstrap: str, topic: str, send: Send
) -> None:
    """Spark does not hand a table's options to a Python source: with SELECT ... WITH it does."""
    send(range(2))
    options = f"`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}'"
    spark.sql(f"CREATE TABLE orders_table USING tailrace OPTIONS ({options})")
    try:
        with pytest.raises(PySparkException, match=r"SELECT \.\.\. FROM t WITH \(`kafka.bootstrap.servers`"):
            spark.sql("SELECT * FROM orders_table").count()
        given = f"WITH (`kafka.bootstrap.servers` = '{bootstrap}', `subscribe` = '{topic}')"
        assert spark.sql(f"SELECT * FROM orders_table {given}").count() == 2
    finally:
        spark.sql("DROP TABLE orders_table")


def test_rows_are_inserted_into_a_temporary_view(spark: SparkSession, bootstrap: str, topic: str, load: Load) -> None:
    options = f"`kafka.bootstrap.servers` '{bootstrap}', topic '{topic}', subscribe '{topic}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW inserted USING tailrace OPTIONS ({options})")
    columns = "CAST('k' AS BINARY), CAST('v' AS BINARY), '', 2, 0L, current_timestamp(), 0"
    spark.sql(f"INSERT INTO inserted SELECT {columns}")
    assert positions(load()) == [(2, 0, "v")]


def test_a_temporary_view_reads_the_topic(spark: SparkSession, bootstrap: str, topic: str, send: Send) -> None:
    send(range(4))
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW the_topic USING tailrace "
        f"OPTIONS (`kafka.bootstrap.servers` '{bootstrap}', subscribe '{topic}')"
    )
    assert spark.sql("SELECT count(*), max(offset) FROM the_topic").first() == (4, 3)


def test_timestamps_are_utc_to_the_millisecond(load: Load, bootstrap: str, topic: str) -> None:
    moment = datetime(2013, 1, 1, 5, 15, 0, 7000, tzinfo=UTC)
    with Producer(bootstrap) as producer:
        producer.send(topic, b"x", timestamp=int(moment.timestamp() * 1000))
        producer.flush()
    (row,) = load().selectExpr("date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS text").collect()
    assert row.text == "2013-01-01 05:15:00.007"


def test_only_committed_records_are_read_where_that_is_asked_for(load: Load, bootstrap: str, topic: str) -> None:
    """As Spark's connector: kafka.isolation.level is the consumer's, and the end is where a transaction is open."""
    producer = librdkafka().Producer(bootstrap, {"transactional.id": topic, "partitioner": "consistent"})
    for number, is_commit in enumerate((True, False, True, None)):
        producer.transact(topic, [Message(b"key", b"%d" % number)] * 3, is_commit=is_commit)
    committed = load(**{"kafka.isolation.level": "read_committed"})
    assert sorted(text for _, _, text in positions(committed)) == ["0"] * 3 + ["2"] * 3
    assert len(positions(load())) == 12
    producer.end(is_commit=False)
    assert sorted(text for _, _, text in positions(committed)) == ["0"] * 3 + ["2"] * 3


def test_times_bound_a_read_of_a_view_by_its_own_records(load: Load, bootstrap: str, admin: Admin) -> None:
    """A slice of the keys without a record at or after a time ends at its own end, and no task waits for a record."""
    first_ms, topic = 1_700_000_000_000, "spark-times"
    admin.create_topics({topic: 1})
    with Producer(bootstrap) as producer:
        for number in range(60):
            key = b"key-%d" % (number % 12 if number < 40 else 0)
            producer.send(topic, b"%d" % number, key=key, partition=0, timestamp=first_ms + 1_000 * number)
        producer.flush()
    options = {"subscribe": f"{topic}.shared-16", "startingTimestamp": str(first_ms + 25_000)}

    def numbers(**more: str) -> list[int]:
        return sorted(int(value) for _, _, value in positions(load(**options, **more)))

    assert numbers() == list(range(25, 60))
    assert numbers(endingTimestamp=str(first_ms + 45_000)) == list(range(25, 45))
    assert numbers(endingTimestamp=str(first_ms + 60_000)) == list(range(25, 60)), "no record is as late"
    options["startingTimestamp"] = str(first_ms + 60_000)
    with pytest.raises(PySparkException, match="no record at or after"):
        numbers()
    assert numbers(startingOffsetsByTimestampStrategy="latest") == []
