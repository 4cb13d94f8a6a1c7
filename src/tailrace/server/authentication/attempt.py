"""The authentication of a client, from its handshake to its identity: a pure machine (KIP-43, KIP-152, KIP-368).

handshake --mechanism offered--> tokens --granted--> over
    |                              |
    +-------- anything else -------+---> refused, and the connection closes
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode
from tailrace.server.authentication.exchanges import (
    LONGEST_TOKEN,
    Challenge,
    Exchange,
    Granted,
    PasswordCheck,
    Refused,
    Step,
)

Offer = Mapping[str, Callable[[], Exchange]]
"""The mechanisms of a listener, by name."""


class Phase(Enum):
    """The phase of an authentication."""

    HANDSHAKE = auto()
    TOKENS = auto()
    CHECK = auto()
    """A password is being checked; the client waits."""
    GRANTED = auto()
    OVER = auto()
    """The connection is to be closed."""


class Authenticated(NamedTuple):
    """The outcome of an earlier authentication, which an authentication of the same connection may not change."""

    user: str
    mechanism: str


@dataclass(frozen=True, slots=True)
class HandshakeAnswer:
    """The answer to a handshake. An error ends the connection."""

    error: ErrorCode
    mechanisms: tuple[str, ...]
    reason: str = ""


class AuthenticationFailure(NamedTuple):
    """The authentication has failed: the client gets the error after a delay, and the connection closes."""

    error: ErrorCode
    text: str
    """For the client: the same for a wrong password and for a user that does not exist."""
    reason: str
    """For the log of the node."""


_ILLEGAL_STATE: Final = ErrorCode.ILLEGAL_SASL_STATE


class Attempt:
    """The machine. `earlier`: the identity that an authentication of an open session must have again."""

    def __init__(self, offer: Offer, *, earlier: Authenticated | None = None) -> None:
        self._offer = offer
        self._earlier = earlier
        self._exchange: Exchange | None = None
        self.mechanism = ""
        self.phase = Phase.HANDSHAKE

    def handshake(self, mechanism: str) -> HandshakeAnswer:
        """Choose a mechanism."""
        if self.phase is not Phase.HANDSHAKE:
            return self._no_handshake(_ILLEGAL_STATE, "a handshake in the middle of an authentication")
        make = self._offer.get(mechanism)
        if make is None:
            return self._no_handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"no mechanism {mechanism[:30]!r} here")
        self.mechanism = mechanism
        self._exchange = make()
        self.phase = Phase.TOKENS
        return HandshakeAnswer(ErrorCode.NONE, tuple(self._offer))

    def _no_handshake(self, error: ErrorCode, reason: str) -> HandshakeAnswer:
        self.phase = Phase.OVER
        return HandshakeAnswer(error, tuple(self._offer), reason)

    def token(self, token: bytes) -> Challenge | PasswordCheck | Granted | AuthenticationFailure:
        """Take a token of the client."""
        if self.phase is not Phase.TOKENS or self._exchange is None:
            self.phase = Phase.OVER
            text = "SaslAuthenticate is only expected after a successful SaslHandshake"
            return AuthenticationFailure(_ILLEGAL_STATE, text, "a token out of order")
        if len(token) > LONGEST_TOKEN:
            return self._failed(Refused("", f"a token of {len(token)} bytes"))
        return self._stepped(self._exchange.take(token))

    def password_checked(self, check: PasswordCheck, *, is_right: bool) -> Granted | AuthenticationFailure:
        """Take the outcome of the check for which the client waits."""
        assert self.phase is Phase.CHECK, "no check is under way"
        if is_right and check.is_of_user:
            return self._granted(Granted(check.user, b""))
        return self._failed(Refused(check.user, "wrong password" if check.is_of_user else "no such user"))

    def _stepped(self, step: Step) -> Challenge | PasswordCheck | Granted | AuthenticationFailure:
        match step:
            case Granted():
                return self._granted(step)
            case Refused():
                return self._failed(step)
            case PasswordCheck():
                self.phase = Phase.CHECK
        return step

    def _granted(self, granted: Granted) -> Granted | AuthenticationFailure:
        earlier = self._earlier
        if earlier is not None and earlier != (granted.user, self.mechanism):
            return self._failed(Refused(granted.user, f"the connection belongs to {earlier.user!r}"))
        self.phase = Phase.GRANTED
        return granted

    def _failed(self, refused: Refused) -> AuthenticationFailure:
        self.phase = Phase.OVER
        text = f"Authentication failed: invalid credentials with SASL mechanism {self.mechanism}"
        who = f" of user {refused.user[:60]!r}" if refused.user else ""
        reason = f"authentication{who} by {self.mechanism} failed: {refused.reason}"
        return AuthenticationFailure(ErrorCode.SASL_AUTHENTICATION_FAILED, text, reason)
