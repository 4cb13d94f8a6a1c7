"""Real nodes for tests: processes of `tailrace serve` on free ports, gone when the `with` block ends.

with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
    Producer(cluster.bootstrap_servers)
    cluster.kill(cluster.controller_id)
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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import tailrace
from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.node.local.cluster import ClusterWish, LocalNode, added_node, open_cluster
from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.node.local.supervisor import READY
from tailrace.node.settings.listeners import ListenerAddress
from tailrace.node.settings.sources import without_settings

_TAIL_LINES = 20
_READY_S = 120.0
_GONE_S = 60.0
"""The longest waits for the start and the end of a node, generous for a busy machine."""
_ANY_PORT = ListenerAddress(name="PLAINTEXT", host="127.0.0.1", port=0)


def serve_command(node: LocalNode) -> list[str]:
    """The command that starts this node."""
    return [sys.executable, "-m", "tailrace", "serve", "--until-stdin-closes", "--config", str(node.config_file)]


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


class _Node:
    """The process of one node, which can be started again."""

    def __init__(self, node: LocalNode, log_file: Path, timeout: float) -> None:
        self.node = node
        self.log_file = log_file
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None

    @property
    def name(self) -> str:
        return f"node {self.node.node_id}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process_id(self) -> int:
        assert self._process is not None, "the node has been started"
        return self._process.pid

    def launch(self) -> None:
        """Start the process."""
        assert not self.is_running, f"{self.name} runs already"
        self._ready.clear()
        with self.log_file.open("ab") as log:
            # The node stops when its stdin ends, so that even a killed test leaves no node behind.
            self._process = start_process(serve_command(self.node), node_environment(), log)
        self._reader = threading.Thread(target=self._read_output, args=(self._process,), daemon=True)
        self._reader.start()

    def _read_output(self, process: "subprocess.Popen[bytes]") -> None:
        """Read stdout to its end, so that the node never blocks on it; note the ready line."""
        assert process.stdout is not None, "stdout is a pipe"
        with process.stdout as lines:
            for line in lines:
                if line.startswith(READY.encode()):
                    self._ready.set()

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

    def _tail(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  stderr | {line}" for line in lines) or "  (nothing on stderr)"

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


class Cluster:
    """The nodes of one cluster: brokers with the numbers from 1 on, then separate controllers, if there are any.

    Starts with the `with` block and leaves no process and no file behind. `config` has settings by Kafka's names, for
    every node; dev.mode is true by default. `directory` keeps settings and data after the block, for a look or another
    start. Without `controllers`, brokers are controllers too.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        racks: Sequence[str] | None = None,
        controllers: int = 0,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        timeout: float = _READY_S,
    ) -> None:
        settings = {"dev.mode": "true", **{name: str(value) for name, value in (config or {}).items()}}
        self._wish = ClusterWish(
            brokers=brokers, racks=racks, controllers=controllers, listen=_ANY_PORT, settings=settings
        )
        self._directory = directory
        self._timeout = timeout
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._ports = ReservedPorts()
        self._nodes: dict[int, _Node] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self) -> None:
        """Write the nodes' settings and reserve their ports; start nothing. Raises ClusterError."""
        assert not self._nodes, "the cluster is there already"
        directory = self._directory
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tailrace-test-", ignore_cleanup_errors=True)
            directory = Path(self._temporary.name)
        directory.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        try:
            nodes = open_cluster(directory, self._wish, self._ports)
        except KafkaError as fault:
            raise ClusterError(str(fault)) from None
        for node in nodes:
            self._take(node)

    def _take(self, node: LocalNode) -> None:
        log_file = node.home.with_name(f"{node.home.name}.log")
        self._nodes[node.node_id] = _Node(node, log_file, self._timeout)

    def add_node(self, *, controller: bool = False, rack: str | None = None) -> int:
        """Add a broker, or a controller, without starting the node. Returns its number.

        A controller follows the quorum until made a voter (`tailrace quorum add-controller`). Raises KafkaError
        for a cluster of one node.
        """
        nodes = [known.node for known in self._nodes.values()]
        node = added_node(nodes[0].home.parent, nodes, self._ports, is_controller=controller, rack=rack)
        self._take(node)
        return node.node_id

    def close(self) -> None:
        """Kill the nodes that still run and remove the data. May be called again."""
        atexit.unregister(self.close)
        try:
            self.kill()
        finally:
            self._nodes = {}
            self._ports.close()
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT[,HOST:PORT...]` of all brokers, for clients."""
        return ",".join(map(self.address, self.broker_ids))

    def address(self, node: int = 1) -> str:
        """`HOST:PORT` of one broker; for a controller, of its listener for controllers."""
        return self._nodes[node].node.address

    @property
    def node_ids(self) -> list[int]:
        return list(self._nodes)

    @property
    def broker_ids(self) -> list[int]:
        return [node_id for node_id, node in self._nodes.items() if node.node.is_broker]

    @property
    def controller_id(self) -> int:
        """The node that leads the metadata quorum. Raises ClusterError if there is no leader for long."""
        deadline = time.monotonic() + self._timeout
        while True:
            running = [self.address(node_id) for node_id in self.broker_ids if self.is_running(node_id)]
            try:
                with Admin(",".join(running), bootstrap_timeout_ms=2_000) as admin:
                    leader_id = int(admin.describe_quorum().leader_id)
                if leader_id >= 0 and self.is_running(leader_id):
                    return leader_id
            except KafkaError as fault:
                why = str(fault)
            else:
                why = f"{leader_id} is said to lead"
            if time.monotonic() > deadline:
                raise ClusterError(f"the quorum has no leader: {why}")
            time.sleep(0.02)

    # For the given nodes; without a number, for all

    def kill(self, *nodes: int) -> None:
        """Kill nodes at once with SIGKILL; they write nothing more. Raises ClusterError if a node stays alive."""
        chosen = self._chosen(nodes)
        for node in chosen:
            node.send_signal(signal.SIGKILL)
        for node in chosen:
            node.kill()

    def stop(self, *nodes: int) -> None:
        """Stop nodes cleanly, together, with SIGTERM. Raises ClusterError if a node does not stop."""
        chosen = self._chosen(nodes)
        for node in chosen:
            node.ask_to_stop()
        for node in chosen:
            node.wait_until_stopped()

    def start(self, *nodes: int, wait: bool = True) -> None:
        """Start the nodes that do not run, together, with their ports and data.

        Returns when all given nodes answer requests; with `wait=False` at once. Raises ClusterError; a failed first
        start leaves nothing behind.
        """
        if self._nodes:
            self._start(nodes, wait)
            return
        try:
            self.prepare()
            self._start(nodes, wait)
        except BaseException:
            self.close()
            raise

    def _start(self, nodes: Sequence[int], wait: bool) -> None:
        chosen = self._chosen(nodes)
        for node in chosen:
            if not node.is_running:
                node.launch()
        for node in chosen if wait else ():
            node.wait_until_ready()

    def restart(self, *nodes: int) -> None:
        """Stop the nodes that run, then start every given node."""
        self.stop(*nodes)
        self.start(*nodes)

    def pause(self, *nodes: int) -> None:
        """SIGSTOP: the node does nothing, and its connections stay open."""
        for node in self._chosen(nodes):
            node.send_signal(signal.SIGSTOP)

    def resume(self, *nodes: int) -> None:
        """Let the stopped node go on (SIGCONT)."""
        for node in self._chosen(nodes):
            node.send_signal(signal.SIGCONT)

    def _chosen(self, nodes: Iterable[int]) -> list[_Node]:
        return [self._nodes[number] for number in tuple(nodes) or self._nodes]

    def is_running(self, node: int = 1) -> bool:
        return self._nodes[node].is_running

    def process_id(self, node: int = 1) -> int:
        return self._nodes[node].process_id

    def data_dir(self, node: int = 1) -> Path:
        """The directory of the node's logs."""
        return self._nodes[node].node.data_directory

    def config_file(self, node: int = 1) -> Path:
        """The properties file of `tailrace serve --config` for the node."""
        return self._nodes[node].node.config_file

    def log_text(self, node: int = 1) -> str:
        """The node's stderr so far."""
        return self._nodes[node].log_file.read_text(errors="replace")
