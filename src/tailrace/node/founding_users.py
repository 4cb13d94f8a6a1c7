"""The first users of a new cluster: credentials in a file of a controller's data directory, which the controller writes
into the metadata log when it founds the log.

The file has what the log will have: keys from which no password can be made, and no password. It is for the node's user
alone, and gone when the log is founded. Each controller needs the file, as of Kafka's `kafka-storage format
--add-scram`: any of them may become the first leader.
"""

import json
import secrets
from typing import Any, Final

from tailrace.metadata.deciding.users import UserChanges
from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.metadata.records.users import SCRAM_CREDENTIALS, UserScramCredentialRecord, credential_record
from tailrace.metadata.replay import apply_all
from tailrace.metadata.user_commands import AlterScramCredentials, CredentialUpsertion
from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.security.scram import BY_SASL_NAME, SALT_BYTES, ScramMechanism, salted_password
from tailrace.storage.checkpoints import read_meta_properties, replace_file
from tailrace.storage.file_system import FileSystem, join

FILE_NAME: Final = "founding-users.json"
_FORM: Final = 1


class FoundingUsers:
    """The founding users in one data directory."""

    def __init__(self, directory: str, *, files: FileSystem) -> None:
        self._files = files
        self._directory = directory
        self._path = join(directory, FILE_NAME)

    def read(self) -> tuple[UserScramCredentialRecord, ...]:
        """The credentials; none without the file. Raises CorruptRecords if the file cannot be used."""
        if not self._files.exists(self._path):
            return ()
        try:
            content = json.loads(self._files.read_bytes(self._path))
            if content["version"] != _FORM:
                raise ValueError
            return tuple(map(_record, content["credentials"]))
        except (ValueError, KeyError, TypeError):
            raise CorruptRecords(f"{self._path} cannot be used: remove it, and add the users again") from None

    def set(self, upsertion: CredentialUpsertion) -> None:
        """Add a user, or give a user another password.

        Raises KafkaError INVALID_REQUEST if the directory belongs to a cluster already, UNACCEPTABLE_CREDENTIAL as a
        controller does, and StorageError.
        """
        identity = read_meta_properties(self._files, self._directory)
        if identity is not None and identity.cluster_id is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{self._directory} belongs to a cluster already, whose users are in its metadata log:"
                " say --bootstrap-server, without --offline",
            )
        image, _ = apply_all(EMPTY_IMAGE, self.read())
        decision = UserChanges(image, secrets.token_bytes).decide(AlterScramCredentials(upsertions=(upsertion,)))
        for outcome in decision.response.outcomes:
            if outcome.error is not None:
                raise outcome.error
        image, _ = apply_all(image, decision.records)
        stored = SCRAM_CREDENTIALS.of(image)
        records = [credential_record(name, credential) for (name, _), credential in stored.items()]
        content = {"version": _FORM, "credentials": list(map(_fields, records))}
        replace_file(self._files, self._path, json.dumps(content, indent=1).encode(), is_secret=True)

    def remove(self) -> None:
        """Remove the file, if it is there. Raises StorageError."""
        if self._files.exists(self._path):
            self._files.unlink(self._path)


def _fields(record: UserScramCredentialRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "mechanism": ScramMechanism(record.mechanism).sasl_name,
        "iterations": record.iterations,
        "salt": record.salt.hex(),
        "stored_key": record.stored_key.hex(),
        "server_key": record.server_key.hex(),
    }


def _record(fields: Any) -> UserScramCredentialRecord:
    mechanism = BY_SASL_NAME[fields["mechanism"]]
    return UserScramCredentialRecord(
        name=fields["name"],
        mechanism=mechanism,
        iterations=int(fields["iterations"]),
        salt=bytes.fromhex(fields["salt"]),
        stored_key=bytes.fromhex(fields["stored_key"]),
        server_key=bytes.fromhex(fields["server_key"]),
    )


def upsertion_of_password(
    user: str, password: str, *, mechanism: ScramMechanism, iterations: int
) -> CredentialUpsertion:
    """The command that sets this password. Takes milliseconds: PBKDF2."""
    salt = secrets.token_bytes(SALT_BYTES)
    return CredentialUpsertion(
        user=user,
        mechanism=mechanism,
        iterations=iterations,
        salt=salt,
        salted_password=salted_password(mechanism, password.encode(), salt=salt, iterations=iterations),
    )
