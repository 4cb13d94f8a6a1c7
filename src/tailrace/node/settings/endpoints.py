"""Addresses with the name of a listener, as settings have them."""

import ipaddress
from dataclasses import dataclass

from tailrace.model.errors import ErrorCode, KafkaError
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


def parse_endpoint(text: str, *, setting: str = "listeners") -> ListenerAddress:
    """`PLAINTEXT://127.0.0.1:9092`, or `127.0.0.1:9092` for short; IPv6 hosts in brackets."""
    name, separator, address = text.rpartition("://")
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65_535 or (separator and not name):
        form = "NAME://HOST:PORT or HOST:PORT" if setting.endswith("listeners") else "HOST:PORT"
        raise _refusal(f"{setting}={text!r}: say {form}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _refusal(f"{setting}={text!r}: an IPv6 address stands in brackets, as in [::1]:9092")
    return ListenerAddress(name=(name or "PLAINTEXT").upper(), host=host, port=int(port))


def parse_address(text: str, setting: str) -> Address:
    """`HOST:PORT`, neither of them empty."""
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


def _refusal(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, detail)
