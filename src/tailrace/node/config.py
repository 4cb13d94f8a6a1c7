"""What a node has been told: from a file, the environment and the command line, checked before anything starts.

Precedence, highest first: `--set`, the environment (TAILRACE_LOG_RETENTION_MS), the file (server.properties or TOML),
the defaults of `dev.mode`, the defaults. An unknown name refuses the start and offers the nearest known one.
"""

import difflib
import ipaddress
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import Setting, Value, attribute_name, find
from tailrace.model.topic_config import TopicConfig
from tailrace.net.connection import Address
from tailrace.net.limits import ListenerLimits
from tailrace.node.quorum_config import read_quorum_config
from tailrace.node.settings import BROKER_SETTINGS, DEV_DEFAULTS, FLUSHED, TOPIC_SETTING_OF
from tailrace.server.config_entries import ConfigSource

ENVIRONMENT_PREFIX = "TAILRACE_"
_NOT_SETTINGS = frozenset(("TAILRACE_BOOTSTRAP", "TAILRACE_KERNEL", "TAILRACE_TRACEBACK"))
"""Variables that other parts of Tailrace read."""

_SECURE_PROTOCOLS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Listeners of these names have this protocol unless the map says otherwise, as in Kafka."""

_ELSEWHERE = {
    "broker.id": "it is called node.id now",
    "zookeeper.connect": "there is no ZooKeeper any more, so leave it out",
}
"""Names of old Kafka files, and what has become of them."""

_logger = logging.getLogger("tailrace.node")

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An address with the name of its listener. An empty host stands for every address of the machine."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInForce:
    """One setting, its value and where that comes from: `server.config_entries.BrokerSetting`."""

    setting: Setting
    layers: tuple[tuple[ConfigSource, Value], ...]

    @property
    def value(self) -> Value:
        return self.layers[0][1]

    @property
    def source(self) -> ConfigSource:
        return self.layers[0][0]


_Layers = tuple[tuple[ConfigSource, Mapping[str, Value]], ...]
"""Where values come from, the strongest first."""


class NodeConfig:
    """All settings of a node, with defaults filled in."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        """Parse and check. Raises KafkaError(INVALID_CONFIG) that names the setting and the way out."""
        texts = given or {}
        stated = {name: find(BROKER_SETTINGS, name).parse(text) for name, text in texts.items()}
        defaults = {name: setting.default for name, setting in BROKER_SETTINGS.items()}
        if stated.get("dev.mode"):
            defaults.update(DEV_DEFAULTS)
        self._layers: _Layers = (
            (ConfigSource.STATIC_BROKER_CONFIG, stated),
            (ConfigSource.DEFAULT_CONFIG, defaults),
        )
        self._values = {**defaults, **stated}
        self.listeners = tuple(parse_endpoint(text) for text in self.words("listeners"))
        self.advertised_listeners = tuple(parse_endpoint(text) for text in self.words("advertised.listeners"))
        metrics = self.text("metrics.listener")
        self.metrics_listener = parse_endpoint(metrics, setting="metrics.listener") if metrics else None
        self.topic_defaults = _topic_defaults(self._values)
        _check(self)
        self.quorum = read_quorum_config(self, self.listeners, _parse_address)

    def integer(self, name: str) -> int:
        """The value of a numeric setting that always has one."""
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
        """The value of a list; empty if it has none."""
        value = self._values[name]
        assert value is None or isinstance(value, tuple), name
        return value or ()

    @property
    def node_id(self) -> int:
        return self.integer("node.id")

    @property
    def client_listeners(self) -> tuple[Endpoint, ...]:
        """Those that are for clients and other brokers."""
        return tuple(each for each in self.listeners if each.name not in self.quorum.listener_names)

    @property
    def controller_listeners(self) -> tuple[Endpoint, ...]:
        """Those that are for other controllers and for brokers that ask the active one."""
        return tuple(each for each in self.listeners if each.name in self.quorum.listener_names)

    @property
    def inter_broker_listener(self) -> str:
        """The listener under which other brokers find this one."""
        name = self.text("inter.broker.listener.name")
        return self.client_listeners[0].name if name is None else name.upper()

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
        """Whether a record must be on disk before it counts, and not only in memory."""
        return self.text("log.durability") == FLUSHED

    @property
    def listener_limits(self) -> ListenerLimits:
        return replace(
            ListenerLimits(),
            produce_frame_bytes=self.integer("socket.request.max.bytes"),
            max_connections=self.integer("max.connections"),
            max_connections_per_ip=self.integer("max.connections.per.ip"),
            new_connections_per_second=self.integer("max.connection.creation.rate"),
            new_connections_per_ip_per_second=self.integer("max.connection.creation.rate.per.ip"),
            stall_ms=self.integer("connections.max.stall.ms"),
            idle_ms=self.integer("connections.max.idle.ms"),
        )

    def entries(self) -> Iterator[SettingInForce]:
        """Every setting, in the order of names."""
        for name in sorted(BROKER_SETTINGS):
            layers = tuple((source, layer[name]) for source, layer in self._layers if name in layer)
            yield SettingInForce(setting=BROKER_SETTINGS[name], layers=layers)

    def with_dynamic(self, *, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> "NodeConfig":
        """These settings under what the cluster was told while it runs: of all brokers, and above it of this one.

        What this release does not take is ignored: only another release can have let it pass.
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
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> NodeConfig:
    """The settings of a node from all sources. `overrides` are `name=value`; `flags` come from options of their own.

    Raises KafkaError(INVALID_CONFIG).
    """
    given: dict[str, str] = {}
    if file is not None:
        given.update(_checked(read_file(file), str(file)))
    given.update(_checked(read_environment(environment or {}), "environment"))
    given.update(flags or {})
    given.update(read_overrides(overrides))
    return NodeConfig(given)


def read_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """The settings in words of the form `name=value`. Raises KafkaError(INVALID_CONFIG) for another form."""
    given: dict[str, str] = {}
    for override in overrides:
        name, separator, text = override.partition("=")
        if not separator:
            raise _refusal(f"--set {override}: say name=value")
        given[name.strip()] = text.strip()
    return given


def _checked(texts: dict[str, str], source: str) -> dict[str, str]:
    """The texts. Raises KafkaError(INVALID_CONFIG) that names the source and everything that is wrong in it."""
    faults = []
    for name, text in texts.items():
        try:
            find(BROKER_SETTINGS, name).parse(text)
        except KafkaError as fault:
            known = _ELSEWHERE.get(name)
            faults.append(fault.detail if known is None else f"unknown setting {name!r}; {known}")
    if faults:
        raise _refusal(f"{source}: {'; '.join(faults)}")
    return texts


def read_file(path: Path) -> dict[str, str]:
    """The settings in a server.properties or, if its name ends in .toml, a TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as fault:
        raise _refusal(f"cannot read {path}: {fault.strerror}") from None
    except UnicodeDecodeError:
        raise _refusal(f"cannot read {path}: it is not UTF-8 text") from None
    if path.suffix != ".toml":
        return parse_properties(text)
    try:
        return dict(_flatten(tomllib.loads(text), ""))
    except tomllib.TOMLDecodeError as fault:
        raise _refusal(f"{path} is not TOML: {fault}") from None


def parse_properties(text: str) -> dict[str, str]:
    """A Java properties file, as far as Kafka's use them: comments, `name=value`, lines continued with a backslash."""
    properties: dict[str, str] = {}
    pending = ""
    for line in text.splitlines():
        line = pending + line.strip()  # noqa: PLW2901 - the line with what the one before it left open
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        split_at = min((at for at in (line.find("="), line.find(":")) if at >= 0), default=len(line))
        properties[line[:split_at].strip()] = line[split_at + 1 :].strip()
    return properties


def _flatten(table: Mapping[str, object], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield prefix + key, ",".join(map(str, value))
        elif isinstance(value, bool):
            yield prefix + key, "true" if value else "false"
        else:
            yield prefix + key, str(value)


def read_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among environment variables: TAILRACE_NODE_ID is node.id. An unknown one is refused."""
    names = {ENVIRONMENT_PREFIX + attribute_name(name).upper(): name for name in BROKER_SETTINGS}
    given: dict[str, str] = {}
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in _NOT_SETTINGS:
            if variable not in names:
                near = difflib.get_close_matches(variable, names, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise _refusal(f"unknown environment variable {variable}{hint}")
            given[names[variable]] = text
    return given


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what `read_environment` takes from it."""
    return {
        variable: text
        for variable, text in environment.items()
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in _NOT_SETTINGS
    }


def parse_endpoint(text: str, *, setting: str = "listeners") -> Endpoint:
    """`PLAINTEXT://127.0.0.1:9092`, or `127.0.0.1:9092` for short; IPv6 hosts in brackets."""
    name, separator, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535 or (separator and not name):
        raise _refusal(f"{setting}={text!r}: say {'NAME://HOST:PORT or ' if setting == 'listeners' else ''}HOST:PORT")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _refusal(f"{setting}={text!r}: an IPv6 address stands in brackets, as in [::1]:9092")
    return Endpoint(name=(name or "PLAINTEXT").upper(), host=host, port=int(port))


def _parse_address(text: str, setting: str) -> Address:
    endpoint = parse_endpoint(text, setting=setting)
    if not endpoint.host or not endpoint.port or "://" in text:
        raise _refusal(f"{setting}={text!r}: say HOST:PORT")
    return Address(endpoint.host, endpoint.port)


def is_loopback_host(host: str) -> bool:
    """Whether only this machine can reach a listener on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard_host(host: str) -> bool:
    """Whether this host stands for every address of the machine."""
    return host in ("", "0.0.0.0", "::")


def _topic_defaults(values: Mapping[str, Value]) -> TopicConfig:
    """The settings of a topic that says nothing itself. Of several units the finest one given wins, as in Kafka."""
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
    """What one setting alone cannot say. Raises KafkaError(INVALID_CONFIG)."""
    if not config.listeners:
        raise _refusal("listeners: at least one address is needed, as in 127.0.0.1:9092")
    if len({endpoint.name for endpoint in config.listeners}) < len(config.listeners):
        raise _refusal("listeners: each needs a name of its own, as in CLIENTS://127.0.0.1:9092")
    for endpoint in config.listeners:
        _check_listener(config, endpoint)
    names = {endpoint.name for endpoint in config.listeners}
    for endpoint in config.advertised_listeners:
        if endpoint.name not in names:
            raise _refusal(f"advertised.listeners={endpoint}: there is no listener of this name")
        if is_wildcard_host(endpoint.host):
            raise _refusal(f"advertised.listeners={endpoint}: clients cannot connect to a wildcard; name a host")
    _check_metrics_listener(config)
    if "," in str(config.data_directory):
        raise _refusal("log.dirs: a node keeps its data in one directory; start one node per disk")
    if config.integer("group.min.session.timeout.ms") > config.integer("group.max.session.timeout.ms"):
        raise _refusal("group.min.session.timeout.ms is above group.max.session.timeout.ms")


def _check_metrics_listener(config: NodeConfig) -> None:
    endpoint = config.metrics_listener
    if endpoint is not None and not is_loopback_host(endpoint.host) and not config.flag("listener.insecure.allow"):
        raise _refusal(
            f"metrics.listener={config.text('metrics.listener')}: other machines could read the names of topics."
            " Ways out: listen on 127.0.0.1, or accept it with --insecure (listener.insecure.allow=true)"
        )


def _check_listener(config: NodeConfig, endpoint: Endpoint) -> None:
    protocols = {
        pair.partition(":")[0].upper(): pair.partition(":")[2].upper()
        for pair in config.words("listener.security.protocol.map")
    }
    own_meaning = endpoint.name if endpoint.name in _SECURE_PROTOCOLS else "PLAINTEXT"
    protocol = protocols.get(endpoint.name, own_meaning)
    if protocol != "PLAINTEXT":
        raise _refusal(f"listeners={endpoint}: the security protocol {protocol} is not supported in this version")
    if is_loopback_host(endpoint.host):
        return
    if not config.flag("listener.insecure.allow"):
        raise _refusal(
            f"listeners={endpoint}: other machines could reach it, and nobody would be asked who they are."
            " Ways out: listen on 127.0.0.1; or reach the node through a tunnel (ssh -L);"
            " or accept the risk with --insecure (listener.insecure.allow=true)"
        )
    advertised = {each.name for each in config.advertised_listeners}
    if is_wildcard_host(endpoint.host) and endpoint.name not in advertised:
        raise _refusal(
            f"listeners={endpoint}: clients cannot connect to a wildcard;"
            f" add advertised.listeners={endpoint.name}://HOST:{endpoint.port}"
        )


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
