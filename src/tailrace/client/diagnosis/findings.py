"""Findings of a diagnosis on the way to a cluster, with the settings to change.

Settings have the names that brokers (`listeners`, `advertised.listeners`) and clients (`security.protocol`) give them.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tailrace.client.diagnosis.probe import ProbeFault, Target, Trouble
from tailrace.net.connection import Address


class Verdict(StrEnum):
    """The grade of a finding."""

    OK = "ok"
    NOTE = "note"
    """A finding that is no fault, but some uses need more."""
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The finding of one step."""

    check: str
    target: str
    verdict: Verdict
    detail: str
    advice: str = ""
    """The setting to change; empty for OK."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An address and its origin, which the advice names."""

    address: Address
    broker: int | None = None
    """The broker that advertises the address; None for the given address."""
    given_host: str = ""
    given_port: int | None = None
    """The port that has just worked, if this is the only broker of the cluster."""

    @property
    def setting(self) -> str:
        """The setting with this address."""
        return "the address that was given" if self.broker is None else f"advertised.listeners of broker {self.broker}"

    @property
    def suggestion(self) -> str:
        """The setting with an address that clients can reach."""
        port = self.address.port if self.given_port is None else self.given_port
        return f"advertised.listeners={Address(self.given_host or 'HOST', port)}"


def failed(check: str, place: Place, detail: str, advice: str) -> Finding:
    """A finding after which this address is not probed further."""
    return Finding(check=check, target=str(place.address), verdict=Verdict.FAILED, detail=detail, advice=advice)


def unresolved(place: Place, fault: ProbeFault) -> Finding:
    """The name cannot be resolved."""
    host = place.address.host
    if place.broker is None:
        advice = f"look at the spelling of {host}, or use the broker's IP address"
    else:
        advice = (
            f"broker {place.broker} advertises {host}, a name that this machine does not know (a container's?):"
            f" set {place.suggestion}, or give this machine the name (/etc/hosts)"
        )
    return failed("name", place, f"{host} cannot be resolved: {fault.detail}", advice)


def unreached(place: Place, faults: Sequence[tuple[Target, ProbeFault]]) -> Finding:
    """No address of the host takes connections."""
    detail = "; ".join(f"{target}: {fault.detail}" for target, fault in faults)
    trouble = faults[0][1].trouble
    if place.broker is not None:
        return failed("advertised", place, detail, _advice_for_advertised(place, trouble))
    return failed("connect", place, detail, _advice_for_given(place, trouble))


def _advice_for_given(place: Place, trouble: Trouble) -> str:
    address = place.address
    if trouble is Trouble.REFUSED:
        if is_loopback(address.host):
            starts = f"`tailrace serve --listen {address}` starts a broker"
            return f"is a broker running? {starts}; its ready line says its port"
        return (
            f"is the broker running, and does its `listeners` name {address} or a wildcard?"
            " A broker that listens on 127.0.0.1 cannot be reached by another address"
        )
    if trouble is Trouble.TIMED_OUT:
        return f"packets to {address} are dropped: a firewall or security group, or an address without a machine"
    return f"there is no way from this machine to {address.host}: a network, VPN or route is missing"


def _advice_for_advertised(place: Place, trouble: Trouble) -> str:
    address, broker = place.address, place.broker
    if is_loopback(address.host) and not is_loopback(place.given_host):
        return (
            f"broker {broker} advertises {address}, which for every client is the client's own machine:"
            f" set {place.suggestion}"
        )
    if trouble is Trouble.TIMED_OUT:
        return (
            f"broker {broker} advertises {address}, to which packets are dropped: open the firewall for it,"
            f" or set {place.suggestion}"
        )
    return (
        f"broker {broker} advertises {address}, where it cannot be reached from here: start it if it is down,"
        f" or set {place.suggestion}{'' if place.given_port is not None else ' with the port that leads to it'}"
    )


def half_reached(place: Place, target: Target, fault: ProbeFault, reached: Target) -> Finding:
    """The finding that an address of the host accepts connections, and another address does not."""
    host = place.address.host
    return Finding(
        check="connect",
        target=str(place.address),
        verdict=Verdict.WARNING,
        detail=f"{host} also means {target}: {fault.detail}",
        advice=f"a client that tries it first is slow or fails: write {reached} for {host} in {place.setting},"
        f" or add {target} to the broker's listeners",
    )


SPOKEN = {
    Trouble.TLS: "TLS is spoken there",
    Trouble.HTTP: "an HTTP server answers there",
    Trouble.PLAIN: "Kafka's protocol without TLS is spoken there",
}
"""The protocol of a server where another protocol was expected."""

_DOES_NOT_SPEAK_KAFKA = (
    "look which program has this port (`ss -ltnp`); a broker closes a connection at once if max.connections is reached"
)

ADVICE_WHEN_NOT_SPOKEN = {
    Trouble.TLS: "this listener wants TLS: set security.protocol=SSL (or SASL_SSL) in the client; here: --tls",
    Trouble.PLAIN: "this listener has no TLS: set security.protocol=PLAINTEXT (or SASL_PLAINTEXT) in the client;"
    " here: leave out --tls",
    Trouble.HTTP: "this is the port of a web server (a console, a registry, metrics?): use the port of the broker's"
    " `listeners`, mostly 9092",
    Trouble.CERTIFICATE_WANTED: "this listener wants to see the client's certificate (ssl.client.auth=required):"
    " set ssl.keystore.location in the client",
    Trouble.SILENT: "something takes connections and does not answer: a port that is forwarded to nowhere, a load"
    " balancer without a broker behind it, or a broker that hangs",
    Trouble.CLOSED: _DOES_NOT_SPEAK_KAFKA,
    Trouble.NOT_KAFKA: _DOES_NOT_SPEAK_KAFKA,
    Trouble.REFUSED: "the broker has just gone, or takes no more connections: try again",
    Trouble.TIMED_OUT: "the broker takes no more connections: try again",
    Trouble.UNREACHABLE: "the network has just gone: try again",
}
"""The advice for each trouble of an open connection."""


def is_loopback(host: str) -> bool:
    """Whether the host is this machine."""
    if host.lower() in ("localhost", "localhost.localdomain"):
        return True
    address = _ip(host)
    return address is not None and address.is_loopback


def is_wildcard(host: str) -> bool:
    """Whether the host is empty or a wildcard, to which no client can connect."""
    address = _ip(host)
    return not host or (address is not None and address.is_unspecified)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
