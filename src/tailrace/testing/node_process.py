"""The process of one node in tests: started as a user starts it, killed, paused, and started again."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import tailrace
from tailrace.node.local.cluster import LocalNode
from tailrace.node.local.supervisor import READY
from tailrace.node.settings.environment import without_settings
from tailrace.node.settings.listeners import parse_endpoint
from tailrace.testing import node_program
from tailrace.testing.node_program import DONE, NodeFaults

_TAIL_LINES = 20
_TAIL_BYTES = 16 << 10
_GONE_S = 60.0
"""The longest wait for the end of a node, generous for a busy machine."""


def serve_command(node: LocalNode) -> list[str]:
    """The command that starts this node."""
    return [sys.executable, "-m", node_program.__name__, *node_program.OPTIONS, str(node.config_file)]


def package_path(environment: Mapping[str, str]) -> str:
    """A PYTHONPATH with which a child runs the package that this process runs, installed or not."""
    root = str(Path(tailrace.__file__).parent.parent)
    return os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))


def node_environment() -> dict[str, str]:
    """The environment of a node: the variables of this process without the settings of a node (TAILRACE_*), which would
    override the file of `--config`; PYTHONPATH leads to the package of this process."""
    return {**without_settings(os.environ), "PYTHONPATH": package_path(os.environ)}


def start_process(
    command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """A process with a session of its own, and pipes for its other streams."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        start_new_session=True,
        env=environment,
    )


class ClusterError(Exception):
    """A node did not start or did not end (the message has the end of its stderr), or the quorum has no leader."""


class NodeProcess:
    """The process of one node, which can be started again."""

    def __init__(self, node: LocalNode, log_file: Path, timeout: float) -> None:
        self.node = node
        self.log_file = log_file
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None
        self._is_paused = False
        self.faults = NodeFaults()
        self._obeyed = 0
        """The number of the last order that the node has obeyed."""
        self._log_mark = 0
        """The size of the log when the running test began."""

    @property
    def name(self) -> str:
        return f"node {self.node.node_id}"

    @property
    def ports(self) -> list[int]:
        """The ports of all listeners."""
        return [parse_endpoint(text).port for text in self.node.settings["listeners"].split(",")]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_awake(self) -> bool:
        """Whether the process runs, and is not paused."""
        return self.is_running and not self._is_paused

    @property
    def process_id(self) -> int:
        assert self._process is not None, "the node has been started"
        return self._process.pid

    def launch(self) -> None:
        """Start the process."""
        assert not self.is_running, f"{self.name} runs already"
        self._ready.clear()
        self._is_paused = False
        with self.log_file.open("ab") as log:
            # The node stops when its stdin ends, so that even a killed test leaves no node behind.
            self._process = start_process(serve_command(self.node), node_environment(), log)
        self._reader = threading.Thread(target=self._read_output, args=(self._process,), daemon=True)
        self._reader.start()
        if self.faults.is_any:
            self._say(self.faults)

    def _read_output(self, process: "subprocess.Popen[bytes]") -> None:
        """Read stdout to its end, so that the node never blocks on it; note the ready line."""
        assert process.stdout is not None, "stdout is a pipe"
        with process.stdout as lines:
            for line in lines:
                if line.startswith(READY.encode()):
                    self._ready.set()
                elif line.startswith(DONE.encode()):
                    self._obeyed = int(line.removeprefix(DONE.encode()))

    def wait_until_ready(self) -> None:
        """Return when the node answers requests. Raises ClusterError; the process is gone then."""
        deadline = time.monotonic() + self._timeout
        while not self._ready.wait(0.02):
            if not self.is_running:
                code = self._process.returncode if self._process is not None else None
                raise ClusterError(f"{self.name} ended with exit code {code} before it was ready\n{self._tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ClusterError(f"{self.name} was not ready within {self._timeout} s\n{self._tail()}")

    def check_takes_orders(self) -> None:
        """Raises ClusterError for a node that is paused."""
        if self.is_running and self._is_paused:
            raise ClusterError(f"{self.name} is paused and takes no fault: resume({self.node.node_id}) first")

    def order(self, faults: NodeFaults) -> None:
        """Tell the node its faults; a node that does not run has them from its next start on."""
        self.faults = faults
        if self.is_running:
            self._say(faults)

    def _say(self, faults: NodeFaults) -> None:
        assert self._process is not None, "the process has been started"
        assert self._process.stdin is not None, "stdin is a pipe"
        with contextlib.suppress(BrokenPipeError):  # the node has just ended
            self._process.stdin.write(faults.line())
            self._process.stdin.flush()

    def wait_until_obeyed(self) -> None:
        """Return when the faults of the last order hold. Raises ClusterError."""
        deadline = time.monotonic() + self._timeout
        while self.is_running and self._obeyed < self.faults.number:
            if time.monotonic() > deadline:
                raise ClusterError(f"{self.name} did not take a fault within {self._timeout} s\n{self._tail()}")
            time.sleep(0.005)

    def _tail(self) -> str:
        lines = self.last_lines(_TAIL_LINES)
        return "\n".join(f"  stderr | {line}" for line in lines) or "  (nothing on stderr)"

    def mark_log(self) -> None:
        """Note that a test begins."""
        with contextlib.suppress(OSError):  # the log of a node that was not started yet is not there
            self._log_mark = self.log_file.stat().st_size

    def last_lines(self, lines: int, *, of_test: bool = False) -> list[str]:
        """The last lines of the log, of its last bytes; with `of_test` only lines since the running test began."""
        with self.log_file.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_mark if of_test else 0, size - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()[-lines:]

    def kill(self) -> None:
        """SIGKILL the process and all its children. Raises ClusterError if the process stays alive: a live process may
        still write."""
        self.send_signal(signal.SIGKILL)
        if not self._wait():
            raise ClusterError(f"{self.name} was alive {_GONE_S} s after SIGKILL\n{self._tail()}")

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the process."""
        self.send_signal(signal.SIGTERM)

    def wait_until_stopped(self) -> None:
        """Wait for a clean end. Raises ClusterError; the process is gone then."""
        if not self._wait():
            self.kill()
            raise ClusterError(f"{self.name} did not stop within {_GONE_S} s of SIGTERM\n{self._tail()}")

    def send_signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            self._is_paused = number is signal.SIGSTOP

    def _wait(self) -> bool:
        """Whether the process has ended, after a wait."""
        if self._process is None:
            return True
        try:
            self._process.wait(_GONE_S)
        except subprocess.TimeoutExpired:
            return False
        if self._reader is not None:
            self._reader.join(_GONE_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return True
