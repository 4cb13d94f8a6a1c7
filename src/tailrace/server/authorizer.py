"""The decision on access: which principal may do what to which resource (decision 0089).

A node without security permits everything.
"""

from typing import Final, Protocol

from tailrace.model.access import Operation, SecuredResource
from tailrace.model.identity import ClientIdentity


class Authorizer(Protocol):
    """Decides on access, from memory and at once: every resource of every request needs a decision."""

    def permits(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> bool:
        """Whether the client may perform the operation on the resource."""
        ...


class _PermitAll:
    def permits(self, identity: ClientIdentity, operation: Operation, resource: SecuredResource) -> bool:
        return True


PERMIT_ALL: Final[Authorizer] = _PermitAll()
"""The authorizer of a node without security."""
