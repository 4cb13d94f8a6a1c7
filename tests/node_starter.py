"""Nodes of clusters in tests are forks of a process that has the imports: a start costs 0.05 s of a core, not 0.45 s.

Each worker has one such process, and its nodes are as processes of `tailrace serve` are: a session, an environment and
pipes of their own. Nodes that are given another environment, and other platforms, start with an interpreter of
their own. So do all nodes in the tests of the cluster itself and of the command.
"""

import atexit
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

_OF_OTHERS = ("PYTEST_", "PYSPARK_", "SPARK_", "JAVA_")
"""Variables that begin so are of no concern to a node; tests and a Spark session set them."""
_MESSAGE_BYTES = 1 << 16
_OF_NODES = ("tailrace.node.process", "tailrace.testing.node_program")
"""The modules that every node imports."""
_PROGRAMS = {"tailrace": "tailrace.__main__"}
"""The modules with the function `main` of commands that name a package."""


class ForkedNode:
    """A node's process, with what `tailrace.testing` needs of a `subprocess.Popen`."""

    def __init__(self, status: int, stdin: int, stdout: int) -> None:
        self.returncode: int | None = None
        self.stdin, self.stdout = os.fdopen(stdin, "wb", buffering=0), os.fdopen(stdout, "rb")
        self._status = os.fdopen(status, "rb")  # closed with the end of the process
        self._lock = threading.Lock()
        self.pid = int(self._status.readline())

    def poll(self) -> int | None:
        """The exit code, or None while it runs; minus the number of the signal that ended it."""
        self._has_ended(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired after so many seconds."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _has_ended(self, timeout: float | None) -> bool:
        with self._lock:
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._status, select.POLLIN)
                if poll.poll(None if timeout is None else 1_000 * timeout):
                    self.returncode = int(self._status.readline())
                    self._status.close()
            return self.returncode is not None


class NodeStarter:
    """The process of which nodes are forks. It begins with the first node that has the environment of the tests."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = _compared(environment)
        self._link: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self, command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> ForkedNode | None:
        """A node of this command (`PYTHON -m MODULE ...`); None if it must start as a process of its own."""
        if _compared(environment) != self._environment:
            return None
        with self._lock:
            if self._link is None:
                self._begin()
            assert self._link is not None
            with ExitStack() as theirs:
                status, status_of_node = os.pipe()
                theirs.callback(os.close, status_of_node)
                stdin_of_node, stdin = os.pipe()
                theirs.callback(os.close, stdin_of_node)
                stdout, stdout_of_node = os.pipe()
                theirs.callback(os.close, stdout_of_node)
                wish = json.dumps({"arguments": command[2:], "directory": str(Path.cwd())}).encode()
                passed = [stdin_of_node, stdout_of_node, stderr.fileno(), status_of_node]
                socket.send_fds(self._link, [wish], passed)
        return ForkedNode(status, stdin, stdout)

    def _begin(self) -> None:
        self._link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with link:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(link.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[link.fileno()],
                start_new_session=True,
                env=self._environment,
            )

    def close(self) -> None:
        """Close the link: the starter ends with the last of its nodes."""
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            self._process.wait()


def _compared(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are of concern to a node."""
    return {name: text for name, text in environment.items() if not name.startswith(_OF_OTHERS)}


def use_node_starter() -> None:
    """From now on the nodes of every `tailrace.testing.Cluster` of this process are forks, if no test changes their
    environment."""
    if not hasattr(os, "pidfd_open"):
        return
    from tailrace.testing import node_process

    starter, begin_process = NodeStarter(node_process.node_environment()), node_process.start_process
    atexit.register(starter.close)  # registered before any cluster, it is called after their ends

    def start_process(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> Any:
        return starter.start(command, environment, stderr) or begin_process(command, environment, stderr)

    node_process.start_process = start_process


class _Wish(NamedTuple):
    """A node to start, with the file descriptors of its streams and of the pipe for its status."""

    arguments: list[str]
    directory: str
    stdin: int
    stdout: int
    stderr: int
    status: int


def _run_starter(link: socket.socket) -> None:
    """Fork until the link is closed and the last node has ended; a fork returns as the node that it is to be."""
    nodes: dict[int, tuple[int, int]] = {}  # the process and the pipe for its status, by the descriptor of its end
    poll = select.poll()
    poll.register(link, select.POLLIN)
    is_open = True
    while is_open or nodes:
        for ready, _ in poll.poll():
            if ready in nodes:
                process_id, status = nodes.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                _report_end(process_id, status)
                continue
            wish = _received(link)
            if wish is None:
                is_open = False
                poll.unregister(link)
                continue
            process_id = os.fork()
            if process_id == 0:
                link.detach()
                _become(wish)
                return
            for descriptor in (wish.stdin, wish.stdout, wish.stderr):
                os.close(descriptor)
            end = os.pidfd_open(process_id)
            nodes[end] = process_id, wish.status
            poll.register(end, select.POLLIN)
    sys.exit()


def _received(link: socket.socket) -> _Wish | None:
    message, descriptors, *_ = socket.recv_fds(link, _MESSAGE_BYTES, 4)
    if not message:
        return None
    wish = json.loads(message)
    stdin, stdout, stderr, status = descriptors
    return _Wish(wish["arguments"], wish["directory"], stdin, stdout, stderr, status)


def _report_end(process_id: int, status: int) -> None:
    _, ended = os.waitpid(process_id, 0)
    try:
        os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    except BrokenPipeError:  # the process of the tests is gone
        pass
    finally:
        os.close(status)


def _become(wish: _Wish) -> None:
    os.setsid()
    for number, descriptor in enumerate((wish.stdin, wish.stdout, wish.stderr)):
        os.dup2(descriptor, number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.write(wish.status, b"%d\n" % os.getpid())
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(wish.directory)
    sys.argv = wish.arguments


if __name__ == "__main__":
    for name in _OF_NODES:
        importlib.import_module(name)
    _run_starter(socket.socket(fileno=int(sys.argv[1])))
    program = importlib.import_module(_PROGRAMS.get(sys.argv[0], sys.argv[0]))
    program.main()
