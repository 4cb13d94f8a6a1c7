"""`option("exactlyOnce", "true")`: a batch is visible whole or not at all, and once, whatever Spark repeats."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from spark.reading import positions
from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.model.sinks import SinkMember
from tailrace.spark.writing.exactly_once import ExactlyOnce
from tailrace.spark.writing.sink import OnceWriter
from tailrace.spark.writing.sink_options import SinkTransactions, parse_sink_options

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Load = Callable[..., DataFrame]
Send = Callable[..., None]
TIME_LIMIT_S = 60.0
VALUE = StructType([StructField("value", StringType())])


@pytest.fixture
def target(admin: Admin, topic: str) -> str:
    """A topic to write to, of two partitions."""
    name = f"{topic}-copy"
    admin.create_topics({name: 2})
    return name


def committed(bootstrap: str, topic: str) -> list[str]:
    """The values that a read_committed reader of librdkafka sees, up to the end of each partition."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found, ended = [], 0
    try:
        partitions = consumer.list_topics(topic, timeout=TIME_LIMIT_S).topics[topic].partitions
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in partitions])
        while ended < len(partitions):
            message = consumer.poll(TIME_LIMIT_S)
            assert message is not None, "a transaction holds the reader back"
            if message.error() is None:
                found.append(message.value().decode())
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended += 1
    finally:
        consumer.close()
    return found


@pytest.fixture
def copy(spark: SparkSession, bootstrap: str, topic: str, target: str, tmp_path: Path) -> Callable[..., None]:
    """Copies what is new in the topic, as a stream with this checkpoint, and these options of its source and sink."""

    def copy(checkpoint: str = "checkpoint", source_options: Mapping[str, str] | None = None, **options: str) -> None:
        source = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        source = source.options(**(source_options or {}))
        frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = (
            frame.selectExpr("key", "value")
            .writeStream.format("tailrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("exactlyOnce", "true")
            .option("checkpointLocation", str(tmp_path / checkpoint))
        )
        for name, value in options.items():
            writer = writer.option(name, value)
        writer.trigger(availableNow=True).start().awaitTermination()

    return copy


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had been killed between the commit of the sink and its own note of it."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_a_stream_copies_each_record_once_through_restarts(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str
) -> None:
    send(range(10))
    copy()
    send(range(10, 30), partition=1)
    copy()
    assert sorted(map(int, committed(bootstrap, target))) == list(range(30))


def test_a_batch_that_spark_repeats_changes_nothing(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str, tmp_path: Path, load: Load
) -> None:
    send(range(10))
    copy()
    forget_last_commit(tmp_path / "checkpoint")
    copy()
    assert sorted(map(int, committed(bootstrap, target))) == list(range(10))
    send(range(10, 20))
    copy()
    assert sorted(map(int, committed(bootstrap, target))) == list(range(20))
    rows = positions(load(subscribe=target))
    assert sorted(int(value) for _, _, value in rows) == list(range(20)), "a repeated batch is not even written"


def test_a_repeated_batch_may_have_other_tasks_and_a_target_with_more_partitions(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str, topic: str, tmp_path: Path, admin: Admin
) -> None:
    send(range(40))
    copy(source_options={"keyRangesPerPartition": "4"})
    before = committed(bootstrap, target)
    admin.create_partitions({target: 5, topic: 4})
    forget_last_commit(tmp_path / "checkpoint")
    copy(source_options={"minPartitions": "7"})
    assert sorted(committed(bootstrap, target)) == sorted(before)
    assert sorted(map(int, before)) == list(range(40))
    send(range(40, 50), partition=3)
    copy(source_options={"keyRangesPerPartition": "3"})
    assert sorted(map(int, committed(bootstrap, target))) == list(range(50))


def test_a_batch_that_comes_again_with_other_rows_is_refused_by_name(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str, tmp_path: Path
) -> None:
    """The checkpoint comes from a backup one batch older than the sink, and new records have come."""
    send(range(10))
    copy()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    send(range(10, 20))
    copy()
    send(range(20, 30))
    shutil.rmtree(tmp_path / "checkpoint")
    (tmp_path / "backup").rename(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=r"batch 1 with 10 rows.* 20 of them.*sinkKeepsBatch=1"):
        copy()
    with pytest.raises(StreamingQueryException, match="sinkKeepsBatch"):
        copy(sinkKeepsBatch="0")
    assert sorted(map(int, committed(bootstrap, target))) == list(range(20))
    copy(sinkId=f"{target}-anew")
    assert sorted(set(map(int, committed(bootstrap, target)))) == list(range(30))


def test_a_query_whose_rows_are_never_the_same_keeps_those_of_its_first_attempt(
    spark: SparkSession, send: Send, bootstrap: str, topic: str, target: str, tmp_path: Path
) -> None:
    source = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
    frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load()

    def copy(**options: str) -> None:
        writer = frame.selectExpr("uuid() AS value").writeStream.format("tailrace").options(**options)
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
        writer = writer.option("exactlyOnce", "true").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    send(range(10))
    copy()
    first = committed(bootstrap, target)
    forget_last_commit(tmp_path / "checkpoint")
    with pytest.raises(StreamingQueryException, match=r"uuid\(\).*sinkKeepsBatch=any"):
        copy()
    copy(sinkKeepsBatch="any")
    assert sorted(committed(bootstrap, target)) == sorted(first)


def test_a_query_on_a_copied_checkpoint_is_refused(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str, tmp_path: Path
) -> None:
    send(range(10))
    copy()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "other")
    send(range(10, 20))
    with pytest.raises(StreamingQueryException, match="other"):
        copy("other")
    copy()
    assert sorted(map(int, committed(bootstrap, target))) == list(range(20))


def test_a_moved_checkpoint_goes_on_when_its_query_takes_the_sink_over(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str, tmp_path: Path
) -> None:
    send(range(10))
    copy()
    (tmp_path / "checkpoint").rename(tmp_path / "moved")
    send(range(10, 20))
    copy("moved", sinkTakesOver="true")
    send(range(20, 30))
    copy("moved")
    assert sorted(map(int, committed(bootstrap, target))) == list(range(30))


def test_a_new_checkpoint_does_not_skip_batches_that_the_sink_has_seen(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str
) -> None:
    for first in (0, 10):
        send(range(first, first + 10))
        copy(sinkId=f"{target}-sink")
    with pytest.raises(StreamingQueryException, match="sinkId"):
        copy("new", sinkId=f"{target}-sink", sinkTakesOver="true")
    assert sorted(map(int, committed(bootstrap, target))) == list(range(20))


def test_a_checkpoint_that_is_made_anew_in_the_same_place_does_not_pass_for_the_old_one(
    copy: Callable[..., None], send: Send, bootstrap: str, target: str, tmp_path: Path
) -> None:
    """The first batch has the number of the last batch before, and other rows."""
    send(range(10))
    copy(sinkId=f"{target}-sink")
    shutil.rmtree(tmp_path / "checkpoint")
    send(range(10, 20))
    with pytest.raises(StreamingQueryException, match="query"):
        copy(sinkId=f"{target}-sink")
    assert sorted(map(int, committed(bootstrap, target))) == list(range(10))


@pytest.fixture
def save(bootstrap: str, target: str) -> Callable[..., None]:
    def save(frame: DataFrame, **options: str) -> None:
        writer = frame.write.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        for name, value in {"topic": target, "exactlyOnce": "true", **options}.items():
            writer = writer.option(name, value)
        writer.mode("append").save()

    return save


def test_a_batch_write_is_visible_whole(
    spark: SparkSession, save: Callable[..., None], bootstrap: str, target: str
) -> None:
    save(spark.range(0, 5_000, 1, 4).selectExpr("CAST(id AS STRING) AS value"))
    assert sorted(map(int, committed(bootstrap, target))) == list(range(5_000))


def test_a_batch_write_of_which_a_task_fails_leaves_nothing(
    spark: SparkSession, save: Callable[..., None], bootstrap: str, target: str
) -> None:
    failing = "CASE WHEN id = 4999 THEN raise_error('the last row fails') ELSE CAST(id AS STRING) END AS value"
    frame = spark.range(0, 5_000, 1, 4).selectExpr(failing)
    with pytest.raises(PySparkException, match="the last row fails"):
        save(frame)
    save(spark.range(5).selectExpr("CAST(id AS STRING) AS value"))
    assert sorted(map(int, committed(bootstrap, target))) == list(range(5))


def test_a_batch_write_with_a_sink_of_its_own_is_done_once(
    spark: SparkSession, save: Callable[..., None], bootstrap: str, target: str
) -> None:
    for _ in range(2):
        save(spark.range(100).selectExpr("CAST(id AS STRING) AS value"), sinkId=f"{target}-of-today")
    with pytest.raises(PySparkException, match=r"with 100 rows.* 101 of them.*another sinkId"):
        save(spark.range(101).selectExpr("CAST(id AS STRING) AS value"), sinkId=f"{target}-of-today")
    assert sorted(map(int, committed(bootstrap, target))) == list(range(100))


def test_a_sink_of_for_each_batch_takes_one_batch(
    spark: SparkSession, save: Callable[..., None], bootstrap: str, topic: str, target: str, send: Send, tmp_path: Path
) -> None:
    """Batches of equal rows would pass for repetitions if their writes had one sink."""

    def run(sink: Callable[[int], str]) -> None:
        source = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load().selectExpr("value")
        writer = frame.writeStream.foreachBatch(lambda batch, number: save(batch, sinkId=sink(number)))
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        writer.start().awaitTermination()

    for _ in range(2):
        send(["tick"])
        run(lambda number: f"{target}-{number}")
    assert committed(bootstrap, target) == ["tick"] * 2
    forget_last_commit(tmp_path / "checkpoint")
    run(lambda number: f"{target}-{number}")
    assert committed(bootstrap, target) == ["tick"] * 2, "the same batch again"
    send(["tick"])
    with pytest.raises(
        StreamingQueryException, match=r"in its batch 1', not from .* in its batch 2'.* sink id of its own"
    ):
        run(lambda number: f"{target}-{min(number, 1)}")
    assert committed(bootstrap, target) == ["tick"] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sinkId": "orders"}, "option sinkId: has a meaning with exactlyOnce=true alone"),
        ({"sinkTakesOver": "true"}, "option sinkTakesOver"),
        ({"kafka.transaction.timeout.ms": "1000"}, "option kafka.transaction.timeout.ms"),
        ({"exactlyOnce": "true", "sinkId": "a/b"}, "option sinkId"),
        ({"exactlyOnce": "true", "sinkId": "a" * 201}, "option sinkId"),
        ({"sinkKeepsBatch": "3"}, "option sinkKeepsBatch: has a meaning with exactlyOnce=true alone"),
        ({"exactlyOnce": "true", "sinkKeepsBatch": "all"}, "option sinkKeepsBatch: must be the number of a batch, or"),
        ({"exactlyOnce": "true", "sinkKeepsBatch": "-1"}, "option sinkKeepsBatch"),
        ({"exactlyOnce": "yes"}, "option exactlyonce|option exactlyOnce"),
        ({"kafka.transactional.id": "mine"}, "exactlyOnce=true"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        parse_sink_options({"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "orders", **options})


TOO_LONG = {"exactlyOnce": "true", "sinkId": "slow", "kafka.transaction.timeout.ms": "900001"}


def test_a_timeout_that_the_brokers_do_not_allow_is_refused_before_a_task_runs(bootstrap: str, target: str) -> None:
    options = parse_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": target, **TOO_LONG})
    limit = r"900001 is more than transaction.max.timeout.ms of broker \d, 900000: give less"
    with pytest.raises(KafkaError, match=f"option kafka.transaction.timeout.ms: {limit}"):
        OnceWriter(VALUE, options, options.transactions or SinkTransactions())


def test_a_task_names_the_option_of_a_timeout_that_its_coordinator_does_not_allow(bootstrap: str, target: str) -> None:
    """The limits of brokers may differ, and a broker may not answer the driver."""
    options = parse_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": target, **TOO_LONG})
    sink = ExactlyOnce(options, options.transactions or SinkTransactions())
    rows = pa.RecordBatch.from_pydict({"value": ["v"]})
    with pytest.raises(
        KafkaError, match=r"option kafka.transaction.timeout.ms: 900001 is more than transaction.max.timeout.ms of the"
    ):
        sink.write(SinkMember("slow", "run", 0, 0, 0), iter([rows]))
    assert committed(bootstrap, target) == []


def test_the_defaults_are_those_of_a_sink_of_its_query() -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "orders", "exactlyonce": "TRUE"}
    assert parse_sink_options(options).transactions == SinkTransactions()
    assert parse_sink_options({**options, "exactlyOnce": "false"}).transactions is None
