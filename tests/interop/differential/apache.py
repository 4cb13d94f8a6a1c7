"""Apache Kafka as one node or several, each broker and controller, from the jars of `interop.kafka_tools`."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers.peer import free_addresses
from interop.kafka_tools import JARS

_START_S = 60
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
_JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xms64m", "-Xmx320m", "-cp", f"{JARS}/*")
# The shell reads a pipe that we hold and ends Kafka when it closes: not even a killed test leaves a broker behind.
_UNTIL_STDIN_CLOSES = '"$@" & broker=$!; cat >/dev/null; kill -9 $broker; wait $broker'


class _ApacheNode:
    """A process of Apache Kafka, with a directory of its own."""

    def __init__(self, home: Path, settings: Mapping[str, str], address: str) -> None:
        self.address = address
        self._home = home
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Write its settings, format its directory, and start it."""
        self._home.mkdir()
        properties = self._home / "server.properties"
        settings = {**self._settings, "log.dirs": f"{self._home}/data"}
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        form = [*_JAVA, "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties)]
        subprocess.run(form, check=True, capture_output=True, timeout=_START_S)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _UNTIL_STDIN_CLOSES, "sh", *_JAVA, "kafka.Kafka", str(properties)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self._home / "kafka.log"

    def wait_until_it_listens(self) -> None:
        assert self._process is not None
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection((host, int(port))).close()
            except ConnectionRefusedError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError(f"Apache Kafka does not listen at {self.address}:\n{self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_START_S)


class ApacheCluster:
    """Nodes with empty directories of their own. Gone with their files when the `with` block ends.

    `racks` has the rack of each node; the settings are for all nodes, except node.id, the first node's number (1).
    """

    def __init__(self, settings: Mapping[str, str], *, racks: Sequence[str | None] = (None,)) -> None:
        self._settings = settings
        self._racks = racks
        self._directory = tempfile.TemporaryDirectory(prefix="apache-kafka-", ignore_cleanup_errors=True)
        self._nodes: list[_ApacheNode] = []
        self._controllers: Sequence[str] = ()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self._nodes]

    @property
    def address(self) -> str:
        """The address of the first node."""
        return self._nodes[0].address

    @property
    def controller(self) -> str:
        """The address of the first node for what brokers ask a controller."""
        return self._controllers[0]

    def _start(self) -> None:
        count = len(self._racks)
        places = free_addresses(2 * count)
        addresses, controllers = places[:count], places[count:]
        self._controllers = controllers
        first = int(self._settings.get("node.id", "1"))
        voters = ",".join(f"{number}@{controller}" for number, controller in enumerate(controllers, first))
        nodes = zip(addresses, controllers, self._racks, strict=True)
        for number, (address, controller, rack) in enumerate(nodes, first):
            settings = {
                "process.roles": "broker,controller",
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
                "advertised.listeners": f"PLAINTEXT://{address}",
                "controller.listener.names": "CONTROLLER",
                "log.cleaner.dedupe.buffer.size": "2097152",
                "transaction.state.log.min.isr": "1",
                "transaction.state.log.num.partitions": "1",
                "transaction.state.log.replication.factor": "1",
                **({"broker.rack": rack} if rack is not None else {}),
                **self._settings,
                "node.id": str(number),
            }
            self._nodes.append(_ApacheNode(Path(self._directory.name, f"node-{number}"), settings, address))
        for node in self._nodes:
            node.launch()
        for node in self._nodes:
            node.wait_until_it_listens()

    def close(self) -> None:
        """Kill the nodes and remove their files."""
        for node in self._nodes:
            node.kill()
        self._directory.cleanup()


class ApacheKafka(ApacheCluster):
    """A single node, without a rack."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__(settings)
