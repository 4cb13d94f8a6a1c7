"""Records of users with passwords (KIP-554), and their rows in the table of record kinds.

The entry with the empty user name is no user: its salt is the secret of the cluster from which every node makes the
same salt for a user that does not exist. Kafka's tools read the entry like any other record.
"""

from collections.abc import Iterator
from typing import Final

from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageDraft, ImageTable
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind
from tailrace.model.security.scram import ScramCredential, ScramMechanism
from tailrace.protocol.schema import Int8, Int32, message

UserMechanism = tuple[str, ScramMechanism]
SCRAM_CREDENTIALS: Final[ImageTable[UserMechanism, ScramCredential]] = ImageTable("scram-credentials")
"""The credentials, by user name and mechanism."""
SECRET_ENTRY: Final[UserMechanism] = ("", ScramMechanism.SHA_256)
"""The key of the cluster's secret."""

_SCRAM = 11


@message(name="UserScramCredentialRecord", versions="0", flexible="0+")
class UserScramCredentialRecord(MetadataRecord):
    """A user's credential for a mechanism, new or in place of the credential before."""

    name: str
    mechanism: Int8
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: Int32


@message(name="RemoveUserScramCredentialRecord", versions="0", flexible="0+")
class RemoveUserScramCredentialRecord(MetadataRecord):
    """The user has no credential for this mechanism any more."""

    name: str
    mechanism: Int8


def credential_record(name: str, credential: ScramCredential) -> UserScramCredentialRecord:
    """The record that states this credential."""
    return UserScramCredentialRecord(
        name=name,
        mechanism=credential.mechanism,
        salt=credential.salt,
        stored_key=credential.stored_key,
        server_key=credential.server_key,
        iterations=credential.iterations,
    )


def _set_credential(draft: ImageDraft, record: UserScramCredentialRecord) -> None:
    mechanism = ScramMechanism(record.mechanism)
    SCRAM_CREDENTIALS.draft(draft)[record.name, mechanism] = ScramCredential(
        mechanism=mechanism,
        iterations=record.iterations,
        salt=record.salt,
        stored_key=record.stored_key,
        server_key=record.server_key,
    )


def _remove_credential(draft: ImageDraft, record: RemoveUserScramCredentialRecord) -> None:
    credentials, key = SCRAM_CREDENTIALS.draft(draft), (record.name, ScramMechanism(record.mechanism))
    assert credentials.get(key) is not None, f"a credential is removed that is not there: {record}"
    del credentials[key]


def _write_credentials(image: ClusterImage) -> Iterator[UserScramCredentialRecord]:
    return (credential_record(name, stored) for (name, _), stored in SCRAM_CREDENTIALS.of(image).items())


KINDS.add(
    RecordKind(
        number=_SCRAM,
        record=UserScramCredentialRecord,
        apply=_set_credential,
        key=lambda record: (_SCRAM, record.name, record.mechanism),
        value=lambda state, key: SCRAM_CREDENTIALS.get(state, (key[1], ScramMechanism(key[2]))),
        write=_write_credentials,
        place=8,
    ),
    RecordKind(
        number=22,
        record=RemoveUserScramCredentialRecord,
        apply=_remove_credential,
        key=lambda record: (_SCRAM, record.name, record.mechanism),
    ),
)
