"""`tailrace spark checkpoint` on directories such as Spark writes, against a real node. No Spark runs here."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tailrace.cli.spark.checkpoint_directory import move_checkpoint, read_checkpoint
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin, Producer
from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId, format_topic_id
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.commands import CommandResult, Run, run_command

CONNECTOR = Path(__file__).parents[2] / "golden" / "connector_checkpoint"
QUERY = "0b6cbb38-0000-4000-8000-{:012}"
OTHER_SOURCE = '{"offset":3,"timestamp":1000}'
DAY_MS = 86_400_000

_numbers = count()
Json = Mapping[str, Mapping[str, int]]


@pytest.fixture
def admin(tailrace_cluster: Cluster) -> Iterator[Admin]:
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(admin: Admin, tailrace_cluster: Cluster) -> str:
    """A topic of two partitions; the first has ten records, the record at offset N of day N since 1970."""
    name = f"checkpoints-{next(_numbers)}"
    forever = {"retention.ms": "-1"}  # also records of 1970
    admin.create_topics([NewTopic(name=name, partitions=2, configs=forever)])
    fill(tailrace_cluster, name, 10)
    return name


def fill(cluster: Cluster, topic: str, records: int) -> None:
    with Producer(cluster.bootstrap_servers) as producer:
        for day in range(records):
            producer.send(topic, b"v", partition=0, timestamp=day * DAY_MS).result()


class CheckpointOnDisk:
    """A checkpoint as Spark writes it: two committed batches, and Hadoop's checksums."""

    def __init__(self, directory: Path, number: int) -> None:
        self.directory = directory
        self.query_id = QUERY.format(number)
        directory.mkdir()
        for name in ("offsets", "commits"):
            (directory / name).mkdir()
        self._write("metadata", json.dumps({"id": self.query_id}))

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        path.with_name(f".{path.name}.crc").write_bytes(b"crc\0")

    def plan(self, number: int, *sources: Json | str) -> None:
        lines = [source if isinstance(source, str) else json.dumps(source) for source in sources]
        self._write(f"offsets/{number}", "\n".join(("v1", '{"batchWatermarkMs":0}', *lines)))

    def commit(self, number: int, *sources: Json | str) -> None:
        self.plan(number, *sources)
        self._write(f"commits/{number}", 'v1\n{"nextBatchWatermarkMs":0}')

    def end(self, number: int) -> list[Any]:
        return [json.loads(line) for line in (self.directory / f"offsets/{number}").read_text().split("\n")[2:]]

    def files(self) -> dict[str, bytes]:
        paths = [path for path in self.directory.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.directory)): path.read_bytes() for path in paths}

    def backups(self) -> list[Path]:
        return list(self.directory.parent.glob(f"{self.directory.name}.backup-*"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> CheckpointOnDisk:
    return CheckpointOnDisk(tmp_path / "checkpoint", next(_numbers))


@pytest.fixture
def run(
    checkpoint: CheckpointOnDisk,
    tailrace_cluster: Cluster,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """Run `tailrace spark checkpoint VERB` on the checkpoint."""
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", tailrace_cluster.bootstrap_servers)

    def call(verb: str, *words: str, directory: str | Path = checkpoint.directory) -> CommandResult:
        return run_command(("spark", "checkpoint", verb, str(directory), *words), capsys)

    return call


def id_of(admin: Admin, topic: str) -> TopicId:
    (described,) = admin.describe_topics([topic])
    return described.topic_id


def with_id(offsets: Json, topic_id: TopicId) -> Json:
    (topic,) = offsets
    return {**offsets, f"{topic}#{format_topic_id(topic_id)}": {}}


def verdicts(done: CommandResult) -> dict[str, str]:
    assert done.code == 0, done.err
    return {f"{row['TOPIC']}-{row['PARTITION']}": row["VERDICT"] for row in json.loads(done.out)}


def test_each_partition_has_its_place_and_a_verdict(
    run: Run, checkpoint: CheckpointOnDisk, admin: Admin, topic: str
) -> None:
    admin.delete_records({TopicPartition(topic, 0): 4})
    topic_id = id_of(admin, topic)
    checkpoint.commit(0, with_id({topic: {"0": 0, "1": 0}}, topic_id))
    checkpoint.commit(1, with_id({topic: {"0": 1, "1": 2, "5": 3}}, topic_id))
    done = run("show", "-o", "json")
    first, second, third = json.loads(done.out)
    shown = format_topic_id(topic_id)
    assert first == {
        "SOURCE": 0,
        "TOPIC": topic,
        "PARTITION": 0,
        "OFFSET": 1,
        "LOG-START-OFFSET": 4,
        "LOG-END-OFFSET": 10,
        "LAG": 6,
        "LOST": 3,
        "TOPIC-ID": shown,
        "CURRENT-TOPIC-ID": shown,
        "VERDICT": "would lose 3",
    }
    assert (second["VERDICT"], second["LAG"]) == ("ahead of the log", None)
    assert (third["VERDICT"], third["LOG-END-OFFSET"]) == ("gone", None)
    assert done.err == f"query {checkpoint.query_id}, after batch 1\n"
    table = run("show").out.splitlines()
    assert table[0].split()[:4] == ["SOURCE", "TOPIC", "PARTITION", "OFFSET"]
    assert table[1].endswith("would lose 3")


def test_a_topic_made_anew_and_one_that_is_gone_are_told_apart(
    run: Run, checkpoint: CheckpointOnDisk, topic: str
) -> None:
    checkpoint.commit(0, with_id({topic: {"0": 5}}, TopicId(b"another topic id")), {"never-there": {"0": 5}})
    assert verdicts(run("show", "-o", "json")) == {f"{topic}-0": "made anew", "never-there-0": "gone"}


def test_a_planned_batch_other_sources_and_new_partitions_are_reported(
    run: Run, checkpoint: CheckpointOnDisk, topic: str
) -> None:
    checkpoint.commit(0, OTHER_SOURCE, {topic: {"0": 5}})
    checkpoint.plan(1, OTHER_SOURCE, {topic: {"0": 7}})
    done = run("show", "-o", "json")
    assert verdicts(done) == {f"{topic}-0": "resumes"}
    assert "batch 1 is planned and not committed: the query repeats it first" in done.err
    assert f"source 0 does not read topics, and is left as it is: {OTHER_SOURCE}" in done.err
    assert f"read from their first record: {topic}-1" in done.err


def test_a_query_without_a_committed_batch_has_no_offsets(run: Run, checkpoint: CheckpointOnDisk, topic: str) -> None:
    checkpoint.plan(0, {topic: {"0": 5}})
    done = run("show", "-o", "json")
    assert (done.code, json.loads(done.out)) == (0, [])
    assert "has committed no batch: it begins at its startingOffsets" in done.err
    done = run("move", "--to-time", "now-1h", "--drop-planned-batch")
    assert done.code == 1
    assert "say startingOffsets or startingTimestamp" in done.err


def test_the_connectors_checkpoint_is_shown_and_moved_in_its_form(
    run: Run, checkpoint: CheckpointOnDisk, topic: str
) -> None:
    shutil.rmtree(checkpoint.directory)
    shutil.copytree(CONNECTOR, checkpoint.directory)
    path = checkpoint.directory / "offsets" / "1"
    path.write_text(path.read_text().replace("orders", topic))
    (first, second) = json.loads(run("show", "-o", "json").out)
    assert (first["TOPIC-ID"], first["VERDICT"]) == (None, "resumes")
    assert second["VERDICT"] == "ahead of the log"
    before = path.read_text()
    assert run("move", "--to-time", "1970-01-04").code == 0
    assert path.read_text() == before.replace('{"0":8,"1":8}', '{"0":3,"1":0}')


def test_a_dry_run_shows_the_move_and_changes_nothing(run: Run, checkpoint: CheckpointOnDisk, topic: str) -> None:
    checkpoint.commit(0, {topic: {"0": 5, "1": 0}})
    before = checkpoint.files()
    done = run("move", "--to-time", str(2 * DAY_MS), "--dry-run", "-o", "json")
    assert [(row["PARTITION"], row["OFFSET"], row["NEW-OFFSET"], row["VERDICT"]) for row in json.loads(done.out)] == [
        (0, 5, 2, "resumes"),
        (1, 0, 0, "resumes"),
    ]
    assert done.err == "nothing has been changed: repeat it without --dry-run\n"
    assert checkpoint.files() == before
    assert checkpoint.backups() == []


@pytest.mark.parametrize(
    ("time", "offset"),
    [
        ("1970-01-03T00:00:00.001", 3),
        ("1969-12-31T23:59:59.999", 0),
        ("0", 0),
        ("now-1s", 10),
        ("2026-01-31T12:00", 10),
    ],
)
def test_a_move_goes_to_the_first_record_at_or_after_a_time(
    run: Run, checkpoint: CheckpointOnDisk, topic: str, time: str, offset: int
) -> None:
    checkpoint.commit(0, {topic: {"0": 5}})
    done = run("move", "--to-time", time)
    assert done.code == 0, done.err
    assert checkpoint.end(0) == [{topic: {"0": offset}}]


def test_a_move_keeps_a_copy_and_takes_the_checksum_away(run: Run, checkpoint: CheckpointOnDisk, topic: str) -> None:
    checkpoint.commit(0, {topic: {"0": 1}})
    checkpoint.commit(1, OTHER_SOURCE, {topic: {"0": 5}})
    before = checkpoint.files()
    done = run("move", "--to-time", "0")
    (backup,) = checkpoint.backups()
    assert done.err.splitlines()[1:] == [f"batch 1 ends there now; {backup} has the files as they were"]
    after = checkpoint.files()
    assert before.keys() - after.keys() == {"offsets/.1.crc"}
    assert {name for name, content in after.items() if before[name] != content} == {"offsets/1"}
    assert checkpoint.end(1) == [json.loads(OTHER_SOURCE), {topic: {"0": 0}}]
    shutil.copytree(backup, checkpoint.directory, dirs_exist_ok=True)
    assert checkpoint.files() == before


def test_a_move_to_where_the_query_stands_changes_nothing(
    run: Run, checkpoint: CheckpointOnDisk, admin: Admin, topic: str
) -> None:
    other = f"{topic}.other"
    admin.create_topics({other: 1})
    checkpoint.commit(0, *(with_id({name: {"0": 0}}, id_of(admin, name)) for name in (topic, other)))
    before = checkpoint.files()
    assert run("move", "--to-time", "0").err == "nothing has been changed: the query stands there\n"
    assert (checkpoint.files(), checkpoint.backups()) == (before, [])


def test_a_renamed_topic_has_the_new_ones_id(
    run: Run, checkpoint: CheckpointOnDisk, admin: Admin, tailrace_cluster: Cluster, topic: str
) -> None:
    new = f"{topic}.moved"
    admin.create_topics({new: 2})
    fill(tailrace_cluster, new, 6)
    checkpoint.commit(0, with_id({topic: {"0": 5, "1": 0}}, id_of(admin, topic)))
    done = run("move", "--rename", f"{topic}={new}")
    assert done.code == 0, done.err
    assert f"start the query with a subscription to {new}" in done.err
    assert checkpoint.end(0) == [with_id({new: {"0": 5, "1": 0}}, id_of(admin, new))]
    assert verdicts(run("show", "-o", "json")) == {f"{new}-0": "resumes", f"{new}-1": "resumes"}


def test_a_topic_made_anew_is_resumed_by_time(run: Run, checkpoint: CheckpointOnDisk, admin: Admin, topic: str) -> None:
    checkpoint.commit(0, with_id({topic: {"0": 50}}, TopicId(b"another topic id")))
    assert run("move", "--to-time", "1970-01-08").code == 0
    assert checkpoint.end(0) == [with_id({topic: {"0": 7}}, id_of(admin, topic))]


def test_a_topic_may_be_renamed_and_moved_in_one_step(
    run: Run, checkpoint: CheckpointOnDisk, admin: Admin, topic: str
) -> None:
    new = f"{topic}.copied"
    admin.create_topics({new: 1})
    checkpoint.commit(0, {topic: {"0": 5}}, {"never-there": {"0": 2}})
    done = run("move", "--rename", f"{topic}={new}")
    assert done.code == 1
    assert f"{new}-0 ends at offset 0, before 5: say --to-time as well" in done.err
    done = run("move", "--rename", f"{topic}={new}", "--to-time", "0", "--topic", new)
    assert done.code == 0, done.err
    assert checkpoint.end(0) == [{new: {"0": 0}}, {"never-there": {"0": 2}}]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "--rename, --to-time or both"),
        (("--rename", "a=b", "--topic", "x"), 2, "is for --to-time"),
        (("--rename", "orders"), 2, "'orders' is not OLD=NEW"),
        (("--rename", "a=b", "--rename", "a=c"), 2, "each OLD once"),
        (("--to-time", "yesterday"), 2, "'yesterday' is no time"),
        (("--to-time", "9" * 30), 2, "is no time"),
        (("--rename", "absent=b"), 1, "no offsets of topic 'absent'; its topics: "),
        (("--to-time", "0", "--topic", "absent"), 1, "--topic: the checkpoint has no offsets of topic 'absent'"),
        (("--rename", "TOPIC=absent"), 1, "there is no partition absent-0"),
    ],
)
def test_a_move_that_cannot_be_is_refused_by_name(
    run: Run, checkpoint: CheckpointOnDisk, topic: str, words: tuple[str, ...], code: int, message: str
) -> None:
    checkpoint.commit(0, {topic: {"0": 5}})
    before = checkpoint.files()
    done = run("move", *(word.replace("TOPIC", topic) for word in words))
    assert done.code == code
    assert message in " ".join(done.err.split())
    assert (checkpoint.files(), checkpoint.backups()) == (before, [])


def test_a_planned_batch_is_dropped_if_that_is_said(run: Run, checkpoint: CheckpointOnDisk, topic: str) -> None:
    checkpoint.commit(0, {topic: {"0": 5}})
    checkpoint.plan(1, {topic: {"0": 7}})
    before = checkpoint.files()
    done = run("move", "--to-time", "0")
    assert done.code == 1
    assert "batch 1 is planned and not committed: start the query once so that it ends" in done.err
    assert (checkpoint.files(), checkpoint.backups()) == (before, [])
    assert run("move", "--to-time", "0", "--drop-planned-batch").code == 0
    assert sorted(name for name in checkpoint.files() if name.startswith("offsets")) == ["offsets/0"]
    shutil.copytree(checkpoint.backups()[0], checkpoint.directory, dirs_exist_ok=True)
    assert checkpoint.files() == before


def test_a_planned_batch_that_a_sink_has_is_not_dropped(
    run: Run, checkpoint: CheckpointOnDisk, admin: Admin, topic: str
) -> None:
    checkpoint.commit(0, {topic: {"0": 5}})
    checkpoint.plan(1, {topic: {"0": 7}})
    before = checkpoint.files()
    origin = f"query {checkpoint.query_id} with checkpoint file:/x"
    admin.commit_sink(f"sink-of-{topic}", run="r", batch=0, members=(), origin=origin)
    assert run("move", "--to-time", "0", "--drop-planned-batch", "--dry-run").code == 0
    admin.commit_sink(f"sink-of-{topic}", run="r", batch=1, members=(), origin=origin)
    done = run("move", "--to-time", "0", "--drop-planned-batch")
    assert done.code == 1
    assert f"sink 'sink-of-{topic}' has batch 1: the next rows would be taken for it and left out" in done.err
    assert checkpoint.files() == before


def test_a_checkpoint_that_changes_meanwhile_is_left_as_it_is(checkpoint: CheckpointOnDisk) -> None:
    checkpoint.commit(0, {"orders": {"0": 5}})
    stored = read_checkpoint(str(checkpoint.directory))
    assert stored.end is not None
    checkpoint.plan(1, {"orders": {"0": 7}})
    before = checkpoint.files()
    with pytest.raises(KafkaError, match="has changed meanwhile: a query runs on it"):
        move_checkpoint(stored, stored.end, time="T")
    assert checkpoint.files() == before


def _links_batch(directory: Path) -> None:
    (directory / "offsets" / "0").rename(directory / "elsewhere")
    (directory / "offsets" / "0").symlink_to(directory / "elsewhere")


def _links_offsets(directory: Path) -> None:
    (directory / "offsets").rename(directory / "elsewhere")
    (directory / "offsets").symlink_to(directory / "elsewhere")


def _makes_pipe(directory: Path) -> None:
    (directory / "offsets" / "0").unlink()
    os.mkfifo(directory / "offsets" / "0")


def _makes_huge(directory: Path) -> None:
    os.truncate(directory / "offsets" / "0", 1 << 40)


def _cuts_short(directory: Path) -> None:
    os.truncate(directory / "offsets" / "0", 40)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda directory: (directory / "metadata").unlink(), "is no checkpoint of a Spark query"),
        (lambda directory: (directory / "metadata").write_bytes(b""), "metadata: is not JSON"),
        (lambda directory: (directory / "offsets" / "0").unlink(), "offsets/0: is missing"),
        (lambda directory: (directory / "offsets" / "0").write_bytes(b"v2\n{}\n0:{}"), "of version 'v2'"),
        (_links_batch, "offsets/0: is a link"),
        (_links_offsets, "offsets: is a link"),
        (_makes_pipe, "no plain file"),
        (_makes_huge, "no file of a checkpoint is that large"),
        (_cuts_short, "offsets/0, line 3: is not JSON: it is damaged, or cut short"),
    ],
)
@pytest.mark.parametrize("words", [("show",), ("move", "--to-time", "0")])
def test_a_damaged_checkpoint_is_refused_by_name(
    run: Run, checkpoint: CheckpointOnDisk, damage: Callable[[Path], object], message: str, words: tuple[str, ...]
) -> None:
    checkpoint.commit(0, {"orders": {"0": 5}})
    damage(checkpoint.directory)
    done = run(*words)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
    assert checkpoint.backups() == []


def test_a_directory_on_this_machine_is_named_in_both_ways(
    run: Run, checkpoint: CheckpointOnDisk, topic: str, tmp_path: Path
) -> None:
    checkpoint.commit(0, {topic: {"0": 5}})
    assert run("show", directory=f"file:{checkpoint.directory}").code == 0
    assert run("show", directory=f"file://{checkpoint.directory}").code == 0
    for place in ("s3://bucket/checkpoint", "hdfs://node/checkpoint", "dbfs:/checkpoint"):
        done = run("show", directory=place)
        assert done.code == 1
        assert f"{place}: is not on this machine: stop the query, copy its checkpoint here" in done.err
    assert "is no directory" in run("show", directory=tmp_path / "absent").err
