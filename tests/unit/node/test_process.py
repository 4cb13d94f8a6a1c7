"""A node as a process: its output, its imports, its end."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.blocking import Admin
from tailrace.node.process import JsonFormatter, TextFormatter
from tailrace.server.callbacks import SLICE_MS
from tailrace.testing.node_process import package_path


@contextmanager
def serving(
    directory: Path, *arguments: str, python: tuple[str, ...] = (), **streams: IO[str]
) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, *python, "-m", "tailrace", "serve", "--data-dir", str(directory), *arguments]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    buffered = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    node = subprocess.Popen(command, **pipes, text=True, cwd=directory.parent, env=buffered)
    try:
        yield node
    finally:
        node.kill()
        for stream in (node.stdout, node.stderr):
            if stream is not None:
                stream.close()
        node.wait()


def ready_address(node: subprocess.Popen[str]) -> tuple[str, list[str]]:
    assert node.stdout is not None
    line = node.stdout.readline()
    assert line.startswith("tailrace ready: "), (line, node.communicate()[1])
    address, *words = line.removeprefix("tailrace ready: ").split()
    return address, words


def fail_to_serve(directory: Path, *arguments: str) -> str:
    """The one line that a node prints when it cannot start."""
    command = [sys.executable, "-m", "tailrace", "serve", "--data-dir", str(directory), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=directory.parent)
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    lines = [line for line in ended.stderr.splitlines() if " INFO " not in line]
    assert len(lines) == 1, ended.stderr
    return lines[0]


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_node_prints_a_ready_line_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path / "data", "--dev", "--listen", "127.0.0.1:0") as node:
        address, words = ready_address(node)
        assert words == ["dev"]
        host, port = address.split(":")
        socket.create_connection((host, int(port)), timeout=10).close()
        node.send_signal(number)
        output, errors = node.communicate(timeout=30)
        assert node.returncode == 0, errors
        assert output == ""
        assert "Traceback" not in errors
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    assert "node.id=1" in (tmp_path / "data" / "meta.properties").read_text()


def test_an_advertised_port_of_0_is_the_one_that_was_taken(tmp_path: Path) -> None:
    advertised = ("--set", "advertised.listeners=PLAINTEXT://localhost:0")
    with serving(tmp_path / "data", "--dev", "--listen", "127.0.0.1:0", *advertised) as node:
        (host, port) = ready_address(node)[0].split(":")
        assert host == "localhost"
        socket.create_connection(("127.0.0.1", int(port)), timeout=10).close()


def test_clients_get_the_loopback_address_that_a_node_listens_on(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--dev", "--listen", "127.0.0.2:0") as node:
        (host, port) = ready_address(node)[0].split(":")
        assert host == "127.0.0.2"
        with Admin(f"{host}:{port}") as admin:
            assert [(broker.host, broker.port) for broker in admin.list_brokers()] == [(host, int(port))]
            admin.create_topics({"reached": 1})


def test_a_node_goes_on_without_a_reader_of_its_ready_line(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--dev", "--listen", "127.0.0.1:0") as node:
        assert node.stdout is not None
        assert node.stderr is not None
        node.stdout.close()
        for line in node.stderr:
            if "event=node-started" in line:
                break
        node.terminate()
        rest = node.stderr.read()
        assert node.wait(30) == 0, rest
        assert "event=node-stopped" in rest
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_full_disk_for_its_ready_line_does_not_end_a_node(tmp_path: Path) -> None:
    with (
        open("/dev/full", "w") as full,
        serving(tmp_path / "data", "--dev", "--listen", "127.0.0.1:0", stdout=full) as node,
    ):
        assert node.stderr is not None
        assert any("event=node-started" in line for line in node.stderr)
        node.terminate()
        rest = node.stderr.read()
        assert node.wait(30) == 0, rest
        assert "event=node-stopped" in rest
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_clean_stop_is_one_without_a_reader_of_the_log(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--dev", "--listen", "127.0.0.1:0") as node:
        ready_address(node)
        assert node.stderr is not None
        node.stderr.close()
        node.terminate()
        assert node.wait(30) == 0
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_node_is_ready_before_it_imports_what_only_others_need(tmp_path: Path) -> None:
    """Decision 0040: no numpy, pyarrow, rich, Starlette or pyspark; and no client."""
    listed = tmp_path / "imports"  # a pipe may be too small: it would be read only when the node is ready
    with (
        listed.open("w") as stderr,
        serving(
            tmp_path / "data", "--dev", "--listen", "127.0.0.1:0", python=("-X", "importtime"), stderr=stderr
        ) as node,
    ):
        ready_address(node)
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0
    lines = listed.read_text().splitlines()
    imported = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    assert "tailrace.node.node" in imported
    heavy = {"numpy", "pyarrow", "rich", "starlette", "pyspark", "pandas", "tailrace.client", "tailrace.spark"}
    heavy |= {"prometheus_client", "re2"}
    assert not heavy & imported
    assert not {name for name in imported if name.partition(".")[0] in heavy}


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": package_path(os.environ)},
    )


IMPORTED_LATE = """
import asyncio, sys
import tailrace.node.process as process
from tailrace.node.settings.config import NodeConfig
from tailrace.node.node import Node

process.preload()
before = set(sys.modules)

async def start_and_stop():
    node = Node(NodeConfig({"log.dirs": sys.argv[1], "listeners": "127.0.0.1:0"}), on_fatal=process.stop_at_once)
    await node.start()
    print(*sorted(set(sys.modules) - before), sep=",")
    await node.stop()

with asyncio.Runner(loop_factory=process.event_loop_factory()) as runner:
    runner.run(start_and_stop())
"""


def test_nodes_that_are_forked_have_everything_imported(tmp_path: Path) -> None:
    done = run(IMPORTED_LATE, str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "\n"


def test_modules_for_what_few_nodes_need_are_not_imported() -> None:
    """A TOML file, a misspelt variable, a sync of many files at once, a deletion of records: the modules would
    cost each node memory."""
    done = run("import tailrace.node.process, sys; print(*sys.modules)")
    loaded = set(done.stdout.split())
    assert {"tailrace.node.settings.sources", "tailrace.storage.files"} <= loaded
    assert loaded & {"ctypes", "datetime", "difflib", "shutil", "tempfile", "tomllib", "typer", "uuid"} == set()


SIGNALLED_LATE = """
import asyncio, os, signal, sys
import tailrace.node.process as process
from tailrace.node.settings.config import NodeConfig

if sys.argv[2] == "asyncio":
    process.event_loop_factory = lambda: asyncio.new_event_loop
process._say_ready = lambda node, config: os.kill(os.getpid(), signal.SIGTERM)
code = process.run(NodeConfig({"log.dirs": sys.argv[1], "listeners": "127.0.0.1:0"}))
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    os.kill(os.getpid(), number)
print(code)
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_signal_that_comes_when_a_node_has_stopped_does_not_change_how_it_ends(tmp_path: Path, loop: str) -> None:
    """`timeout` signals the process and then its group: the node may need less time than that."""
    done = run(SIGNALLED_LATE, str(tmp_path / "data"), loop)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_directory_in_use_refuses_a_second_node(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--listen", "127.0.0.1:0") as node:
        ready_address(node)
        line = fail_to_serve(tmp_path / "data", "--listen", "127.0.0.1:0")
        assert f"is in use by another node (process {node.pid})" in line


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fail_to_serve(tmp_path / "data", "--listen", f"127.0.0.1:{port}")
    cause = f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert line == f"tailrace: {cause}; choose another port, or 0 for a free one"


def test_a_listener_for_others_is_one_clear_line(tmp_path: Path) -> None:
    line = fail_to_serve(tmp_path / "data", "--listen", "0.0.0.0:0")
    assert "this node lets every client in" in line
    assert not (tmp_path / "data").exists(), "nothing was touched"


def test_an_unknown_setting_is_one_clear_line(tmp_path: Path) -> None:
    assert "did you mean num.partitions?" in fail_to_serve(tmp_path / "data", "--set", "num.partition=3")


def test_the_log_is_json_on_request_and_the_ready_line_has_the_address_of_metrics(tmp_path: Path) -> None:
    settings = ("--set", "log.format=json", "--set", "metrics.listener=127.0.0.1:0")
    with serving(tmp_path / "data", "--listen", "127.0.0.1:0", *settings) as node:
        _, words = ready_address(node)
        (metrics,) = (word.removeprefix("metrics=") for word in words)
        host, port = metrics.split(":")
        socket.create_connection((host, int(port)), timeout=10).close()
        node.send_signal(signal.SIGTERM)
        _, errors = node.communicate(timeout=30)
    events = [json.loads(line) for line in errors.splitlines()]
    assert {"controller-active", "metrics-served", "node-stopped"} <= {event["event"] for event in events}
    levels = {event["event"]: event["level"] for event in events}
    assert levels["controller-active"] == levels["metrics-served"] == levels["node-stopped"] == "info"
    assert set(levels.values()) <= {"info", "warning"}, "a slow machine is warned of"


def test_a_metrics_port_that_is_taken_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = fail_to_serve(
            tmp_path / "data", "--listen", "127.0.0.1:0", "--set", f"metrics.listener=127.0.0.1:{port}"
        )
    assert f"cannot listen on 127.0.0.1:{port} (metrics.listener)" in line


def test_a_metrics_port_that_is_taken_leaves_a_clean_stop_clean(tmp_path: Path) -> None:
    """The ports are taken before the logs are opened, and before clients are sent here."""
    with serving(tmp_path / "data", "--dev", "--listen", "127.0.0.1:0") as node:
        ready_address(node)
        node.terminate()
        node.communicate(timeout=30)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = f"metrics.listener=127.0.0.1:{taken.getsockname()[1]}"
        fail_to_serve(tmp_path / "data", "--dev", "--listen", "127.0.0.1:0", "--set", metrics)
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("noun", ["serve", "up"])
def test_a_file_cannot_say_when_it_closes(tmp_path: Path, noun: str) -> None:
    options = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--until-stdin-closes")
    ended = subprocess.run(
        [sys.executable, "-m", "tailrace", noun, *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "--until-stdin-closes: standard input is a file or /dev/null" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_node_that_was_killed_starts_again(tmp_path: Path) -> None:
    with serving(tmp_path / "data", "--listen", "127.0.0.1:0") as node:
        ready_address(node)
        os.kill(node.pid, signal.SIGKILL)
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with serving(tmp_path / "data", "--listen", "127.0.0.1:0") as node:
        ready_address(node)


def test_words_that_are_not_understood_end_with_code_2() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tailrace", "serv"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "Did you mean 'serve'" in ended.stderr


def record(message: str, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("tailrace.net", logging.WARNING, __file__, 1, message, arguments, None)


def test_the_keys_of_an_event_are_those_of_the_json() -> None:
    line = json.loads(
        JsonFormatter().format(record("event=connection-closed peer=%s reason=%r count=%d", "::1", "it's late", 3))
    )
    assert line["level"] == "warning"
    assert line["logger"] == "tailrace.net"
    assert line["time"].endswith("Z")
    assert (line["event"], line["peer"], line["reason"], line["count"]) == (
        "connection-closed",
        "::1",
        "it's late",
        "3",
    )


def test_a_value_runs_to_the_next_key() -> None:
    line = json.loads(JsonFormatter().format(record("event=failed fault=no space left partition=orders-3")))
    assert line["fault"] == "no space left"
    assert line["partition"] == "orders-3"


def test_a_message_without_an_event_is_kept_whole() -> None:
    assert json.loads(JsonFormatter().format(record("hello there")))["message"] == "hello there"


def test_a_stranger_cannot_name_the_client() -> None:
    line = json.loads(JsonFormatter().format(record("event=x reason=%r level=critical", "a level=info event=y")))
    assert line["level"] == "warning"
    assert line["event"] == "x"
    assert line["reason"] == "a level=info event=y"


def test_a_traceback_is_one_field() -> None:
    try:
        raise ZeroDivisionError("by zero")
    except ZeroDivisionError:
        failed = record("event=failed")
        failed.exc_info = sys.exc_info()
    line = json.loads(JsonFormatter().format(failed))
    assert "ZeroDivisionError: by zero" in line["traceback"]


@given(st.text())
def test_every_log_entry_is_one_line(text: str) -> None:
    json_line = JsonFormatter().format(record("event=x text=%s", text))
    assert "\n" not in json_line
    assert json.loads(json_line)["event"] == "x"
    assert "\n" not in TextFormatter("%(levelname)s %(message)s").format(record("event=x text=%s", text))


LOCK_ASKED_FOR = """
import os, signal, sys
import tailrace.node.process as process
from tailrace.node.settings.config import NodeConfig

def say_interval(node, config):
    print(sys.getswitchinterval())
    os.kill(os.getpid(), signal.SIGTERM)

process._say_ready = say_interval
process.run(NodeConfig({"log.dirs": sys.argv[1], "listeners": "127.0.0.1:0"}))
"""


def test_a_thread_gets_the_interpreters_lock_between_two_system_calls_of_a_busy_event_loop(tmp_path: Path) -> None:
    """A system call of the loop restarts the thread's wait for the lock; slices of work have no system call inside."""
    done = subprocess.run(
        [sys.executable, "-c", LOCK_ASKED_FOR, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": package_path(os.environ)},
    )
    assert float(done.stdout) * 1_000 <= SLICE_MS / 4
