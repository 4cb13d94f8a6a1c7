"""Credentials of users for SASL/SCRAM and SASL/PLAIN: the keys that a server keeps in place of a password (RFC 5802).

A credential proves a password and does not contain the password: from the stored key no client proof can be made.
"""

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

LEAST_ITERATIONS: Final = 4_096
MOST_ITERATIONS: Final = 16_384
"""The iterations that a cluster accepts for a new credential, as in Kafka."""
SHORTEST_SALT: Final = 12
"""Bytes. The salts of Kafka's tools have 25 and more, the salts of librdkafka 64."""
LONGEST_SALT: Final = 1_024
SALT_BYTES: Final = 32
"""Bytes of a salt that this package makes."""
LONGEST_PASSWORD: Final = 1_024
"""Bytes in UTF-8."""
LONGEST_USER_NAME: Final = 249
"""Characters, like a topic's name: the name is in each request of a description, and in lines of logs."""


class ScramMechanism(IntEnum):
    """A mechanism with salted passwords; the numbers are Kafka's, on the wire and in the metadata log (KIP-554)."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The name in a handshake: `SCRAM-SHA-256`."""
        return "SCRAM-" + self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """The name of the hash function in `hashlib`."""
        return self.name.replace("_", "").lower()

    @property
    def key_bytes(self) -> int:
        """The length of the keys."""
        return hashlib.new(self.hash_name).digest_size


BY_SASL_NAME: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """The credential of one user for one mechanism."""

    mechanism: ScramMechanism
    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def proves(self, password: bytes) -> bool:
        """Whether this is the password, in UTF-8. Takes milliseconds: PBKDF2 with the iterations of the credential."""
        tried = credential_of_password(self.mechanism, password, salt=self.salt, iterations=self.iterations)
        return hmac.compare_digest(tried.stored_key, self.stored_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwofoldCredential(ScramCredential):
    """A credential that two passwords prove, while a password is changed. Both have one salt and one count of
    iterations, which a client needs before it proves anything."""

    second: ScramCredential = field(repr=False)

    def proves(self, password: bytes) -> bool:
        """Whether this is the first or the second password. Takes milliseconds."""
        is_first = ScramCredential.proves(self, password)
        return self.second.proves(password) or is_first


def salted_password(mechanism: ScramMechanism, password: bytes, *, salt: bytes, iterations: int) -> bytes:
    """The result of PBKDF2 for a password in UTF-8. Takes milliseconds."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password, salt, iterations)


def credential_of_password(
    mechanism: ScramMechanism, password: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential for a password in UTF-8. Takes milliseconds."""
    salted = salted_password(mechanism, password, salt=salt, iterations=iterations)
    return credential_of_salted(mechanism, salted, salt=salt, iterations=iterations)


def credential_of_salted(mechanism: ScramMechanism, salted: bytes, *, salt: bytes, iterations: int) -> ScramCredential:
    """The credential for a salted password, as AlterUserScramCredentials carries it: the result of PBKDF2."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    return ScramCredential(
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        stored_key=hashlib.new(mechanism.hash_name, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.hash_name),
    )
