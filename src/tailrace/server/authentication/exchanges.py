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
    TwofoldCredential,
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
        self._make: Any = Scram(mechanism.sasl_name).make_server
        self._servers: list[Any] = [self._make(self._find, s_nonce=nonce)]
        """The exchange with each password that the user may have now; all send the same token."""
        self._second: ScramCredential | None = None

    def _find(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        found = self._users.find(user, self._mechanism)
        self._user, self._is_of_user = user, found.is_of_user
        self._second = found.credential.second if isinstance(found.credential, TwofoldCredential) else None
        return _keys(found.credential)

    def take(self, token: bytes) -> Step:
        try:
            text = token.decode()
            if not self._has_begun:
                self._has_begun = True
                return Challenge(self._begin(text).encode())
            final = self._end(text).encode()
        except Exception as fault:  # noqa: BLE001 - the bytes are hostile, and the library is not ours
            return Refused(self._user, self._reason(fault))
        if not self._is_of_user:
            return Refused(self._user, _NO_USER)
        return Granted(self._user, final)

    def _begin(self, text: str) -> str:
        """The token for the client's first token."""
        first = self._servers[0]
        first.set_client_first(text)
        token: str = first.get_server_first()
        if self._second is not None:
            keys = _keys(self._second)
            second = self._make(lambda _: keys, s_nonce=str(first.s_nonce))
            second.set_client_first(text)
            second.get_server_first()
            self._servers.append(second)
        return token

    def _end(self, text: str) -> str:
        """The token for the client's last token, by the password that the token proves. Raises scramp's error if it
        proves no password."""
        for server in self._servers[:-1]:
            try:
                server.set_client_final(text)
            except Exception:  # noqa: BLE001 - the bytes are hostile; the last password has the say
                continue
            return str(server.get_server_final())
        self._servers[-1].set_client_final(text)
        return str(self._servers[-1].get_server_final())

    def _reason(self, fault: Exception) -> str:
        if self._user and not self._is_of_user:
            return _NO_USER
        error = getattr(fault, "server_error", None)
        return f"{type(fault).__name__} {getattr(error, 'value', '')}".rstrip()


def _keys(credential: ScramCredential) -> tuple[bytes, bytes, bytes, int]:
    return credential.salt, credential.stored_key, credential.server_key, credential.iterations


def exchange_of(mechanism: str, users: UserCredentials) -> Callable[[], Exchange]:
    """Makes a new exchange of this mechanism, which is in `MECHANISMS`."""
    if mechanism == PLAIN:
        return lambda: PlainExchange(users)
    return lambda: ScramExchange(BY_SASL_NAME[mechanism], users)
