"""Access control lists (ACLs): rules that allow or deny a principal an operation on resources, and filters of rules.

Names and numbers are Kafka's (KIP-11, KIP-140, KIP-290). A rule from a log or a request keeps its numbers as they are,
known or not: a snapshot states the rule again as it was. A rule with an unknown number matches no question.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from tailrace.model.access import CLUSTER, Operation, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError

ANY: Final = 1
"""The number of any type of resource, any operation and any permission; in filters only."""
ALL_OPERATIONS: Final = 2
"""The number of the operation `ALL`, which a rule may have in place of an operation."""
DELEGATION_TOKEN: Final = 6
"""The number of delegation tokens, which are resources of rules only: a node here has no tokens."""
EVERY_NAME: Final = "*"
"""The name of a literal rule about all resources of its type, and the host of a rule about all hosts."""
EVERY_PRINCIPAL: Final = "User:*"

MOST_ACLS: Final = 20_000
"""The most rules of a cluster: each rule costs memory on every node."""


class PatternType(IntEnum):
    """The meaning of the resource's name in a rule or a filter, by its number."""

    ANY = 1
    """Rules of both patterns whose name equals the filter's name; in filters only."""
    MATCH = 2
    """Rules that are about the resource of the filter's name; in filters only."""
    LITERAL = 3
    PREFIXED = 4
    """The resources whose names begin with the name of the rule."""


class Permission(IntEnum):
    """The effect of a rule."""

    DENY = 2
    ALLOW = 3


OPERATIONS_OF: Final[Mapping[int, tuple[Operation, ...]]] = {
    SecuredType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    SecuredType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    SecuredType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
    SecuredType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
    DELEGATION_TOKEN: (Operation.DESCRIBE,),
    SecuredType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}
"""The operations that a resource of each type can be asked for."""


class AclBinding(NamedTuple):
    """A rule: a principal on a host may, or may not, carry out an operation on the resources of a pattern."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    """`Type:name`, of which the type `User` has clients; `User:*` is every principal."""
    host: str
    """An address, or `*`."""
    operation: int
    permission: int

    def check(self) -> None:
        """Raises KafkaError INVALID_REQUEST, with Kafka's text, for a rule that cannot be created."""
        if self.resource_type not in OPERATIONS_OF:
            raise _invalid(f"Invalid resourceType {name_of_type(self.resource_type)}")
        if self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
            raise _invalid(f"Invalid patternType {_named(PatternType, self.pattern_type)}")
        if name_of_operation(self.operation) in ("UNKNOWN", "ANY"):
            raise _invalid(f"Invalid operation {name_of_operation(self.operation)}")
        if self.permission not in (Permission.DENY, Permission.ALLOW):
            raise _invalid(f"Invalid permissionType {_named(Permission, self.permission)}")
        if not self.resource_name:
            raise _invalid("Invalid empty resource name")
        if self.resource_type == SecuredType.CLUSTER and self.resource_name != CLUSTER.name:
            raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER.name}")
        if ":" not in self.principal:
            raise _invalid(
                f"Could not parse principal from `{self.principal}` (no colon is present separating the principal type"
                " from the principal name)"
            )


class AclFilter(NamedTuple):
    """A question for rules; None and ANY match every value."""

    resource_type: int = ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def check(self) -> None:
        """Raises KafkaError INVALID_REQUEST for a filter with an unknown number."""
        if self.resource_type != ANY and self.resource_type not in OPERATIONS_OF:
            raise _invalid("Unknown resourceFilter.")
        if self.pattern_type not in tuple(PatternType):
            raise _invalid("Unknown patternFilter.")
        if name_of_operation(self.operation) == "UNKNOWN" or self.permission not in (ANY, *Permission):
            raise _invalid("Unknown entryFilter.")

    def matches(self, rule: AclBinding) -> bool:
        """Whether the rule is an answer to this filter."""
        return (
            self.resource_type in (ANY, rule.resource_type)
            and self.pattern_type in (PatternType.ANY, PatternType.MATCH, rule.pattern_type)
            and self._matches_name(rule)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (ANY, rule.operation)
            and self.permission in (ANY, rule.permission)
        )

    def _matches_name(self, rule: AclBinding) -> bool:
        name = self.resource_name
        if name is None or name == rule.resource_name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if rule.pattern_type == PatternType.LITERAL:
            return rule.resource_name == EVERY_NAME
        return rule.pattern_type == PatternType.PREFIXED and name.startswith(rule.resource_name)


_OPERATION_NAMES: Final[Mapping[int, str]] = {
    ANY: "ANY",
    ALL_OPERATIONS: "ALL",
    **{operation: operation.name for operation in Operation},
}
_TYPE_NAMES: Final[Mapping[int, str]] = {
    ANY: "ANY",
    DELEGATION_TOKEN: "DELEGATION_TOKEN",
    **{kind: kind.name for kind in SecuredType},
}


def name_of_operation(number: int) -> str:
    """Kafka's name of an operation in a rule or a filter; UNKNOWN for other numbers."""
    return _OPERATION_NAMES.get(number, "UNKNOWN")


def name_of_type(number: int) -> str:
    """Kafka's name of a type of resources in a rule or a filter; UNKNOWN for other numbers."""
    return _TYPE_NAMES.get(number, "UNKNOWN")


def _named(kind: type[IntEnum], number: int) -> str:
    if number == ANY:
        return "ANY"
    return kind(number).name if number in tuple(kind) else "UNKNOWN"


def _invalid(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)
