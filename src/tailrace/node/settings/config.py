"""A node's settings: from a file, the environment and the command line, checked before anything starts.

Precedence, highest first: `--set`, the environment (TAILRACE_LOG_RETENTION_MS), the file (server.properties or TOML),
the defaults of `dev.mode`, the defaults. With an unknown name the node does not start; the error offers the nearest
known name.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tailrace.metadata.deciding.config_changes import refuse_uncarried
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.security_protocol import SecurityProtocol
from tailrace.model.settings import Setting, Value, attribute_name, current_name
from tailrace.model.topic_config import TopicConfig
from tailrace.net.limits import ListenerLimits
from tailrace.net.tls import TlsContexts
from tailrace.net.tls_acceptor import PrincipalOf
from tailrace.node.settings.access import check_access, super_users
from tailrace.node.settings.listeners import ListenerAddress, parse_endpoint, read_listener_config
from tailrace.node.settings.logs import FLUSHED
from tailrace.node.settings.quorum import read_quorum_config
from tailrace.node.settings.safe_start import check_reach, check_secret_files, check_settings_file
from tailrace.node.settings.sasl import NodeSasl, check_listener_sasl, read_node_sasl
from tailrace.node.settings.sources import checked, known_setting, read_environment, read_file, read_overrides
from tailrace.node.settings.table import (
    BROKER_SETTINGS,
    DEV_DEFAULTS,
    TOPIC_SETTING_OF,
    listener_setting,
    listener_setting_name,
)
from tailrace.node.settings.tls import OF_LISTENER, read_principal_of, read_tls_config
from tailrace.server.admin.config_entries import ConfigSource

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_logger = logging.getLogger("tailrace.node")

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInForce:
    """A setting, its value and the source of the value: a `server.admin.config_entries.BrokerSetting`."""

    setting: Setting
    layers: tuple[tuple[ConfigSource, Value], ...]

    @property
    def value(self) -> Value:
        return self.layers[0][1]

    @property
    def source(self) -> ConfigSource:
        return self.layers[0][0]


_Layers = tuple[tuple[ConfigSource, Mapping[str, Value]], ...]
"""Sources of values, the strongest first."""


class NodeConfig:
    """The settings of a node, with defaults filled in."""

    def __init__(self, given: Mapping[str, str]) -> None:
        """Parse and check the given settings. Raises KafkaError(INVALID_CONFIG) that names the setting and how to
        correct it."""
        known = ((known_setting(name), text) for name, text in given.items())
        stated = {setting.name: setting.parse(text) for setting, text in known}
        defaults = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
        if stated.get("dev.mode"):
            defaults.update(DEV_DEFAULTS)
        self._layers: _Layers = (
            (ConfigSource.STATIC_BROKER_CONFIG, stated),
            (ConfigSource.DEFAULT_CONFIG, defaults),
        )
        self._values = {**defaults, **stated}
        self.addresses = read_listener_config(self)
        self.topic_defaults = _topic_defaults(self._values)
        self.quorum = read_quorum_config(self, self.addresses.listeners)
        check_secret_files(stated)
        self.sasl = self._read_sasl()
        dependents = ("super.users", "allow.everyone.if.no.acl.found")
        check_access(self.authorizer_class, [name for name in dependents if stated.get(name)])
        self.super_users = super_users(self.text("super.users"))
        """The principals that may do everything."""
        check_reach(self)
        _check(self)
        _check_listener_settings(self, stated)

    def integer(self, name: str) -> int:
        """The value of a numeric setting that always has a value."""
        value = self._values[name]
        assert isinstance(value, int), name
        return value

    def real(self, name: str) -> float:
        value = self._values[name]
        assert isinstance(value, float), name
        return value

    def flag(self, name: str) -> bool:
        value = self._values[name]
        assert isinstance(value, bool), name
        return value

    def text(self, name: str) -> str | None:
        value = self._values[name]
        assert value is None or isinstance(value, str), name
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """The value of a list; empty for a setting without a value."""
        value = self._values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def value_of(self, listener: str, name: str) -> Value:
        """The value of a setting for one listener: under the listener's own name, else the value of all listeners."""
        own = listener_setting_name(listener, name)
        return self._values[own] if own in self._values else self._values[name]

    def tls_contexts(self, listener: str, *, is_server: bool) -> TlsContexts | None:
        """The TLS contexts of a listener, or of connections to such listeners of other nodes; None without TLS. Raises
        KafkaError INVALID_CONFIG."""
        if not self.addresses.protocol_of(listener).has_tls:
            return None
        config = read_tls_config(lambda name: self.value_of(listener, name))
        return TlsContexts(config, is_server=is_server)

    def principal_of(self, listener: str) -> PrincipalOf:
        """Returns the principal of a certificate at this listener. Raises KafkaError INVALID_CONFIG."""
        return read_principal_of(lambda name: self.value_of(listener, name))

    def fill(self, reader: type[T], **others: Any) -> T:
        """An instance of `reader`, a dataclass: each field with the name of a setting (`a_b` for `a.b`) gets the value
        of the setting."""
        values = {attribute_name(name): value for name, value in self._values.items()}
        wanted = [field.name for field in fields(reader)]
        return reader(**{name: values[name] for name in wanted if name in values}, **others)

    @property
    def node_id(self) -> int:
        return self.integer("node.id")

    @property
    def client_listeners(self) -> tuple[ListenerAddress, ...]:
        """The listeners for clients and other brokers."""
        names = self.quorum.listener_names
        return tuple(each for each in self.addresses.listeners if each.name not in names)

    @property
    def controller_listeners(self) -> tuple[ListenerAddress, ...]:
        """The listeners for other controllers, and for brokers that send requests to the active controller."""
        names = self.quorum.listener_names
        return tuple(each for each in self.addresses.listeners if each.name in names)

    @property
    def inter_broker_listener(self) -> str:
        """The listener under which other brokers find this broker."""
        name = self.text("inter.broker.listener.name")
        return self.client_listeners[0].name if name is None else name.upper()

    def _read_sasl(self) -> NodeSasl:
        addresses = self.addresses
        for endpoint in addresses.listeners:
            check_listener_sasl(self, endpoint.name, addresses.protocol_of(endpoint.name))
        of_controllers, of_clients = self.quorum.listener_names, self.client_listeners
        plain = SecurityProtocol.PLAINTEXT
        return read_node_sasl(
            self,
            between_brokers=addresses.protocol_of(self.inter_broker_listener) if of_clients else plain,
            to_controllers=addresses.protocol_of(of_controllers[0]) if of_controllers else plain,
        )

    @property
    def controller_listener(self) -> str:
        """The listener by which this node reaches controllers; of a node without other controllers, any name."""
        names = self.quorum.listener_names
        return names[0] if names else "CONTROLLER"

    @property
    def authorizer_class(self) -> str | None:
        """The name of the authorizer; None on a node where every client may do everything."""
        return self.text("authorizer.class.name") or None

    @property
    def rack(self) -> str | None:
        return self.text("broker.rack")

    @property
    def data_directory(self) -> Path:
        return Path(self.text("log.dirs") or self.text("log.dir") or "")

    @property
    def is_dev(self) -> bool:
        return self.flag("dev.mode")

    @property
    def is_flushed(self) -> bool:
        """Whether a record must be on disk, not only in the page cache, to count as written."""
        return self.text("log.durability") == FLUSHED

    @property
    def listener_limits(self) -> ListenerLimits:
        return replace(
            ListenerLimits(),
            large_frame_bytes=self.integer("socket.request.max.bytes"),
            max_connections=self.integer("max.connections"),
            max_connections_per_ip=self.integer("max.connections.per.ip"),
            new_connections_per_second=self.integer("max.connection.creation.rate"),
            new_connections_per_ip_per_second=self.integer("max.connection.creation.rate.per.ip"),
            stall_ms=self.integer("connections.max.stall.ms"),
            idle_ms=self.integer("connections.max.idle.ms"),
            unauthenticated_frame_bytes=self.integer("sasl.server.max.receive.size"),
        )

    def entry(self, name: str) -> SettingInForce:
        """The setting of this name, which exists."""
        layers = tuple((source, _shown(name, layer[name])) for source, layer in self._layers if name in layer)
        if name == "node.id" and len(layers) == 1:  # tools expect that each node's file sets node.id
            layers = ((ConfigSource.STATIC_BROKER_CONFIG, self.node_id), *layers)
        return SettingInForce(setting=known_setting(name), layers=layers)

    def entries(self) -> Iterator[SettingInForce]:
        """Every setting, in the order of names, with the settings that were given for one listener."""
        return map(self.entry, sorted({*BROKER_SETTINGS, *self._values}))

    def with_dynamic(self, *, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> "NodeConfig":
        """A copy in which the cluster's dynamic settings take precedence: first the settings of this broker, then the
        settings of all brokers.

        A dynamic setting that this release refuses is ignored: only another release can have accepted the value.
        """
        dynamic: _Layers = (
            (ConfigSource.DYNAMIC_BROKER_CONFIG, _parsed_dynamic(of_this)),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, _parsed_dynamic(of_all)),
        )
        changed = copy(self)
        changed._layers = (*dynamic, *self._layers[-2:])
        changed._values = {name: value for _, layer in reversed(changed._layers) for name, value in layer.items()}
        changed.topic_defaults = _topic_defaults(changed._values)
        return changed


def _shown(name: str, value: Value) -> Value:
    """The value in DescribeConfigs: addresses have the names of their listeners, as in Kafka."""
    if name not in ("listeners", "advertised.listeners") or not isinstance(value, tuple):
        return value
    return tuple(str(parse_endpoint(address, setting=name)) for address in value)


def _parsed_dynamic(texts: Mapping[str, str]) -> dict[str, Value]:
    parsed: dict[str, Value] = {}
    for name, text in texts.items():
        setting = BROKER_SETTINGS.get(name)
        try:
            if setting is not None and setting.dynamic:
                parsed[name] = setting.parse(text)
                continue
        except KafkaError as fault:
            _logger.error("event=broker-config-ignored fault=%s", fault)
        else:
            _logger.error("event=broker-config-ignored name=%s", name)
    return parsed


def load_config(
    *,
    file: Path | None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str],
    flags: Mapping[str, str],
) -> NodeConfig:
    """The settings of a node from all sources. `overrides` are `name=value`; `flags` are settings from separate
    command-line options.

    Raises KafkaError(INVALID_CONFIG).
    """
    given: dict[str, str] = {}
    if file is not None:
        given.update(checked(read_file(file), str(file)))
        check_settings_file(file, given)
    given.update(checked(read_environment(environment), "environment"))
    given.update(flags)
    given.update({current_name(name): text for name, text in read_overrides(overrides).items()})
    return NodeConfig(given)


def _topic_defaults(values: Mapping[str, Value]) -> TopicConfig:
    """The settings of a topic without settings of its own. If a setting is given in several units, the finest unit
    wins, as in Kafka."""
    defaults = {attribute_name(topic_name): values[name] for name, topic_name in TOPIC_SETTING_OF.items()}
    defaults["retention_ms"] = _in_ms(
        values, (("log.retention.ms", 1), ("log.retention.minutes", _MINUTE_MS), ("log.retention.hours", _HOUR_MS))
    )
    defaults["segment_ms"] = _in_ms(values, (("log.roll.ms", 1), ("log.roll.hours", _HOUR_MS)))
    defaults["segment_jitter_ms"] = _in_ms(values, (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", _HOUR_MS)))
    return replace(TopicConfig(), **defaults)  # type: ignore[arg-type]  # parsed by settings of the same types


def _in_ms(values: Mapping[str, Value], units: Sequence[tuple[str, int]]) -> int:
    for name, factor in units:
        value = values[name]
        if isinstance(value, int):
            return -1 if value < 0 else value * factor
    raise AssertionError("the coarsest unit has a default")


def _check(config: NodeConfig) -> None:
    """Check combinations of settings. Raises KafkaError(INVALID_CONFIG)."""
    directory = config.text("log.dirs") or config.text("log.dir") or ""
    if not directory:
        raise _refusal("log.dir: a node needs a directory for its data, as in log.dirs=/var/lib/tailrace")
    if "," in directory:
        raise _refusal("log.dirs: a node keeps its data in one directory; start one node per disk")
    if config.integer("group.min.session.timeout.ms") > config.integer("group.max.session.timeout.ms"):
        raise _refusal("group.min.session.timeout.ms is above group.max.session.timeout.ms")
    _check_heartbeats(config, "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms")
    if config.quorum.is_broker:
        _check_times_of_brokers(config)
        refuse_uncarried(
            "message.max.bytes", str(config.integer("message.max.bytes")), config.integer("socket.request.max.bytes")
        )


def _check_listener_settings(config: NodeConfig, stated: Mapping[str, Value]) -> None:
    """Check the settings of single listeners, and make the TLS contexts once. Raises KafkaError(INVALID_CONFIG)."""
    names = {each.name for each in config.addresses.listeners} | {*config.quorum.listener_names}
    for name in stated:
        of_listener = listener_setting(name)
        if of_listener is not None and of_listener[0] not in names:
            raise _refusal(f"{name}: there is no listener {of_listener[0]}")
    used = {*names, config.controller_listener}
    if not any(config.addresses.protocol_of(name).has_tls for name in used):
        for name in stated:
            if name in OF_LISTENER or listener_setting(name) is not None:
                raise _refusal(
                    f"{name}: no listener has TLS, and the node would look protected; say"
                    f" listener.security.protocol.map={config.addresses.listeners[0].name}:SSL, or leave it out"
                )
    for listener in config.addresses.listeners:
        if config.addresses.protocol_of(listener.name).has_tls:
            config.tls_contexts(listener.name, is_server=True)
            config.principal_of(listener.name)


def _check_times_of_brokers(config: NodeConfig) -> None:
    """Refuse a wait that is longer than the timeout of the waiting node: no answer would come in time."""
    _check_heartbeats(config, "broker.heartbeat.interval.ms", "broker.session.timeout.ms")
    wait = "replica.fetch.wait.max.ms"  # both settings as in Kafka
    for limit in ("replica.socket.timeout.ms", "replica.lag.time.max.ms"):
        if config.integer(wait) > config.integer(limit):
            raise _refusal(f"{wait}={config.integer(wait)}: say at most {limit}={config.integer(limit)}")


def _check_heartbeats(config: NodeConfig, interval: str, session: str) -> None:
    if config.integer(interval) >= config.integer(session):
        raise _refusal(f"{interval}={config.integer(interval)}: say less than {session}={config.integer(session)}")


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
