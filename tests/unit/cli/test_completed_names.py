"""Completion of the names of topics and groups, as the shells ask for it, against a node."""

import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import ExitStack, nullcontext, suppress

import pytest

from tailrace.client.blocking import Admin, TopicPartition
from tailrace.testing import Cluster
from tailrace.testing.topic_names import fresh_name
from testkit.programs.command_tree import all_commands

SECONDS = 60.0
LONG_MS = 50_000
"""The time-out of a completion that is to offer something, also on a slow machine."""
SHELLS = ("bash", "zsh", "fish")
UNUSED = "127.0.0.1:1"


@pytest.fixture(scope="module")
def prefix(tailrace_cluster: Cluster) -> str:
    """The start of the names of two topics and two groups. Another group has a name that is a program of a shell."""
    prefix = fresh_name("completed")
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics([f"{prefix}-a", f"{prefix}-b"])
        for group in ("g", "h", 'a"; touch injected; echo "', "$(touch injected)"):
            admin.commit_offsets(f"{prefix}-{group}", {TopicPartition(f"{prefix}-a", 0): 0})
        admin.commit_offsets("--execute", {TopicPartition(f"{prefix}-a", 0): 0})
    return prefix


def environment_of(shell: str, line: str, *, timeout_ms: int = LONG_MS) -> dict[str, str]:
    """The environment in which the shell calls the command to complete the last word of the line."""
    environment = {name: value for name, value in os.environ.items() if name != "TAILRACE_BOOTSTRAP"}
    environment["_TAILRACE_COMPLETE"] = f"complete_{shell}"
    environment["TAILRACE_COMPLETION_TIMEOUT_MS"] = str(timeout_ms)
    if shell == "bash":
        words = re.split(r"([:=])| ", line)  # bash divides words at these signs, and drops spaces
        words = [word for number, word in enumerate(words) if word or number == len(words) - 1]
        return {**environment, "COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    return {**environment, "_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


def asked(line: str, *, shell: str = "bash", timeout_ms: int = LONG_MS, **more: str) -> str:
    """The output for the last word of the line. A completion never prints to stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "tailrace"],
        env={**environment_of(shell, line, timeout_ms=timeout_ms), **more},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def names_in(output: str) -> set[str]:
    """The candidates, without the signs around them that the shell evaluates."""
    return set(re.findall(r"[\w.-]+", output)) - {"_arguments", "_files"}


def completed(line: str, *, shell: str = "bash", **more: str) -> set[str]:
    return names_in(asked(line, shell=shell, timeout_ms=LONG_MS, **more))


@pytest.mark.parametrize("shell", SHELLS)
def test_topics_are_completed(tailrace_cluster: Cluster, prefix: str, shell: str) -> None:
    line = f"tailrace topics describe --bootstrap-server {tailrace_cluster.bootstrap_servers} {prefix}"
    assert completed(line, shell=shell) == {f"{prefix}-a", f"{prefix}-b"}
    assert completed(f"{line}-b", shell=shell) == {f"{prefix}-b"}
    assert completed(f"{line}-a {prefix}", shell=shell) == {f"{prefix}-b"}


@pytest.mark.parametrize("shell", SHELLS)
def test_groups_with_plain_names_are_completed(tailrace_cluster: Cluster, prefix: str, shell: str) -> None:
    """zsh evaluates what a completion prints, and bash expands it."""
    line = f"tailrace groups describe --bootstrap-server={tailrace_cluster.bootstrap_servers} "
    assert completed(f"{line}{prefix}", shell=shell) == {f"{prefix}-g", f"{prefix}-h"}
    output = asked(line, shell=shell)
    assert f"{prefix}-g" in output
    assert "injected" not in output
    assert "--execute" not in output


@pytest.mark.parametrize(
    "words",
    [
        "produce",
        "consume --key k",
        "topics alter",
        "groups reset-offsets g --topic=",
        "groups move g from",
        "spark checkpoint move DIRECTORY --topic",
    ],
)
def test_a_topic_is_completed_wherever_it_goes(tailrace_cluster: Cluster, prefix: str, words: str) -> None:
    line = f"tailrace {words} {prefix}" if not words.endswith("=") else f"tailrace {words}{prefix}"
    found = completed(line, TAILRACE_BOOTSTRAP=tailrace_cluster.bootstrap_servers)
    assert found == {f"{prefix}-a", f"{prefix}-b"}


@pytest.mark.parametrize(
    "words",
    ["groups history", "groups delete", "consume t --group"],
)
def test_a_group_is_completed_wherever_it_goes(tailrace_cluster: Cluster, prefix: str, words: str) -> None:
    found = completed(f"tailrace {words} {prefix}", TAILRACE_BOOTSTRAP=tailrace_cluster.bootstrap_servers)
    assert found == {f"{prefix}-g", f"{prefix}-h"}


def test_internal_topics_belong_to_an_underscore(tailrace_cluster: Cluster, prefix: str) -> None:
    line = f"tailrace topics describe --bootstrap-server {tailrace_cluster.bootstrap_servers} "
    offered = completed(line)
    assert f"{prefix}-a" in offered
    assert [name for name in offered if name.startswith("_")] == []
    assert "__consumer_offsets" in completed(f"{line}_")


def test_the_address_on_the_line_counts_before_the_environment(tailrace_cluster: Cluster, prefix: str) -> None:
    servers = tailrace_cluster.bootstrap_servers
    line = f"tailrace consume {prefix}"
    assert completed(line, TAILRACE_BOOTSTRAP=UNUSED) == set()
    there = f"tailrace consume --bootstrap-server {servers} {prefix}"
    assert completed(there, TAILRACE_BOOTSTRAP=UNUSED) == {f"{prefix}-a", f"{prefix}-b"}
    assert completed(f"tailrace consume --bootstrap-server {servers}", TAILRACE_BOOTSTRAP=servers) == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_node_nothing_is_offered(shell: str) -> None:
    assert completed("tailrace topics describe ", shell=shell, TAILRACE_BOOTSTRAP=UNUSED) == set()


@pytest.mark.parametrize("address", ["nonsense:port", "no-such-host.invalid:9092"])
def test_an_address_that_is_none_offers_nothing(address: str) -> None:
    assert completed("tailrace groups describe ", TAILRACE_BOOTSTRAP=address) == set()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\4\0\0\0\1" * 99])
def test_a_node_that_hangs_or_answers_nonsense_offers_nothing(answer: bytes) -> None:
    words = "tailrace groups describe"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace"],
            env=environment_of("bash", f"{words} --bootstrap-server 127.0.0.1:{port_of(listener)} ", timeout_ms=400),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        listener.settimeout(0.01)
        connection = None
        while connection is None and process.poll() is None:
            with suppress(TimeoutError):
                connection = listener.accept()[0]
        # A process that its limit has ended before it connects offers nothing either.
        with nullcontext() if connection is None else connection:
            if connection is not None:
                connection.sendall(answer)
            output, errors = process.communicate(timeout=SECONDS)  # while the connection is open
        assert (output.strip(), errors, process.returncode) == (b"", b"", 0)


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


def test_all_waits_together_have_a_limit() -> None:
    """A silent node costs a time-out: the limit is over before the turn of most nodes."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(6)]
        servers = ",".join(f"127.0.0.1:{port_of(listener)}" for listener in listeners)
        assert asked("tailrace topics describe ", timeout_ms=400, TAILRACE_BOOTSTRAP=servers) == ""
        tried = [is_waiting(listener) for listener in listeners]
        assert sum(tried) <= 3, tried


def is_waiting(listener: socket.socket) -> bool:
    """Whether a client has connected."""
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_bash_itself_completes_a_line_with_an_address(tailrace_cluster: Cluster, prefix: str) -> None:
    """With the script that `tailrace --show-completion` prints, and the words as bash divides them."""
    host, port = tailrace_cluster.bootstrap_servers.split(":")
    words = shlex.join(["tailrace", "topics", "delete", "--bootstrap-server", host, ":", port, f"{prefix}-"])
    script = f"""
        tailrace() {{ {shlex.quote(sys.executable)} -m tailrace "$@"; }}
        eval "$(tailrace --show-completion)"
        env() {{ local -x "${{@:1:3}}"; tailrace; }}  # the program may not be on PATH
        COMP_WORDS=({words})
        COMP_CWORD=7
        _tailrace_completion tailrace
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = {**os.environ, "TAILRACE_COMPLETION_TIMEOUT_MS": str(LONG_MS)}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert (done.stdout.split(), done.stderr) == ([f"{prefix}-a", f"{prefix}-b"], "")


def test_no_parameter_for_a_topic_or_group_was_forgotten() -> None:
    """The words of metavars: a new command with such a parameter completes its names too."""
    names = re.compile(r"\[?(TOPIC|GROUP|NAME)(\.\.\.)?\]?(\[:PARTITION\])?")
    missing = {
        (words, parameter.name)
        for words, command in all_commands()
        for parameter in command.params
        if names.fullmatch(parameter.metavar or "") or parameter.name in ("topic", "topics", "group", "groups")
        if parameter._custom_shell_complete is None
    }
    assert missing == {
        ("topics create", "names"),
        ("topics alter", "delete_config"),
        ("brokers alter", "delete_config"),
    }


NEVER = {"crc32c", "email", "numpy", "pyarrow", "random", "rich", "tailrace.protocol.registry", "tempfile"}
NEVER |= {f"tailrace.client.{name}" for name in ("blocking.producer", "consumer", "keyed", "producer", "reading")}
NEVER |= {"tailrace.client.group.range_progress", "tailrace.protocol.messages.offsets"}
NEVER |= {f"tailrace.{name}" for name in ("coordinators", "metadata", "node", "raft", "server", "storage")}
"""Modules that a question about names does not need: each module costs a user at the keyboard time."""


def modules_of(words: list[str], **environment: str) -> set[str]:
    """The modules that the command line has imported at its end."""
    script = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from tailrace.__main__ import main; main()"
    )
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=True)
    return set(done.stderr.split())


@pytest.mark.parametrize("words", ["topics describe", "consume", "produce", "work", "groups describe"])
def test_a_completion_imports_what_it_needs(tailrace_cluster: Cluster, words: str) -> None:
    environment = environment_of("bash", f"tailrace {words} ")
    imported = modules_of([], **environment, TAILRACE_BOOTSTRAP=tailrace_cluster.bootstrap_servers)
    assert "tailrace.client.blocking.admin" in imported
    assert imported & {*NEVER, "tailrace.client.admin.configs"} == set()


@pytest.mark.parametrize("words", [["topics", "list"], ["topics", "describe"], ["brokers", "list"]])
def test_a_command_imports_what_it_needs(tailrace_cluster: Cluster, words: list[str]) -> None:
    imported = modules_of(words, **os.environ, TAILRACE_BOOTSTRAP=tailrace_cluster.bootstrap_servers)
    assert "tailrace.client.blocking.admin" in imported
    assert imported & NEVER == set()
