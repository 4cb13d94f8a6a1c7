"""Streams whose topic is deleted, created again or renamed: a loss is reported, or the stream goes on by an option."""

import json
import re
from collections.abc import Callable, Iterable
from itertools import cycle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark.streams.stream_reads import SCHEMA, Clock
from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import Positions
from tailrace.spark.reading import planning, stream_reader
from tailrace.spark.reading.look_pace import ROUND_S
from tailrace.spark.reading.planning import Planner
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader

Send = Callable[..., None]


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


def test_a_single_answer_with_another_topic_id_does_not_count_as_a_new_topic(
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
def test_a_single_answer_with_another_topic_id_leaves_no_planned_record_out(
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


def test_a_checkpoint_without_topic_ids_is_taken_over(reader: TailraceStreamReader, topic: str, send: Send) -> None:
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


def test_a_topic_that_a_stream_finds_deleted_is_reported_as_loss(
    bootstrap: str, admin: Admin, topic: str, send: Send
) -> None:
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
