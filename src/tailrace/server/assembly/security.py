"""The handlers of the requests about access rights, tokens and quotas, which a cluster here does not have; for both
kinds of listeners."""

from typing import Final

from tailrace.protocol.messages import (
    configs,
    security,
)
from tailrace.protocol.registry import Listeners
from tailrace.server.admin.quotas import AlterClientQuotasHandler, DescribeClientQuotasHandler
from tailrace.server.admin.security import (
    CreateDelegationTokenHandler,
    NoAclsHandler,
    NoDelegationTokensHandler,
)
from tailrace.server.dispatch import HandlerTable, by_api

_NO_ACLS: Final = NoAclsHandler()
_NO_TOKENS: Final = NoDelegationTokensHandler()
_HANDLERS: Final[HandlerTable] = by_api(
    {
        security.DescribeAclsRequest: _NO_ACLS,
        security.CreateAclsRequest: _NO_ACLS,
        security.DeleteAclsRequest: _NO_ACLS,
        security.CreateDelegationTokenRequest: CreateDelegationTokenHandler(),
        security.RenewDelegationTokenRequest: _NO_TOKENS,
        security.ExpireDelegationTokenRequest: _NO_TOKENS,
        security.DescribeDelegationTokenRequest: _NO_TOKENS,
        configs.DescribeClientQuotasRequest: DescribeClientQuotasHandler(),
        configs.AlterClientQuotasRequest: AlterClientQuotasHandler(),
    }
)


def security_handlers(listener: Listeners) -> HandlerTable:
    """The handlers for this kind of listener. The handlers have no state."""
    return {api: handler for api, handler in _HANDLERS.items() if listener in api.listeners}
