"""Delegation tokens (38 to 41): a node refuses them, as Kafka does on a listener without authentication.

The APIs are announced because tools tell by them which release they speak to: without them kcl and kminion take a node
for Kafka 1.0.
"""

from typing import Final, NoReturn

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.security import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tailrace.server.context import RequestContext

_CODE: Final = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
_USER, _ANONYMOUS = "User", "ANONYMOUS"
"""The requester, on a listener without authentication."""


class CreateDelegationTokenHandler:
    """Makes no token."""

    def handle(self, request: CreateDelegationTokenRequest, context: RequestContext) -> CreateDelegationTokenResponse:
        owner_type, owner_name = _USER, _ANONYMOUS
        if request.owner_principal_type is not None and request.owner_principal_name:
            owner_type, owner_name = request.owner_principal_type, request.owner_principal_name
        return CreateDelegationTokenResponse(
            error_code=_CODE,
            principal_type=owner_type,
            principal_name=owner_name,
            token_requester_principal_type=_USER,
            token_requester_principal_name=_ANONYMOUS,
            token_id="",
            hmac=b"",
        )


class NoDelegationTokensHandler:
    """Finds no token."""

    def handle(
        self,
        request: RenewDelegationTokenRequest | ExpireDelegationTokenRequest | DescribeDelegationTokenRequest,
        context: RequestContext,
    ) -> NoReturn:
        raise KafkaError(_CODE)
