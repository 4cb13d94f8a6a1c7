"""Accepts connections with TLS: each connection is counted and admitted before its handshake.

1. The limits of connections and their rate hold for clients that never finish a handshake, too. A handshake has a time
   limit.
2. Each handshake takes the context that is current then, so that renewed certificates serve new connections.
3. The principal of a client with a certificate comes from the certificate's subject.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Sequence
from typing import Final, Protocol

from tailrace.model.errors import KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.net.inbound import Host, InboundConnection
from tailrace.net.tls import TlsContexts

HANDSHAKE_SECONDS: Final = 10.0
"""The longest time of a handshake."""
MECHANISM: Final = "TLS"
"""The mechanism of an identity that a certificate has proved."""

_GOODBYE_SECONDS: Final = 2.0
"""The longest wait for the client's close_notify when the node closes a connection."""
_ACCEPTED_AT_ONCE: Final = 64
_REST_SECONDS: Final = 1.0
"""The wait after a lack of descriptors, as in asyncio."""
_LACKS: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class PrincipalOf(Protocol):
    """Makes the principal of the subject of a certificate, as `model.security.principal_rules`."""

    def __call__(self, subject: Sequence[Sequence[tuple[str, str]]], /) -> str:
        """`User:` with a name. Raises KafkaError for a subject that no rule allows."""
        ...


class TlsConnection(InboundConnection):
    """A connection whose handshake is done."""

    __slots__ = ("_principal_of", "_tls_host")

    def __init__(self, listener: "TlsHost", principal_of: PrincipalOf) -> None:
        super().__init__(listener)
        self._tls_host = listener
        self._principal_of = principal_of

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        certificate = transport.get_extra_info("peercert")
        if not certificate:
            return
        try:
            principal = self._principal_of(certificate["subject"])
        except KafkaError as refusal:
            self.abort(refusal.detail)
            self._tls_host.report_handshake(self.identity, refusal.detail)
        else:
            self.identity = self.identity._replace(principal=principal, mechanism=MECHANISM)
            self._tls_host.report_handshake(self.identity)


class TlsHost(Host, Protocol):
    """The listener of connections with TLS."""

    def wait_of(self, address: str) -> int:
        """The wait in ms of a connection from this address before its handshake. Raises KafkaError for a connection
        above the limits."""
        ...

    def count_handshake(self, address: str, change: int) -> None:
        """Count handshakes under way: they are connections, too."""
        ...

    def report_failed_handshake(self, address: str, reason: str) -> None:
        """Log that a connection has ended in its handshake."""
        ...

    def report_handshake(self, client: ClientIdentity, fault: str = "") -> None:
        """Report a client by its certificate, or the fault of the certificate's name."""
        ...


class TlsAcceptor:
    """Accepts connections at bound sockets, and leads them through the handshake. `start`, then `stop`, once."""

    def __init__(self, host: TlsHost, contexts: TlsContexts, principal_of: PrincipalOf) -> None:
        self._host = host
        self._contexts = contexts
        self._principal_of = principal_of
        self._sockets: list[socket.socket] = []
        self._handshakes: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None

    def start(self, sockets: Sequence[socket.socket], backlog: int) -> None:
        """Accept connections from now on."""
        for bound in sockets:
            bound.listen(backlog)
            self._sockets.append(bound)
        self._watch()

    def stop(self) -> None:
        """Take no new connections; handshakes under way end, and connections whose handshake is done go on."""
        if self._rest is not None:
            self._rest.cancel()
        for bound in self._sockets:
            self._host.loop.remove_reader(bound)
        self._sockets.clear()
        for handshake in self._handshakes:
            handshake.cancel()

    def _watch(self) -> None:
        self._rest = None
        for bound in self._sockets:
            self._host.loop.add_reader(bound, self._accept, bound)

    def _accept(self, bound: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as fault:
                if fault.errno not in _LACKS:
                    raise
                for other in self._sockets:
                    self._host.loop.remove_reader(other)
                self._rest = self._host.loop.call_later(_REST_SECONDS, self._watch)
                return
            accepted.setblocking(False)
            self._admit(accepted, peer[0])

    def _admit(self, accepted: socket.socket, address: str) -> None:
        try:
            wait_ms = self._host.wait_of(address)
        except KafkaError as refusal:
            accepted.close()
            self._host.report_failed_handshake(address, refusal.detail)
            return
        self._host.count_handshake(address, 1)
        task = self._host.loop.create_task(self._shake_hands(accepted, address, wait_ms))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, accepted: socket.socket, address: str, wait_ms: int) -> None:
        loop = self._host.loop
        try:
            await asyncio.sleep(wait_ms / 1000)
            await loop.connect_accepted_socket(
                lambda: TlsConnection(self._host, self._principal_of),
                accepted,
                ssl=self._contexts.current(loop.time()),
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=_GOODBYE_SECONDS,
            )
        except OSError as fault:
            self._host.report_failed_handshake(address, _reason(fault))
        except asyncio.CancelledError:
            accepted.close()  # it may not have a transport yet
        finally:
            self._host.count_handshake(address, -1)


_REASONS: Final = {
    "HTTP_REQUEST": "an HTTP request on a listener with TLS",
    "WRONG_VERSION_NUMBER": "no TLS hello: the client speaks another protocol (security.protocol)",
    "UNSUPPORTED_PROTOCOL": "the client offers only versions of TLS that are not enabled (ssl.enabled.protocols)",
    "NO_SHARED_CIPHER": "the client offers no cipher suite of this node (ssl.cipher.suites)",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client has no certificate (ssl.client.auth)",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust this node's certificate (ssl.truststore.location there)",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client refuses this node's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client refuses this node's certificate",
}
"""Texts by the reasons of OpenSSL."""


def _reason(fault: OSError) -> str:
    if isinstance(fault, ssl.SSLCertVerificationError):
        return f"the client's certificate is refused: {fault.verify_message}"
    if isinstance(fault, ssl.SSLError):
        return f"the TLS handshake failed: {_REASONS.get(fault.reason or '') or fault.reason or fault}"
    return f"the TLS handshake failed: {str(fault) or 'the client has gone'}"
