"""The answers of a node without security to requests about access rights, tokens and passwords.

1. DescribeAcls (29), CreateAcls (30), DeleteAcls (31): error SECURITY_DISABLED, as in Kafka without an authorizer: at
   the top of DescribeAcls, and for each binding or filter of 30 and 31. MirrorMaker 2 and kminion, which ask also a
   cluster without access control lists, expect this code.
2. Delegation tokens (38 to 41) are refused, as by Kafka on a listener without authentication. The APIs are announced
   because tools guess the release of a node from its APIs: without these APIs kcl and kminion take a node for Kafka
   1.0.
3. DescribeUserScramCredentials (50) and AlterUserScramCredentials (51) (KIP-554): a named user is not found. A
   credential would have no effect, so each user with a credential is refused with UNSUPPORTED_VERSION, as in a cluster
   whose metadata cannot store credentials. The deletion of a credential does not find the credential, as in Kafka.
"""

from collections import Counter
from typing import Final, NoReturn

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.security import (
    AlteredScramUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    DescribedScramUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from tailrace.server.context import RequestContext


class NoAclsHandler:
    """Refuses the requests of access control lists."""

    def handle(
        self, request: DescribeAclsRequest | CreateAclsRequest | DeleteAclsRequest, context: RequestContext
    ) -> NoReturn:
        raise KafkaError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")


_TOKENS_REFUSED: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
_USER, _ANONYMOUS = "User", "ANONYMOUS"
"""The requester, on a listener without authentication."""


class CreateDelegationTokenHandler:
    """Refuses to create a token."""

    def handle(self, request: CreateDelegationTokenRequest, context: RequestContext) -> CreateDelegationTokenResponse:
        owner_type, owner_name = _USER, _ANONYMOUS
        if request.owner_principal_type is not None and request.owner_principal_name:
            owner_type, owner_name = request.owner_principal_type, request.owner_principal_name
        return CreateDelegationTokenResponse(
            error_code=_TOKENS_REFUSED,
            principal_type=owner_type,
            principal_name=owner_name,
            token_requester_principal_type=_USER,
            token_requester_principal_name=_ANONYMOUS,
            token_id="",
            hmac=b"",
        )


class NoDelegationTokensHandler:
    """Refuses the requests about tokens."""

    def handle(
        self,
        request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest | DescribeDelegationTokenRequest,
        context: RequestContext,
    ) -> NoReturn:
        raise KafkaError(_TOKENS_REFUSED)


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
    """Refuses new credentials, and finds no credential to delete."""

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
