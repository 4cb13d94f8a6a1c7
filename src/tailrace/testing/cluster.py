"""Real nodes for tests: processes of `tailrace serve --dev` on free ports, gone when the `with` block ends.

with Cluster() as cluster:
    Producer(cluster.bootstrap_servers)
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import tailrace

READY = "tailrace ready: "
_TAIL_LINES = 20


class ClusterError(Exception):
    """A node did not start or did not stop; the message has the end of what it wrote to stderr."""


class _Node:
    """One process, and how to start it again."""

    def __init__(self, index: int, directory: Path, settings: Mapping[str, str], timeout: float) -> None:
        self.index = index
        self.data_dir = directory / f"node-{index}"
        self.log_file = directory / f"node-{index}.log"
        self.address = "127.0.0.1:0"
        self._settings = settings
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        assert self._process is not None, "the node has been started"
        return self._process.pid

    def start(self) -> None:
        """Start the process and wait until it answers requests."""
        assert not self.is_running, f"node {self.index} runs already"
        command = [sys.executable, "-m", "tailrace", "serve", "--dev"]
        # The node reads this pipe and stops when it ends, so that not even a killed test leaves a node behind.
        command += ["--until-stdin-closes", "--listen", self.address, "--data-dir", str(self.data_dir)]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        # The node runs the package that the test runs, installed or not.
        root = str(Path(tailrace.__file__).parent.parent)
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._ready.clear()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._reader = threading.Thread(target=self._read_output, args=(self._process,), daemon=True)
        self._reader.start()
        self._wait_until_ready()

    def _read_output(self, process: "subprocess.Popen[bytes]") -> None:
        """Read stdout to its end, so that the node never waits for us; note the ready line."""
        assert process.stdout is not None, "stdout is a pipe"
        with process.stdout as lines:
            for raw in lines:
                line = raw.decode(errors="replace").strip()
                if line.startswith(READY):
                    self.address = line.removeprefix(READY).split()[0].split(",")[0]
                    self._ready.set()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._timeout
        while not self._ready.wait(0.02):
            if not self.is_running:
                code = self._process.returncode if self._process is not None else None
                raise ClusterError(f"node {self.index} ended with exit code {code} before it was ready\n{self._tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise ClusterError(f"node {self.index} was not ready within {self._timeout} s\n{self._tail()}")

    def _tail(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  stderr | {line}" for line in lines) or "  (nothing on stderr)"

    def kill(self) -> None:
        """SIGKILL to the process and all its children."""
        self._signal(signal.SIGKILL)
        self._wait(10)

    def stop(self) -> None:
        """SIGTERM, and wait for a clean end."""
        if not self.is_running:
            return
        self._signal(signal.SIGTERM)
        if not self._wait(30):
            self.kill()
            raise ClusterError(f"node {self.index} did not stop within 30 s of SIGTERM\n{self._tail()}")

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _wait(self, seconds: float) -> bool:
        if self._process is None:
            return True
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        if self._reader is not None:
            self._reader.join(5)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return True


class Cluster:
    """Nodes of one cluster, numbered from 0. Starts with the `with` block and leaves no process and no file behind.

    `config` has settings by Kafka's names, for every node. `directory` keeps the data, for a look afterwards.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        timeout: float = 30.0,
    ) -> None:
        if brokers != 1:
            raise ValueError(f"a test cluster has one broker for now, {brokers} were asked for")
        self._config = {name: str(value) for name, value in (config or {}).items()}
        self._directory = directory
        self._timeout = timeout
        self._brokers = brokers
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._nodes: list[_Node] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start all nodes and wait until they answer. Raises ClusterError."""
        directory = self._directory
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tailrace-test-", ignore_cleanup_errors=True)
            directory = Path(self._temporary.name)
        directory.mkdir(parents=True, exist_ok=True)
        self._nodes = [_Node(index, directory, self._config, self._timeout) for index in range(self._brokers)]
        atexit.register(self.close)
        try:
            for node in self._nodes:
                node.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill what still runs and remove the data. May be called again."""
        atexit.unregister(self.close)
        for node in self._nodes:
            node.kill()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT[,HOST:PORT...]` for clients."""
        return ",".join(node.address for node in self._nodes)

    def kill(self, node: int = 0) -> None:
        """kill -9: nothing is written any more."""
        self._nodes[node].kill()

    def stop(self, node: int = 0) -> None:
        """SIGTERM: a clean end. Raises ClusterError if it does not come."""
        self._nodes[node].stop()

    def restart(self, node: int = 0) -> None:
        """Start a node again on its port and data, after stopping it if it runs."""
        self._nodes[node].stop()
        self._nodes[node].start()

    def is_running(self, node: int = 0) -> bool:
        return self._nodes[node].is_running

    def process_id(self, node: int = 0) -> int:
        return self._nodes[node].process_id

    def data_dir(self, node: int = 0) -> Path:
        """Where the node keeps its logs."""
        return self._nodes[node].data_dir

    def log_text(self, node: int = 0) -> str:
        """What the node has written to stderr so far."""
        return self._nodes[node].log_file.read_text(errors="replace")
