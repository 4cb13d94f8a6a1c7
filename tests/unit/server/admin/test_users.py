"""Users with passwords (50, 51) from frame to metadata log, and row N11 of the negative tests."""

import hashlib
from typing import Any

import pytest

from tailrace.metadata.deciding import users
from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.metadata.records.kinds import encode_record
from tailrace.metadata.records.users import SCRAM_CREDENTIALS, SECRET_ENTRY
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import records_of
from tailrace.metadata.user_commands import CredentialUpsertion
from tailrace.model.errors import ErrorCode
from tailrace.model.security.scram import ScramMechanism, credential_of_password
from tailrace.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath

SHA_256, SHA_512 = 1, 2
SALT = b"a salt of 18 bytes"


@pytest.fixture
def node() -> AdminPath:
    return AdminPath("/data", files=SimulatedDisk())


def upsertion(
    name: str, mechanism: int = SHA_256, *, iterations: int = 4_096, salt: bytes = SALT, size: int | None = None
) -> ScramCredentialUpsertion:
    hash_name = "sha512" if mechanism == SHA_512 else "sha256"
    salted = hashlib.pbkdf2_hmac(hash_name, b"secret", salt, iterations, size)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
    )


def alter(
    node: AdminPath, *upsertions: ScramCredentialUpsertion, deletions: tuple[ScramCredentialDeletion, ...] = ()
) -> dict[str, tuple[int, str | None]]:
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    results = node.send(request, 0).response.results
    return {result.user: (result.error_code, result.error_message) for result in results}


def described(node: AdminPath, *names: str) -> dict[str, Any]:
    users = tuple(ScramUserName(name=name) for name in names)
    response = node.send(DescribeUserScramCredentialsRequest(users=users), 0).response
    assert (response.error_code, response.error_message) == (ErrorCode.NONE, None)
    return {
        result.user: ErrorCode(result.error_code)
        if result.error_code
        else [(info.mechanism, info.iterations) for info in result.credential_infos]
        for result in response.results
    }


FINE = (ErrorCode.NONE, None)


def test_users_are_set_described_changed_and_deleted(node: AdminPath) -> None:
    assert described(node) == {}
    assert alter(node, upsertion("alice"), upsertion("bob", SHA_512, iterations=8_192)) == {"alice": FINE, "bob": FINE}
    assert alter(node, upsertion("alice", SHA_512)) == {"alice": FINE}
    assert alter(node, upsertion("bob", SHA_512, iterations=4_096)) == {"bob": FINE}
    assert described(node) == {"alice": [(SHA_256, 4_096), (SHA_512, 4_096)], "bob": [(SHA_512, 4_096)]}
    deletion = ScramCredentialDeletion(name="alice", mechanism=SHA_256)
    assert alter(node, deletions=(deletion,)) == {"alice": FINE}
    assert described(node, "alice") == {"alice": [(SHA_512, 4_096)]}
    assert alter(node, deletions=(deletion,))["alice"][0] == ErrorCode.RESOURCE_NOT_FOUND


def test_the_keys_are_kept_and_the_salted_password_is_not(node: AdminPath) -> None:
    alter(node, upsertion("alice"))
    stored = SCRAM_CREDENTIALS.of(node.machine.image)["alice", ScramMechanism.SHA_256]
    assert stored == credential_of_password(ScramMechanism.SHA_256, b"secret", salt=SALT, iterations=4_096)
    assert stored.proves(b"secret")
    assert not stored.proves(b"Secret")
    written = b"".join(map(encode_record, records_of(node.machine.image)))
    assert stored.stored_key in written
    assert upsertion("alice").salted_password not in written


def test_a_snapshot_states_the_users_and_the_secret(node: AdminPath) -> None:
    alter(node, upsertion("alice"), upsertion("bob", SHA_512))
    image = node.machine.image
    loaded, _ = apply_all(EMPTY_IMAGE, records_of(image))
    assert dict(SCRAM_CREDENTIALS.of(loaded)) == dict(SCRAM_CREDENTIALS.of(image))


def test_the_secret_of_the_cluster_is_made_once_and_never_shown(node: AdminPath) -> None:
    alter(node, upsertion(""))
    assert SECRET_ENTRY not in SCRAM_CREDENTIALS.of(node.machine.image)
    alter(node, upsertion("alice"))
    secret = SCRAM_CREDENTIALS.of(node.machine.image)[SECRET_ENTRY]
    alter(node, upsertion("bob"))
    assert SCRAM_CREDENTIALS.of(node.machine.image)[SECRET_ENTRY] == secret
    assert set(described(node)) == {"alice", "bob"}
    assert described(node, "") == {"": ErrorCode.RESOURCE_NOT_FOUND}
    deletion = ScramCredentialDeletion(name="", mechanism=SHA_256)
    assert alter(node, deletions=(deletion,))[""][0] == ErrorCode.UNACCEPTABLE_CREDENTIAL


def test_n11_what_is_no_credential_is_refused_user_by_user(node: AdminPath) -> None:
    alter(node, upsertion("both"))
    results = alter(
        node,
        *(upsertion("fine"), upsertion(""), upsertion("twice"), upsertion("twice", SHA_512), upsertion("both")),
        *(upsertion("few", iterations=1), upsertion("many", iterations=16_385), upsertion("n" * 250)),
        *(upsertion("salt", salt=b"too short"), upsertion("size", size=31), upsertion("odd", 9)),
        deletions=(
            ScramCredentialDeletion(name="gone", mechanism=SHA_512),
            ScramCredentialDeletion(name="both", mechanism=SHA_256),
        ),
    )
    assert results.pop("fine") == FINE
    assert results.pop("few") == (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    assert results.pop("many") == (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    assert results.pop("") == (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    assert {user: code for user, (code, _) in results.items()} == {
        "twice": ErrorCode.DUPLICATE_RESOURCE,
        "both": ErrorCode.DUPLICATE_RESOURCE,
        "n" * 250: ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "salt": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "size": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "odd": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        "gone": ErrorCode.RESOURCE_NOT_FOUND,
    }
    assert set(described(node)) == {"fine", "both"}


def test_a_description_names_users_that_do_not_exist_or_come_twice(node: AdminPath) -> None:
    alter(node, upsertion("alice"))
    assert described(node, "alice", "bob", "carol", "carol") == {
        "alice": [(SHA_256, 4_096)],
        "bob": ErrorCode.RESOURCE_NOT_FOUND,
        "carol": ErrorCode.DUPLICATE_RESOURCE,
    }


def test_a_cluster_has_a_limit_of_credentials(node: AdminPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "MOST_CREDENTIALS", 2)
    assert alter(node, upsertion("a")) == {"a": FINE}
    results = alter(node, upsertion("b"), upsertion("c"))
    assert (results["b"], results["c"][0]) == (FINE, ErrorCode.POLICY_VIOLATION)
    assert alter(node, upsertion("a", iterations=8_192)) == {"a": FINE}


def test_no_secret_shows_in_a_command_record_or_request(node: AdminPath) -> None:
    wanted = upsertion("alice")
    alter(node, wanted)
    command = CredentialUpsertion(
        user="alice", mechanism=1, iterations=4_096, salt=SALT, salted_password=wanted.salted_password
    )
    shown = f"{wanted} {command} {list(records_of(node.machine.image))} {SCRAM_CREDENTIALS.of(node.machine.image)}"
    stored = SCRAM_CREDENTIALS.of(node.machine.image)["alice", ScramMechanism.SHA_256]
    for secret in (SALT, wanted.salted_password, stored.stored_key, stored.server_key):
        assert repr(secret) not in shown
