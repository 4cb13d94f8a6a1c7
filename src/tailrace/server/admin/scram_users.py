"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): a node has no users with passwords (KIP-554).

All users are none, and a user that is named is not found. A credential that would have no effect is refused with
UNSUPPORTED_VERSION, user by user, as a cluster does whose metadata have no place for credentials; the deletion of a
credential finds none, as in Kafka.
"""

from collections import Counter
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.security import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tailrace.server.context import RequestContext

_MECHANISMS: Final = frozenset((1, 2))
"""SCRAM-SHA-256, SCRAM-SHA-512."""
_LEAST_ITERATIONS, _MOST_ITERATIONS = 4_096, 16_384


class DescribeUserScramCredentialsHandler:
    """Finds no users."""

    def handle(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        named = Counter(user.name for user in request.users or ())
        results = tuple(_described(name, is_repeated=count > 1) for name, count in named.items())
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(name: str, *, is_repeated: bool) -> DescribedScramUser:
    error = KafkaError(
        ErrorCode.RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {name}"
    )
    if is_repeated:
        error = KafkaError(
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
        )
    return DescribedScramUser(user=name, error_code=error.code, error_message=error.detail, credential_infos=())


class AlterUserScramCredentialsHandler:
    """Refuses credentials, and finds none to delete."""

    def handle(
        self, request: AlterUserScramCredentialsRequest, context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        refusals = {deletion.name: _refusal_to_delete(deletion) for deletion in request.deletions}
        for upsertion in request.upsertions:
            refusals[upsertion.name] = _refusal_to_set(upsertion, is_repeated=upsertion.name in refusals)
        return AlterUserScramCredentialsResponse(
            results=tuple(
                AlteredScramUser(user=name, error_code=error.code, error_message=error.detail)
                for name, error in refusals.items()
            )
        )


def _refusal_to_delete(deletion: ScramCredentialDeletion) -> KafkaError:
    fault = _fault(deletion.name, deletion.mechanism)
    text = "Attempt to delete a user credential that does not exist"
    return fault or KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)


def _refusal_to_set(upsertion: ScramCredentialUpsertion, *, is_repeated: bool) -> KafkaError:
    fault = _fault(upsertion.name, upsertion.mechanism)
    if fault is not None:
        return fault
    if is_repeated:
        text = "A user credential cannot be altered twice in the same request"
        return KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
    if upsertion.iterations < _LEAST_ITERATIONS:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if upsertion.iterations > _MOST_ITERATIONS:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    return KafkaError(ErrorCode.UNSUPPORTED_VERSION, "a Tailrace cluster has no SCRAM users yet")


def _fault(name: str, mechanism: int) -> KafkaError | None:
    if not name:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if mechanism not in _MECHANISMS:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None
