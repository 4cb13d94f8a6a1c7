"""Changes of users' passwords (KIP-554, pure).

The error codes and texts are those of Kafka's controllers. The limits of names, salts and keys, and of the number of
credentials, are this cluster's.
"""

from collections.abc import Callable
from typing import Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.users import (
    SCRAM_CREDENTIALS,
    SECRET_ENTRY,
    RemoveUserScramCredentialRecord,
    credential_record,
)
from tailrace.metadata.user_commands import (
    AlterScramCredentials,
    CredentialDeletion,
    CredentialOutcome,
    CredentialUpsertion,
    ScramCredentialsAltered,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.security.scram import (
    LEAST_ITERATIONS,
    LONGEST_SALT,
    LONGEST_USER_NAME,
    MOST_ITERATIONS,
    SALT_BYTES,
    SHORTEST_SALT,
    ScramCredential,
    ScramMechanism,
    credential_of_salted,
)

MOST_CREDENTIALS: Final = 10_000
"""The most credentials of a cluster; a user may have two."""

_Change = CredentialDeletion | CredentialUpsertion

_SECRET_PART = 16
_TWICE: Final = "A user credential cannot be altered twice in the same request"


class UserChanges:
    """The decision on an AlterScramCredentials command."""

    def __init__(self, image: ClusterImage, random_bytes: Callable[[int], bytes]) -> None:
        self._image = image
        self._stored = SCRAM_CREDENTIALS.of(image)
        self._random_bytes = random_bytes

    def decide(self, command: AlterScramCredentials) -> Decision[MetadataRecord, ScramCredentialsAltered]:
        """The records of the users that succeed, and the outcome of each user."""
        errors: dict[str, KafkaError] = {}
        changes: dict[str, _Change] = {}
        self._count = len(self._stored) - (SECRET_ENTRY in self._stored)
        named: list[_Change] = [*command.deletions, *command.upsertions]
        for change in named:
            if change.user in errors:
                continue
            if change.user in changes:
                del changes[change.user]
                errors[change.user] = KafkaError(ErrorCode.DUPLICATE_RESOURCE, _TWICE)
            elif (error := self._refusal(change)) is not None:
                errors[change.user] = error
            else:
                changes[change.user] = change
        outcomes = [CredentialOutcome(user=user) for user in changes]
        outcomes += (CredentialOutcome(user=user, error=error) for user, error in errors.items())
        records = [self._record(change) for change in changes.values()]
        if SECRET_ENTRY not in self._stored and any(
            isinstance(change, CredentialUpsertion) for change in changes.values()
        ):
            records.insert(0, new_secret(self._random_bytes))
        return Decision(records=tuple(records), response=ScramCredentialsAltered(outcomes=tuple(outcomes)))

    def _refusal(self, change: _Change) -> KafkaError | None:
        if not change.user:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
        if change.mechanism not in tuple(ScramMechanism):
            return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
        is_known = (change.user, ScramMechanism(change.mechanism)) in self._stored
        if isinstance(change, CredentialUpsertion):
            return self._refusal_to_set(change, is_known=is_known)
        if not is_known:
            text = "Attempt to delete a user credential that does not exist"
            return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        return None

    def _refusal_to_set(self, change: CredentialUpsertion, *, is_known: bool) -> KafkaError | None:
        fault = ""
        if change.iterations < LEAST_ITERATIONS:
            fault = "Too few iterations"
        elif change.iterations > MOST_ITERATIONS:
            fault = "Too many iterations"
        elif len(change.user) > LONGEST_USER_NAME:
            fault = f"a user name has at most {LONGEST_USER_NAME} characters"
        elif not SHORTEST_SALT <= len(change.salt) <= LONGEST_SALT:
            fault = f"a salt has {SHORTEST_SALT} to {LONGEST_SALT} bytes"
        elif len(change.salted_password) != ScramMechanism(change.mechanism).key_bytes:
            fault = "the salted password has another length than the hash of its mechanism"
        if fault:
            return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, fault)
        if not is_known:
            if self._count >= MOST_CREDENTIALS:
                return KafkaError(
                    ErrorCode.POLICY_VIOLATION, f"a cluster has at most {MOST_CREDENTIALS} credentials of users"
                )
            self._count += 1
        return None

    def _record(self, change: _Change) -> MetadataRecord:
        if isinstance(change, CredentialDeletion):
            return RemoveUserScramCredentialRecord(name=change.user, mechanism=change.mechanism)
        credential = credential_of_salted(
            ScramMechanism(change.mechanism), change.salted_password, salt=change.salt, iterations=change.iterations
        )
        return credential_record(change.user, credential)


def new_secret(random_bytes: Callable[[int], bytes]) -> MetadataRecord:
    """The record of the secret by which nodes make salts for users that do not exist."""
    parts = SALT_BYTES // _SECRET_PART
    user, mechanism = SECRET_ENTRY
    entry = ScramCredential(
        mechanism=mechanism,
        iterations=LEAST_ITERATIONS,
        salt=b"".join(random_bytes(_SECRET_PART) for _ in range(parts)),
        stored_key=random_bytes(_SECRET_PART),  # no proof has a key of this length
        server_key=b"",
    )
    return credential_record(user, entry)
