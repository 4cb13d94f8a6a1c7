"""A node in the place of testcontainers' KafkaContainer: the same calls, without Docker."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tailrace.model.settings import nearest
from tailrace.testing.cluster import Cluster
from tailrace.testing.node_process import ClusterError

_PREFIX: Final = "KAFKA_"
_SET_BY_THE_KIT: Final = frozenset(
    (
        "advertised.listeners",
        "broker.id",
        "controller.listener.names",
        "controller.quorum.voters",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "listeners",
        "log.dirs",
        "node.id",
        "process.roles",
        "zookeeper.connect",
    )
)
"""Settings that say how the container reaches its network, or how it finds itself."""
_OF_THE_IMAGE: Final = ("confluent.", "debug", "gc.log", "heap.opts", "jmx.", "jvm.", "log4j", "opts", "tools.log4j")
"""Beginnings of variables of the JVM, and of programs beside the broker."""
_PROCESS: Final = "the node is a process of this machine, not a container"
_REFUSED: Final[Mapping[str, str]] = {
    "with_bind_ports": "the node takes a free port, which get_bootstrap_server() has",
    "with_network": f"{_PROCESS}; containers of a Docker network cannot reach it",
    "with_network_aliases": f"{_PROCESS}; containers of a Docker network cannot reach it",
    "with_command": f"{_PROCESS}; with_env() changes its settings",
    "with_volume_mapping": f"{_PROCESS}; Cluster(directory=...) keeps its data",
    "with_tmpfs_mount": f"{_PROCESS}; Cluster(directory=...) chooses the place of its data",
    "with_copy_into_container": f"{_PROCESS}, and reads files of this machine as they are",
    "exec": f"{_PROCESS}; subprocess.run() runs commands beside it, and `tailrace` has commands for topics and groups",
    "get_wrapped_container": f"{_PROCESS}; wait_for_logs() can go, since start() has waited until the node answers;"
    " the attribute `cluster` has kill(), pause() and other calls",
    "get_schema_registry_address": "a node has no schema registry; start a registry beside it, or a fake of its client",
    "get_docker_client": f"{_PROCESS}; the attribute `cluster` has kill(), pause() and other calls",
}
_WITHOUT_EFFECT: Final = frozenset(("docker_client_kw", "name", "ports"))


class KafkaContainer:
    """A node with the calls of testcontainers' KafkaContainer. The image is not run, and may be any text.

    Environment variables `KAFKA_...` are settings of the node, as in the images; variables of listeners, of the quorum
    and of the JVM have no effect. `cluster` is the `Cluster`. Raises ClusterError for an argument that has no meaning.
    """

    def __init__(
        self, image: str = "tailrace", port: int = 9093, *, env: Mapping[str, str] | None = None, **kwargs: Any
    ) -> None:
        for name in kwargs.keys() - _WITHOUT_EFFECT:
            raise ClusterError(f"KafkaContainer({name}=...): {_REFUSED.get(f'with_{name}', _PROCESS)}")
        self.image = image
        self.port = port
        self.env = dict(env or {})
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cluster is not None:
            self._cluster.__exit__(kind, fault, trace)
            self._cluster = None

    def __getattr__(self, name: str) -> Any:
        if name in _REFUSED:
            raise AttributeError(f"KafkaContainer of tailrace.testing has no {name}: {_REFUSED[name]}")
        near = nearest(name, [known for known in dir(type(self)) if not known.startswith("_")])
        hint = f"; did you mean {near!r}?" if near else ""
        raise AttributeError(f"KafkaContainer of tailrace.testing has no {name!r}{hint}")

    def start(self, timeout: float = 30) -> Self:
        """Start the node, and return when it answers. Raises ClusterError."""
        if self._cluster is None:
            cluster = Cluster(config=self._settings(), timeout=timeout)
            cluster.start()
            self._cluster = cluster
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """Stop the node and remove its data."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def _settings(self) -> dict[str, str]:
        """The settings of the node, by the variables that a container of Kafka has."""
        found = {}
        for variable, value in self.env.items():
            name = variable.removeprefix(_PREFIX).lower().replace("_", ".")
            if variable.startswith(_PREFIX) and name not in _SET_BY_THE_KIT and not name.startswith(_OF_THE_IMAGE):
                found[name] = str(value)
        return found

    @property
    def is_started(self) -> bool:
        return self._cluster is not None

    @property
    def cluster(self) -> Cluster:
        """The cluster of this node. Raises ClusterError before `start`."""
        if self._cluster is None:
            raise ClusterError("the container was not started: say `with KafkaContainer() as kafka:`, or call start()")
        return self._cluster

    def get_bootstrap_server(self) -> str:
        """`HOST:PORT`, for clients. Raises ClusterError before `start`."""
        return self.cluster.bootstrap_servers

    def get_container_host_ip(self) -> str:
        return self.get_bootstrap_server().rpartition(":")[0]

    def get_exposed_port(self, port: int | str) -> int:
        """The port for clients, whatever port of the container is asked for."""
        return int(self.get_bootstrap_server().rpartition(":")[2])

    def get_logs(self) -> tuple[bytes, bytes]:
        """Nothing of stdout, and the log of the node, which goes to stderr."""
        return b"", self.cluster.log_text().encode()

    def with_env(self, key: str, value: str) -> Self:
        self.env[key] = value
        return self

    def with_envs(self, **variables: str) -> Self:
        self.env.update(variables)
        return self

    def with_env_file(self, env_file: str | PathLike[str]) -> Self:
        """Take the variables of a file with lines of `NAME=VALUE`."""
        for line in Path(env_file).read_text().splitlines():
            name, sign, value = line.strip().partition("=")
            if sign and not name.startswith("#"):
                self.env[name.strip()] = value.strip().strip("\"'")
        return self

    def with_kraft(self) -> Self:
        """Nothing: a node has no ZooKeeper."""
        return self

    def with_cluster_id(self, cluster_id: str) -> Self:
        """Nothing: each cluster has a fresh id."""
        return self

    def with_exposed_ports(self, *ports: int | str) -> Self:
        """Nothing: the port for clients is reachable."""
        return self

    def with_name(self, name: str) -> Self:
        """Nothing: a process has no name."""
        return self

    def with_kwargs(self, **kwargs: Any) -> Self:
        """Nothing: the arguments are for Docker."""
        return self

    def waiting_for(self, strategy: object) -> Self:
        """Nothing: `start` returns when the node answers."""
        return self

    def maybe_emulate_amd64(self) -> Self:
        """Nothing: no image is run."""
        return self
