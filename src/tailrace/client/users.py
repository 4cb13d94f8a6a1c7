"""Users with passwords, and their credentials (KIP-554)."""

import asyncio
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tailrace.client.errors import check
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.scram import (
    BY_SASL_NAME,
    LONGEST_PASSWORD,
    MOST_ITERATIONS,
    SALT_BYTES,
    ScramMechanism,
    salted_password,
)
from tailrace.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    ScramUserName,
)

DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserListing:
    """A user, and the mechanisms by which the user can be authenticated, each with its iterations of PBKDF2."""

    name: str
    mechanisms: dict[str, int]


async def list_users(router: Router, names: Iterable[str] | None = None) -> list[UserListing]:
    """The users with these names, or all users, by name. Raises KafkaError RESOURCE_NOT_FOUND for a name without a
    user."""
    wanted = None if names is None else tuple(ScramUserName(name=name) for name in names)

    async def attempt() -> list[UserListing]:
        connection = await router.any_connection()
        request = DescribeUserScramCredentialsRequest(users=wanted)
        response = await router.ask(connection, request, DescribeUserScramCredentialsResponse)
        check(response.error_code, response.error_message or "the users cannot be described")
        for user in response.results:
            check(user.error_code, user.error_message or f"user {user.user!r} cannot be described")
        listings = [
            UserListing(
                name=user.user,
                mechanisms={_sasl_name(info.mechanism): info.iterations for info in user.credential_infos},
            )
            for user in response.results
        ]
        return sorted(listings, key=lambda listing: listing.name)

    return await router.retry(attempt)


async def set_password(
    router: Router, user: str, password: str, *, mechanism: str = DEFAULT_MECHANISM, iterations: int = MOST_ITERATIONS
) -> None:
    """Make a user, or give a user another password. The cluster gets a salted password, never the password itself.

    Raises KafkaError UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM.
    """
    kind, secret = mechanism_of(mechanism), checked_password(password)
    salt = secrets.token_bytes(SALT_BYTES)
    salted = await asyncio.to_thread(salted_password, kind, secret, salt=salt, iterations=iterations)
    upsertion = ScramCredentialUpsertion(
        name=user, mechanism=kind, iterations=iterations, salt=salt, salted_password=salted
    )
    await _alter(router, AlterUserScramCredentialsRequest(deletions=(), upsertions=(upsertion,)))


async def delete_password(router: Router, user: str, *, mechanism: str = DEFAULT_MECHANISM) -> None:
    """Delete the password of a user for a mechanism; a user without passwords does not exist. Open connections stay.

    Raises KafkaError RESOURCE_NOT_FOUND.
    """
    deletion = ScramCredentialDeletion(name=user, mechanism=mechanism_of(mechanism))
    await _alter(router, AlterUserScramCredentialsRequest(deletions=(deletion,), upsertions=()))


async def _alter(router: Router, request: AlterUserScramCredentialsRequest) -> None:
    async def attempt() -> None:
        connection = await router.controller_connection()
        response = await router.ask(connection, request, AlterUserScramCredentialsResponse)
        for result in response.results:
            if result.error_code == ErrorCode.NOT_CONTROLLER:
                await router.refresh(())
            check(result.error_code, result.error_message or f"user {result.user!r} cannot be changed")

    await router.retry(attempt)


def checked_password(password: str) -> bytes:
    """The password in UTF-8. Raises KafkaError UNACCEPTABLE_CREDENTIAL for a password that clients could not send."""
    secret = password.encode()
    if not secret or len(secret) > LONGEST_PASSWORD:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"a password has 1 to {LONGEST_PASSWORD} bytes")
    if not password.isascii() or not password.isprintable():
        raise KafkaError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "clients do not agree on the bytes of other characters in a password than printable ASCII",
        )
    return secret


def mechanism_of(name: str) -> ScramMechanism:
    """The mechanism of this name. Raises KafkaError UNSUPPORTED_SASL_MECHANISM."""
    found = BY_SASL_NAME.get(name.upper())
    if found is None:
        known = ", ".join(BY_SASL_NAME)
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, f"there are no passwords for {name!r}; say {known}")
    return found


def _sasl_name(number: int) -> str:
    return ScramMechanism(number).sasl_name if number in tuple(ScramMechanism) else f"mechanism {number}"
