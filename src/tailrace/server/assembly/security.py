"""The handlers of what a cluster without security, users and quotas answers to administrators, on both listeners."""

from typing import Final

from tailrace.protocol.messages import acls, delegation_tokens, quotas, scram_users
from tailrace.protocol.registry import Listeners
from tailrace.server.admin.acls import NoAclsHandler
from tailrace.server.admin.delegation_tokens import CreateDelegationTokenHandler, NoDelegationTokensHandler
from tailrace.server.admin.quotas import AlterClientQuotasHandler, DescribeClientQuotasHandler
from tailrace.server.admin.scram_users import AlterUserScramCredentialsHandler, DescribeUserScramCredentialsHandler
from tailrace.server.dispatch import HandlerTable, by_api

_NO_ACLS: Final = NoAclsHandler()
_NO_TOKENS: Final = NoDelegationTokensHandler()
_HANDLERS: Final[HandlerTable] = by_api(
    {
        acls.DescribeAclsRequest: _NO_ACLS,
        acls.CreateAclsRequest: _NO_ACLS,
        acls.DeleteAclsRequest: _NO_ACLS,
        delegation_tokens.CreateDelegationTokenRequest: CreateDelegationTokenHandler(),
        delegation_tokens.RenewDelegationTokenRequest: _NO_TOKENS,
        delegation_tokens.ExpireDelegationTokenRequest: _NO_TOKENS,
        delegation_tokens.DescribeDelegationTokenRequest: _NO_TOKENS,
        quotas.DescribeClientQuotasRequest: DescribeClientQuotasHandler(),
        quotas.AlterClientQuotasRequest: AlterClientQuotasHandler(),
        scram_users.DescribeUserScramCredentialsRequest: DescribeUserScramCredentialsHandler(),
        scram_users.AlterUserScramCredentialsRequest: AlterUserScramCredentialsHandler(),
    }
)


def security_handlers(listener: Listeners) -> HandlerTable:
    """The handlers of this kind of listener. They keep no state."""
    return {api: handler for api, handler in _HANDLERS.items() if listener in api.listeners}
