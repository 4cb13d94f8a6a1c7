"""The credentials by which users are authenticated: the users of the metadata log, and the user of the nodes.

A user that does not exist gets a credential too, which no password proves. The salt of this credential is the same on
each node and at each attempt, and has the form of the salts of existing users: so answers do not tell which users
exist. The user of the nodes gets a salt by the same rule.
"""

import hmac
import string
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.users import SCRAM_CREDENTIALS, SECRET_ENTRY, UserMechanism
from tailrace.model.security.scram import (
    LEAST_ITERATIONS,
    LONGEST_PASSWORD,
    SALT_BYTES,
    ScramCredential,
    ScramMechanism,
    TwofoldCredential,
    credential_of_password,
)

_LETTERS: Final = (string.digits + string.ascii_lowercase).encode()
"""The letters of the salts that Kafka's tools make."""
_LONGEST_MADE_SALT: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUser:
    """The user by which nodes authenticate to each other. Each node knows the password from its settings: controllers
    need this user before there is a metadata log."""

    name: str
    password: str = field(repr=False)
    second_password: str | None = field(default=None, repr=False)
    """A second password that is accepted too, while the password is changed on one node after the other."""


class FoundCredential(NamedTuple):
    """The credential for a name in a handshake."""

    credential: ScramCredential
    is_of_user: bool
    """Whether there is such a user; False: no password proves the credential."""


class _Form(NamedTuple):
    """The form of most credentials of a cluster."""

    iterations: int = LEAST_ITERATIONS
    salt_bytes: int = SALT_BYTES
    is_text: bool = False


class UserCredentials:
    """Finds credentials by name, on the present image."""

    def __init__(
        self,
        image: Callable[[], ClusterImage | None],
        *,
        random_bytes: Callable[[int], bytes],
        node_user: NodeUser | None = None,
    ) -> None:
        """`image` returns None before the node has a replica of the metadata log."""
        self._image = image
        self._node_user = node_user
        self._own_secret = random_bytes(SALT_BYTES)
        """The secret as long as the cluster has no user and so no secret."""
        self._no_key = random_bytes(ScramMechanism.SHA_512.key_bytes)
        self._seen: Mapping[UserMechanism, ScramCredential] | None = None
        self._secret = self._own_secret
        self._form = _Form()
        self._of_nodes: dict[ScramMechanism, ScramCredential] = {}

    def find(self, user: str, mechanism: ScramMechanism) -> FoundCredential:
        """The credential of the user for a mechanism, or a credential that no password proves."""
        stored = self._refreshed()
        credential = stored.get((user, mechanism))
        if credential is not None and (user, mechanism) != SECRET_ENTRY:
            return FoundCredential(credential, is_of_user=True)
        node_user = self._node_user
        if node_user is not None and user == node_user.name:
            return FoundCredential(self._of_node(node_user, mechanism), is_of_user=True)
        size = mechanism.key_bytes
        unproven = ScramCredential(
            mechanism=mechanism,
            iterations=self._form.iterations,
            salt=self._salt(user),
            stored_key=self._no_key[:size],
            server_key=self._no_key[:size],
        )
        return FoundCredential(unproven, is_of_user=False)

    def find_any(self, user: str) -> FoundCredential:
        """The credential of the user for the first mechanism for which there is a credential."""
        found = [self.find(user, mechanism) for mechanism in ScramMechanism]
        return next((credential for credential in found if credential.is_of_user), found[0])

    def _refreshed(self) -> Mapping[UserMechanism, ScramCredential]:
        image = self._image()
        stored: Mapping[UserMechanism, ScramCredential] = {} if image is None else SCRAM_CREDENTIALS.of(image)
        if stored is not self._seen:
            self._seen = stored
            secret = stored.get(SECRET_ENTRY)
            basis = (self._own_secret if secret is None else secret.salt, _usual_form(stored))
            if basis != (self._secret, self._form):
                self._secret, self._form = basis
                self._of_nodes.clear()
        return stored

    def _of_node(self, user: NodeUser, mechanism: ScramMechanism) -> ScramCredential:
        known = self._of_nodes.get(mechanism)
        if known is None:
            salt, iterations = self._salt(user.name), self._form.iterations
            known, *second = (
                credential_of_password(
                    mechanism, password.encode()[:LONGEST_PASSWORD], salt=salt, iterations=iterations
                )
                for password in (user.password, user.second_password)
                if password is not None
            )
            if second:
                known = TwofoldCredential(
                    mechanism=mechanism,
                    iterations=iterations,
                    salt=salt,
                    stored_key=known.stored_key,
                    server_key=known.server_key,
                    second=second[0],
                )
            self._of_nodes[mechanism] = known
        return known

    def _salt(self, user: str) -> bytes:
        """The salt of a user without a stored credential."""
        made = hmac.digest(self._secret, user.encode("utf-8", "surrogatepass"), "sha512")[: self._form.salt_bytes]
        return bytes(_LETTERS[byte % len(_LETTERS)] for byte in made) if self._form.is_text else made


def _usual_form(stored: Mapping[UserMechanism, ScramCredential]) -> _Form:
    """The form that most credentials of users have."""
    forms = Counter(
        _Form(
            credential.iterations,
            min(len(credential.salt), _LONGEST_MADE_SALT),
            all(byte in _LETTERS for byte in credential.salt),
        )
        for key, credential in stored.items()
        if key != SECRET_ENTRY
    )
    return max(forms, key=lambda form: (forms[form], form), default=_Form())
