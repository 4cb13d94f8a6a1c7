"""The handlers of the requests about access rights and tokens; for both kinds of listeners. Access control lists
are those of a node with an authorizer; a cluster here has no tokens."""

from typing import Final

from tailrace.protocol.messages import security
from tailrace.protocol.registry import Listeners
from tailrace.server.admin.acls import DescribeAclsHandler
from tailrace.server.admin.security import (
    CreateDelegationTokenHandler,
    NoAclsHandler,
    NoDelegationTokensHandler,
)
from tailrace.server.dispatch import HandlerTable, by_api
from tailrace.server.ports import Controller

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
    }
)


def security_handlers(listener: Listeners, acls_of: Controller | None) -> HandlerTable:
    """The handlers for this kind of listener. `acls_of`: the metadata with the ACLs of a node with an authorizer, which
    has other handlers of changes (`ControllerApis.admin`); None: there is no authorizer."""
    handlers = _HANDLERS
    if acls_of is not None:
        handlers = {**handlers, **by_api({security.DescribeAclsRequest: DescribeAclsHandler(controller=acls_of)})}
    return {api: handler for api, handler in handlers.items() if listener in api.listeners}
