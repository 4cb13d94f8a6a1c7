"""The progress of a stream, as offsets of a consumer group."""

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark.streams.stream_reads import SCHEMA, Stream
from tailrace.client.blocking import Admin, Consumer
from tailrace.client.reader_settings import GroupProtocol
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark import session
from tailrace.spark.offsets import Offsets
from tailrace.spark.reading import planning
from tailrace.spark.reading.planning import Planner
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader
from tailrace.spark.session import GroupProgress
from testkit.programs.waiting import wait_until

Send = Callable[..., None]


@pytest.fixture(params=["consumer", "classic"])
def watchers(request: pytest.FixtureRequest, bootstrap: str, topic: str) -> str:
    """A group of each protocol that has had a member, and has not committed."""
    group = f"{topic}-watchers"
    protocol: GroupProtocol = request.param
    with Consumer(bootstrap, group=group, topics=[topic], enable_auto_commit=False, group_protocol=protocol) as member:
        wait_until(lambda: member.poll(0.1) == [] and len(member.assignment()) == 3, "the group has a member")
    return group


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_consumer_group_that_cannot_be_updated_does_not_end_the_query(
    bootstrap: str, admin: Admin, topic: str, send: Send, protocol: GroupProtocol
) -> None:
    send(range(5))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": f"{topic}-in-use"}
    with Consumer(
        bootstrap, group=f"{topic}-in-use", topics=[topic], enable_auto_commit=False, group_protocol=protocol
    ) as member:
        wait_until(lambda: member.poll(0.1) == [] and len(member.assignment()) == 3, "the group has a member")
        reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        reader.stop()
    assert admin.group_offsets(f"{topic}-in-use") == {}


@pytest.mark.parametrize("by", ["source", "listener"])
def test_a_deleted_topic_does_not_hold_back_the_group_progress_of_other_topics(
    bootstrap: str,
    admin: Admin,
    topic: str,
    send: Send,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    by: str,
    watchers: str,
) -> None:
    """A stream under failOnDataLoss=false keeps a deleted topic in its offsets for ever."""
    for module in (planning, session):
        monkeypatch.setattr(module, "PROGRESS_TIMEOUT_MS", 60_000)
    send(range(7))
    end = {topic: {"0": 7}, f"{topic}-gone": {"0": 3}}
    if by == "source":
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": watchers}
        options["failOnDataLoss"] = "false"
        reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
        reader.latestOffset(end, ReadAllAvailable())
        reader.stop()
    else:
        event: Any = SimpleNamespace(
            progress=SimpleNamespace(name=None, sources=[SimpleNamespace(endOffset=json.dumps(end))])
        )
        GroupProgress(bootstrap, watchers).onQueryProgress(event)
    assert {tp: found.offset for tp, found in admin.group_offsets(watchers).items()} == {TopicPartition(topic, 0): 7}
    # No warning came from here; a listener of another test, on another thread, may have something to say.
    logged = [record for record in caplog.records if record.thread == threading.get_ident()]
    messages = [record.getMessage() for record in logged if record.name.startswith("tailrace.spark")]
    assert [message for message in messages if not message.startswith("data loss: ")] == []


def test_the_consumer_group_of_a_triggered_run_shows_the_end_of_the_run(
    spark: SparkSession, bootstrap: str, watchers: str, admin: Admin, stream: Stream, send: Send
) -> None:
    """Spark asks once more after the last batch; a run without records shows where the query stands."""
    monitored = {"kafka.group.id": watchers, "maxOffsetsPerTrigger": 10}

    def shown() -> dict[int, int]:
        return {tp.partition: found.offset for tp, found in admin.group_offsets(watchers).items()}

    for records in (range(40), range(40, 50), range(0)):
        send(records)
        for _ in range(3):  # a slow machine may miss a commit's two seconds in Spark's process
            stream.run(**monitored)
            if (found := shown()) == {0: len(stream.rows()), 1: 0, 2: 0}:
                break
        assert found == {0: len(stream.rows()), 1: 0, 2: 0}
    assert [offset for _, offset, _ in stream.rows()] == list(range(50))


def test_the_end_of_a_triggered_run_is_shown_to_its_group_after_a_fault_too(
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
    bootstrap: str, topic: str, watchers: str, admin: Admin, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run first shows where it begins."""
    monkeypatch.setattr(planning, "PROGRESS_TIMEOUT_MS", 60_000)
    send(range(30))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": watchers}
    reader = TailraceStreamReader(SCHEMA, parse_source_options(options, streaming=True))
    for done in (10, 20, 30):
        reader.latestOffset({topic: {"0": done}}, ReadMaxRows(10))
        shown = {tp: found.offset for tp, found in admin.group_offsets(watchers).items()}
        assert shown == {TopicPartition(topic, 0): done}
    reader.stop()


def test_a_listener_shows_the_progress_of_every_batch(
    spark: SparkSession, bootstrap: str, admin: Admin, stream: Stream, send: Send, watchers: str
) -> None:
    """Spark reports a batch to the source too late; to the listener it reports the last batch as well."""
    listener = GroupProgress(bootstrap, watchers)
    spark.streams.addListener(listener)
    try:
        send(range(40))
        stream.run(maxOffsetsPerTrigger=10)

        def shown() -> dict[int, int]:
            return {tp.partition: position.offset for tp, position in admin.group_offsets(watchers).items()}

        wait_until(lambda: shown().get(0) == 40, "the listener gets the last batch")
        assert shown() == {0: 40, 1: 0, 2: 0}
    finally:
        spark.streams.removeListener(listener)
