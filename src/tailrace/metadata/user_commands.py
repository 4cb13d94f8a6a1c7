"""The command to the controller about users with passwords, and its answer."""

from dataclasses import dataclass, field

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.model.errors import KafkaError


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialDeletion:
    """Delete the credential of a user for a mechanism (`model.security.scram.ScramMechanism`)."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialUpsertion:
    """Set the credential of a user for a mechanism, in place of the credential before."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)
    """The result of PBKDF2; the controller keeps two keys of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterScramCredentials(ControllerCommand):
    """Change credentials; each user succeeds or fails by itself, and may be named once."""

    deletions: tuple[CredentialDeletion, ...] = ()
    upsertions: tuple[CredentialUpsertion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialOutcome:
    """The outcome for a user; `error` is None if the credential has changed."""

    user: str
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredentialsAltered(ControllerResponse):
    """An outcome per user."""

    outcomes: tuple[CredentialOutcome, ...]
