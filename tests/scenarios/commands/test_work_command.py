"""`tailrace work`: a process for each record, in the order of keys; its variables, exit codes and signals."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tailrace.cli.work import MOST_VARIABLE_BYTES, CommandFailed, Commands, variables
from tailrace.client.blocking import Admin, KeyedRecord, Producer
from tailrace.client.keyed.outcomes import Done, Retry
from tailrace.testing import Cluster
from testkit.nodes.group_protocols import GROUP_PROTOCOLS, cluster_of
from testkit.programs.commands import CommandResult

SECONDS = 60.0
RECORD = KeyedRecord("orders", 1, 7, 1_000, b"k", b"value", (("h", b"x"), ("raw", b"\xff"), ("none", None)), None, 2)


@pytest.fixture(scope="module", params=GROUP_PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """The protocol of the groups. `tailrace work` has no choice: it takes what the node offers."""
    return str(request.param)


@pytest.fixture(scope="module")
def cluster(protocol: str) -> Iterator[Cluster]:
    yield from cluster_of(protocol)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """Twelve records of three keys in two partitions; the values of a key count up."""
    name = f"work-{uuid4()}"
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 2})
    with Producer(cluster.bootstrap_servers) as producer:
        for number in range(12):
            producer.send(name, b"%d" % (number // 3), key=b"key-%d" % (number % 3))
    return name


class WorkProcess:
    """`tailrace work` on a topic, and the lines that its commands have printed."""

    def __init__(
        self, cluster: Cluster, topic: str, *words: str, output: str = "table", options: Sequence[str] = ()
    ) -> None:
        program = (sys.executable, "-m", "tailrace", "work", topic, "--group", topic)
        self.process = subprocess.Popen(
            (
                *program,
                "--bootstrap-server",
                cluster.bootstrap_servers,
                "--concurrency",
                "4",
                "-o",
                output,
                *options,
                "--",
                *words,
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().decode().rstrip("\n") for _ in range(count)]

    def finished(self) -> CommandResult:
        out, err = self.process.communicate(timeout=SECONDS)
        done = CommandResult(self.process.returncode, out.decode(), err.decode())
        assert "Traceback" not in done.err, done.err
        return done

    def interrupted(self, number: signal.Signals = signal.SIGINT) -> CommandResult:
        self.process.send_signal(number)
        return self.finished()


@pytest.fixture
def processes() -> Iterator[list[WorkProcess]]:
    """No process outlives its test."""
    started: list[WorkProcess] = []
    yield started
    for work in started:
        if work.process.returncode is None:
            work.process.kill()
            work.process.communicate()


def committed(cluster: Cluster, topic: str) -> int:
    with Admin(cluster.bootstrap_servers) as admin:
        return sum(at.offset for at in admin.group_offsets(topic).values())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_command_gets_each_record_in_the_order_of_its_key(
    cluster: Cluster, protocol: str, topic: str, processes: list[WorkProcess], number: signal.Signals
) -> None:
    script = 'echo "$TAILRACE_TOPIC $TAILRACE_KEY $(cat) $TAILRACE_ATTEMPT $1"'
    processes.append(work := WorkProcess(cluster, topic, "sh", "-c", script, "sh", "-x"))
    values = defaultdict(list)
    for line in work.lines(12):
        name, key, value, attempt, argument = line.split()
        assert (name, attempt, argument) == (topic, "1", "-x")
        values[key].append(int(value))
    assert values == {f"key-{number}": [0, 1, 2, 3] for number in range(3)}
    done = work.interrupted(number)
    assert (done.code, done.out, done.err) == (0, "", "12 records done\n")
    assert committed(cluster, topic) == 12
    with Admin(cluster.bootstrap_servers) as admin:
        (kind,) = [group.type for group in admin.list_groups() if group.group == topic]
    assert kind == protocol


def test_with_slots_a_command_gets_the_slot_of_its_key_and_the_epoch_of_its_member(
    cluster: Cluster, topic: str, processes: list[WorkProcess]
) -> None:
    script = 'echo "$TAILRACE_PARTITION $TAILRACE_KEY $(cat) $TAILRACE_SLOT $TAILRACE_MEMBER_EPOCH"'
    processes.append(work := WorkProcess(cluster, topic, "sh", "-c", script, options=["--slots", "4"]))
    values, places = defaultdict(list), defaultdict(set)
    for line in work.lines(12):
        partition, key, value, slot, epoch = line.split()
        values[key].append(int(value))
        places[key].add((int(partition), int(slot)))
        assert int(epoch) > 0
    assert values == {f"key-{number}": [0, 1, 2, 3] for number in range(3)}
    assert all(len(found) == 1 for found in places.values()), "a key has one partition and one slot"
    assert {slot for found in places.values() for _, slot in found} <= {0, 1, 2, 3}
    assert work.interrupted().err == "12 records done\n"
    with Admin(cluster.bootstrap_servers) as admin:
        assert {name.topic for name in admin.group_offsets(topic)} == {f"{topic}.shared-4"}


def test_no_command_runs_for_a_record_of_an_aborted_transaction(
    cluster: Cluster, topic: str, processes: list[WorkProcess]
) -> None:
    with Producer(cluster.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"aborted", key=b"key-0")
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(topic, b"committed", key=b"key-0")
    processes.append(work := WorkProcess(cluster, topic, "sh", "-c", 'echo "$(cat)"'))
    values = work.lines(13)
    assert values.count("committed") == 1
    assert "aborted" not in values
    assert work.interrupted().err == "13 records done\n"


def test_an_exit_code_holds_the_key_alone_until_the_command_succeeds(
    cluster: Cluster, topic: str, processes: list[WorkProcess]
) -> None:
    script = """
        value=$(cat)
        case "$TAILRACE_KEY $value $TAILRACE_ATTEMPT" in
            "key-1 0 1") exit 75;;
            "key-2 0 1") exit 3;;
            "key-2 0 2") kill -9 $$;;
        esac
        echo "$TAILRACE_KEY $value $TAILRACE_ATTEMPT"
    """
    processes.append(work := WorkProcess(cluster, topic, "sh", "-c", script, output="json"))
    lines = work.lines(12)
    assert sorted(lines[:4]) == [f"key-0 {value} 1" for value in range(4)]
    assert [line for line in lines if line.startswith("key-1")] == ["key-1 0 2", "key-1 1 1", "key-1 2 1", "key-1 3 1"]
    assert [line for line in lines if line.startswith("key-2")] == ["key-2 0 3", "key-2 1 1", "key-2 2 1", "key-2 3 1"]
    done = work.interrupted()
    first, second, last = done.err.splitlines()
    assert first.startswith("sh: exit code 3 at offset ")
    assert first.endswith(", attempt 1; its key waits")
    assert second.startswith("sh: ended by SIGKILL at offset ")
    assert (done.code, last) == (0, "12 records done, 2 failures")
    assert json.loads(done.out) == [{"topic": topic, "done": 12, "failures": 2}]


def test_an_outage_of_all_commands_lets_single_commands_try_and_its_end_runs_each_record_once(
    cluster: Cluster, topic: str, processes: list[WorkProcess], tmp_path: Path
) -> None:
    up, keys = tmp_path / "up", [f"more-{number}" for number in range(12)]
    with Producer(cluster.bootstrap_servers) as producer:
        for value in (b"0", b"1"):
            for key in keys:
                producer.send(topic, value, key=key.encode())
    script = f'[ -e {up} ] || exit 3; echo "$TAILRACE_KEY $(cat)"'
    work = WorkProcess(cluster, topic, "sh", "-c", script, options=["--breaker", "90"])
    processes.append(work)
    assert work.process.stderr is not None
    begun = [work.process.stderr.readline().decode()]
    while "commands have failed" not in begun[-1]:
        assert begun[-1].startswith("sh: exit code 3 at offset ")
        begun.append(work.process.stderr.readline().decode())
    assert begun[-1].endswith(
        " commands have failed (CommandFailed: exit code 3); only single commands run now, to try again, and failures"
        " count no attempt\n"
    )
    up.touch()
    lines = work.lines(36)
    assert [line for line in lines if line.startswith("more-")].count("more-7 1") == 1
    for key in keys:
        assert [line for line in lines if line.startswith(f"{key} ")] == [f"{key} 0", f"{key} 1"]
    while "a command has succeeded: as many commands as before run again\n" not in begun[-1]:
        begun.append(work.process.stderr.readline().decode())
    done = work.interrupted()
    assert (done.code, done.err.startswith("36 records done, ")) == (0, True)


def test_a_command_beyond_its_time_is_killed_and_its_record_comes_again(
    cluster: Cluster, topic: str, processes: list[WorkProcess]
) -> None:
    script = """
        case "$TAILRACE_KEY $TAILRACE_OFFSET $TAILRACE_ATTEMPT" in
            "key-1 "*" 1") [ "$(cat)" = 0 ] && sleep 600;;
        esac
        echo "$TAILRACE_KEY $TAILRACE_ATTEMPT"
    """
    work = WorkProcess(cluster, topic, "sh", "-c", script, options=["--timeout", "0.5"])
    processes.append(work)
    lines = work.lines(12)
    assert [line for line in lines if line.startswith("key-1")] == ["key-1 2", *["key-1 1"] * 3]
    done = work.interrupted()
    killed, last = done.err.splitlines()
    assert killed.startswith("sh: killed after 0.5 s at offset ")
    assert killed.endswith(", attempt 1; its key waits")
    assert (done.code, last) == (0, "12 records done, 1 failure")


def test_a_command_that_is_not_there_is_named_before_anything_is_read(
    cluster: Cluster, topic: str, processes: list[WorkProcess], tmp_path: Path
) -> None:
    (plain := tmp_path / "plain").write_text("no program")
    for name, reason in (("no-such-command", "No such file or directory"), (str(plain), "Permission denied")):
        processes.append(work := WorkProcess(cluster, topic, name))
        done = work.finished()
        assert (done.code, done.out, done.err) == (1, "", f"tailrace: {name}: {reason}\n")
    with Admin(cluster.bootstrap_servers) as admin:
        assert topic not in [group.group for group in admin.list_groups()]


def test_a_command_that_cannot_be_started_any_more_ends_the_run(
    cluster: Cluster, topic: str, processes: list[WorkProcess], tmp_path: Path
) -> None:
    (program := tmp_path / "once").write_text('#!/bin/sh\nrm "$0"\n')
    program.chmod(0o755)
    processes.append(work := WorkProcess(cluster, topic, str(program)))
    done = work.finished()
    assert (done.code, done.err.splitlines()[-1]) == (1, f"tailrace: {program}: No such file or directory")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("orders", "--", "cat"), "Missing option '--group'"),
        (("orders", "--group", "g"), "Missing argument"),
        (("orders", "--group", "", "--", "cat"), "a group has a name"),
        (("orders", "--group", "g", "--concurrency", "0", "--", "cat"), "0 is not in the range"),
        (("orders", "--group", "g", "--breaker", "half", "--", "cat"), "neither a whole number nor off"),
    ],
    ids=str,
)
def test_wrong_usage_is_refused(words: tuple[str, ...], message: str) -> None:
    done = subprocess.run((sys.executable, "-m", "tailrace", "work", *words), capture_output=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr.decode()


def test_variables_describe_the_record() -> None:
    found = variables(RECORD)
    assert json.loads(found.pop(b"TAILRACE_HEADERS")) == [["h", "x"], ["raw", {"base64": "/w=="}], ["none", None]]
    assert found == {
        b"TAILRACE_TOPIC": b"orders",
        b"TAILRACE_PARTITION": b"1",
        b"TAILRACE_OFFSET": b"7",
        b"TAILRACE_TIMESTAMP": b"1000",
        b"TAILRACE_ATTEMPT": b"2",
        b"TAILRACE_KEY": b"k",
        b"TAILRACE_KEY_BASE64": b"aw==",
    }


def test_a_variable_that_cannot_be_one_is_left_out() -> None:
    assert b"TAILRACE_KEY" not in variables(RECORD._replace(key=None))
    found = variables(RECORD._replace(key=b"a\0b", value=None))
    assert (b"TAILRACE_KEY" in found, found[b"TAILRACE_KEY_BASE64"], found[b"TAILRACE_NO_VALUE"]) == (
        False,
        b"YQBi",
        b"1",
    )
    large = RECORD._replace(key=b"k" * 200_000, headers=(("h", b"x" * 200_000),))
    assert all(len(content) <= MOST_VARIABLE_BYTES for content in variables(large).values())
    commands = Commands(["true"], lambda: None)
    assert commands(large) == Done(), "it can be started"


def test_a_command_that_does_not_read_its_stdin_is_done() -> None:
    assert Commands(["true"], lambda: None)(RECORD._replace(value=b"v" * 1_000_000)) == Done()


def test_a_command_that_has_ended_is_done_though_its_child_holds_its_stdin(tmp_path: Path) -> None:
    """The value is larger than a pipe, and no process reads it."""
    os.mkfifo(held := tmp_path / "held")
    commands = Commands(["sh", "-c", f"exec 3<&0; read line < {held} & exit 0"], lambda: None)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(commands, RECORD._replace(value=b"v" * 1_000_000))
        try:
            assert running.result(SECONDS) == Done()
        finally:
            held.write_text("go on\n")


def test_a_command_reads_the_value_to_its_end(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for value in (b"v" * 1_000_000, b"", None):
        assert Commands(["sh", "-c", f"cat > {copy}"], lambda: None)(RECORD._replace(value=value)) == Done()
        assert copy.read_bytes() == (value or b"")


def test_a_signal_without_a_name_has_its_number() -> None:
    number = signal.SIGRTMIN + 1
    script = f"import os; os.kill(os.getpid(), {number})"
    with pytest.raises(CommandFailed, match=f"ended by signal {number}"):
        Commands([sys.executable, "-c", script], lambda: None)(RECORD)


def test_children_of_a_command_that_ends_at_once_are_ended_too(tmp_path: Path) -> None:
    """The children are deaf to SIGTERM: the other end of the pipe that they hold open shows when they are gone."""
    os.mkfifo(held := tmp_path / "held")
    child = f"(trap '' TERM; echo; sleep 600) > {held}"
    commands = Commands(["sh", "-c", f"trap 'exit 1' TERM; {child} & wait"], lambda: None)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(commands, RECORD)
        with held.open() as lines:
            assert lines.readline() == "\n"
            commands.end()
            with pytest.raises(CommandFailed, match="exit code 1"):
                running.result(SECONDS)
            assert lines.read() == ""


def test_a_command_beyond_its_time_is_killed_with_its_children(tmp_path: Path) -> None:
    os.mkfifo(held := tmp_path / "held")
    child = f"(trap '' TERM; echo; sleep 600) > {held}"
    commands = Commands(["sh", "-c", f"trap 'exit 0' TERM; {child} & wait"], lambda: None, 0.2)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(commands, RECORD)
        with held.open() as lines:
            assert lines.read() == "\n"
        with pytest.raises(CommandFailed, match=r"killed after 0\.2 s"):
            running.result(SECONDS)


def test_many_deaf_commands_have_one_time_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    wait_for = threading.Condition.wait_for

    def counted(self: threading.Condition, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        waits.append(timeout or 0)
        return wait_for(self, predicate, 0)

    monkeypatch.setattr(threading.Condition, "wait_for", counted)
    os.mkfifo(ready := tmp_path / "ready")
    commands = Commands(["sh", "-c", f"trap '' TERM; echo > {ready}; sleep 600 & wait"], lambda: None)
    with ThreadPoolExecutor(3) as threads:
        running = []
        for _ in range(3):
            running.append(threads.submit(commands, RECORD))
            assert ready.read_text() == "\n"
        commands.end()
        for run in running:
            with pytest.raises(CommandFailed, match="SIGKILL"):
                run.result(SECONDS)
    assert waits == [2.0]


def test_commands_that_run_at_the_end_are_ended_with_their_children(tmp_path: Path) -> None:
    os.mkfifo(ready := tmp_path / "ready")
    commands = Commands(["sh", "-c", f"trap '' TERM; echo > {ready}; sleep 600 & wait"], lambda: None)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(commands, RECORD)
        assert ready.read_text() == "\n"  # it runs, and is deaf to SIGTERM
        commands.end()
        with pytest.raises(CommandFailed, match="SIG"):
            running.result(SECONDS)
    assert commands(RECORD) == Retry(), "no more are started"
