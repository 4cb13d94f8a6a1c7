"""`tailrace spark checkpoint` on checkpoints that Spark has written, and queries that go on from them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.reading import positions
from tailrace.client.blocking import Admin, Producer
from testkit.programs.commands import CommandResult, run_command

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

Send = Callable[..., None]
Run = Callable[..., CommandResult]
Stream = Callable[..., None]
DAY_MS = 86_400_000


@pytest.fixture
def run(bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `tailrace spark checkpoint VERB` on the checkpoint of the test's query."""
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", bootstrap)

    def call(verb: str, *words: str) -> CommandResult:
        return run_command(("spark", "checkpoint", verb, str(tmp_path / "checkpoint"), *words), capsys)

    return call


@pytest.fixture
def copy(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Stream:
    """Copy the records of a topic, as far as there are any, in one run of the test's query."""

    def copy(topic: str, to: str, **options: str) -> None:
        reader = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        rows = reader.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = rows.selectExpr("key", "value").writeStream.format("tailrace").options(**options)
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", to)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()

    return copy


@pytest.fixture
def copied(admin: Admin, spark: SparkSession, bootstrap: str, topic: str) -> Callable[[], list[str]]:
    """The values in the topic `TOPIC.copied`, in order."""
    admin.create_topics({f"{topic}.copied": 1})

    def copied() -> list[str]:
        reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        rows = reader.option("subscribe", f"{topic}.copied").option("kafka.isolation.level", "read_committed").load()
        return sorted(value for _, _, value in positions(rows))

    return copied


def test_a_query_goes_on_in_another_topic_where_it_stood_in_the_old_one(
    run: Run, copy: Stream, copied: Callable[[], list[str]], send: Send, admin: Admin, bootstrap: str, topic: str
) -> None:
    send(range(3))
    send(range(100, 102), partition=2)
    copy(topic, f"{topic}.copied")
    shown = json.loads(run("show", "-o", "json").out)
    assert [(row["OFFSET"], row["LAG"], row["VERDICT"]) for row in shown] == [
        (3, 0, "resumes"),
        (0, 0, "resumes"),
        (2, 0, "resumes"),
    ]
    assert all(row["TOPIC-ID"] == row["CURRENT-TOPIC-ID"] is not None for row in shown)
    new = f"{topic}.moved"
    admin.create_topics({new: 3})
    with Producer(bootstrap) as producer:
        for value, partition in ((0, 0), (1, 0), (2, 0), (3, 0), (50, 1), (100, 2), (101, 2)):
            producer.send(new, b"%d" % value, partition=partition)
    admin.delete_topics([topic])
    assert {row["VERDICT"] for row in json.loads(run("show", "-o", "json").out)} == {"gone"}
    assert run("move", "--rename", f"{topic}={new}").code == 0
    copy(new, f"{topic}.copied")
    assert copied() == ["0", "1", "100", "101", "2", "3", "50"]


def test_a_query_goes_back_in_time_and_an_exactly_once_sink_takes_the_rows_again(
    run: Run, copy: Stream, copied: Callable[[], list[str]], send: Send, topic: str
) -> None:
    for value in range(4):
        send(range(value, value + 1), timestamp=value * DAY_MS)
    copy(topic, f"{topic}.copied", exactlyOnce="true")
    assert copied() == ["0", "1", "2", "3"]
    assert run("move", "--to-time", "1970-01-03").code == 0
    assert {row["VERDICT"] for row in json.loads(run("show", "-o", "json").out)} == {"resumes"}
    for _ in range(2):  # the second run has nothing to do
        copy(topic, f"{topic}.copied", exactlyOnce="true")
    assert copied() == ["0", "1", "2", "2", "3", "3"]
