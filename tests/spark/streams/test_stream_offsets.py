"""Offsets that a stream reader gives to Spark: first, latest and limited offsets, and the traps of the interface."""

import json
import pickle
import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark.streams.stream_reads import SCHEMA, Clock
from tailrace.client.blocking import Producer
from tailrace.model.partitions import TopicPartition
from tailrace.spark.reading import stream_reader
from tailrace.spark.reading.look_pace import ROUND_S, LookPace
from tailrace.spark.reading.planning import Planner
from tailrace.spark.reading.readers import Work
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader

Send = Callable[..., None]


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


def test_a_stream_reader_repeats_its_initial_offset(reader: TailraceStreamReader, send: Send) -> None:
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


def test_a_stream_reader_plans_nothing_between_equal_offsets(reader: TailraceStreamReader, send: Send) -> None:
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


def test_a_stream_reader_in_use_can_be_pickled_and_its_copy_reads(reader: TailraceStreamReader, send: Send) -> None:
    """Sockets stay behind; what a batch needs is in its partitions."""
    send(range(5))
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(3))
    (work,) = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    assert isinstance(work, Work)
    copy = pickle.loads(pickle.dumps(reader))
    assert [row for batch in copy.read(work) for row in batch.column("offset").to_pylist()] == [0, 1, 2]
    reader.stop()


def test_a_partition_that_a_stream_finds_later_enters_with_its_first_offset_and_no_rows(
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


def test_min_offsets_per_trigger_wait_for_enough_records(bootstrap: str, topic: str, send: Send) -> None:
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


def _fill(bootstrap: str, topic: str, *, partition: int, size: int, records: int) -> None:
    with Producer(bootstrap) as producer:
        for _ in range(records):
            producer.send(topic, b"v" * size, partition=partition)
        producer.flush()


def test_a_batch_of_a_stream_has_about_the_bytes_of_max_bytes_per_trigger(bootstrap: str, topic: str) -> None:
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


def test_the_limits_of_rows_and_bytes_of_a_stream_batch_both_hold(bootstrap: str, topic: str) -> None:
    _fill(bootstrap, topic, partition=0, size=10_000, records=100)
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
    for rows, size, most in ((5, "1g", 5), (1_000, "100k", 15)):
        limits = {"maxOffsetsPerTrigger": str(rows), "maxBytesPerTrigger": size}
        reader = TailraceStreamReader(SCHEMA, parse_source_options({**options, **limits}, streaming=True))
        end = reader.latestOffset({topic: {"0": 0, "1": 0, "2": 0}}, reader.getDefaultReadLimit())
        assert 0 < end[topic]["0"] <= most
        reader.stop()


def test_a_large_first_batch_of_a_stream_without_a_limit_is_warned_of_once(
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
