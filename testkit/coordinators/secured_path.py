"""A node with the authorizer, and clients with names.

node = SecuredPath()
node.allow("User:alice", Operation.READ, TOPIC, "orders")
node.ask("User:alice", request, 12)
"""

from collections.abc import Mapping
from typing import Any

from tailrace.model.access import Operation, SecuredType
from tailrace.model.acls.bindings import AclBinding, PatternType, Permission
from tailrace.protocol.messages.security import (
    AclCreation,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.ports import RecordingConnection

ADMIN = "User:ANONYMOUS"
"""The super user; the other methods of the node send requests as this user."""


class SecuredPath(GroupPath):
    """A node where ACLs decide, without ACLs at first."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        secured = {"authorizer.class.name": "StandardAuthorizer", "super.users": ADMIN, **(settings or {})}
        super().__init__("/data", files=SimulatedDisk(), settings=secured)
        self._connections: dict[str, RecordingConnection] = {}

    def ask(self, principal: str, request: Any, version: int) -> Any:
        """The answer to a request of this principal."""
        return self.send(request, version, connection=self.connection_of(principal)).response

    def connection_of(self, principal: str) -> RecordingConnection:
        """The connection of this principal."""
        return self._connections.setdefault(principal, RecordingConnection(principal=principal))

    def allow(
        self,
        principal: str,
        operation: Operation,
        kind: SecuredType,
        name: str,
        *,
        pattern: PatternType = PatternType.LITERAL,
        permission: Permission = Permission.ALLOW,
        host: str = "*",
    ) -> AclBinding:
        """Add a rule."""
        rule = AclBinding(kind, name, pattern, principal, host, operation, permission)
        creation = AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=pattern,
            principal=principal,
            host=host,
            operation=operation,
            permission_type=permission,
        )
        (result,) = self.ask(ADMIN, CreateAclsRequest(creations=(creation,)), 3).results
        assert result.error_code == 0, result.error_message
        return rule

    def deny(self, principal: str, operation: Operation, kind: SecuredType, name: str) -> AclBinding:
        """Add a rule that denies."""
        return self.allow(principal, operation, kind, name, permission=Permission.DENY)

    def revoke(self, rule: AclBinding) -> None:
        """Remove a rule."""
        wanted = DeleteAclsFilter(
            resource_type_filter=rule.resource_type,
            resource_name_filter=rule.resource_name,
            pattern_type_filter=rule.pattern_type,
            principal_filter=rule.principal,
            host_filter=rule.host,
            operation=rule.operation,
            permission_type=rule.permission,
        )
        (result,) = self.ask(ADMIN, DeleteAclsRequest(filters=(wanted,)), 3).filter_results
        assert [tuple(found) for found in map(_rule_of, result.matching_acls)] == [tuple(rule)]


def _rule_of(found: Any) -> AclBinding:
    return AclBinding(
        found.resource_type,
        found.resource_name,
        found.pattern_type,
        found.principal,
        found.host,
        found.operation,
        found.permission_type,
    )
