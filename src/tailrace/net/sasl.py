"""SASL on an outgoing connection: PLAIN and SCRAM, the client's side (KIP-43, KIP-152, KIP-368).

The server is hostile until it has proved that it knows the password too (SCRAM): the iterations that it names are
bounded, its messages are short, and its signature is checked. PBKDF2 runs in a thread.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.secrets import Secret
from tailrace.protocol.messages.api_versions import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

R = TypeVar("R")
StepOfSasl = SaslHandshakeRequest | SaslAuthenticateRequest
"""The requests of an authentication."""

MAX_UNAUTHENTICATED_BYTES: Final = 64 << 10
"""The longest answer of a server before a client is authenticated, and before it knows the versions of the server."""

_logger = logging.getLogger("tailrace.net")

PLAIN: Final = "PLAIN"
SASL_MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 1_000_000
"""The iterations of PBKDF2 that a server may ask for: fewer make a password easy to guess, more cost too much time."""
_RENEWED_AFTER: Final = (0.85, 0.95)
"""The part of a session's length after which this end authenticates again, chosen at random between these."""
_LEAST_WAIT_SECONDS: Final = 0.1
"""The least time between two authentications: a server that names a length of 1 ms does not keep this end busy."""
_LONGEST_TOKEN: Final = 16 << 10
_LONGEST_TEXT: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslConfig:
    """The user by which a client authenticates itself."""

    mechanism: str
    username: str
    password: Secret

    def check(self) -> None:
        """Raises KafkaError INVALID_CONFIG for a mechanism that is not built in, and for an empty name."""
        if self.mechanism not in SASL_MECHANISMS:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"sasl.mechanism {self.mechanism!r} is not one of {', '.join(SASL_MECHANISMS)}",
            )
        if not self.username:
            raise KafkaError(ErrorCode.INVALID_CONFIG, "sasl.username: SASL needs a user and a password")


class AuthenticationRefused(KafkaError):
    """Raised when the server does not accept the user, or has not proved itself: a retry would change nothing."""


class Asking(Protocol):
    """A connection that can ask."""

    @property
    def address(self) -> Any: ...

    async def ask(self, request: object, response_type: type[R], *, timeout_ms: int) -> R: ...


async def authenticate(connection: Asking, config: SaslConfig, *, timeout_ms: int) -> int:
    """Authenticate this connection, and return the length of its session in ms; 0: without end.

    Raises AuthenticationRefused; KafkaError INVALID_CONFIG for a password that cannot be read, and the errors of `ask`.
    No message has the password.
    """
    handshake = await connection.ask(
        SaslHandshakeRequest(mechanism=config.mechanism), SaslHandshakeResponse, timeout_ms=timeout_ms
    )
    if handshake.error_code:
        offered = _shown(", ".join(handshake.mechanisms[:10])) or "none"
        raise AuthenticationRefused(
            _code(handshake.error_code),
            f"{connection.address} refuses sasl.mechanism {config.mechanism}; mechanisms offered: {offered}",
        )
    exchange = _PlainLogin(config) if config.mechanism == PLAIN else _ScramLogin(config)
    session_lifetime_ms = 0
    request = await _request(exchange.first)
    while request is not None:
        answer = await connection.ask(request, SaslAuthenticateResponse, timeout_ms=timeout_ms)
        if answer.error_code:
            text = _shown((answer.error_message or "").strip())
            raise AuthenticationRefused(
                _code(answer.error_code),
                f"{connection.address} does not accept user {config.username!r} by {config.mechanism}"
                + (f": {text}" if text else ""),
            )
        if len(answer.auth_bytes) > _LONGEST_TOKEN:
            raise _distrusted(connection, f"a token of {len(answer.auth_bytes)} bytes")
        try:
            request = await _request(partial(exchange.next, answer.auth_bytes))
            session_lifetime_ms = answer.session_lifetime_ms
        except KafkaError:
            raise
        except Exception as fault:  # noqa: BLE001 - the bytes are hostile, and the library is not ours
            raise _distrusted(connection, f"{type(fault).__name__} in the exchange of {config.mechanism}") from None
    return max(0, session_lifetime_ms)


async def _request(step: Callable[[], bytes | None]) -> SaslAuthenticateRequest | None:
    """The request with the token of this step; None behind the last step. A request shows no token, and no variable of
    `authenticate` has a token: some programs report exceptions with the variables of all frames."""
    token = await asyncio.to_thread(step)
    return None if token is None else SaslAuthenticateRequest(auth_bytes=token)


class Renewable(Asking, Protocol):
    """A connection whose session may have an end."""

    @property
    def is_open(self) -> bool: ...

    def hold(self) -> None: ...

    def release(self) -> None: ...

    def close(self, reason: str) -> None: ...


class SaslSession:
    """The authentication of a connection: at its begin, and again before the end of each session (KIP-368)."""

    def __init__(self, connection: Renewable, config: SaslConfig, timeout_ms: int) -> None:
        self._connection = connection
        self._config = config
        self._timeout_ms = timeout_ms
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Authenticate. Raises KafkaError, see `authenticate`; the connection is closed then."""
        connection = self._connection
        try:
            lifetime_ms = await authenticate(connection, self._config, timeout_ms=self._timeout_ms)
        except BaseException:
            connection.close("authentication failed")
            raise
        if lifetime_ms and connection.is_open:
            from random import uniform

            wait_seconds = max(lifetime_ms / 1000 * uniform(*_RENEWED_AFTER), _LEAST_WAIT_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(wait_seconds, self._renew)

    def end(self) -> None:
        """Renew no session any more: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _renew(self) -> None:
        self._renewing = asyncio.get_running_loop().create_task(self._renewed())

    async def _renewed(self) -> None:
        """Authenticate again. Requests wait meanwhile: a server takes nothing else within an authentication."""
        connection = self._connection
        connection.hold()
        try:
            await self.begin()
        except KafkaError as fault:
            _logger.warning("event=session-not-renewed address=%s reason=%s", connection.address, fault.detail)
        else:
            connection.release()


def _code(number: int) -> ErrorCode:
    """The code of a refusal. No server makes a refusal a fault to retry: such a code stands for a failed login."""
    try:
        code = ErrorCode(number)
    except ValueError:
        return ErrorCode.SASL_AUTHENTICATION_FAILED
    return ErrorCode.SASL_AUTHENTICATION_FAILED if code.retriable else code


def _shown(text: str) -> str:
    """The begin of a server's text, without signs that a terminal or a log would obey."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text[:_LONGEST_TEXT])


def _distrusted(connection: Asking, reason: str) -> KafkaError:
    return AuthenticationRefused(
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        f"{connection.address} has not proved that it knows the password, so this client does not go on: {reason}",
    )


class _PlainLogin:
    """The client's side of PLAIN."""

    def __init__(self, config: SaslConfig) -> None:
        self._config = config

    def first(self) -> bytes:
        return b"\0".join((b"", self._config.username.encode(), self._config.password.reveal().encode()))

    def next(self, token: bytes) -> bytes | None:
        return None


class _ScramLogin:
    """The client's side of SCRAM."""

    def __init__(self, config: SaslConfig) -> None:
        self._config = config
        self._client: Any = None
        self._has_proved = False

    def first(self) -> bytes:
        from scramp import ScramClient, ScramException

        config = self._config
        try:
            self._client = ScramClient([config.mechanism], config.username, config.password.reveal())
        except ScramException:
            raise AuthenticationRefused(
                ErrorCode.INVALID_CONFIG,
                "sasl.username or sasl.password has characters that SCRAM does not allow (RFC 4013)",
            ) from None
        first: str = self._client.get_client_first()
        return first.encode()

    def next(self, token: bytes) -> bytes | None:
        text = token.decode()
        if self._has_proved:
            self._client.set_server_final(text)
            return None
        self._has_proved = True
        iterations = _iterations_of(text)
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise AuthenticationRefused(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"the server asks for {iterations} iterations of PBKDF2; this client does"
                f" {LEAST_ITERATIONS} to {MOST_ITERATIONS}",
            )
        self._client.set_server_first(text)
        final: str = self._client.get_client_final()
        return final.encode()


def _iterations_of(server_first: str) -> int:
    """The iterations in the first token of a server; 0 if there are none."""
    for part in server_first.split(","):
        if part.startswith("i=") and part[2:].isascii() and part[2:].isdecimal() and len(part) < len("i=") + 10:
            return int(part[2:])
    return 0
