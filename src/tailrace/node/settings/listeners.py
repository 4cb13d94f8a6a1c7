"""A node's listeners and their advertised addresses: parsed and checked."""

import ipaddress
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.security_protocol import NAMES, SecurityProtocol
from tailrace.net.connection import Address


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerAddress:
    """An address with the name of its listener. An empty host stands for every address of the machine."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


_LAST_PORT = 65_535
_LONGEST_PORT = 5


def parse_endpoint(text: str, *, setting: str = "listeners") -> ListenerAddress:
    """`PLAINTEXT://127.0.0.1:9092`, or `127.0.0.1:9092` for short; IPv6 hosts in brackets."""
    name, separator, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or (separator and not name):
        form = "NAME://HOST:PORT or HOST:PORT" if setting.endswith("listeners") else "HOST:PORT"
        raise _refusal(f"{setting}={text!r}: say {form}")
    if len(port) > _LONGEST_PORT or int(port) > _LAST_PORT:
        raise _refusal(f"{setting}={text!r}: port {port} is above {_LAST_PORT}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _refusal(f"{setting}={text!r}: an IPv6 address stands in brackets, as in [::1]:9092")
    return ListenerAddress(name=(name or "PLAINTEXT").upper(), host=host, port=int(port))


def parse_address(text: str, setting: str) -> Address:
    """The address `HOST:PORT`, with a host and a port."""
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


class SettingValues(Protocol):
    """The settings of a node by name: a `NodeConfig` that is being read."""

    def flag(self, name: str) -> bool: ...

    def integer(self, name: str) -> int: ...

    def real(self, name: str) -> float: ...

    def text(self, name: str) -> str | None: ...

    def words(self, name: str) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """The addresses of one node."""

    listeners: tuple[ListenerAddress, ...]
    advertised: tuple[ListenerAddress, ...]
    """`advertised.listeners`: listeners with another advertised address."""
    metrics: ListenerAddress | None
    stated_protocols: Mapping[str, SecurityProtocol]
    """`listener.security.protocol.map`."""

    def protocol_of(self, name: str) -> SecurityProtocol:
        """The security protocol of this listener, perhaps of another node: as stated, else the protocol of this name,
        else PLAINTEXT."""
        stated = self.stated_protocols.get(name)
        return SecurityProtocol[name if name in NAMES else "PLAINTEXT"] if stated is None else stated

    def is_advertised(self, name: str) -> bool:
        """Whether the advertised address of this listener differs from its own."""
        return any(listener.name == name for listener in self.advertised)

    def address_of(self, name: str, *, taken_port: int) -> ListenerAddress:
        """The address under which other processes reach this listener: the advertised address, else the listener's own.

        Port 0 stands for the port that was taken.
        """
        address = next((listener for listener in self.advertised if listener.name == name), None)
        if address is None:
            address = next(listener for listener in self.listeners if listener.name == name)
            address = replace(address, host="127.0.0.1") if address.host == "localhost" else address
        return replace(address, port=address.port or taken_port)


def read_listener_config(settings: SettingValues) -> ListenerConfig:
    """Raises KafkaError(INVALID_CONFIG) that names the wrong setting and how to correct it."""
    metrics = settings.text("metrics.listener")
    config = ListenerConfig(
        listeners=tuple(parse_endpoint(text) for text in settings.words("listeners")),
        advertised=tuple(
            parse_endpoint(text, setting="advertised.listeners") for text in settings.words("advertised.listeners")
        ),
        metrics=parse_endpoint(metrics, setting="metrics.listener") if metrics else None,
        stated_protocols=dict(map(_stated_protocol, settings.words("listener.security.protocol.map"))),
    )
    if not config.listeners:
        raise _refusal("listeners: at least one address is needed, as in 127.0.0.1:9092")
    if _has_twins(config.listeners):
        raise _refusal("listeners: each needs a name of its own, as in CLIENTS://127.0.0.1:9092")
    _check_advertised(config)
    _check_metrics_listener(settings, config.metrics)
    return config


def _stated_protocol(pair: str) -> tuple[str, SecurityProtocol]:
    name, _, protocol = pair.partition(":")
    if protocol.strip().upper() not in NAMES:
        raise _refusal(f"listener.security.protocol.map={pair!r}: say NAME:PROTOCOL, one of {', '.join(NAMES)}")
    return name.strip().upper(), SecurityProtocol[protocol.strip().upper()]


def _has_twins(endpoints: Sequence[ListenerAddress]) -> bool:
    return any(count > 1 for count in Counter(endpoint.name for endpoint in endpoints).values())


def _check_advertised(config: ListenerConfig) -> None:
    names = {endpoint.name for endpoint in config.listeners}
    for endpoint in config.advertised:
        if endpoint.name not in names:
            raise _refusal(f"advertised.listeners={endpoint}: there is no listener of this name")
        if is_wildcard_host(endpoint.host):
            raise _refusal(f"advertised.listeners={endpoint}: clients cannot connect to a wildcard; name a host")
    if _has_twins(config.advertised):
        raise _refusal("advertised.listeners: each listener has one advertised address; leave the others out")


def _check_metrics_listener(settings: SettingValues, endpoint: ListenerAddress | None) -> None:
    if endpoint is not None and not is_loopback_host(endpoint.host) and not settings.flag("listener.insecure.allow"):
        raise _refusal(
            f"metrics.listener={settings.text('metrics.listener')}: other machines could read the names of topics."
            " Ways out: listen on 127.0.0.1, or accept it with --insecure (listener.insecure.allow=true)"
        )


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
