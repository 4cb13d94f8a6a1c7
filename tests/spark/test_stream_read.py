"""`spark.readStream.format("tailrace")`: offsets, limits, restarts, and the traps of Spark's streaming interface."""

import json
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterable
from itertools import cycle, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import StructType

from spark.reading import positions
from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.spark import session
from tailrace.spark.offsets import Offsets, Positions, from_json_dict
from tailrace.spark.reading import planning, stream_reader
from tailrace.spark.reading.look_pace import ROUND_S, LookPace
from tailrace.spark.reading.planning import Planner
from tailrace.spark.reading.readers import Work
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader
from tailrace.spark.session import GroupProgress
from tailrace.spark.source import ROW
from testkit.programs.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Send = Callable[..., None]
SCHEMA = StructType([field for field in ROW.fields if field.name in ("partition", "offset", "value")])


class Stream:
    """AvailableNow runs of one query: each reads what is there and ends."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.topic = topic
        self.directory = directory

    def run(self, **options: object) -> list[dict[str, Any]]:
        """Run to the present end; return the progress of each batch."""
        reader = self.spark.readStream.format("tailrace").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        query = (
            reader.load()
            .writeStream.format("parquet")
            .option("path", str(self.directory / "rows"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(progress.json) for progress in query.recentProgress]

    def rows(self) -> list[tuple[int, int, str]]:
        return positions(self.spark.read.parquet(str(self.directory / "rows")))

    def offsets(self) -> list[dict[str, dict[str, int]]]:
        """The progress that Spark notes for each batch."""
        files = [path for path in (self.directory / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
        return [json.loads(path.read_text().splitlines()[2]) for path in sorted(files, key=lambda p: int(p.name))]


@pytest.fixture
def stream(spark: SparkSession, bootstrap: str, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, bootstrap, topic, tmp_path)


@pytest.fixture
def reader(bootstrap: str, topic: str) -> TailraceStreamReader:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))


def test_available_now_reads_to_the_end_in_limited_batches(stream: Stream, send: Send) -> None:
    """A source without SupportsTriggerAvailableNow would run one batch and ignore the limit."""
    for partition in range(3):
        send(range(100), partition=partition)
    progress = stream.run(maxOffsetsPerTrigger=70)
    assert [p["numInputRows"] for p in progress if p["numInputRows"]] == [70, 70, 70, 70, 20]
    assert [(p, o) for p, o, _ in stream.rows()] == [(p, o) for p in range(3) for o in range(100)]


def test_a_restart_goes_on_where_the_checkpoint_ends(stream: Stream, send: Send) -> None:
    send(range(10))
    stream.run()
    send(range(10, 25))
    stream.run()
    stream.run()
    assert [value for _, _, value in stream.rows()] == [str(n) for n in range(25)]


def test_offsets_are_sparks_kafka_json_in_one_order_and_never_repeat(stream: Stream, send: Send) -> None:
    """Spark compares the JSON text; the same positions in another order would run an empty batch."""
    send(range(30), partition=2)
    send(range(30), partition=0)
    stream.run(maxOffsetsPerTrigger=25)
    written = stream.offsets()
    assert from_json_dict(written[-1]) == {TopicPartition(stream.topic, n): end for n, end in enumerate((30, 0, 30))}
    assert list(written[-1][stream.topic]) == ["0", "1", "2"]
    assert all(before != after for before, after in pairwise(written))


def test_lag_can_be_read_off_the_progress(stream: Stream, send: Send) -> None:
    send(range(10))
    (source,) = stream.run()[-1]["sources"]
    assert source["latestOffset"][stream.topic]["0"] == 10
    assert source["endOffset"][stream.topic]["0"] == 10


class Clock:
    """A clock on which only pauses take time."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


def test_an_idle_stream_looks_often_at_first_and_less_often_later(
    reader: TailraceStreamReader, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks without pause, so an idle answer must take its time; records must be answered at once."""
    clock = Clock()
    monkeypatch.setattr(stream_reader, "time", clock)
    monkeypatch.setattr(reader, "_pace", LookPace(clock.monotonic()))
    looks: list[int] = []
    latest = Planner.latest

    def counted(planner: Planner, tps: list[TopicPartition]) -> Any:
        looks.append(1)
        return latest(planner, tps)

    monkeypatch.setattr(Planner, "latest", counted)
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert len(looks) > 1
    for _ in range(20):
        reader.latestOffset(start, ReadAllAvailable())
    looks.clear()
    for _ in range(20):
        reader.latestOffset(start, ReadAllAvailable())
    assert len(looks) <= 20, "an idle query looks less often after some seconds"
    send(range(5))
    looks.clear()
    assert reader.latestOffset(start, ReadAllAvailable()) != start
    assert len(looks) == 1
    reader.stop()


def test_initial_offset_may_be_asked_for_again(reader: TailraceStreamReader, send: Send) -> None:
    send(range(5))
    assert json.dumps(reader.initialOffset()) == json.dumps(reader.initialOffset())
    reader.stop()


def test_a_stream_that_starts_at_latest_starts_where_it_was_first_asked(bootstrap: str, topic: str, send: Send) -> None:
    """Spark asks before every trigger until a batch has run: what comes between two of its questions must be read."""
    options = parse_source_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, streaming=True)
    reader = TailraceStreamReader(SCHEMA, options)
    start = reader.initialOffset()
    send(range(5))
    assert reader.initialOffset() == start
    reader.stop()


def test_equal_offsets_plan_nothing(reader: TailraceStreamReader, send: Send) -> None:
    """`partitions(start, end)` may be called with start == end."""
    send(range(5))
    start = reader.initialOffset()
    assert reader.partitions(start, start) == []
    reader.stop()


def test_the_target_of_available_now_is_fixed_before_anything_else(
    reader: TailraceStreamReader, topic: str, send: Send
) -> None:
    """`prepareForTriggerAvailableNow` comes first; what arrives later waits for the next run."""
    send(range(5))
    reader.prepareForTriggerAvailableNow()
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    send(range(5, 9))
    assert reader.latestOffset(start, limit)[topic]["0"] == 5
    reader.stop()


def test_records_that_come_while_available_now_begins_at_latest_are_no_loss(
    bootstrap: str, topic: str, send: Send
) -> None:
    """The target is fixed before the start is asked for, so a busy log may have passed it by then."""
    options = parse_source_options({"kafka.bootstrap.servers": bootstrap, "subscribe": topic}, streaming=True)
    reader = TailraceStreamReader(SCHEMA, options)
    reader.prepareForTriggerAvailableNow()
    send(range(5))
    start = reader.initialOffset()
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    reader.stop()


def test_a_reader_in_use_can_be_pickled_and_its_copy_reads(reader: TailraceStreamReader, send: Send) -> None:
    """Sockets stay behind; what a batch needs is in its partitions."""
    send(range(5))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(3))
    (work,) = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    assert isinstance(work, Work)
    copy = pickle.loads(pickle.dumps(reader))
    assert [row for batch in copy.read(work) for row in batch.column("offset").to_pylist()] == [0, 1, 2]
    reader.stop()


def test_a_partition_found_later_enters_with_its_first_offset_and_no_rows(
    reader: TailraceStreamReader, send: Send, topic: str
) -> None:
    send(range(5), partition=2)
    start = {topic: {"0": 0, "1": 0}}
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end[topic] == {"0": 0, "1": 0, "2": 0}
    assert reader.partitions(start, end) == []
    after = reader.latestOffset(end, ReadAllAvailable())
    assert after[topic]["2"] == 5
    reader.stop()


def test_min_offsets_wait_for_enough_records(bootstrap: str, topic: str, send: Send) -> None:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "10",
    }
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    send(range(4))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert start[topic]["0"] == 4, "the first batch of a run does not wait"
    send(range(4, 13))
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    send(range(13, 14))
    assert reader.latestOffset(start, ReadAllAvailable())[topic]["0"] == 14
    reader.stop()


def test_a_stream_that_waits_for_enough_records_takes_its_time(bootstrap: str, topic: str, send: Send) -> None:
    """With a few records there and too few for a batch, the reader must not ask without pause either."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "10",
    }
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    send(range(9))
    start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    send(range(9, 18))
    began = time.monotonic()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    assert time.monotonic() - began >= ROUND_S
    reader.stop()


@pytest.mark.parametrize("records", [0, 3, 5, 9])
def test_a_topic_created_again_is_reported_as_loss(
    reader: TailraceStreamReader, admin: Admin, topic: str, send: Send, records: int
) -> None:
    """A topic is known by its id: also a topic that is longer than the deleted topic is reported."""
    send(range(5))
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    admin.delete_topics([topic])
    admin.create_topics({topic: 3})
    send(range(records))
    lost = f"topic {topic} was deleted and created again: .*{topic}-0 from offset 5 on.*failOnDataLoss=false"
    with pytest.raises(Exception, match=lost):
        reader.latestOffset(at, ReadAllAvailable())
    reader.stop()


@pytest.mark.parametrize("records", [0, 3, 5, 9])
def test_without_fail_on_data_loss_a_topic_created_again_is_read_from_its_first_record(
    bootstrap: str, admin: Admin, topic: str, send: Send, records: int
) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    options["failOnDataLoss"] = "false"
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    send(range(5))
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    admin.delete_topics([topic])
    admin.create_topics({topic: 2})
    send(range(records))
    end = reader.latestOffset(at, ReadAllAvailable())
    assert end[topic] == {"0": records, "1": 0}
    planned = [piece for work in reader.partitions(at, end) for piece in work.value]
    assert [(piece.start, piece.end) for piece in planned] == ([(0, records)] if records else [])
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()


def answer_another_id(monkeypatch: pytest.MonkeyPatch, topic: str, times: Iterable[bool]) -> None:
    """Have brokers answer with another id of the topic, or its own, in turn; with its own behind the last."""
    partitions, answers = Planner.partitions, iter(times)

    def answer(planner: Planner) -> list[TopicPartition]:
        found = partitions(planner)
        if next(answers, False):
            planner.topic_ids = {topic: TopicId(b"x" * 16)}
        return found

    monkeypatch.setattr(Planner, "partitions", answer)


def test_one_answer_with_another_id_is_no_proof(
    reader: TailraceStreamReader, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has not caught up may describe the topic that was deleted before this topic was made."""
    send(range(5))
    at = reader.initialOffset()
    answer_another_id(monkeypatch, topic, [True])
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert reader.latestOffset(at, ReadAllAvailable())[topic]["0"] == 5
    reader.stop()


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_one_answer_with_another_id_leaves_no_planned_record_out(
    bootstrap: str, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: str
) -> None:
    """After a restart Spark runs the last batch again; the broker that it asks first may lag behind."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    given = parse_source_options({**options, "failOnDataLoss": fail_on_data_loss}, streaming=True)
    send(range(5))
    before = TailraceStreamReader(SCHEMA, given)
    start = before.initialOffset()
    end = before.latestOffset(start, ReadAllAvailable())
    before.stop()
    answer_another_id(monkeypatch, topic, [True])
    restarted = TailraceStreamReader(SCHEMA, given)
    planned = [piece for work in restarted.partitions(start, end) for piece in work.value]
    assert [(piece.start, piece.end) for piece in planned] == [(0, 5)]
    restarted.stop()


def test_brokers_that_disagree_on_a_topic_end_the_plan_of_a_batch(
    bootstrap: str, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    given = parse_source_options({**options, "failOnDataLoss": "false"}, streaming=True)
    send(range(5))
    reader = TailraceStreamReader(SCHEMA, given)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.stop()
    answer_another_id(monkeypatch, topic, cycle([True, False]))
    with pytest.raises(KafkaError, match=f"brokers disagree on whether topic {topic} was deleted and created again"):
        TailraceStreamReader(SCHEMA, given).partitions(start, end)


def test_a_checkpoint_without_ids_is_taken_over(reader: TailraceStreamReader, topic: str, send: Send) -> None:
    """Spark's connector writes no ids; the first batch does."""
    send(range(5))
    at = {topic: {"0": 2, "1": 0, "2": 0}}
    end = reader.latestOffset(at, ReadAllAvailable())
    assert [(piece.start, piece.end) for work in reader.partitions(at, end) for piece in work.value] == [(2, 5)]
    assert Positions.from_json_dict(end).topic_ids.keys() == {topic}
    assert Positions.from_json_dict(reader.latestOffset({topic: end[topic]}, ReadAllAvailable())).topic_ids == {}
    reader.stop()


def test_a_query_that_stands_behind_the_end_of_a_log_goes_on_at_the_end(
    bootstrap: str, topic: str, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """The query's checkpoint has no ids, so that a topic that was made anew looks like a log that was cut."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "failOnDataLoss": "false"}
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    send(range(5))
    at = {topic: {"0": 9, "1": 0, "2": 0}}
    end = reader.latestOffset(at, ReadAllAvailable())
    assert end == {topic: {"0": 5, "1": 0, "2": 0}}
    assert f"{topic}-0 ends at offset 5, before 9" in caplog.text
    assert reader.partitions(at, end) == []
    send(range(5, 8))
    following = reader.latestOffset(end, ReadAllAvailable())
    assert [(piece.start, piece.end) for work in reader.partitions(end, following) for piece in work.value] == [(5, 8)]
    reader.stop()


def test_a_topic_that_is_gone_is_reported_as_loss(bootstrap: str, admin: Admin, topic: str, send: Send) -> None:
    """A pattern finds one topic less: unread records of that topic are lost, as in Spark's connector."""
    admin.create_topics({f"{topic}-more": 1})
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribePattern": f"^{topic}(-more)?$",
        "startingOffsets": "earliest",
    }
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    send(range(5))
    at = reader.initialOffset()
    admin.delete_topics([topic])
    with pytest.raises(Exception, match=f"{topic}-0 is gone.*failOnDataLoss=false"):
        reader.latestOffset(at, ReadAllAvailable())
    reader.stop()


@pytest.mark.parametrize("option", ["subscribe", "assign", "subscribePattern"], ids=lambda option: f"by {option}")
def test_a_checkpoint_of_another_topic_is_told_from_a_loss(
    bootstrap: str, admin: Admin, topic: str, send: Send, caplog: pytest.LogCaptureFixture, option: str
) -> None:
    """The other topic is there, with all its records."""
    other = f"other-{topic}"
    admin.create_topics({other: 3})
    send(range(5))
    chosen = {"subscribe": topic, "assign": json.dumps({topic: [0], other: [1]}), "subscribePattern": f"^{topic}$"}
    options = {"kafka.bootstrap.servers": bootstrap, option: chosen[option]}
    strict = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    at = {other: {"0": 0}}
    why = f"{other}-0 is not read by option {option}, and this query stands at its offset 0.*checkpointLocation.*rename"
    with pytest.raises(KafkaError, match=f"{why}.*failOnDataLoss=false"):
        strict.latestOffset(at, ReadAllAvailable())
    strict.stop()
    lenient = TailraceStreamReader(SCHEMA, parse_source_options({**options, "failOnDataLoss": "false"}, streaming=True))
    assert lenient.latestOffset(at, ReadAllAvailable())[topic]["0"] == 0, "a topic that is new to the query"
    assert re.search(why, caplog.text)
    lenient.stop()


def _fill(bootstrap: str, topic: str, *, partition: int, size: int, records: int) -> None:
    with Producer(bootstrap) as producer:
        for _ in range(records):
            producer.send(topic, b"v" * size, partition=partition)
        producer.flush()


def test_a_batch_has_about_the_bytes_of_its_limit(bootstrap: str, topic: str) -> None:
    """Partitions whose records weigh a hundred times as much get as many bytes as the rest, not as many rows."""
    _fill(bootstrap, topic, partition=0, size=10_000, records=100)
    _fill(bootstrap, topic, partition=1, size=100, records=10_000)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "maxBytesPerTrigger": "200k"}
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    start = {topic: {"0": 0, "1": 0, "2": 0}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert 5 <= end[topic]["0"] <= 15
    assert 500 <= end[topic]["1"] <= 1_500
    assert reader.latestOffset(end, reader.getDefaultReadLimit())[topic]["0"] > end[topic]["0"]
    pickle.loads(pickle.dumps(reader)).stop()
    reader.stop()


def test_both_limits_of_a_batch_hold(bootstrap: str, topic: str) -> None:
    _fill(bootstrap, topic, partition=0, size=10_000, records=100)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    for rows, size, most in ((5, "1g", 5), (1_000, "100k", 15)):
        limits = {"maxOffsetsPerTrigger": str(rows), "maxBytesPerTrigger": size}
        reader = TailraceStreamReader(SCHEMA, parse_source_options({**options, **limits}, streaming=True))
        end = reader.latestOffset({topic: {"0": 0, "1": 0, "2": 0}}, reader.getDefaultReadLimit())
        assert 0 < end[topic]["0"] <= most
        reader.stop()


def test_a_large_first_batch_without_a_limit_is_warned_of_once(
    bootstrap: str, topic: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_reader, "LARGE_BATCH_BYTES", 150_000)
    _fill(bootstrap, topic, partition=0, size=100, records=2_000)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    end = reader.latestOffset({topic: {"0": 0, "1": 0, "2": 0}}, ReadAllAvailable())
    _fill(bootstrap, topic, partition=0, size=100, records=2_000)
    reader.latestOffset(end, ReadAllAvailable())
    reader.stop()
    warnings = [line for line in caplog.messages if "maxBytesPerTrigger" in line]
    assert [line.partition(":")[0] for line in warnings] == ["the first batch has about 0.0 GB in 2000 records"]


def test_a_topic_may_be_deleted_while_a_pattern_is_resolved(
    bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic's partitions are known by then, and its ends can no longer be asked for."""
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribePattern": f"^{topic}(-more)?$",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
    }
    admin.create_topics({f"{topic}-more": 1})
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    at = reader.initialOffset()
    partitions = Planner.partitions
    gone: list[str] = []

    def partitions_then_deletion(planner: Planner) -> list[TopicPartition]:
        found = partitions(planner)
        if not gone:
            gone.append(topic)
            admin.delete_topics([topic])
        return found

    monkeypatch.setattr(Planner, "partitions", partitions_then_deletion)
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    assert gone
    reader.stop()


@pytest.mark.parametrize("kept", [0, 3])
def test_a_batch_planned_before_its_topic_was_created_again_is_cut_to_the_new_log(
    bootstrap: str, admin: Admin, topic: str, send: Send, kept: int
) -> None:
    """After a restart Spark runs the last batch of the checkpoint again, which may be older than the topic."""
    base = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    send(range(kept))
    start, end = {topic: {"0": 2}}, {topic: {"0": 9}}
    strict = TailraceStreamReader(SCHEMA, parse_source_options(base, streaming=True))
    with pytest.raises(Exception, match=f"{topic}-0 ends at offset {kept}, before 9.*failOnDataLoss=false"):
        strict.partitions(start, end)
    strict.stop()
    lenient = TailraceStreamReader(SCHEMA, parse_source_options({**base, "failOnDataLoss": "false"}, streaming=True))
    planned = [piece for work in lenient.partitions(start, end) for piece in work.value]
    assert [(piece.start, piece.end) for piece in planned] == ([(2, 3)] if kept else [])
    lenient.stop()


@pytest.mark.parametrize("loss", ["a topic is deleted", "a topic is made anew"])
def test_an_idle_stream_pauses_although_a_topic_was_deleted_or_created_again(
    bootstrap: str, admin: Admin, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """Positions that will never be equal to the ends of the logs must not make it ask without pause."""
    clock = Clock()
    for module in (planning, stream_reader):
        monkeypatch.setattr(module, "time", clock)
    admin.create_topics({f"{topic}-more": 1})
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribePattern": f"^{topic}(-more)?$",
        "startingOffsets": "earliest",
        "failOnDataLoss": "false",
    }
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    send(range(5))
    at = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    admin.delete_topics([topic])
    if loss == "a topic is made anew":
        admin.create_topics({topic: 3})
    began = clock.monotonic()
    after = reader.latestOffset(at, ReadAllAvailable())
    assert after == at or loss == "a topic is made anew"  # then the positions are the new topic's
    assert clock.monotonic() - began >= ROUND_S
    began = clock.monotonic()
    assert reader.latestOffset(after, ReadAllAvailable()) == after
    assert clock.monotonic() - began == pytest.approx(ROUND_S)
    reader.stop()


def test_a_group_that_cannot_be_updated_does_not_end_the_query(
    bootstrap: str, admin: Admin, topic: str, send: Send
) -> None:
    send(range(5))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": f"{topic}-in-use"}
    with Consumer(bootstrap, group=f"{topic}-in-use", topics=[topic], enable_auto_commit=False) as member:
        wait_until(lambda: member.poll(0.1) == [] and len(member.assignment()) == 3, "the group has a member")
        reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.stop()
    assert admin.group_offsets(f"{topic}-in-use") == {}


@pytest.mark.parametrize("by", ["source", "listener"])
def test_a_deleted_topic_does_not_hold_back_the_progress_of_the_others(
    bootstrap: str,
    admin: Admin,
    topic: str,
    send: Send,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
) -> None:
    """A stream under failOnDataLoss=false keeps a deleted topic in its offsets for ever."""
    for module in (planning, session):
        monkeypatch.setattr(module, "PROGRESS_TIMEOUT_MS", 60_000)
    group = f"{topic}-watchers"
    send(range(7))
    end = {topic: {"0": 7}, f"{topic}-gone": {"0": 3}}
    if by == "source":
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": group}
        options["failOnDataLoss"] = "false"
        reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
        reader.latestOffset(end, ReadAllAvailable())
        reader.stop()
    else:
        progress = SimpleNamespace(name=None, sources=[SimpleNamespace(endOffset=json.dumps(end))])
        GroupProgress(bootstrap, group).onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type]
    assert {tp: found.offset for tp, found in admin.group_offsets(group).items()} == {TopicPartition(topic, 0): 7}
    # No warning came from here; a listener of another test, on another thread, may have something to say.
    logged = [record for record in caplog.records if record.thread == threading.get_ident()]
    messages = [record.getMessage() for record in logged if record.name.startswith("tailrace.spark")]
    assert [message for message in messages if not message.startswith("data loss: ")] == []


def test_the_group_of_a_triggered_run_shows_its_end(
    spark: SparkSession, bootstrap: str, topic: str, admin: Admin, stream: Stream, send: Send
) -> None:
    """Spark asks once more after the last batch; a run without records shows where the query stands."""
    monitored = {"kafka.group.id": f"{topic}-watchers", "maxOffsetsPerTrigger": 10}

    def shown() -> dict[int, int]:
        return {tp.partition: found.offset for tp, found in admin.group_offsets(f"{topic}-watchers").items()}

    for records in (range(40), range(40, 50), range(0)):
        send(records)
        for _ in range(3):  # a slow machine may miss a commit's two seconds in Spark's process
            stream.run(**monitored)
            if (found := shown()) == {0: len(stream.rows()), 1: 0, 2: 0}:
                break
        assert found == {0: len(stream.rows()), 1: 0, 2: 0}
    assert [offset for _, offset, _ in stream.rows()] == list(range(50))


def test_the_end_of_a_triggered_run_is_shown_after_a_fault_too(
    bootstrap: str, topic: str, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault gives the group a rest of half a minute: the offsets of batches in between are not shown."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": "watchers"}
    options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10"}
    shown: list[int] = []

    def show(planner: Planner, group: str, offsets: Offsets) -> None:
        shown.append(offsets[TopicPartition(topic, 0)])
        if len(shown) == 1:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer")

    monkeypatch.setattr(Planner, "show_progress", show)
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    send(range(30))
    at = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    while (end := reader.latestOffset(at, ReadMaxRows(10))) != at:
        at = end
    assert shown == [0, 30]
    reader.stop()


def test_the_end_of_every_batch_is_shown_to_its_group(
    bootstrap: str, topic: str, admin: Admin, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run first shows where it begins."""
    monkeypatch.setattr(planning, "PROGRESS_TIMEOUT_MS", 60_000)
    send(range(30))
    group = f"{topic}-watchers"
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": group}
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    for done in (10, 20, 30):
        reader.latestOffset({topic: {"0": done}}, ReadMaxRows(10))
        shown = {tp: found.offset for tp, found in admin.group_offsets(group).items()}
        assert shown == {TopicPartition(topic, 0): done}
    reader.stop()


def test_a_listener_shows_the_progress_of_every_batch(
    spark: SparkSession, bootstrap: str, admin: Admin, stream: Stream, send: Send
) -> None:
    """Spark reports a batch to the source too late; to the listener it reports the last batch as well."""
    listener = GroupProgress(bootstrap, "shown")
    spark.streams.addListener(listener)
    try:
        send(range(40))
        stream.run(maxOffsetsPerTrigger=10)

        def shown() -> dict[int, int]:
            return {tp.partition: position.offset for tp, position in admin.group_offsets("shown").items()}

        wait_until(lambda: shown().get(0) == 40, "the listener gets the last batch")
        assert shown() == {0: 40, 1: 0, 2: 0}
    finally:
        spark.streams.removeListener(listener)


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
def test_a_wrong_option_is_named_in_the_last_line(
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
