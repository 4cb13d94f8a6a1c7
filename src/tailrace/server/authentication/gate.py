"""The gate of a listener with SASL: a connection stays here until its client is authenticated.

1. A new connection gives its frames to the gate: ApiVersions, SaslHandshake, SaslAuthenticate, or the bare tokens that
   follow a handshake of version 0. Any other request closes the connection.
2. An authenticated connection gives its frames to the dispatcher, without a step between. A later authentication of the
   same connection (KIP-368) comes through the dispatcher to `SaslHandler`.
3. When a session ends (`connections.max.reauth.ms`), the connection gives its frames to the gate again, which closes
   the connection at any request that does not belong to an authentication.
4. The answer to a failure comes late, and holds up no other connection.
"""

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.model.identity import ClientIdentity
from tailrace.model.security.scram import ScramCredential
from tailrace.protocol.headers import API_VERSIONS, encode_response
from tailrace.protocol.messages.api_versions import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tailrace.protocol.registry import api_of
from tailrace.protocol.request_headers import decode_client_id
from tailrace.protocol.schema import decode_from
from tailrace.server.audit import AUTHENTICATION, NO_AUDIT, Audit, shortened
from tailrace.server.authentication.attempt import Attempt, Authenticated, AuthenticationFailure, Offer, Phase
from tailrace.server.authentication.exchanges import Challenge, Granted, PasswordCheck
from tailrace.server.context import RequestContext
from tailrace.server.ports import Clock, ServerConnection, Timer

_PREFIX = Struct(">hhi")
_HANDSHAKE: Final = api_of(SaslHandshakeRequest)
_AUTHENTICATE: Final = api_of(SaslAuthenticateRequest)
_FIRST_WITH_AUTHENTICATE: Final = 1
"""The version of SaslHandshake after which tokens come in SaslAuthenticate."""
_MOST_ELEMENTS: Final = 1_000
_LAST_WORD_MS: Final = 100
"""The time from the answer to a failure to the close: kafka-python does not read an answer that comes with the end."""


class GatedConnection(ServerConnection, Protocol):
    """A connection that a gate may guard."""

    identity: ClientIdentity
    guard: "Callable[[Any, int, memoryview], None] | None"
    """Takes the frames in place of the listener's `on_frame`; None: the client is authenticated. The frames for a guard
    are short, and may be empty."""


OnFrame = Callable[[Any, int, memoryview], None]


class PasswordChecks(Protocol):
    """Checks passwords elsewhere: a check takes milliseconds."""

    def check(
        self, address: str, credential: ScramCredential, password: bytes, on_done: Callable[[bool], None]
    ) -> None:
        """Call `on_done` in a later turn with the outcome; with False if too many checks wait."""
        ...


class GateLimits(NamedTuple):
    """Limits of clients that are not authenticated; times in ms."""

    authentication_ms: int = 10_000
    """The longest time from the accepted connection to the authenticated client."""
    connections: int = 200
    """The most connections that are older than `young_ms`; the oldest are closed for new connections."""
    young_ms: int = 1_000
    failure_delay_ms: int = 250
    """The delay of the answer to a failure; some random ms come on top."""
    max_reauth_ms: int = 0
    """The length of a session; 0: without end."""


_LIMITS: Final = GateLimits()


class GateServices(NamedTuple):
    """The ports of a gate."""

    clock: Clock
    passwords: PasswordChecks
    jitter: Callable[[], float]
    """A random number from 0 to 1."""
    audit: Audit = NO_AUDIT


class GateCounts:
    """Counters since the start, for metrics."""

    def __init__(self) -> None:
        self.succeeded = 0
        self.failed = 0
        self.reauthenticated = 0
        self.timed_out = 0
        """Connections that were closed because their clients did not authenticate in time, or were too many."""


class _GateSession:
    """The authentication of one connection."""

    __slots__ = ("attempt", "connection", "deadline", "earlier", "has_bare_tokens", "opened_ms")

    def __init__(self, connection: GatedConnection, attempt: Attempt, opened_ms: int) -> None:
        self.connection = connection
        self.attempt: Attempt | None = attempt
        """The authentication under way."""
        self.earlier: Authenticated | None = None
        """The outcome of the last authentication."""
        self.deadline: Timer | None = None
        """The end of the time to authenticate, later the end of the session."""
        self.has_bare_tokens = False
        self.opened_ms = opened_ms

    def stop_timer(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


class Gate:
    """The gate of one listener."""

    def __init__(self, offer: Offer, *, serve: OnFrame, services: GateServices, limits: GateLimits = _LIMITS) -> None:
        """`serve` carries out the requests of authenticated clients, and ApiVersions of all clients: the `on_frame` of
        the dispatcher."""
        self._offer = offer
        self._serve = serve
        self._services = services
        self._limits = limits
        self._sessions: dict[GatedConnection, _GateSession] = {}
        self._waiting: dict[GatedConnection, _GateSession] = {}
        """The connections without a user, the oldest first."""
        self.counts = GateCounts()

    def serve_by(self, serve: OnFrame) -> None:
        """Let another dispatcher carry out the requests of authenticated clients."""
        self._serve = serve

    @property
    def waiting(self) -> int:
        """The number of connections without a user."""
        return len(self._waiting)

    def admit(self, connection: GatedConnection) -> None:
        """Guard a new connection."""
        clock, limits = self._services.clock, self._limits
        now_ms = clock.monotonic_ms()
        session = _GateSession(connection, Attempt(self._offer), now_ms)
        connection.guard = self.on_frame
        self._sessions[connection] = self._waiting[connection] = session
        session.deadline = clock.call_at(now_ms + limits.authentication_ms, lambda: self._end_late(session))
        connection.on_close(lambda: self._forget(session))
        while len(self._waiting) > limits.connections:
            oldest = next(iter(self._waiting.values()))
            if now_ms - oldest.opened_ms < limits.young_ms:
                break
            self.counts.timed_out += 1
            del self._waiting[oldest.connection]
            oldest.connection.close(f"more than {limits.connections} connections wait for authentication")

    def _forget(self, session: _GateSession) -> None:
        session.stop_timer()
        session.attempt = None
        self._sessions.pop(session.connection, None)
        self._waiting.pop(session.connection, None)

    def _end_late(self, session: _GateSession) -> None:
        self.counts.timed_out += 1
        session.connection.close(f"not authenticated within {self._limits.authentication_ms} ms")

    # Frames of guarded connections

    def on_frame(self, connection: GatedConnection, slot: int, frame: memoryview) -> None:
        """Carry out a request of a guarded connection. Never raises for the bytes of a client."""
        if connection.guard is None:  # authenticated in the same turn
            self._serve(connection, slot, frame)
            return
        session = self._sessions.get(connection)
        if session is None:  # closed
            return
        if session.has_bare_tokens:
            self._take_token(session, bytes(frame), _BareAnswer(connection, slot))
            return
        if len(frame) < _PREFIX.size:
            connection.close(f"a frame of {len(frame)} bytes before authentication")
            return
        api_key, version, correlation_id = _PREFIX.unpack_from(frame)
        if api_key == API_VERSIONS:
            self._serve(connection, slot, frame)
        elif api_key in (_HANDSHAKE.key, _AUTHENTICATE.key):
            self._take_request(session, slot, frame, api_key, version, correlation_id)
        else:
            when = "before authentication" if session.earlier is None else "after the end of the session"
            connection.close(f"a request of API {api_key} {when}")

    def _take_request(
        self, session: _GateSession, slot: int, frame: memoryview, key: int, version: int, correlation_id: int
    ) -> None:
        api, connection = _HANDSHAKE if key == _HANDSHAKE.key else _AUTHENTICATE, session.connection
        if not api.serves(version):
            connection.close(f"{api.name} v{version} is not served here")
            return
        try:
            _, position = decode_client_id(frame, is_flexible=version >= api.flexible_from)
            request, _ = decode_from(api.request, version, frame, position, max_elements=_MOST_ELEMENTS)
        except Exception as fault:  # noqa: BLE001 - also a failed assertion of the decoder costs this connection alone
            detail = fault.detail if isinstance(fault, MalformedMessage) else type(fault).__name__
            connection.close(f"malformed {api.name} v{version}: {detail}")
            return
        answer = _SaslAnswer(connection, slot, version, correlation_id)
        if isinstance(request, SaslHandshakeRequest):
            self._take_handshake(session, request.mechanism, answer)
        else:
            self._take_token(session, request.auth_bytes, answer)

    # Requests of authentication, of guarded and of open connections

    def take_again(self, request: SaslHandshakeRequest | SaslAuthenticateRequest, context: RequestContext) -> bool:
        """Carry out a request of an authentication that came through the dispatcher: the client of an open session
        authenticates again. False: the connection is not of this gate."""
        session = self._sessions.get(context.connection)  # type: ignore[call-overload]  # any key may be looked up
        if session is None:
            return False
        answer = _SaslAnswer(context.connection, context.slot, context.api_version, context.correlation_id)
        if isinstance(request, SaslHandshakeRequest):
            self._take_handshake(session, request.mechanism, answer)
        else:
            self._take_token(session, request.auth_bytes, answer)
        return True

    def _take_handshake(self, session: _GateSession, mechanism: str, answer: "_SaslAnswer") -> None:
        if session.attempt is None:
            session.attempt = Attempt(self._offer, earlier=session.earlier)
        is_bare = answer.version < _FIRST_WITH_AUTHENTICATE
        if is_bare and session.earlier is not None:
            answer.send(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=tuple(self._offer)))
            session.connection.close("a handshake of version 0 on an authenticated connection")
            return
        outcome = session.attempt.handshake(mechanism)
        answer.send(SaslHandshakeResponse(error_code=outcome.error, mechanisms=outcome.mechanisms))
        if outcome.error is not ErrorCode.NONE:
            self.counts.failed += 1
            self._record(session, "failed", mechanism, outcome.reason)
            session.connection.close(outcome.reason)
        else:
            session.has_bare_tokens = is_bare

    def _take_token(self, session: _GateSession, token: bytes, answer: "_SaslAnswer | _BareAnswer") -> None:
        attempt = session.attempt
        if attempt is None:
            attempt = session.attempt = Attempt(self._offer, earlier=session.earlier)
        step = attempt.token(token)
        match step:
            case Challenge():
                answer.token(step.token, 0)
            case Granted():
                self._grant(session, step, answer)
            case AuthenticationFailure():
                self._fail(session, step, answer)
            case PasswordCheck():
                self._check(session, attempt, step, answer)

    def _check(
        self, session: _GateSession, attempt: Attempt, check: PasswordCheck, answer: "_SaslAnswer | _BareAnswer"
    ) -> None:
        connection = session.connection
        connection.suspend()

        def checked(is_right: bool) -> None:
            connection.go_on()
            if session.attempt is not attempt or attempt.phase is not Phase.CHECK or not connection.is_open:
                return
            outcome = attempt.password_checked(check, is_right=is_right)
            if isinstance(outcome, AuthenticationFailure):
                self._fail(session, outcome, answer)
            else:
                self._grant(session, outcome, answer)

        self._services.passwords.check(connection.identity.address, check.credential, check.password, checked)

    def _grant(self, session: _GateSession, granted: Granted, answer: "_SaslAnswer | _BareAnswer") -> None:
        attempt, connection = session.attempt, session.connection
        assert attempt is not None, "an authentication is under way"
        if session.earlier is None:
            self.counts.succeeded += 1
            self._waiting.pop(connection, None)
            connection.identity = connection.identity._replace(
                principal=f"User:{granted.user}", mechanism=attempt.mechanism
            )
        else:
            self.counts.reauthenticated += 1
        outcome = "succeeded" if session.earlier is None else "succeeded again"
        self._record(session, outcome, attempt.mechanism)
        session.earlier = Authenticated(granted.user, attempt.mechanism)
        session.attempt = None
        session.has_bare_tokens = False
        session.stop_timer()
        lifetime_ms = self._limits.max_reauth_ms
        if lifetime_ms:
            end_ms = self._services.clock.monotonic_ms() + lifetime_ms
            session.deadline = self._services.clock.call_at(end_ms, lambda: self._end_session(session))
        connection.guard = None
        answer.token(granted.token, lifetime_ms)

    def _record(self, session: _GateSession, outcome: str, mechanism: str, reason: str = "") -> None:
        fields = {"outcome": outcome, "mechanism": shortened(mechanism), "reason": shortened(reason)}
        self._services.audit.record(AUTHENTICATION, session.connection.identity, lambda: fields)

    def _end_session(self, session: _GateSession) -> None:
        session.connection.guard = self.on_frame

    def _fail(self, session: _GateSession, failure: AuthenticationFailure, answer: "_SaslAnswer | _BareAnswer") -> None:
        self.counts.failed += 1
        connection, limits, clock = session.connection, self._limits, self._services.clock
        self._record(session, "failed", "" if session.attempt is None else session.attempt.mechanism, failure.reason)
        session.stop_timer()

        def answer_late() -> None:
            if connection.is_open:
                answer.fail(failure)
                clock.call_at(clock.monotonic_ms() + _LAST_WORD_MS, lambda: connection.close(failure.reason))

        connection.suspend()  # for ever: the connection closes
        delay_ms = limits.failure_delay_ms + round(limits.failure_delay_ms * self._services.jitter() / 4)
        clock.call_at(clock.monotonic_ms() + delay_ms, answer_late)


class _SaslAnswer:
    """The answer to a request of authentication."""

    def __init__(self, connection: ServerConnection, slot: int, version: int, correlation_id: int) -> None:
        self._connection = connection
        self._slot = slot
        self.version = version
        self._correlation_id = correlation_id

    def send(self, response: Any) -> None:
        self._connection.answer(self._slot, encode_response(response, self.version, self._correlation_id))

    def token(self, token: bytes, lifetime_ms: int) -> None:
        """Answer with a token of the mechanism."""
        self.send(SaslAuthenticateResponse(error_message=None, auth_bytes=token, session_lifetime_ms=lifetime_ms))

    def fail(self, failure: AuthenticationFailure) -> None:
        """Answer with the error."""
        self.send(SaslAuthenticateResponse(error_code=failure.error, error_message=failure.text, auth_bytes=b""))


class _BareAnswer:
    """The answer to a token without a request around it."""

    def __init__(self, connection: ServerConnection, slot: int) -> None:
        self._connection = connection
        self._slot = slot

    def token(self, token: bytes, lifetime_ms: int) -> None:
        self._connection.answer(self._slot, (token,))

    def fail(self, failure: AuthenticationFailure) -> None:
        """Answer with nothing: the form has no errors."""


class SaslHandler:
    """SaslHandshake (17) and SaslAuthenticate (36) of connections that are open already: a client of a listener with
    SASL authenticates again.

    Other listeners answer ILLEGAL_SASL_STATE (34), as in Kafka: a client that is set up to authenticate learns at once
    that its password was not checked.
    """

    def __init__(self) -> None:
        self.gates: tuple[Gate, ...] = ()
        """The gates of the listeners of this dispatcher."""

    def handle(self, request: SaslHandshakeRequest | SaslAuthenticateRequest, context: RequestContext) -> None:
        if any(gate.take_again(request, context) for gate in self.gates):
            return
        listener_name = context.identity.listener_name
        raise KafkaError(
            ErrorCode.ILLEGAL_SASL_STATE,
            f"listener {listener_name} has no SASL; connect with security.protocol=PLAINTEXT",
        )
