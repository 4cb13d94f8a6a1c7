"""The client commands against a real node: their output on both streams, and their exit codes."""

import io
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import NoReturn
from uuid import uuid4

import pytest

from tailrace.cli import produce
from tailrace.client import producer
from tailrace.client.blocking import Consumer, ConsumerRecord, Producer
from tailrace.client.blocking import producer as blocking_producer
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.protocol.schema import Buffer
from tailrace.testing import Cluster
from testkit.programs.commands import CommandResult, Run, run_command

SECONDS = 60.0


@pytest.fixture
def run(tailrace_cluster: Cluster, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the node, with these bytes on its stdin."""
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", tailrace_cluster.bootstrap_servers)
    monkeypatch.setattr(producer, "UNKNOWN_TOPIC_WAIT_MS", 60_000)  # a slow machine may take so long to make a topic

    def call(*words: str, stdin: bytes = b"") -> CommandResult:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        return run_command(words, capfdbinary)

    return call


@pytest.fixture
def topic() -> str:
    return f"cli-{uuid4()}"


def test_a_topic_is_created_listed_described_and_deleted(run: Run, topic: str) -> None:
    done = run("topics", "create", topic, "--partitions", "2", "--config", "retention.ms=5000")
    assert (done.code, done.out, done.err) == (0, "", f"created topic {topic}\n")
    assert topic in run("topics", "list").out.splitlines()
    described = run("topics", "describe", topic).out
    assert f"Topic: {topic}" in described
    assert "PartitionCount: 2  ReplicationFactor: 1  Configs: retention.ms=5000" in described
    head, *rows = described.splitlines()[1:]
    assert head.split() == ["Topic", "Partition", "Leader", "Replicas", "Isr", "Elr", "LastKnownElr"]
    assert [row.split()[1:] for row in rows] == [["0", "1", "1", "1", "-", "-"], ["1", "1", "1", "1", "-", "-"]]
    (as_json,) = json.loads(run("topics", "describe", topic, "-o", "json").out)
    assert as_json["Partitions"][1]["Isr"] == [1]
    assert run("topics", "delete", topic).code == 0
    assert topic not in run("topics", "list").out


def test_a_topic_is_altered(run: Run, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1", "--config", "retention.ms=5000", "--config", "segment.ms=9")
    done = run(
        "topics", "alter", topic, "--partitions", "3", "--config", "retention.ms=7000", "--delete-config", "segment.ms"
    )
    assert (done.code, done.out) == (0, "")
    assert done.err == f"altered the settings of topic {topic}\ntopic {topic} has 3 partitions\n"
    assert (
        "PartitionCount: 3  ReplicationFactor: 1  Configs: retention.ms=7000\n" in run("topics", "describe", topic).out
    )
    (as_json,) = json.loads(run("topics", "alter", topic, "--partitions", "4", "-o", "json").out)
    assert (as_json["PartitionCount"], as_json["Configs"]) == (4, {"retention.ms": "7000"})


def test_an_interrupt_while_the_last_answers_are_awaited_says_what_was_written(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Future[RecordMetadata]):
        """An answer that never comes; its user presses Ctrl-C."""

        def exception(self, timeout: float | None = None) -> NoReturn:
            if not pressed:
                pressed.append(True)
                os.kill(os.getpid(), signal.SIGINT)
            raise TimeoutError

    class Stuck(Producer):
        """Only the first batch is answered."""

        def send_batch(self, topic: str, partition: int, payload: Buffer) -> Future[RecordMetadata]:
            if made:
                return Interrupted()
            made.append(self)
            sent = super().send_batch(topic, partition, payload)
            sent.result(30)
            return sent

    pressed: list[bool] = []
    made: list[Producer] = []
    monkeypatch.setattr(blocking_producer, "Producer", Stuck)
    monkeypatch.setattr(produce, "_LAST_SECONDS", 0.01)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    run("topics", "create", topic, "--partitions", "2")
    try:
        done = run("produce", topic, "--key-separator", ":", stdin=b"a:goes to partition 0\nd:goes to partition 1\n")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for producer in made:
            producer.close()
    assert (done.code, done.out) == (1, "")
    assert done.err == "tailrace: 1 record given up unacknowledged; 1 record written\n"


def test_a_refused_change_leaves_the_topic_unchanged(run: Run, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "2")
    assert run("topics", "alter", topic, "--partitions", "2").err == (
        f"tailrace: topic {topic} has 2 partitions; 2 would not be more\n"
    )
    done = run("topics", "alter", topic, "--config", "retention.ms=soon", "--config", "segment.ms=9")
    assert done.code == 1
    assert done.err.startswith("tailrace: retention.ms='soon': ")
    assert "Configs: segment.ms" not in run("topics", "describe", topic).out
    assert run("topics", "alter", topic).code == 2
    assert run("topics", "alter", topic, "--config", "a=1", "--delete-config", "a").code == 2
    assert run("topics", "alter", f"{topic}-lost", "--partitions", "2").code == 1
    done = run("topics", "alter", topic, "--config", "segment.ms=9", "--delete-config", "retention.sm")
    assert (done.code, done.err) == (
        1,
        "tailrace: Unknown topic config name: retention.sm; did you mean retention.ms?\n",
    )
    assert "Configs: segment.ms" not in run("topics", "describe", topic).out
    assert run("topics", "alter", f"{topic}-lost", "--delete-config", "retention.ms").code == 1


def test_a_failure_is_one_line_with_the_way_out_and_exit_code_1(run: Run) -> None:
    done = run("topics", "describe", "there-is-none")
    assert done.code == 1
    assert done.out == ""
    assert done.err == "tailrace: topic 'there-is-none' does not exist (`tailrace topics create` makes the topic)\n"


def test_a_cluster_that_is_not_there_is_named(run: Run) -> None:
    for words in (["topics", "list"], ["groups", "list"], ["consume", "any"], ["produce", "any"]):
        done = run(*words, "--bootstrap-server", "127.0.0.1:1")
        assert done.code == 1
        assert done.out == ""
        assert done.err.startswith("tailrace: cannot connect to 127.0.0.1:1: ")


def test_invalid_arguments_are_exit_code_2(run: Run) -> None:
    assert run("topics", "create", "x", "--config", "nonsense").code == 2
    assert run("consume", "x", "--offset", "3").code == 2
    assert run("consume", "x", "--format", "xml").code == 2


def test_an_existing_topic_may_be_left_as_it_is(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    assert run("topics", "create", topic).code == 1
    assert run("topics", "create", topic, "--if-not-exists").code == 0


def test_lines_go_in_and_come_out(run: Run, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    done = run("produce", topic, stdin="one\ntwo\r\n\nвода".encode())
    assert (done.code, done.out, done.err) == (0, "", f"4 records written to {topic}\n")
    done = run("consume", topic, "--from-beginning", "--max-messages", "4")
    assert (done.code, done.out) == (0, "one\ntwo\n\nвода\n")


def test_a_topic_that_the_first_line_creates_is_said_to_be_new(run: Run, topic: str) -> None:
    done = run("produce", topic, stdin=b"one\n")
    assert (done.code, done.out, done.err) == (0, "", f"1 record written to {topic}, a new topic (1 partition)\n")
    assert run("produce", topic, stdin=b"two\n").err == f"1 record written to {topic}\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_big_input_is_written_whole_in_every_codec(run: Run, topic: str, codec: str) -> None:
    lines = [f"line {number} " * 10 for number in range(20_000)]
    run("topics", "create", topic, "--partitions", "1")
    done = run("produce", topic, "--compression", codec, stdin="\n".join(lines).encode())
    assert done.err == f"20000 records written to {topic}\n"
    done = run("consume", topic, "--from-beginning", "--max-messages", "20000")
    assert done.out.splitlines() == lines


def test_keys_decide_the_partition_and_come_back(run: Run, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "4")
    run("produce", topic, "--key-separator", ":", stdin=b"a:1\nb:2\na:3:4\n")
    done = run("consume", topic, "--from-beginning", "--max-messages", "3", "--format", "json")
    records = [json.loads(line) for line in done.out.splitlines()]
    assert sorted((record["key"], record["value"]) for record in records) == [("a", "1"), ("a", "3:4"), ("b", "2")]
    assert len({record["partition"] for record in records if record["key"] == "a"}) == 1


def test_a_line_without_its_separator_is_named_and_what_stood_before_is_written(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    done = run("produce", topic, "--key-separator", ":", stdin=b"a:1\nnothing\n")
    assert done.code == 1
    assert done.err == "tailrace: line 2 has no key separator ':'; 1 record written\n"
    assert run("consume", topic, "--from-beginning", "--max-messages", "1").out == "1\n"


def test_bytes_that_are_no_text_are_base64_in_json(run: Run, topic: str) -> None:
    run("topics", "create", topic)
    run("produce", topic, stdin=b"\xff\xfe\n")
    done = run("consume", topic, "--from-beginning", "--max-messages", "1", "--format", "json")
    assert json.loads(done.out)["value"] == {"base64": "//4="}


def test_reading_starts_at_a_partitions_offset_and_ends_after_the_timeout(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("topics", "create", topic, "--partitions", "2")
    run("produce", topic, "--partition", "1", stdin=b"0\n1\n2\n3\n")
    poll: Callable[..., list[ConsumerRecord]] = vars(Consumer)["poll"]
    given: list[ConsumerRecord] = []

    def patient_poll(consumer: Consumer, timeout: float, **options: int) -> list[ConsumerRecord]:
        # The time-out is for the reading, and connecting may take longer: only the wait behind the last is short.
        records = poll(consumer, timeout if len(given) >= 2 else SECONDS, **options)
        given.extend(records)
        return records

    monkeypatch.setattr(Consumer, "poll", patient_poll)
    done = run("consume", topic, "--partition", "1", "--offset", "2", "--timeout", "0.2")
    assert (done.code, done.out) == (0, "2\n3\n")
    assert done.err == "2 records\n"


def test_a_group_continues_where_it_stopped_and_its_lag_is_shown(run: Run, topic: str) -> None:
    group = f"group-{topic}"
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"0\n1\n2\n")
    assert run("consume", topic, "--group", group, "--from-beginning", "--max-messages", "2").out == "0\n1\n"
    assert group in run("groups", "list").out
    head, row = run("groups", "describe", group).out.splitlines()
    columns = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert head.split() == [*columns, "CONSUMER-ID", "HOST", "CLIENT-ID", "LAG-MS", "LOST", "VERDICT"]
    *known, lag_ms, lost, verdict = row.split()
    assert known == [group, topic, "0", "2", "3", "1", "-", "-", "-"]
    assert (0 <= int(lag_ms) < 600_000, lost, verdict) == (True, "0", "-")
    assert "Empty" in run("groups", "describe", group, "--state").out
    assert run("consume", topic, "--group", group, "--max-messages", "1").out == "2\n"
    assert run("groups", "delete", group).code == 0
    assert run("groups", "describe", group).code == 1


def test_the_history_of_a_group_names_causes(run: Run, topic: str) -> None:
    group = f"group-{topic}"
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"0\n")
    run("consume", topic, "--group", group, "--from-beginning", "--max-messages", "1")
    head, *rows = run("groups", "history", group).out.splitlines()
    assert head.split() == ["TIME", "EVENT", "CONSUMER-ID", "REASON", "COUNT"]
    told = [row.split(maxsplit=2)[1] for row in rows]
    assert told[:2] == ["join", "rebalance"]
    assert "assigned" in told
    events = json.loads(run("groups", "history", group, "-o", "json").out)
    assert any(event["EVENT"] == "leave" for event in events)
    for command in ("describe", "history", "delete"):
        done = run("groups", command, "unused")
        assert (done.code, done.out) == (1, "")
        assert done.err == "tailrace: there is no group 'unused' (`tailrace groups list` shows which there are)\n"


def test_the_files_of_a_log_are_dumped_in_kafkas_words(run: Run, tailrace_cluster: Cluster, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, "--key-separator", ":", stdin=b"k:hello\nk:there\n")
    directory = tailrace_cluster.data_dir() / f"{topic}-0"
    dumped = run("dump-log", str(directory / "00000000000000000000.log"), "--print-data-log").out
    assert "Log starting offset: 0" in dumped
    assert "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 0 lastSequence: 1" in dumped
    assert "compresscodec: none" in dumped
    assert "isvalid: true" in dumped
    assert "| offset: 1 CreateTime: " in dumped
    assert "key: k payload: there" in dumped
    whole = run("dump-log", str(directory))
    assert whole.code == 0
    assert "leader-epoch-checkpoint\nleaderEpoch: 0 startOffset: 0" in whole.out


def test_the_metadata_log_and_the_offsets_are_decoded(run: Run, tailrace_cluster: Cluster, topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"0\n")
    run("consume", topic, "--group", f"group-{topic}", "--from-beginning", "--max-messages", "1")
    data = tailrace_cluster.data_dir()
    metadata = run("dump-log", str(data / "__cluster_metadata-0"), "--cluster-metadata-decoder").out
    assert '"type":"TOPIC_RECORD"' in metadata
    assert f'"name":"{topic}"' in metadata
    logs = [str(path) for path in data.glob("__consumer_offsets-*/*.log")]
    decoded = run("dump-log", *logs, "--offsets-decoder").out
    assert f'"group":"group-{topic}","topic":"{topic}","partition":0' in decoded


def test_damage_is_reported_and_is_exit_code_1(run: Run, tailrace_cluster: Cluster, topic: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"hello\n")
    whole = (tailrace_cluster.data_dir() / f"{topic}-0" / "00000000000000000000.log").read_bytes()
    for name, data in {"flipped": whole[:-2] + b"X" + whole[-1:], "cut": whole[:-3], "rest": whole + b"???"}.items():
        path = tmp_path / f"{name}.log"
        path.write_bytes(data)
        done = run("dump-log", str(path))
        assert done.code == 1, name
        assert str(path) in done.err


def test_consume_counts_older_records_when_it_prints_none(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("produce", topic, stdin=b"0\n1\n")
    done = run("consume", topic, "--timeout", "0.2")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"0 records; {topic} has 2 older ones: --from-beginning reads them\n"
    group = f"group-{topic}"
    poll: Callable[..., list[ConsumerRecord]] = vars(Consumer)["poll"]

    def poll_until_begun(consumer: Consumer, timeout: float, **options: int) -> list[ConsumerRecord]:
        # Joining the group may take long, and a consumer without a position commits none.
        deadline = time.monotonic() + SECONDS
        records = poll(consumer, timeout, **options)
        while not (mine := consumer.assignment()) or None in map(consumer.position, mine):
            assert time.monotonic() < deadline
            records += poll(consumer, timeout, **options)
        return records

    monkeypatch.setattr(Consumer, "poll", poll_until_begun)
    done = run("consume", topic, "--group", group, "--timeout", "0.2")
    assert done.err == f"0 records; {topic} has 2 older ones: --from-beginning reads them\n"
    done = run("consume", topic, "--group", group, "--timeout", "0.2")
    assert done.err == "0 records\n", "the group has been there"


def test_consume_names_its_topic_on_a_terminal_while_it_waits(
    run: Run, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run("topics", "create", topic, "--partitions", "4")
    done = run("consume", topic, "--timeout", "0.5")
    assert done.err == f"waiting for records of {topic} (4 partitions, 0 records) ...\n0 records\n"
    run("produce", topic, stdin=b"0\n")
    done = run("consume", topic, "--timeout", "0.5")
    way_out = "before; --from-beginning reads them"
    assert done.err.startswith(f"waiting for records of {topic} (4 partitions, 1 record {way_out}) ...\n0 records; ")
    poll: Callable[..., list[ConsumerRecord]] = vars(Consumer)["poll"]
    # The command says so after the first poll in vain, which must not end before the record has come.
    monkeypatch.setattr(Consumer, "poll", lambda consumer, _, **options: poll(consumer, SECONDS, **options))
    assert "waiting" not in run("consume", topic, "--from-beginning", "--max-messages", "1").err


def test_the_count_on_a_terminal_is_erased(run: Run, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(produce, "_PROGRESS_SECONDS", 0.0)
    done = run("produce", topic, stdin=b"one\n")
    erased = "\r\x1b[K"
    *counts, last = done.err.split(erased)
    assert last == f"1 record written to {topic}, a new topic (1 partition)\n"
    assert set(counts) <= {"", "0 records ", "1 record "}
    assert len(counts) > 1
