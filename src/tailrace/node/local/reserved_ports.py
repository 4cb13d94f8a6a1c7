"""Ports for nodes that do not run yet: the nodes of a quorum must know each other's ports before any node starts.

A reserved port is bound on both loopbacks (or on a given host), and not listened on. The system does not give the port
to a process that asks for a free port or connects, and refuses the port to programs that bind without SO_REUSEADDR. A
node of Tailrace binds with SO_REUSEADDR, so it can still listen there.
"""

import errno
import socket
from collections.abc import Iterable
from types import TracebackType
from typing import Self

_ATTEMPTS = 100
_LOOPBACKS = ("127.0.0.1", "::1")


class ReservedPorts:
    """Holds ports until `close`."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reserve(self, host: str, port: int) -> int:
        """Reserve this port; 0: a free port. Raises OSError that names the port if the port is in use."""
        first, *more = _LOOPBACKS if host in ("localhost", *_LOOPBACKS) else (host,)
        for attempts_left in reversed(range(_ATTEMPTS)):
            bound = _bind(first, port)
            taken = int(bound.getsockname()[1])
            try:
                others = _bind_where_there_is(more, taken)
            except OSError:
                bound.close()
                if port or not attempts_left:
                    raise
                continue
            self._sockets += [bound, *others]
            return taken
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Release the ports."""
        while self._sockets:
            self._sockets.pop().close()


def _bind_where_there_is(hosts: Iterable[str], port: int) -> list[socket.socket]:
    """Sockets on this port, for each of the hosts that this machine has. Raises OSError if the port is taken on any
    host."""
    bound: list[socket.socket] = []
    for host in hosts:
        try:
            bound.append(_bind(host, port))
        except OSError as fault:
            if fault.errno == errno.EADDRINUSE:
                for each in bound:
                    each.close()
                raise
    return bound


def _bind(host: str, port: int) -> socket.socket:
    name = host.encode("ascii") if host.isascii() else host  # as in net.listener
    family, kind, protocol, _, address = socket.getaddrinfo(
        name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError as fault:
        bound.close()
        way_out = "; choose other ports, or 0 for free ones" if fault.errno == errno.EADDRINUSE else ""
        raise OSError(fault.errno, f"cannot listen on {host or '*'}:{port}: {fault.strerror}{way_out}") from None
    return bound
