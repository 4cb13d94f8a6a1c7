"""A node's settings of the metadata quorum: its roles, its listeners, the controllers to ask, and timeouts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Address
from tailrace.raft.ports import RaftConfig
from tailrace.raft.snapshots import SnapshotTrigger

BROKER = "broker"
CONTROLLER = "controller"
_BOTH = f"{BROKER},{CONTROLLER}"


class Listening(Protocol):
    """A listener, as it was configured."""

    @property
    def name(self) -> str: ...

    @property
    def port(self) -> int: ...


class QuorumSettings(Protocol):
    """The node's settings."""

    def integer(self, name: str) -> int: ...

    def real(self, name: str) -> float: ...

    def text(self, name: str) -> str | None: ...

    def words(self, name: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Checked, and taken apart."""

    node_id: int
    is_broker: bool
    is_controller: bool
    listener_names: tuple[str, ...]
    """The listeners of controllers; on a node without that role, the names of its controllers' listeners."""
    founders: Mapping[int, Address]
    """`controller.quorum.voters`, by id."""
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
        """Whether this node is one of those that found the quorum, be it alone."""
        return self.is_controller and (self.node_id in self.founders or not self.knows_others)


def read_quorum_config(
    settings: QuorumSettings, listeners: Sequence[Listening], parse_address: Callable[[str, str], Address]
) -> QuorumConfig:
    """Raises KafkaError(INVALID_CONFIG) that names what does not fit, and the way out.

    `parse_address` takes `HOST:PORT` and the name of the setting it stands in.
    """
    roles = settings.words("process.roles")
    if not roles:
        raise _refusal(f"process.roles: say {BROKER}, {CONTROLLER} or {_BOTH}")
    config = QuorumConfig(
        node_id=settings.integer("node.id"),
        is_broker=BROKER in roles,
        is_controller=CONTROLLER in roles,
        listener_names=tuple(name.upper() for name in settings.words("controller.listener.names")),
        founders=_founders(settings.words("controller.quorum.voters"), parse_address),
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


def _founders(words: Sequence[str], parse_address: Callable[[str, str], Address]) -> Mapping[int, Address]:
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


def _raft_config(settings: QuorumSettings) -> RaftConfig:
    fetch_timeout_ms = settings.integer("controller.quorum.fetch.timeout.ms")
    request_timeout_ms = settings.integer("controller.quorum.request.timeout.ms")
    return RaftConfig(
        election_timeout_ms=settings.integer("controller.quorum.election.timeout.ms"),
        fetch_timeout_ms=fetch_timeout_ms,
        election_backoff_max_ms=settings.integer("controller.quorum.election.backoff.max.ms"),
        request_timeout_ms=request_timeout_ms,
        retry_backoff_ms=settings.integer("controller.quorum.retry.backoff.ms"),
        # The leader may keep a fetch waiting for less than its follower has patience for.
        fetch_max_wait_ms=min(500, fetch_timeout_ms // 2, request_timeout_ms // 2),
        fetch_max_bytes=settings.integer("controller.quorum.fetch.max.bytes"),
        snapshot_max_bytes=_snapshot_max_bytes(settings),
        start_offset_lag_ms=settings.integer("metadata.start.offset.lag.time.max.ms"),
    )


def _snapshot_max_bytes(settings: QuorumSettings) -> int:
    """KIP-630 has one setting for this, KIP-1219 a closer one. With no byte at a time nothing would ever arrive."""
    names = ("controller.quorum.fetch.snapshot.max.bytes", "replica.fetch.response.max.bytes")
    return max(1, min(map(settings.integer, names)))


def _check_listeners(config: QuorumConfig, listeners: Sequence[Listening]) -> None:
    names = [listener.name for listener in listeners]
    of_controllers = [name for name in names if name in config.listener_names]
    if config.is_controller and config.listener_names and not of_controllers:
        raise _refusal(
            f"controller.listener.names={','.join(config.listener_names)}: none of these is in listeners; add"
            f" {config.listener_names[0]}://127.0.0.1:9093 to it"
        )
    if not config.is_controller and of_controllers:
        raise _refusal(
            f"listeners: {of_controllers[0]} is for controllers (controller.listener.names), and this node is none;"
            f" take it out, or say process.roles={_BOTH}"
        )
    if config.is_broker and len(of_controllers) == len(names):
        raise _refusal("listeners: a broker needs one that is not for controllers, as in PLAINTEXT://127.0.0.1:9092")
    if not config.is_broker and len(of_controllers) < len(names):
        other = next(name for name in names if name not in of_controllers)
        raise _refusal(
            f"listeners: {other} is for clients, which a node that is only a controller does not serve; name it in"
            f" controller.listener.names, or say process.roles={_BOTH}"
        )


def _check_quorum(config: QuorumConfig, listeners: Sequence[Listening]) -> None:
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


def _check_inter_broker(config: QuorumConfig, name: str | None, listeners: Sequence[Listening]) -> None:
    known = {listener.name for listener in listeners}
    if config.is_broker and name is not None and (name.upper() not in known or name.upper() in config.listener_names):
        raise _refusal(f"inter.broker.listener.name={name}: there is no listener of this name for brokers")


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
