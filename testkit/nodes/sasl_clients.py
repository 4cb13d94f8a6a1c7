"""A client of a gate (`server.authentication.gate`) without sockets: sends frames, and keeps the answers."""

import struct
from collections.abc import Callable, Sequence
from typing import Any

from scramp import ScramClient

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.users import credential_record
from tailrace.metadata.replay import apply_all
from tailrace.model.identity import ClientIdentity
from tailrace.model.security.scram import ScramCredential, ScramMechanism, credential_of_password
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.api_versions import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tailrace.protocol.registry import api_of
from tailrace.server.authentication.credentials import NodeUser, UserCredentials
from tailrace.server.authentication.exchanges import exchange_of
from tailrace.server.authentication.gate import Gate, GateLimits, GateServices
from tailrace.server.ports import Buffer
from tailrace.testing.clock import ManualClock

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512


def credential(password: str, mechanism: ScramMechanism = SHA_256, *, salt: bytes = b"s" * 32) -> ScramCredential:
    """The credential of a password, with the least iterations."""
    return credential_of_password(mechanism, password.encode(), salt=salt, iterations=4_096)


def image_of_users(users: dict[str, ScramCredential]) -> ClusterImage:
    """An image with these users."""
    records = [credential_record(name, stored) for name, stored in users.items()]
    return apply_all(EMPTY_IMAGE, records)[0]


class DeferredChecks:
    """A port for the checks of passwords that decides when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def check(
        self, address: str, credential: ScramCredential, password: bytes, on_done: Callable[[bool], None]
    ) -> None:
        self.waiting.append(lambda: on_done(credential.proves(password)))

    def carry_out(self) -> None:
        """Decide all that wait."""
        waiting, self.waiting = self.waiting, []
        for check in waiting:
            check()


class SaslClient:
    """A connection at a gate, as the gate sees it, and its client."""

    def __init__(self, address: str = "10.0.0.1") -> None:
        self.identity = ClientIdentity("SASL", address)
        self.guard: Callable[[Any, int, memoryview], None] | None = None
        self.answers: list[bytes | None] = []
        self.closed = ""
        self.suspensions = 0
        self._on_close: list[Callable[[], None]] = []
        self._slots = 0

    # The connection

    @property
    def is_open(self) -> bool:
        return not self.closed

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        if self.is_open:
            self.answers.append(None if chunks is None else b"".join(chunks))

    def awaits_answer(self, slot: int) -> bool:
        return slot >= len(self.answers)

    def suspend(self) -> None:
        self.suspensions += 1

    def go_on(self) -> None:
        self.suspensions -= 1

    def throttle(self, throttle_ms: int) -> None:
        pass

    def close(self, reason: str) -> None:
        if self.is_open:
            self.closed = reason
            for callback in self._on_close:
                callback()

    def on_close(self, callback: Callable[[], None]) -> None:
        self._on_close.append(callback)

    # The client

    def send_bytes(self, frame: bytes) -> None:
        """Send a frame to the guard."""
        assert self.guard is not None, "the connection has no guard"
        assert self.is_open
        slot, self._slots = self._slots, self._slots + 1
        self.guard(self, slot, memoryview(frame))

    def send(self, request: Any, version: int) -> None:
        """Send a request to the guard."""
        self.send_bytes(b"".join(encode_request(request, version, 7, "a client")))

    def last(self, kind: type[Any], version: int) -> Any:
        """The last answer, of this kind."""
        answer = self.answers[-1]
        assert answer is not None
        return decode_response(kind, version, memoryview(answer))[1]

    def handshake(self, mechanism: str, version: int = 1) -> Any:
        """The answer to a handshake."""
        self.send(SaslHandshakeRequest(mechanism=mechanism), version)
        return self.last(SaslHandshakeResponse, version)

    def authenticate(self, token: bytes, version: int = 2) -> Any:
        """The answer to a token; None if there is no answer yet."""
        count = len(self.answers)
        self.send(SaslAuthenticateRequest(auth_bytes=token), version)
        return self.authenticated(version) if len(self.answers) > count else None

    def authenticated(self, version: int = 2) -> Any:
        """The last answer, to a token."""
        return self.last(SaslAuthenticateResponse, version)

    def log_in(self, user: str, password: str, mechanism: str = "SCRAM-SHA-256", version: int = 2) -> Any:
        """The answer to the last token of a whole exchange; None if the answer is delayed."""
        assert self.handshake(mechanism).error_code == 0
        scram = ScramClient([mechanism], user, password)
        first = self.authenticate(scram.get_client_first().encode(), version)
        scram.set_server_first(first.auth_bytes.decode())
        last = self.authenticate(scram.get_client_final().encode(), version)
        if last is not None and last.error_code == 0:
            scram.set_server_final(last.auth_bytes.decode())
        return last


class GateBench:
    """A gate with users, a clock that a test moves, and the frames that came through."""

    def __init__(
        self,
        users: dict[str, ScramCredential],
        *,
        mechanisms: Sequence[str] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        limits: GateLimits | None = None,
        node_user: NodeUser | None = None,
    ) -> None:
        self.image = image_of_users(users)
        self.clock = ManualClock()
        self.checks = DeferredChecks()
        self.served: list[tuple[SaslClient, bytes]] = []
        self.credentials = UserCredentials(
            lambda: self.image, random_bytes=lambda size: b"r" * size, node_user=node_user
        )
        self.gate = Gate(
            {name: exchange_of(name, self.credentials) for name in mechanisms},
            serve=lambda connection, slot, frame: self.served.append((connection, bytes(frame))),
            services=GateServices(self.clock, self.checks, jitter=lambda: 0.0),
            limits=GateLimits() if limits is None else limits,
        )

    def connect(self, address: str = "10.0.0.1") -> SaslClient:
        """A new client at the gate."""
        client = SaslClient(address)
        self.gate.admit(client)
        return client


def api_key(request_type: type[Any]) -> int:
    """The key of a request."""
    return api_of(request_type).key


def bare_prefix(key: int, version: int) -> bytes:
    """The first bytes of a request."""
    return struct.pack(">hhi", key, version, 7)
