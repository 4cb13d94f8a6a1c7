"""The answers of a node without security to requests about access rights and tokens.

1. DescribeAcls (29), CreateAcls (30), DeleteAcls (31): error SECURITY_DISABLED, as in Kafka without an authorizer: at
   the top of DescribeAcls, and for each binding or filter of 30 and 31. MirrorMaker 2 and kminion, which ask also a
   cluster without access control lists, expect this code.
2. Delegation tokens (38 to 41) are refused, as by Kafka on a listener without authentication. The APIs are announced
   because tools guess the release of a node from its APIs: without these APIs kcl and kminion take a node for Kafka
   1.0.
"""

from typing import Final, NoReturn

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.security import (
    CreateAclsRequest,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
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
