"""The commands as a person or a script runs them: processes, streams, signals, exit codes.

Data is on stdout and everything else on stderr; 0 is done, 1 failed, 2 not understood; no user ever sees a traceback.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.testing import Cluster
from testkit.programs.commands import CommandResult

PROGRAM = (sys.executable, "-m", "tailrace")
SECONDS = 60.0
SAME_WISH_S = 1.0
"""A later signal ends a command at once."""


def finished(process: "subprocess.Popen[bytes]", stdin: bytes | None = None) -> CommandResult:
    try:
        out, err = process.communicate(stdin, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    done = CommandResult(process.returncode, out.decode(), err.decode())
    assert "Traceback" not in done.err, done.err
    return done


_running: "list[subprocess.Popen[bytes]]" = []


def started(*words: str, **settings: object) -> "subprocess.Popen[bytes]":
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | settings
    process = subprocess.Popen((*PROGRAM, *words), **streams)  # type: ignore[call-overload]
    _running.append(process)
    return process  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def bootstrap(tailrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every command goes to this cluster, and none outlives its test."""
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", tailrace_cluster.bootstrap_servers)
    yield
    while _running:
        process = _running.pop()
        if process.returncode is None:
            process.kill()
            process.communicate()


def run(*words: str, stdin: bytes = b"") -> CommandResult:
    return finished(started(*words), stdin)


@pytest.fixture
def topic() -> str:
    return f"commands-{uuid4()}"


@contextmanager
def served(*words: str) -> "Iterator[tuple[subprocess.Popen[bytes], str]]":
    """A node, and what its ready line says behind `tailrace ready: `."""
    node = started("serve", *words, stdin=subprocess.DEVNULL)
    assert node.stdout is not None
    try:
        ready, _, _ = select.select([node.stdout], [], [], SECONDS)
        line = node.stdout.readline().decode() if ready else ""
        if not line:
            node.kill()
            assert node.stderr is not None
            raise AssertionError(node.stderr.read().decode())
        yield node, line.removeprefix("tailrace ready: ").rstrip("\n")
    finally:
        node.kill()
        node.communicate()


# serve


def test_a_node_takes_its_settings_from_file_environment_and_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "node.toml"
    file.write_text("node.id = 4\nnum.partitions = 2\n[log]\nretention.ms = 60000\n")
    monkeypatch.setenv("TAILRACE_NUM_PARTITIONS", "5")
    with served(
        "--config", str(file), "--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--set", "node.id=9"
    ) as (node, ready):
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", ready.split()[0])
        monkeypatch.delenv("TAILRACE_NUM_PARTITIONS")
        assert run("topics", "create", "orders").code == 0
        (described,) = json.loads(run("topics", "describe", "orders", "-o", "json").out)
        assert described["PartitionCount"] == 5
        assert {partition["Leader"] for partition in described["Partitions"]} == {9}
        assert "node.id=9\n" in (tmp_path / "data" / "meta.properties").read_text()
        node.send_signal(signal.SIGINT)
        done = finished(node)
    assert (done.code, done.out) == (0, "")
    assert "event=node-started node=9" in done.err
    assert "event=node-stopped node=9" in done.err


def test_acknowledged_records_outlive_kill_9_and_a_clean_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReservedPorts() as ports:
        address = f"127.0.0.1:{ports.reserve('127.0.0.1', 0)}"
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", address)
        words = ("--dev", "--data-dir", str(tmp_path), "--listen", address)
        for number, end in enumerate((signal.SIGKILL, signal.SIGTERM)):
            with served(*words) as (node, ready):
                assert ready.split() == [address, "dev"]
                assert run("produce", "kept", stdin=f"life {number}\n".encode()).code == 0
                node.send_signal(end)
                node.wait(SECONDS)
        with served(*words):
            done = run("consume", "kept", "--from-beginning", "--max-messages", "2")
    assert done.out == "life 0\nlife 1\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--lissten", "x"], 2, "--listen"),
        (["--data-dir", ""], 2, "a directory has a name"),
        (["--set", "num.partition=3"], 1, "did you mean num.partitions?"),
        (["--listen", "SSL://127.0.0.1:0"], 1, "ssl.keystore.location: a listener with TLS needs a certificate"),
        (["--listen", "no-such-host.invalid:0", "--insecure"], 1, "cannot listen on no-such-host.invalid:0"),
        (["--data-dir", "/dev/null"], 1, "cannot use /dev/null: it is a file"),
    ],
)
def test_a_node_that_cannot_start_says_why_in_one_line(
    words: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("serve", "--data-dir", str(tmp_path / "data"), *words)
    assert (done.code, done.out) == (code, "")
    assert message in done.err
    assert code == 2 or done.err.count("\n") == 1


# topics


def test_listings_are_json_for_scripts_and_tables_for_people(topic: str) -> None:
    done = run("topics", "create", topic, "--partitions", "2", "-o", "json")
    assert done.err == f"created topic {topic}\n"
    (made,) = json.loads(done.out)
    assert (made["Topic"], made["PartitionCount"], made["ReplicationFactor"]) == (topic, 2, 1)
    assert made in json.loads(run("topics", "list", "-o", "json").out)
    assert topic in run("topics", "list").out.splitlines()
    (described,) = json.loads(run("topics", "describe", topic, "-o", "json").out)
    assert described == {
        **made,
        "Configs": {},
        "Partitions": [
            {
                "Topic": topic,
                "Partition": number,
                "Leader": 1,
                "Replicas": [1],
                "Isr": [1],
                "Elr": [],
                "LastKnownElr": [],
            }
            for number in (0, 1)
        ],
    }
    assert json.loads(run("topics", "delete", topic, "-o", "json").out) == [{"Topic": topic}]


def test_one_topic_that_fails_does_not_keep_the_others_back(topic: str) -> None:
    run("topics", "create", topic)
    done = run("topics", "create", topic, f"{topic}-2")
    assert (done.code, done.out) == (1, "")
    first, second, last = done.err.splitlines()
    assert first == f"topic '{topic}' already exists (--if-not-exists leaves it as it is)"
    assert second == f"created topic {topic}-2"
    assert last == "tailrace: 1 of 2 topics failed, see above"
    done = run("topics", "delete", "there-is-none", topic, f"{topic}-2")
    assert done.code == 1
    assert done.err.splitlines()[1:3] == [f"deleted topic {topic}", f"deleted topic {topic}-2"]


# produce and consume


def test_many_lines_go_in_and_come_out(topic: str) -> None:
    lines = b"".join(b"line %090d\n" % number for number in range(100_000))
    run("topics", "create", topic, "--partitions", "1")
    assert run("produce", topic, stdin=lines).err == f"100000 records written to {topic}\n"
    process = started("consume", topic, "--from-beginning", "--max-messages", "100000")
    out, err = process.communicate(timeout=SECONDS)
    assert out == lines
    assert (process.returncode, err) == (0, b"100000 records\n")


def test_keys_blank_lines_and_bytes_that_are_no_text_come_back_as_they_were(topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    assert run("produce", topic, "--key-separator", "\\t", stdin=b"k\tv\n\tno key\nno value\t\n").code == 0
    assert json.loads(run("produce", topic, "-o", "json", stdin=b"\n\xff\x00").out) == [{"topic": topic, "records": 2}]
    done = run("consume", topic, "--from-beginning", "--max-messages", "5", "--format", "json")
    pairs = [(record["key"], record["value"]) for record in map(json.loads, done.out.splitlines())]
    assert pairs == [("k", "v"), ("", "no key"), ("no value", ""), (None, ""), (None, {"base64": "/wA="})]
    done = run("consume", topic, "--from-beginning", "--max-messages", "4", "--format", "key-value")
    assert done.out == "k\tv\n\tno key\nno value\t\nnull\t\n"


def test_a_line_that_the_topic_refuses_is_named_and_the_others_are_counted(topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1", "--config", "max.message.bytes=1000")
    done = run("produce", topic, stdin=b"short\n" + b"x" * 300_000 + b"\nshort\n")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("tailrace: line 2 was not written: ")
    assert "max.message.bytes of the topic is 1000" in done.err
    assert done.err.endswith("; 2 records written\n")


def test_an_offset_outside_the_log_is_refused_with_its_ends(topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"a\nb\n")
    done = run("consume", topic, "--partition", "0", "--offset", "9")
    assert (done.code, done.err) == (1, f"tailrace: {topic}-0 has offsets 0 to 2, not 9\n")


def test_a_view_is_read_and_described_and_not_changed(topic: str) -> None:
    view = f"{topic}.shared-4"
    run("topics", "create", topic, "--partitions", "1")
    run(
        "produce",
        topic,
        "--key-separator",
        ":",
        stdin=b"".join(b"key-%d:%d\n" % (number, number) for number in range(40)),
    )
    done = run("consume", view, "--from-beginning", "--group", topic, "--max-messages", "40")
    assert sorted(map(int, done.out.split())) == list(range(40))
    assert run("consume", view, "--from-beginning", "--key", "key-7", "--max-messages", "1").out == "7\n"
    (described,) = json.loads(run("topics", "describe", view, "-o", "json").out)
    assert (described["Topic"], described["PartitionCount"]) == (view, 4)
    rows = json.loads(run("groups", "describe", topic, "-o", "json").out)
    assert {(row["TOPIC"], row["LAG"]) for row in rows} == {(view, 0)}
    assert sorted(row["PARTITION"] for row in rows) == [0, 1, 2, 3]
    assert max(row["CURRENT-OFFSET"] for row in rows) == 40
    run("groups", "reset-offsets", topic, "--to-earliest", "--execute")
    rows = json.loads(run("groups", "describe", topic, "-o", "json").out)
    assert {row["CURRENT-OFFSET"] for row in rows} == {0}
    assert view not in run("topics", "list").out
    refused = [
        run("topics", "create", view),
        run("topics", "delete", view),
        run("topics", "alter", view, "--partitions", "9"),
        run("topics", "alter", view, "--config", "retention.ms=1"),
        run("produce", view, stdin=b"a\n"),
    ]
    assert [done.code for done in refused] == [1] * 5
    assert all("view of" in done.err for done in refused), [done.err for done in refused]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_reader_ends_well_and_has_left_its_group(topic: str, number: signal.Signals) -> None:
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"a\nb\n")
    reader = started("consume", topic, "--from-beginning", "--group", topic)
    assert reader.stdout is not None
    assert [reader.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
    reader.send_signal(number)
    done = finished(reader)
    assert (done.code, done.out, done.err) == (0, "", "2 records\n")
    described = run("groups", "describe", topic)
    assert described.out.splitlines()[1].split()[:9] == [topic, topic, "0", "2", "2", "0", "-", "-", "-"]
    assert described.err == f"Consumer group '{topic}' has no active members.\n"


def wait_until_delivered(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Return when the process has taken the signal, or has ended. On systems without /proc at once."""
    status, deadline = Path(f"/proc/{process.pid}/status"), time.monotonic() + SECONDS
    while status.exists() and process.poll() is None:
        lines = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        if not (int(lines["SigPnd"], 16) | int(lines["ShdPnd"], 16)) >> (number - 1) & 1:
            return
        assert time.monotonic() < deadline, f"process {process.pid} has not taken {number.name}"


def test_signals_that_come_together_interrupt_a_reader_and_a_writer_once(topic: str) -> None:
    """`timeout` signals the process and then its group, which is the same process."""
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"a\nb\n")
    reader = started("consume", topic, "--from-beginning", "--group", topic)
    writer = started("produce", topic)
    assert reader.stdout is not None
    assert [reader.stdout.readline() for _ in range(2)] == [b"a\n", b"b\n"]
    assert writer.stdin is not None
    writer.stdin.write(b"c\n")
    writer.stdin.flush()
    assert reader.stdout.readline() == b"c\n", "so it runs"
    for process, code, message in (
        (writer, 1, f"1 record written to {topic}\n"),
        (reader, 0, "3 records\n"),
    ):
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        wait_until_delivered(process, signal.SIGTERM)  # else the system makes one signal of the two
        process.send_signal(signal.SIGTERM)
        done = finished(process)
        # A machine that stands still between the two makes the second another wish: to end at once.
        was_cut_short = done.code == 1 and time.monotonic() - began >= SAME_WISH_S
        assert (done.code, done.out, done.err) == (code, "", message) or was_cut_short
    members = ("groups", "describe", topic, "--members", "-o", "json")
    assert json.loads(run(*members).out) == [] or was_cut_short


def test_an_interrupted_writer_has_written_the_lines_that_were_whole(topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    writer = started("produce", topic)
    assert writer.stdin is not None
    writer.stdin.write(b"whole\nhal")
    writer.stdin.flush()
    assert run("consume", topic, "--from-beginning", "--max-messages", "1").out == "whole\n"
    writer.send_signal(signal.SIGINT)
    done = finished(writer)
    assert (done.code, done.err) == (1, f"1 record written to {topic}\n")


def test_a_reader_whose_reader_goes_away_goes_too(topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"a\n")
    consume = f"'{sys.executable}' -m tailrace consume {topic} --from-beginning"
    piped = subprocess.run(
        ["bash", "-c", f"{consume} | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )
    assert (piped.stdout, piped.stderr) == (b"a\n1\n", b"")


def test_closed_and_full_streams_end_in_one_line_at_most() -> None:
    for redirection, code, error in (
        (">&-", 0, b""),
        ("2>&-", 0, b""),
        (">/dev/full", 1, b"No space left on device\n"),
    ):
        command = f"'{sys.executable}' -m tailrace groups list -o json {redirection}"
        done = subprocess.run(["bash", "-c", command], stderr=subprocess.PIPE, timeout=SECONDS, check=False)
        assert done.returncode == code, redirection
        assert b"Traceback" not in done.stderr
        assert done.stderr.endswith(error)


# groups


def test_lag_is_shown_for_members_that_run_and_for_offsets_that_are_left(topic: str) -> None:
    run("topics", "create", topic, "--partitions", "2")
    run("produce", topic, "--partition", "0", stdin=b"a\nb\nc\n")
    reader = started("consume", topic, "--from-beginning", "--group", topic)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"a\n"
    (member,) = json.loads(run("groups", "describe", topic, "--members", "-o", "json").out)
    assert member["ASSIGNMENT"] == [f"{topic}-0", f"{topic}-1"]
    rows = json.loads(run("groups", "describe", topic, "-o", "json").out)
    assert [(row["PARTITION"], row["LOG-END-OFFSET"]) for row in rows] == [(0, 3), (1, 0)]
    assert {row["CONSUMER-ID"] for row in rows} == {member["CONSUMER-ID"]}
    (state,) = json.loads(run("groups", "describe", topic, "--state", "-o", "json").out)
    assert (state["STATE"], state["#MEMBERS"], state["ASSIGNMENT-STRATEGY"]) == ("Stable", 1, "uniform")
    done = run("groups", "delete", topic)
    assert done.code == 1
    assert "has members; stop them first" in done.err
    done = run("groups", "reset-offsets", topic, "--to-earliest", "--execute")
    assert done.code == 1
    assert "has members; stop them first" in done.err
    reader.send_signal(signal.SIGTERM)
    finished(reader)
    run("produce", topic, "--partition", "0", stdin=b"d\n")
    rows = json.loads(run("groups", "describe", topic, "-o", "json").out)
    assert [(row["CURRENT-OFFSET"], row["LAG"], row["CONSUMER-ID"]) for row in rows] == [(3, 1, None), (0, 0, None)]


def test_a_group_is_moved_only_when_told_twice(topic: str) -> None:
    run("topics", "create", topic, "--partitions", "1")
    run("produce", topic, stdin=b"a\nb\nc\n")
    run("consume", topic, "--from-beginning", "--group", topic, "--max-messages", "3")

    def current() -> int:
        (row,) = json.loads(run("groups", "describe", topic, "-o", "json").out)
        offset = row["CURRENT-OFFSET"]
        assert isinstance(offset, int)
        return offset

    def moved(*words: str) -> int:
        (row,) = json.loads(run("groups", "reset-offsets", topic, "-o", "json", *words).out)
        offset = row["NEW-OFFSET"]
        assert isinstance(offset, int)
        return offset

    assert moved("--to-earliest") == 0
    assert current() == 3
    assert moved("--shift-by", "-2", "--execute") == 1
    assert current() == 1
    assert moved("--shift-by", "-100") == 0
    assert moved("--to-datetime", "2000-01-01", "--topic", f"{topic}:0") == 0
    assert moved("--to-datetime", "2999-01-01T00:00") == 3
    assert run("groups", "reset-offsets", topic).code == 2


# what every command has


def test_a_cluster_that_is_not_there_and_addresses_that_are_none() -> None:
    began = time.monotonic()
    commands = (["topics", "list"], ["groups", "describe"], ["produce", "t"], ["consume", "t"])
    for process in [started(*words, "--bootstrap-server", "127.0.0.1:1") for words in commands]:
        done = finished(process)
        assert (done.code, done.out) == (1, "")
        assert "cannot connect to 127.0.0.1:1: Connection refused; `tailrace serve` starts a node" in done.err
    assert time.monotonic() - began < SECONDS
    assert run("topics", "list", "--bootstrap-server", "nonsense:port").code == 2


@pytest.mark.parametrize("words", ["-h", "topics create --help"])
def test_help_is_data(words: str) -> None:
    done = run(*words.split())
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Usage: tailrace ")


def test_a_shell_can_complete_commands_and_options() -> None:
    environment = {
        **os.environ,
        "_TAILRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": "tailrace topics de",
        "COMP_CWORD": "2",
    }
    done = finished(started(env=environment))
    assert done.out.split() == ["describe", "delete"]
