"""Real nodes for tests: processes that run as `tailrace serve` does, on free ports, gone when the `with` block ends.

with Cluster(brokers=3, racks=["a", "b", "c"]) as cluster:
    Producer(cluster.bootstrap_servers)
    cluster.kill(cluster.controller_id)

The clients are imported, and settings of the user checked, while the nodes start: the imports for both take a third of
a second of a core.
"""

import atexit
import signal
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.local.cluster import ClusterWish, LocalNode, added_node, check_settings, open_cluster
from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.node.local.security import ClusterSecurity
from tailrace.node.settings.listeners import ListenerAddress
from tailrace.testing.cluster_faults import ClusterFaults, others_of
from tailrace.testing.node_process import ClusterError, NodeProcess
from tailrace.testing.node_program import TEMPORARY
from tailrace.testing.running_test import RUNNING_TEST
from tailrace.testing.topic_calls import TopicCalls, texts

_READY_S = 120.0
"""The longest wait for the start of a node, generous for a busy machine."""
_NOT_OPEN = "the cluster has no nodes: it was not started, or it was closed"
_SETTINGS: Final = {"dev.mode": "true"}
"""The settings of all nodes, without settings of the user."""
_ANY_PORT = ListenerAddress(name="PLAINTEXT", host="127.0.0.1", port=0)


class Cluster(TopicCalls):
    """The nodes of one cluster: brokers with the numbers from 1 on, then separate controllers, if there are any.

    Starts with the `with` block and leaves no process and no file behind, also if the test is killed; only a node that
    is paused then stays. `config` has settings by Kafka's names, for
    every node; dev.mode is true by default. `directory` keeps settings and data after the block, for a look or another
    start. Without `controllers`, brokers are controllers too. `secure`: the nodes have TLS, SASL and permissions, as by
    `tailrace up --secure`; `client_settings` are of the super user, and calls of the cluster use them.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        racks: Sequence[str] | None = None,
        controllers: int = 0,
        config: Mapping[str, str] | None = None,
        directory: Path | None = None,
        secure: bool = False,
        timeout: float = _READY_S,
    ) -> None:
        super().__init__()
        settings = {**_SETTINGS, **(texts(config) or {})}
        self._wish = ClusterWish(
            brokers=brokers, racks=racks, controllers=controllers, listen=_ANY_PORT, settings=settings, secure=secure
        )
        self._security: ClusterSecurity | None = None
        self._directory = directory
        self._timeout = timeout
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._ports = ReservedPorts()
        self._nodes: dict[int, NodeProcess] = {}
        self._faults = ClusterFaults()
        self._is_checked = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if fault is not None:
            RUNNING_TEST.note_end(self, fault)
        self.close()

    def prepare(self) -> None:
        """Write the nodes' settings and reserve their ports; start nothing. Raises ClusterError."""
        self._open(has_checks=True)

    def _open(self, *, has_checks: bool) -> None:
        """Found the cluster, or open the cluster in the directory. Without checks the nodes may start first: nothing is
        in the directory that wrong settings could spoil."""
        assert not self._nodes, "the cluster is there already"
        directory = self._directory
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tailrace-test-", ignore_cleanup_errors=True)
            directory = Path(self._temporary.name)
            (directory / TEMPORARY).touch()
        directory.mkdir(parents=True, exist_ok=True)
        atexit.register(self.close)
        RUNNING_TEST.note_start(self)
        try:
            nodes = open_cluster(directory, self._wish, self._ports, has_checks=has_checks)
        except KafkaError as fault:
            raise ClusterError(str(fault)) from None
        security = ClusterSecurity(directory)
        self._security = security if security.exists else None
        for node in nodes:
            self._take(node)
        is_plain = self._wish.settings == _SETTINGS and not self._wish.racks
        self._is_checked = has_checks or is_plain

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
            if self._nodes:
                self.kill()
        finally:
            self._nodes = {}
            self._faults = ClusterFaults()
            self._ports.close()
            if self._temporary is not None:
                self._temporary.cleanup()
                self._temporary = None

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT[,HOST:PORT...]` of all brokers, for clients. Raises ClusterError before the start."""
        self._check_is_open()
        return ",".join(map(self.address, self.broker_ids))

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of a client of this cluster, with the addresses of all brokers; of a secured cluster, the
        settings of its super user."""
        security = {} if self._security is None else self._security.client_settings()
        return {"bootstrap.servers": self.bootstrap_servers, **security}

    def address(self, node: int = 1) -> str:
        """`HOST:PORT` of one broker; for a controller, of its listener for controllers."""
        return self._node(node).node.address

    @property
    def node_ids(self) -> list[int]:
        return list(self._nodes)

    @property
    def broker_ids(self) -> list[int]:
        return [node_id for node_id, node in self._nodes.items() if node.node.is_broker]

    @property
    def controller_id(self) -> int:
        """The node that leads the metadata quorum. Raises ClusterError if there is no leader for long."""
        from tailrace.client.blocking.admin import Admin

        deadline = time.monotonic() + self._timeout
        while True:
            try:
                with Admin(self.running_settings, bootstrap_timeout_ms=2_000) as admin:
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

    @property
    def running_nodes(self) -> list[int]:
        """The numbers of the nodes that run and are not paused."""
        return [node_id for node_id in self.node_ids if self._nodes[node_id].is_awake]

    @property
    def running_servers(self) -> str:
        """The addresses of the brokers that run. Raises KafkaError if no broker runs."""
        running = [self.address(node_id) for node_id in self.broker_ids if node_id in self.running_nodes]
        if not running:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no broker of the cluster runs: start() starts the nodes")
        return ",".join(running)

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
            self._open(has_checks=self._directory is not None)
            self._start(nodes, wait)
        except BaseException:
            self.close()
            raise

    def _start(self, nodes: Sequence[int], wait: bool) -> None:
        chosen = self._chosen(nodes)
        for node in chosen:
            if not node.is_running:
                node.launch()
        import_module("tailrace.testing.waits")
        self._check_settings()
        for node in chosen if wait else ():
            node.wait_until_ready()

    def _check_settings(self) -> None:
        """Raise ClusterError for settings that the nodes refuse, unless that is known already."""
        if self._is_checked:
            return
        try:
            check_settings([known.node for known in self._nodes.values()])
        except KafkaError as fault:
            raise ClusterError(str(fault)) from None
        self._is_checked = True

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

    # The network and the disks

    def cut(self, node: int, *others: int) -> None:
        """Cut the network between this node and the others; without others, between this node and all other nodes.

        Nothing arrives in either direction, and connections stay open, as when a cable is pulled out. Clients still
        reach every node. The cut holds until `heal`, also while nodes restart. Raises ClusterError.
        """
        self._check_is_open()
        chosen = others_of(node, others, self.node_ids)
        self._chosen((node, *chosen))
        self._order(self._faults.with_cut(node, chosen))

    def heal(self, *nodes: int) -> None:
        """End all cuts; with one node the cuts of this node, with several nodes the cuts among these nodes."""
        self._chosen(nodes)
        self._order(self._faults.healed(nodes))

    def fill_disk(self, *nodes: int) -> None:
        """Let the disks of these nodes be full until `free_disk`: no file grows (ENOSPC), and no space is free.

        The node meets the faults in its calls of the operating system; the disk of this machine is left alone.
        """
        self._order(replace(self._faults, full=self._faults.full | self._numbers(nodes)))

    def free_disk(self, *nodes: int) -> None:
        """Let the disks have space again."""
        self._order(replace(self._faults, full=self._faults.full - self._numbers(nodes)))

    def _order(self, faults: ClusterFaults) -> None:
        faults.order(self._nodes)
        self._faults = faults

    def _numbers(self, nodes: Iterable[int]) -> set[int]:
        return {node.node.node_id for node in self._chosen(nodes)}

    def _chosen(self, nodes: Iterable[int]) -> list[NodeProcess]:
        self._check_is_open()
        return [self._node(number) for number in tuple(nodes) or self._nodes]

    def _node(self, number: int) -> NodeProcess:
        self._check_is_open()
        node = self._nodes.get(number)
        if node is None:
            kinds = {known: "" if known in self.broker_ids else " (a controller)" for known in self._nodes}
            there = ", ".join(f"{known}{kind}" for known, kind in kinds.items())
            raise ClusterError(f"the cluster has no node {number!r}; its nodes are {there}")
        return node

    def _check_is_open(self) -> None:
        if not self._nodes:
            raise ClusterError(f"{_NOT_OPEN}: say `with Cluster() as cluster:`, or call start() first")

    def is_running(self, node: int = 1) -> bool:
        return self._node(node).is_running

    def process_id(self, node: int = 1) -> int:
        return self._node(node).process_id

    def data_dir(self, node: int = 1) -> Path:
        """The directory of the node's logs."""
        return self._node(node).node.data_directory

    def config_file(self, node: int = 1) -> Path:
        """The properties file of `tailrace serve --config` for the node."""
        return self._node(node).node.config_file

    def log_text(self, node: int = 1) -> str:
        """The node's stderr so far."""
        return self._node(node).log_file.read_text(errors="replace")

    def log_tail(self, node: int = 1, lines: int = 20, *, of_test: bool = False) -> list[str]:
        """The last lines of the node's stderr; with `of_test` only lines since the running test of pytest began."""
        return self._node(node).last_lines(lines, of_test=of_test)

    def mark_logs(self) -> None:
        """Note that a test begins, for `log_tail`."""
        for node in self._nodes.values():
            node.mark_log()
