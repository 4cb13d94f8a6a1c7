"""A cluster on one machine: the settings of each node, kept in the node's directory, so that any node can be started
alone.

    DIRECTORY/node-1/server.properties     the settings of node 1
    DIRECTORY/node-1/data                  its data
    DIRECTORY/security                     of a secured cluster (`node.local.security`)

Brokers have the numbers from 1 on; nodes that are only controllers have the numbers after the brokers. Without nodes
that are only controllers the first brokers are controllers too: an odd number of brokers, five at most. The files in a
directory describe how the cluster was founded; a second start reads the files and keeps their settings. If the
directory was renamed, only the paths of the data, which the files state in full, are corrected.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.data_directory import make_durably
from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.node.local.security import CLIENT_LISTENER, ClusterSecurity
from tailrace.node.settings.listeners import ListenerAddress, is_wildcard_host, parse_endpoint
from tailrace.storage.checkpoints import META_PROPERTIES, replace_file
from tailrace.storage.files import OsFiles

if TYPE_CHECKING:  # the settings of a node come with most of a node
    from tailrace.node.settings.config import NodeConfig

CONFIG_FILE = "server.properties"
DEFAULT_BROKERS = 3
MOST_BROKERS = 100
MOST_VOTERS = 5
_OWN = frozenset(
    ("node.id", "process.roles", "listeners", "advertised.listeners", "log.dirs", "log.dir", "broker.rack")
)
"""Settings that `ClusterWish.settings` cannot set."""
_DATA = "data"
_FOUNDERS = "controller.quorum.voters"
_CLIENTS = "PLAINTEXT"
"""The listener for clients of a cluster without security."""
_CONTROLLERS = "CONTROLLER"
_BROKER_ROLE = "broker"
_CONTROLLER_ROLE = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterWish:
    """The wanted cluster. A field that is None stands for the value in the directory, or for the default."""

    brokers: int | None
    """The number of brokers; 3 by default."""
    racks: Sequence[str] | None
    """The racks, which are given to the brokers in turn."""
    controllers: int | None
    """The number of nodes that are controllers only; with 0, the default, brokers are controllers too."""
    listen: ListenerAddress | None
    """The address of the first broker; the other nodes get the next ports. Port 0: free ports."""
    settings: Mapping[str, str]
    """Settings for every node."""
    secure: bool = False
    """Whether the cluster has TLS, SASL, an authorizer and a super user (`ClusterSecurity`). A cluster in the directory
    stays as it was founded."""

    def check(self) -> None:
        """Raises KafkaError(INVALID_CONFIG) that names the value that is not possible."""
        if self.brokers is not None and not 1 <= self.brokers <= MOST_BROKERS:
            raise _refusal(f"{self.brokers} brokers: say 1 to {MOST_BROKERS}")
        if self.controllers is not None and not 0 <= self.controllers <= MOST_VOTERS:
            raise _refusal(f"{self.controllers} controllers: say 1 to {MOST_VOTERS}, or 0 for brokers that are both")
        for name in _OWN.intersection(self.settings) if self.brokers != 1 or self.controllers else ():
            raise _refusal(f"{name} differs from node to node; it cannot be set for all")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalNode:
    """A node and all its settings."""

    node_id: int
    home: Path
    settings: Mapping[str, str]

    @property
    def config_file(self) -> Path:
        return self.home / CONFIG_FILE

    @property
    def data_directory(self) -> Path:
        return Path(self.settings["log.dirs"])

    @property
    def has_moved(self) -> bool:
        """Whether the directory of the cluster was moved: the file names a data directory that does not exist, and the
        data are beside the file."""
        stated = self.data_directory
        is_gone = stated.parts[-2:] == (self.home.name, _DATA) and not os.path.exists(stated)
        return is_gone and (self.home / _DATA).is_dir()

    def at_home(self) -> "LocalNode":
        """The same node, with its data directory beside its file."""
        return replace(self, settings={**self.settings, "log.dirs": str(self.home / _DATA)})

    @property
    def is_broker(self) -> bool:
        return _BROKER_ROLE in self.settings["process.roles"].split(",")

    @property
    def is_controller(self) -> bool:
        return _CONTROLLER_ROLE in self.settings["process.roles"].split(",")

    @property
    def address(self) -> str:
        """The address for clients or, for a node that is only a controller, for other controllers: `HOST:PORT`."""
        return self.settings["listeners"].split(",")[0].rpartition("://")[2]

    def reserve(self, ports: ReservedPorts) -> None:
        """Reserve the node's ports. Raises OSError if another process has a port."""
        for text in self.settings["listeners"].split(","):
            endpoint = parse_endpoint(text)
            ports.reserve(endpoint.host, endpoint.port)

    def write(self) -> None:
        """Write the settings to the file that `serve --config` reads, for this user alone: settings may have secrets.
        Raises StorageError.

        A file with the same content is left alone, so that a full disk or a power cut cannot spoil another start.
        """
        if self.config_file.exists() and _settings_in(self.config_file) == self.settings:
            return
        make_durably(self.home)
        lines = ["# Start this node alone: tailrace serve --config " + str(self.config_file)]
        lines += [f"{name}={value}" for name, value in self.settings.items()]
        replace_file(OsFiles(), str(self.config_file), ("\n".join(lines) + "\n").encode(), is_secret=True)


def open_cluster(
    directory: Path, wish: ClusterWish, ports: ReservedPorts, *, has_checks: bool = True
) -> list[LocalNode]:
    """The nodes of the cluster in this directory. Without a cluster there, a new cluster is founded. Their ports are
    reserved.

    Raises KafkaError(INVALID_CONFIG) if the cluster differs from `wish`, and OSError if a port is taken. `has_checks`:
    settings that the nodes would refuse are refused before any change.
    """
    wish.check()
    known = _existing(directory)
    if not known:
        return _found(directory, wish, ports, has_checks=has_checks)
    _check_is_wanted(directory, known, wish)
    security = ClusterSecurity(directory)
    if security.exists:
        security.make(parse_endpoint(known[0].settings["listeners"].split(",")[0]).host)
    present = security.settings() if security.exists else {}
    nodes = [replace(node, settings={**node.settings, **present, **wish.settings}) for node in known]
    for node in nodes:
        node.reserve(ports)
    return _written(nodes)


def _written(nodes: Sequence[LocalNode], stale: Iterable[Path] = (), *, has_checks: bool = True) -> list[LocalNode]:
    """Write the settings of the nodes, and remove the `stale` files. Raises KafkaError only before any change."""
    if has_checks:
        check_settings(nodes)
    for file in stale:
        file.unlink()
    for node in nodes:
        node.write()
    return list(nodes)


def check_settings(nodes: Iterable[LocalNode]) -> None:
    """Raise KafkaError(INVALID_CONFIG) for settings that the nodes would refuse, or that cannot hold together."""
    taken: dict[tuple[str, int], int] = {}
    for config in map(_config_of, nodes):
        metrics = config.addresses.metrics
        if metrics is None or not metrics.port:
            continue
        other = taken.setdefault((metrics.host, metrics.port), config.node_id)
        if other != config.node_id:
            raise _refusal(
                f"metrics.listener={config.text('metrics.listener')}: nodes {other} and {config.node_id} cannot both"
                f" listen there; say port 0, and each node logs which it took, or write another port into each"
                f" node's {CONFIG_FILE}"
            )


def _check_is_wanted(directory: Path, nodes: Sequence[LocalNode], wish: ClusterWish) -> None:
    brokers = [node for node in nodes if node.is_broker]
    racks = [node.settings.get("broker.rack", "") for node in brokers]
    wanted = [wish.racks[number % len(wish.racks)] for number in range(len(brokers))] if wish.racks else racks
    is_elsewhere = wish.listen is not None and not _is_at(parse_endpoint(brokers[0].address), wish.listen)
    differences = {
        "--brokers": wish.brokers not in (None, len(brokers)),
        "--controllers": wish.controllers not in (None, len(nodes) - len(brokers)),
        "--racks": wanted != racks,
        "--listen": is_elsewhere,
        "--secure": wish.secure and not ClusterSecurity(directory).exists,
    }
    for option in (name for name, differs in differences.items() if differs):
        raise _refusal(
            f"{directory} has a cluster of another form than {option} asks for; leave it out, or choose another"
            f" --data-dir (the nodes' settings are in {directory}/node-*/{CONFIG_FILE})"
        )


def _is_at(known: ListenerAddress, wanted: ListenerAddress) -> bool:
    """Whether a broker that listens at `known` fulfils the wish for a broker at `wanted`, where port 0 means any
    port."""
    hosts = {known.host.lower(), wanted.host.lower()}
    return wanted.port in (0, known.port) and (len(hosts) == 1 or hosts == {"localhost", "127.0.0.1"})


def _found(directory: Path, wish: ClusterWish, ports: ReservedPorts, *, has_checks: bool) -> list[LocalNode]:
    broker_count = DEFAULT_BROKERS if wish.brokers is None else wish.brokers
    controller_count = wish.controllers or 0
    racks = wish.racks or ()
    host, first_port = ("127.0.0.1", 9092) if wish.listen is None else (wish.listen.host, wish.listen.port)
    voters = _voters(broker_count, controller_count)
    if is_wildcard_host(host) and (broker_count > 1 or controller_count):
        raise _refusal(
            f"--listen {host}:{first_port}: all nodes advertise the address they listen on, and no client can connect"
            " to a wildcard; name this machine, as in --listen HOST:PORT (with --insecure: others can reach it then)"
        )
    wanted = range(first_port, first_port + broker_count + len(voters))
    taken = [ports.reserve(host, port if first_port else 0) for port in wanted]
    quorum_ports = dict(zip(voters, taken[broker_count:], strict=True))
    nodes = []
    stale = list(directory.glob(f"node-*/{CONFIG_FILE}"))  # files of nodes that have never run
    security = ClusterSecurity(directory)
    if wish.secure:
        security.make(host)
    common = security.settings() if wish.secure else {}
    for node_id in range(1, broker_count + controller_count + 1):
        is_broker = node_id <= broker_count
        own = _own_settings(
            node_id,
            directory.absolute() / f"node-{node_id}",
            host,
            client_port=taken[node_id - 1] if is_broker else None,
            is_controller=node_id in quorum_ports or not voters,
            quorum_port=quorum_ports.get(node_id),
            rack=racks[(node_id - 1) % len(racks)] if is_broker and racks else None,
            clients=CLIENT_LISTENER if wish.secure else _CLIENTS,
        )
        settings = {**own, **_quorum_settings(host, quorum_ports), **common, **wish.settings}
        nodes.append(LocalNode(node_id=node_id, home=directory.absolute() / f"node-{node_id}", settings=settings))
    written = _written(nodes, stale, has_checks=has_checks)
    if wish.secure:
        security.found_users(node.data_directory for node in written if node.is_controller)
    return written


def _config_of(node: LocalNode) -> "NodeConfig":
    from tailrace.node.settings.config import NodeConfig

    return NodeConfig(node.settings)


def _settings_in(file: Path) -> dict[str, str]:
    from tailrace.node.settings.sources import read_file

    return read_file(file)


def added_node(
    directory: Path, nodes: Sequence[LocalNode], ports: ReservedPorts, *, is_controller: bool, rack: str | None = None
) -> LocalNode:
    """Add a broker to a cluster of several nodes, and write its settings. If the new node is a controller too, it
    follows the quorum, and votes when it has been added to the voters."""
    controllers = [listener for node in nodes for listener in _config_of(node).controller_listeners]
    if not controllers:
        raise _refusal(f"{directory} has one node that no other can join: it has no listener for controllers")
    host = controllers[0].host
    node_id = max(node.node_id for node in nodes) + 1
    home = directory.absolute() / f"node-{node_id}"
    own = _own_settings(
        node_id,
        home,
        host,
        client_port=ports.reserve(host, 0),
        is_controller=is_controller,
        quorum_port=ports.reserve(host, 0) if is_controller else None,
        rack=rack,
        clients=next(parse_endpoint(node.settings["listeners"].split(",")[0]).name for node in nodes if node.is_broker),
    )
    common = {name: text for name, text in nodes[0].settings.items() if name not in (*_OWN, _FOUNDERS)}
    places = ",".join(f"{_bracketed(listener.host)}:{listener.port}" for listener in controllers)
    settings = {**common, **own, "controller.quorum.bootstrap.servers": places}
    (node,) = _written([LocalNode(node_id=node_id, home=home, settings=settings)])
    return node


def _voters(broker_count: int, controller_count: int) -> list[int]:
    if broker_count == 1 and not controller_count:
        return []  # one node needs no listener for other nodes, and founds a quorum of its own
    if controller_count:
        return list(range(broker_count + 1, broker_count + controller_count + 1))
    count = min(broker_count, MOST_VOTERS)
    return list(range(1, count + count % 2))


def _own_settings(
    node_id: int,
    home: Path,
    host: str,
    *,
    client_port: int | None,
    is_controller: bool,
    quorum_port: int | None,
    rack: str | None,
    clients: str,
) -> dict[str, str]:
    listeners = {clients: client_port, _CONTROLLERS: quorum_port}
    roles = {_BROKER_ROLE: client_port is not None, _CONTROLLER_ROLE: is_controller}
    settings = {
        "node.id": str(node_id),
        "process.roles": ",".join(role for role, is_played in roles.items() if is_played),
        "listeners": ",".join(f"{name}://{_bracketed(host)}:{port}" for name, port in listeners.items() if port),
        "log.dirs": str(home / _DATA),
    }
    return settings if rack is None else {**settings, "broker.rack": rack}


def _quorum_settings(host: str, quorum_ports: Mapping[int, int]) -> dict[str, str]:
    if not quorum_ports:
        return {}
    voters = ",".join(f"{node_id}@{_bracketed(host)}:{port}" for node_id, port in quorum_ports.items())
    return {"controller.listener.names": _CONTROLLERS, _FOUNDERS: voters}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _existing(directory: Path) -> list[LocalNode]:
    """The nodes by their written settings; no nodes if no node was ever started here."""
    if (directory / META_PROPERTIES).exists():
        raise _refusal(f"{directory} is the data directory of a single node; choose another --data-dir")
    nodes = sorted(map(_read, directory.absolute().glob(f"node-*/{CONFIG_FILE}")), key=lambda node: node.node_id)
    for data in directory.absolute().glob(f"node-*/{_DATA}"):
        if data.is_dir() and not (data.parent / CONFIG_FILE).exists():
            raise _refusal(f"{data} has a node's data, and there is no {data.parent / CONFIG_FILE}: restore that file")
    nodes = _with_present_data(nodes)
    return nodes if any(node.data_directory.exists() for node in nodes) else []


def _with_present_data(nodes: Sequence[LocalNode]) -> list[LocalNode]:
    """The nodes, with the present paths of their data if the directory of the cluster was moved.

    Raises KafkaError if a node would start without the data that its file names, or with the data of another node.
    """
    moved_from = {node.data_directory.parent.parent for node in nodes if node.has_moved}
    right = []
    for node in nodes:
        data, home = node.data_directory, node.home / _DATA
        exists = os.path.exists(data)
        if os.path.realpath(data) == os.path.realpath(home):
            right.append(node)
        elif not exists and data in (directory / node.home.name / _DATA for directory in moved_from):
            right.append(node.at_home())
        elif not exists:
            raise _refusal(
                f"{node.config_file} says log.dirs={data}, and nothing is there: is a disk missing? Make that directory"
                " if the node shall start without data, or say in the file where they are"
            )
        elif home.is_dir():
            raise _refusal(
                f"{node.config_file} says log.dirs={data}, and there are data in {home} too: is this a copy of another"
                f" cluster? Say log.dirs={home} there, or move that directory away"
            )
        else:
            right.append(node)
    return right


def _read(path: Path) -> LocalNode:
    settings = _settings_in(path)
    missing = [name for name in ("node.id", "process.roles", "listeners", "log.dirs") if not settings.get(name)]
    if missing or not settings["node.id"].isdecimal():
        raise _refusal(f"{path} does not say {', '.join(missing) or 'a node.id'}: is it of a node of a local cluster?")
    return LocalNode(node_id=int(settings["node.id"]), home=path.parent, settings=settings)


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
