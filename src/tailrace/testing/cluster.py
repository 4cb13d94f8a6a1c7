"""Real nodes for tests: processes of `tailrace serve` on free ports, gone when the `with` block ends.

with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
    Producer(cluster.bootstrap_servers)
    cluster.kill(cluster.controller_id)
"""

import atexit
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.client.blocking import Admin
from tailrace.model.errors import KafkaError
from tailrace.node.local.cluster import ClusterWish, LocalNode, added_node, open_cluster
from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.node.settings.listeners import ListenerAddress
from tailrace.testing.node_process import ClusterError, NodeProcess

_READY_S = 120.0
"""The longest wait for the start of a node, generous for a busy machine."""
_ANY_PORT = ListenerAddress(name="PLAINTEXT", host="127.0.0.1", port=0)


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
        self._nodes: dict[int, NodeProcess] = {}

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
        self._nodes[node.node_id] = NodeProcess(node, log_file, self._timeout)

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

    def _chosen(self, nodes: Iterable[int]) -> list[NodeProcess]:
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
