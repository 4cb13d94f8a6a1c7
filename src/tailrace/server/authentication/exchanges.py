"""The exchanges of tokens of each SASL mechanism, as a server sees them: pure, for one attempt of one client.

PLAIN (RFC 4616) has one token, and its password is checked elsewhere, since PBKDF2 takes milliseconds. SCRAM (RFC 5802)
has two tokens each way; scramp checks the nonce, the flag of channel binding and the proof.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from tailrace.model.security.scram import (
    BY_SASL_NAME,
    LONGEST_PASSWORD,
    LONGEST_USER_NAME,
    ScramCredential,
    ScramMechanism,
)
from tailrace.server.authentication.credentials import UserCredentials

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *BY_SASL_NAME)
"""The mechanisms that a listener may offer."""

LONGEST_TOKEN: Final = 16 << 10
_PARTS_OF_PLAIN: Final = 3
_NO_USER: Final = "no such user"


class Challenge(NamedTuple):
    """The token for the client, which must send another token."""

    token: bytes


class PasswordCheck(NamedTuple):
    """The password has to be checked, and the client waits."""

    user: str
    credential: ScramCredential
    is_of_user: bool
    password: bytes

    def __repr__(self) -> str:
        return f"PasswordCheck(user={self.user!r})"


class Granted(NamedTuple):
    """The client is this user."""

    user: str
    token: bytes


class Refused(NamedTuple):
    """The client is not authenticated. The reason is for the log of the node, never for the client."""

    user: str
    reason: str


Step = Challenge | PasswordCheck | Granted | Refused


class Exchange(Protocol):
    """The state of one attempt."""

    def take(self, token: bytes) -> Step:
        """The next step, for a token of the client. Hostile bytes are refused, never raised."""
        ...


class PlainExchange:
    """The exchange of PLAIN."""

    def __init__(self, users: UserCredentials) -> None:
        self._users = users

    def take(self, token: bytes) -> Step:
        parts = token.split(b"\0")
        if len(parts) != _PARTS_OF_PLAIN:
            return Refused("", "a token of PLAIN that has not three parts")
        try:
            authorized, user = parts[0].decode(), parts[1].decode()
            parts[2].decode()
        except UnicodeDecodeError:
            return Refused("", "a token of PLAIN that is not UTF-8")
        password = parts[2]
        if not user or not password or len(user) > LONGEST_USER_NAME or len(password) > LONGEST_PASSWORD:
            return Refused(user, "a token of PLAIN without user or password, or with a too long one")
        if authorized not in ("", user):
            return Refused(user, "an authorization id that is not the user's name")
        found = self._users.find_any(user)
        return PasswordCheck(user, found.credential, found.is_of_user, password)


class ScramExchange:
    """The exchange of SCRAM. `nonce` is the server's part of the nonce, of tests; None: a random nonce."""

    def __init__(self, mechanism: ScramMechanism, users: UserCredentials, *, nonce: str | None = None) -> None:
        from scramp import ScramMechanism as Scram

        self._mechanism = mechanism
        self._users = users
        self._user = ""
        self._is_of_user = False
        self._has_begun = False
        self._server: Any = Scram(mechanism.sasl_name).make_server(self._find, s_nonce=nonce)

    def _find(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        found = self._users.find(user, self._mechanism)
        self._user, self._is_of_user = user, found.is_of_user
        credential = found.credential
        return credential.salt, credential.stored_key, credential.server_key, credential.iterations

    def take(self, token: bytes) -> Step:
        try:
            text = token.decode()
            if not self._has_begun:
                self._has_begun = True
                self._server.set_client_first(text)
                return Challenge(self._server.get_server_first().encode())
            self._server.set_client_final(text)
            final = self._server.get_server_final().encode()
        except Exception as fault:  # noqa: BLE001 - the bytes are hostile, and the library is not ours
            return Refused(self._user, self._reason(fault))
        if not self._is_of_user:
            return Refused(self._user, _NO_USER)
        return Granted(self._user, final)

    def _reason(self, fault: Exception) -> str:
        if self._user and not self._is_of_user:
            return _NO_USER
        error = getattr(fault, "server_error", None)
        return f"{type(fault).__name__} {getattr(error, 'value', '')}".rstrip()


def exchange_of(mechanism: str, users: UserCredentials) -> Callable[[], Exchange]:
    """Makes a new exchange of this mechanism, which is in `MECHANISMS`."""
    if mechanism == PLAIN:
        return lambda: PlainExchange(users)
    return lambda: ScramExchange(BY_SASL_NAME[mechanism], users)
