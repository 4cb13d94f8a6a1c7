"""The listening side: binds addresses, admits connections, and checks their time limits.

Frames go to `on_frame(connection, slot, frame)` inside turns; a frame is a view that is valid until the turn ends
(decision 0041), or longer while a handler keeps it.
"""

import asyncio
import errno
import logging
import socket
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.model.security.principal_rules import whole_name
from tailrace.net.buffers import BufferPool
from tailrace.net.fair_turns import FairTurns
from tailrace.net.inbound import InboundConnection
from tailrace.net.limits import ListenerLimits
from tailrace.net.tls import TlsContexts
from tailrace.net.tls_acceptor import PrincipalOf, TlsAcceptor
from tailrace.net.turns import Turns

TOO_LONG_MS = 10_000
"""A connection that would have to wait this long is closed instead."""

_BURST_SECONDS = 2


class Arrivals:
    """Rates of new connections: a rate for all clients together, and a rate for each address. Times are of a monotonic
    clock, in ms.

    Both rates are token buckets that hold two seconds' worth. A connection that finds an empty bucket takes a future
    token, and waits until the bucket would have that token. A connection whose wait would be too long takes no token,
    so that a flood of attempts does not delay other connections.
    """

    def __init__(self, *, per_second: int, per_ip_per_second: int) -> None:
        self._all = _Bucket(per_second)
        self._per_ip_per_second = per_ip_per_second
        self._by_address: dict[str, _Bucket] = {}

    def wait_ms(self, address: str, now_ms: int) -> int:
        """The wait of a connection that comes now from this address: 0 mostly; `TOO_LONG_MS`: the connection is
        refused."""
        bucket = self._by_address.get(address)
        if bucket is None:
            bucket = self._by_address[address] = _Bucket(self._per_ip_per_second)
        wait_ms = max(bucket.wait_ms(now_ms), self._all.wait_ms(now_ms))
        if wait_ms >= TOO_LONG_MS:
            return TOO_LONG_MS
        bucket.take()
        self._all.take()
        return wait_ms

    def forget_idle(self, now_ms: int) -> None:
        """Forget the addresses that have made no new connection for a while: there are many addresses."""
        self._by_address = {
            address: bucket for address, bucket in self._by_address.items() if not bucket.is_full(now_ms)
        }

    def __len__(self) -> int:
        """The number of addresses that are remembered."""
        return len(self._by_address)


class _Bucket:
    """Tokens, as the time at which the bucket would be full: one number instead of two."""

    __slots__ = ("_full_at_ms", "_size_ms", "_token_ms")

    def __init__(self, per_second: int) -> None:
        self._token_ms = 1000 / per_second
        self._size_ms = _BURST_SECONDS * 1000
        self._full_at_ms = 0.0

    def wait_ms(self, now_ms: int) -> int:
        """The time until there is a token."""
        self._full_at_ms = max(self._full_at_ms, now_ms)
        return max(0, round(self._full_at_ms + self._token_ms - now_ms - self._size_ms))

    def take(self) -> None:
        """Take a token, if need be a token of the future."""
        self._full_at_ms += self._token_ms

    def is_full(self, now_ms: int) -> bool:
        """Whether the bucket is full, as after its creation."""
        return self._full_at_ms <= now_ms


def _above(detail: str) -> KafkaError:
    """The refusal of a connection above a limit."""
    return KafkaError(ErrorCode.NETWORK_EXCEPTION, detail)


_logger = logging.getLogger("tailrace.net")

_BACKLOG = 1024
_CHECK_SECONDS = 1.0
_WRITE_HIGH_WATER = 2 << 20
_PORT_ATTEMPTS = 20
_STOP_SECONDS = 2.0
_LOOK_SECONDS = 0.005

OnFrame = Callable[[InboundConnection, int, memoryview], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerCounts:
    """Counters since the start, for metrics."""

    open: int
    accepted: int
    refused: int
    delayed: int
    """Connections above the rate; the node began to read from these connections later."""
    closed_by_us: int


class Listener:
    """Accepts Kafka clients on one or more addresses that share a port."""

    def __init__(
        self,
        *,
        name: str,
        turns: Turns,
        fair_turns: FairTurns,
        on_frame: OnFrame,
        pool: BufferPool,
        limits: ListenerLimits,
        arrivals: Arrivals,
        tls: TlsContexts | None = None,
        principal_of: PrincipalOf = whole_name,
    ) -> None:
        """`arrivals`, `pool` and `fair_turns` belong to the node: every listener shares them. With `tls`, connections
        are encrypted, and `principal_of` names the principals of clients with certificates."""
        self.name = name
        self.turns = turns
        self.fair_turns = fair_turns
        self.on_frame = on_frame
        self.on_accept: Callable[[InboundConnection], None] | None = None
        """Called with each accepted connection: the gate of a listener with SASL."""
        self.on_handshake: Callable[[ClientIdentity, str], None] | None = None
        """Called with the client and the fault of a TLS handshake that has failed, and with an empty text for a client
        that has shown a certificate."""
        self.pool = pool
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.is_transport_copying = sys.version_info < (3, 12) and type(self.loop).__module__.startswith("asyncio")
        self.addresses: tuple[tuple[str, int], ...] = ()
        self._tls = None if tls is None else TlsAcceptor(self, tls, principal_of)
        self._handshakes = 0
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._connections: set[InboundConnection] = set()
        self._per_ip: Counter[str] = Counter()
        self._arrivals = arrivals
        self._closing_log = RateLimitedLog(_logger, monotonic_ms=self._now_ms)
        self._next_check: asyncio.TimerHandle | None = None
        self._all_gone: asyncio.Future[None] | None = None
        self._accepted = 0
        self._refused = 0
        self._delayed = 0
        self._closed_by_us = 0

    def bind(self, hosts: Sequence[str], port: int) -> int:
        """Take the addresses and return the port; no client can connect yet. Port 0 picks a free port.

        The first host must be an address of this machine, further hosts may be missing. Raises OSError with the address
        in its text.
        """
        self._sockets = _bind_all(hosts, port)
        self.addresses = tuple(bound.getsockname()[:2] for bound in self._sockets)
        return self.addresses[0][1]

    async def start(self) -> None:
        """Accept connections from now on."""
        if self._tls is not None:
            self._tls.start(self._sockets, _BACKLOG)
        else:
            for bound in self._sockets:
                server = await self.loop.create_server(lambda: InboundConnection(self), sock=bound, backlog=_BACKLOG)
                self._servers.append(server)
        self._next_check = self.loop.call_later(_CHECK_SECONDS, self._check_time)

    def stop_accepting(self) -> None:
        """Take no new connections; open connections go on, but for connections in the middle of a handshake."""
        if self._tls is not None:
            self._tls.stop()
        for server in self._servers:
            server.close()
        for bound in self._sockets:
            bound.close()

    def discard_input(self) -> None:
        """Carry out no more requests of open connections; a request that was taken is still answered."""
        for connection in self._connections:
            connection.discard_input()

    async def wait_until_answered(self, timeout_seconds: float) -> bool:
        """Return when every request that was taken is answered, or the time is over; False if a request is
        unanswered."""
        deadline = self.loop.time() + timeout_seconds
        while any(connection.has_unanswered for connection in self._connections):
            if self.loop.time() >= deadline:
                return False
            await asyncio.sleep(_LOOK_SECONDS)
        return True

    async def stop(self) -> None:
        """Close every connection, after its queued answers or after two seconds."""
        self.stop_accepting()
        if self._next_check is not None:
            self._next_check.cancel()
        self.discard_input()
        for connection in tuple(self._connections):
            connection.finish()
        if self._connections:
            self._all_gone = self.loop.create_future()
            await asyncio.wait([self._all_gone], timeout=_STOP_SECONDS)
            for connection in tuple(self._connections):
                connection.abort(None)
            await self._all_gone

    @property
    def counts(self) -> ListenerCounts:
        return ListenerCounts(
            open=len(self._connections) + self._handshakes,
            accepted=self._accepted,
            refused=self._refused,
            delayed=self._delayed,
            closed_by_us=self._closed_by_us,
        )

    # For the connections

    def admit(self, connection: InboundConnection) -> None:
        """Count a new connection, or abort it if there are too many."""
        address = connection.identity.address
        connection.is_trusted = is_loopback(address)
        try:
            wait_ms = 0 if self._tls is not None else self.wait_of(address)
        except KafkaError as refusal:
            self._count(connection, address)
            self._refuse(connection, refusal.detail)
            return
        self._count(connection, address)
        self._accepted += 1
        if self.on_accept is not None:
            self.on_accept(connection)
        connection.answers.set_write_high_water(_WRITE_HIGH_WATER)
        if wait_ms:
            connection.hold()
            self.loop.call_later(wait_ms / 1000, connection.let_go)

    def _count(self, connection: InboundConnection, address: str) -> None:
        self._connections.add(connection)
        self._per_ip[address] += 1

    def wait_of(self, address: str) -> int:
        """The wait in ms of a new connection from this address: 0, or more for a connection above the rate. Raises
        KafkaError for a connection above a limit."""
        limits = self.limits
        if len(self._connections) + self._handshakes >= limits.max_connections:
            raise _above(f"more than {limits.max_connections} connections (max.connections)")
        if is_loopback(address):
            return 0
        if self._per_ip[address] >= limits.max_connections_per_ip:
            limit = limits.max_connections_per_ip
            raise _above(f"more than {limit} connections from one address (max.connections.per.ip)")
        wait_ms = self._arrivals.wait_ms(address, self._now_ms())
        if wait_ms >= TOO_LONG_MS:
            raise _above("new connections come too fast (max.connection.creation.rate)")
        if wait_ms:
            self._delayed += 1
        return wait_ms

    def count_handshake(self, address: str, change: int) -> None:
        """Count TLS handshakes under way: they are connections, too."""
        self._handshakes += change
        self._per_ip[address] += change
        if not self._per_ip[address]:
            del self._per_ip[address]

    def report_failed_handshake(self, address: str, reason: str) -> None:
        """Log that a connection has ended in its TLS handshake."""
        self._refused += 1
        self._log_closing(address, reason)
        self.report_handshake(ClientIdentity(self.name, address), reason)

    def report_handshake(self, client: ClientIdentity, fault: str = "") -> None:
        """Report a client by its certificate, or a fault."""
        if self.on_handshake is not None:
            self.on_handshake(client, fault)

    def _refuse(self, connection: InboundConnection, reason: str) -> None:
        self._refused += 1
        connection.abort(reason)

    def forget(self, connection: InboundConnection) -> None:
        """Remove a closed connection."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._per_ip[connection.identity.address] -= 1
            if not self._per_ip[connection.identity.address]:
                del self._per_ip[connection.identity.address]
        if not self._connections and self._all_gone is not None and not self._all_gone.done():
            self._all_gone.set_result(None)

    def report(self, connection: InboundConnection, reason: str) -> None:
        """Log why the node closed a connection. The rate is limited: clients decide how often this happens."""
        self._closed_by_us += 1
        if reason:
            self._log_closing(connection.identity.address, reason)

    def _log_closing(self, address: str, reason: str) -> None:
        self._closing_log.warning(f"event=connection-closed listener={self.name} peer={address} reason={reason!r}")

    def _now_ms(self) -> int:
        return round(self.loop.time() * 1000)

    def _check_time(self) -> None:
        self._next_check = self.loop.call_later(_CHECK_SECONDS, self._check_time)
        now_ms = self._now_ms()
        for connection in tuple(self._connections):
            connection.check_time(now_ms)
        self._arrivals.forget_idle(now_ms)


def arrivals_within(limits: ListenerLimits) -> Arrivals:
    """The rates of new connections that these limits allow."""
    return Arrivals(
        per_second=limits.new_connections_per_second, per_ip_per_second=limits.new_connections_per_ip_per_second
    )


def is_loopback(address: str) -> bool:
    """Whether a peer with this IP address runs on this machine."""
    return address.startswith(("127.", "::ffff:127.")) or address == "::1"


def _bind_all(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """A bound socket per host, all on one port. With port 0, another port is tried when the port that the first host
    got is not free at a later host."""
    for attempts_left in reversed(range(_PORT_ATTEMPTS)):
        first = _bind(hosts[0], port)
        sockets = [first]
        common_port = first.getsockname()[1]
        try:
            sockets.extend(_bind(host, common_port) for host in hosts[1:])
        except OSError as fault:
            if port == 0 and attempts_left and fault.errno is not None and _is_port_taken(fault):
                for bound in sockets:
                    bound.close()
                continue
            _logger.info("event=address-not-available reason=%s", fault)
        return sockets
    raise AssertionError("the last attempt returns or raises")


def _is_port_taken(fault: OSError) -> bool:
    return "in use" in str(fault).lower()


def _bind(host: str, port: int) -> socket.socket:
    # Text would import the codec of international names, also for an address in numbers.
    name = host.encode("ascii") if host.isascii() else host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            name or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as fault:
        raise OSError(fault.errno, f"cannot listen on {host}:{port}: {fault.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.setblocking(False)
        bound.bind(address)
    except OSError as fault:
        bound.close()
        way_out = "; choose another port, or 0 for a free one" if fault.errno == errno.EADDRINUSE else ""
        raise OSError(fault.errno, f"cannot listen on {host or '*'}:{port}: {fault.strerror}{way_out}") from None
    return bound


class RateLimitedLog:
    """Writes at most `lines` warnings per `window_ms`; the next window starts with the number of warnings that were
    left out."""

    def __init__(
        self, logger: logging.Logger, *, monotonic_ms: Callable[[], int], lines: int = 20, window_ms: int = 10_000
    ) -> None:
        self._logger = logger
        self._monotonic_ms = monotonic_ms
        self._lines = lines
        self._window_ms = window_ms
        self._window_start_ms = monotonic_ms()
        self._written = 0
        self._left_out = 0

    def warning(self, line: str) -> None:
        """Write the line, or count the line as left out."""
        now_ms = self._monotonic_ms()
        if now_ms - self._window_start_ms >= self._window_ms:
            self._window_start_ms = now_ms
            self._written = 0
            if self._left_out:
                self._logger.warning("event=log-lines-left-out count=%d", self._left_out)
                self._left_out = 0
        if self._written < self._lines:
            self._written += 1
            self._logger.warning("%s", line)
        else:
            self._left_out += 1
