"""Forked nodes are like other processes to tests that wait for them, kill them and read their output."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_starter import ForkedNode, NodeStarter


@pytest.fixture
def starter() -> Iterator[NodeStarter]:
    starter = NodeStarter(os.environ)
    yield starter
    starter.close()


def begin(starter: NodeStarter, errors: Path, *words: str, **environment: str) -> ForkedNode | None:
    command = [sys.executable, "-m", "tailrace", *words]
    with errors.open("ab") as stderr:
        return starter.start(command, {**os.environ, **environment}, stderr)


def end(node: ForkedNode) -> int:
    """The node's exit code. Closes the pipes."""
    node.stdin.close()
    code = node.wait(60)
    node.stdout.close()
    return code


def test_output_errors_and_exit_code_are_those_of_the_command(starter: NodeStarter, tmp_path: Path) -> None:
    errors = tmp_path / "errors"
    right, wrong = begin(starter, errors, "--version"), begin(starter, errors, "serve", "--no-such-option")
    assert right is not None
    assert wrong is not None
    assert right.stdout.read().count(b".") == 2
    assert (end(right), end(wrong)) == (0, 2)
    assert "--no-such-option" in errors.read_text()


def test_a_node_leads_a_session_and_ends_by_a_signal_or_with_its_input(starter: NodeStarter, tmp_path: Path) -> None:
    nodes = []
    for number in range(2):
        place = ("--data-dir", str(tmp_path / str(number)), "--listen", "127.0.0.1:0")
        node = begin(starter, tmp_path / "errors", "serve", *place, "--until-stdin-closes")
        assert node is not None
        assert node.stdout.readline().startswith(b"tailrace ready: ")
        nodes.append(node)
    killed, stopped = nodes
    assert os.getsid(killed.pid) == killed.pid != os.getsid(stopped.pid)
    assert (killed.poll(), stopped.poll()) == (None, None)
    with pytest.raises(subprocess.TimeoutExpired):
        killed.wait(0)
    os.killpg(killed.pid, signal.SIGKILL)
    assert (end(killed), end(stopped)) == (-signal.SIGKILL, 0)
    assert not Path(f"/proc/{killed.pid}").exists()


def test_another_environment_takes_a_process_of_its_own(starter: NodeStarter, tmp_path: Path) -> None:
    """Also if it is the environment of the first node: later nodes are forks."""
    for _ in range(2):
        assert begin(starter, tmp_path / "errors", "--version", TAILRACE_NODE_ID="7") is None
        node = begin(starter, tmp_path / "errors", "--version")
        assert node is not None
        end(node)
