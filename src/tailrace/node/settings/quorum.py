"""Settings of the metadata quorum, and their values in one node: its roles, listeners, controllers and timeouts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import DOUBLE, INT, LIST, LONG, setting
from tailrace.net.connection import Address
from tailrace.node.settings.listeners import ListenerAddress, SettingValues, parse_address
from tailrace.raft.ports import RaftConfig
from tailrace.raft.snapshots import SnapshotTrigger

_RAFT = RaftConfig()
_TRIGGER = SnapshotTrigger()

QUORUM_SETTINGS = (
    setting(
        "controller.quorum.voters",
        LIST,
        (),
        "The controllers that found the quorum, ID@HOST:PORT, the same on every node. Once it is founded its log has"
        " the voters, and these addresses are asked first. For Kafka they are the voters for ever.",
    ),
    setting(
        "controller.quorum.bootstrap.servers",
        LIST,
        (),
        "Controllers to ask for the leader, HOST:PORT: for nodes that join a quorum that exists.",
    ),
    setting(
        "controller.quorum.fetch.timeout.ms",
        INT,
        _RAFT.fetch_timeout_ms,
        "A leader silent this long is replaced (Kafka: 2000).",
        at_least=1,
    ),
    setting(
        "controller.quorum.election.timeout.ms",
        INT,
        _RAFT.election_timeout_ms,
        "How long an election may take (Kafka: 1000).",
        at_least=1,
    ),
    setting(
        "controller.quorum.election.backoff.max.ms",
        INT,
        _RAFT.election_backoff_max_ms,
        "The longest wait of a candidate after a lost election.",
        at_least=0,
    ),
    setting(
        "controller.quorum.request.timeout.ms",
        INT,
        _RAFT.request_timeout_ms,
        "How long a controller waits for the answer of another controller.",
        at_least=1,
    ),
    setting(
        "controller.quorum.retry.backoff.ms",
        INT,
        _RAFT.retry_backoff_ms,
        "The wait before a controller is asked again.",
        at_least=0,
    ),
    setting(
        "controller.quorum.fetch.max.bytes",
        INT,
        _RAFT.fetch_max_bytes,
        "Bytes of the metadata log that are fetched at a time: they must arrive within the fetch timeout (KIP-1219).",
        at_least=1,
    ),
    setting(
        "controller.quorum.fetch.snapshot.max.bytes",
        INT,
        _RAFT.snapshot_max_bytes,
        "Bytes of a snapshot that are fetched at a time; replica.fetch.response.max.bytes if that is less (KIP-1219).",
        at_least=1,
    ),
    setting(
        "metadata.log.max.record.bytes.between.snapshots",
        LONG,
        _TRIGGER.min_log_bytes,
        "Bytes of metadata between two snapshots, at least.",
        at_least=1,
    ),
    setting(
        "metadata.snapshot.min.changed_records.ratio",
        DOUBLE,
        _TRIGGER.min_changed_ratio,
        "How much of a snapshot must have changed before the next is written (KIP-630; Kafka has none of this).",
        at_least=0,
        at_most=1,
    ),
    setting(
        "metadata.start.offset.lag.time.max.ms",
        LONG,
        _RAFT.start_offset_lag_ms,
        "How long metadata that a snapshot stands for is kept for a replica that lags (KIP-630; not in Kafka).",
        at_least=0,
    ),
    setting(
        "metadata.log.max.snapshot.interval.ms",
        LONG,
        3_600_000,
        "Accepted for Kafka's files; snapshots go by the size of the changes.",
        at_least=0,
    ),
    setting(
        "metadata.log.segment.bytes", INT, 1_073_741_824, "The size of a segment of the metadata log.", at_least=14
    ),
    setting(
        "metadata.max.retention.bytes",
        LONG,
        104_857_600,
        "Accepted for Kafka's files; old metadata goes when a snapshot stands for it.",
    ),
    setting(
        "metadata.max.retention.ms", LONG, 604_800_000, "Accepted for Kafka's files, as metadata.max.retention.bytes."
    ),
)


BROKER = "broker"
CONTROLLER = "controller"
_BOTH = f"{BROKER},{CONTROLLER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """The checked settings of one node's part in the quorum."""

    node_id: int
    is_broker: bool
    is_controller: bool
    listener_names: tuple[str, ...]
    """The listeners of controllers; on a node without the controller role, the names of the listeners at which it
    reaches controllers."""
    founders: Mapping[int, Address]
    """The addresses in `controller.quorum.voters`, by id."""
    places: tuple[Address, ...]
    """`controller.quorum.bootstrap.servers`."""
    raft: RaftConfig
    snapshot_trigger: SnapshotTrigger

    @property
    def knows_others(self) -> bool:
        """Whether the settings name any controller besides this node."""
        return bool(self.founders.keys() - {self.node_id}) or bool(self.places)

    @property
    def is_founder(self) -> bool:
        """Whether this node founds the quorum, alone or with other nodes."""
        return self.is_controller and (self.node_id in self.founders or not self.knows_others)


def read_quorum_config(settings: SettingValues, listeners: Sequence[ListenerAddress]) -> QuorumConfig:
    """Raises KafkaError(INVALID_CONFIG) that names the setting at fault, and the way out."""
    roles = settings.words("process.roles")
    if not roles:
        raise _refusal(f"process.roles: say {BROKER}, {CONTROLLER} or {_BOTH}")
    config = QuorumConfig(
        node_id=settings.integer("node.id"),
        is_broker=BROKER in roles,
        is_controller=CONTROLLER in roles,
        listener_names=tuple(name.upper() for name in settings.words("controller.listener.names")),
        founders=_founders(settings.words("controller.quorum.voters")),
        places=tuple(
            parse_address(text, "controller.quorum.bootstrap.servers")
            for text in settings.words("controller.quorum.bootstrap.servers")
        ),
        raft=_raft_config(settings),
        snapshot_trigger=SnapshotTrigger(
            min_changed_ratio=settings.real("metadata.snapshot.min.changed_records.ratio"),
            min_log_bytes=settings.integer("metadata.log.max.record.bytes.between.snapshots"),
        ),
    )
    _check_listeners(config, listeners)
    _check_quorum(config, listeners)
    _check_inter_broker(config, settings.text("inter.broker.listener.name"), listeners)
    return config


def _founders(words: Sequence[str]) -> Mapping[int, Address]:
    setting = "controller.quorum.voters"
    found: dict[int, Address] = {}
    for word in words:
        number, separator, address = word.partition("@")
        if not separator or not number.isdecimal():
            raise _refusal(f"{setting}={word!r}: say ID@HOST:PORT, as in 1@127.0.0.1:9093")
        if int(number) in found:
            raise _refusal(f"{setting}: node {number} is there twice")
        found[int(number)] = parse_address(address, setting)
    return dict(sorted(found.items()))


def _raft_config(settings: SettingValues) -> RaftConfig:
    fetch_timeout_ms = settings.integer("controller.quorum.fetch.timeout.ms")
    request_timeout_ms = settings.integer("controller.quorum.request.timeout.ms")
    return RaftConfig(
        election_timeout_ms=settings.integer("controller.quorum.election.timeout.ms"),
        fetch_timeout_ms=fetch_timeout_ms,
        election_backoff_max_ms=settings.integer("controller.quorum.election.backoff.max.ms"),
        request_timeout_ms=request_timeout_ms,
        retry_backoff_ms=settings.integer("controller.quorum.retry.backoff.ms"),
        # A leader keeps a fetch waiting for less than its follower's timeout.
        fetch_max_wait_ms=min(500, fetch_timeout_ms // 2, request_timeout_ms // 2),
        fetch_max_bytes=settings.integer("controller.quorum.fetch.max.bytes"),
        snapshot_max_bytes=_snapshot_max_bytes(settings),
        start_offset_lag_ms=settings.integer("metadata.start.offset.lag.time.max.ms"),
    )


def _snapshot_max_bytes(settings: SettingValues) -> int:
    """The smaller of the limits of KIP-630 and KIP-1219, but at least 1 byte: with 0 no snapshot would ever arrive."""
    names = ("controller.quorum.fetch.snapshot.max.bytes", "replica.fetch.response.max.bytes")
    return max(1, min(map(settings.integer, names)))


def _check_listeners(config: QuorumConfig, listeners: Sequence[ListenerAddress]) -> None:
    names = [listener.name for listener in listeners]
    of_controllers = [name for name in names if name in config.listener_names]
    if config.is_controller and config.listener_names and not of_controllers:
        raise _refusal(
            f"controller.listener.names={','.join(config.listener_names)}: none of these is in listeners; add"
            f" {config.listener_names[0]}://127.0.0.1:9093 to it"
        )
    if not config.is_controller and of_controllers:
        raise _refusal(
            f"listeners: {of_controllers[0]} is for controllers (controller.listener.names), and this node is no"
            f" controller; take it out, or say process.roles={_BOTH}"
        )
    if config.is_broker and len(of_controllers) == len(names):
        raise _refusal(
            "listeners: a broker needs a listener that is not for controllers, as in PLAINTEXT://127.0.0.1:9092"
        )
    if not config.is_broker and len(of_controllers) < len(names):
        other = next(name for name in names if name not in of_controllers)
        raise _refusal(
            f"listeners: {other} is for clients, which a node that is only a controller does not serve; name it in"
            f" controller.listener.names, or say process.roles={_BOTH}"
        )


def _check_quorum(config: QuorumConfig, listeners: Sequence[ListenerAddress]) -> None:
    node_id = config.node_id
    if not config.is_controller:
        if not config.founders and not config.places:
            raise _refusal(
                "process.roles=broker: a broker has to know its controllers; say controller.quorum.voters=ID@HOST:PORT"
                " or controller.quorum.bootstrap.servers=HOST:PORT"
            )
        if node_id in config.founders:
            raise _refusal(f"controller.quorum.voters names node {node_id}: say process.roles={_BOTH}, or another one")
        return
    ports = [listener.port for listener in listeners if listener.name in config.listener_names]
    if config.knows_others and not ports:
        raise _refusal(
            "controller.listener.names: the other controllers need a listener of this node; say"
            " controller.listener.names=CONTROLLER and add CONTROLLER://127.0.0.1:9093 to listeners"
        )
    own = config.founders.get(node_id)
    if own is not None and config.knows_others and not any(ports):
        raise _refusal(f"listeners: others look for node {node_id} at {own}; give the controllers' listener that port")


def _check_inter_broker(config: QuorumConfig, name: str | None, listeners: Sequence[ListenerAddress]) -> None:
    known = {listener.name for listener in listeners}
    if config.is_broker and name is not None and (name.upper() not in known or name.upper() in config.listener_names):
        raise _refusal(f"inter.broker.listener.name={name}: there is no listener of this name for brokers")


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
