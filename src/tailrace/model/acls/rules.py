"""The decision that a set of ACLs makes: Kafka's StandardAuthorizer, without its cluster.

1. A rule is about a resource if its name is the resource's name (LITERAL), a beginning of that name (PREFIXED) or `*`
   (LITERAL). It is about a client if its principal is the client's or `User:*`, and its host is the client's or `*`.
2. A rule of DENY that is about the resource, the client and the operation wins over every rule of ALLOW.
3. A rule of ALLOW for READ, WRITE, DELETE or ALTER allows DESCRIBE too, and for ALTER_CONFIGS DESCRIBE_CONFIGS too. A
   rule of DENY denies its own operation alone. A rule for ALL is about each operation.
4. Without such a rule, a resource that some rule is about is denied; the default decides on a resource without a rule.

A decision costs look-ups for the prefix lengths in use up to the length of the name, and not for the rules.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

from tailrace.model.access import Operation, SecuredType
from tailrace.model.acls.bindings import (
    ALL_OPERATIONS,
    EVERY_NAME,
    EVERY_PRINCIPAL,
    AclBinding,
    PatternType,
    Permission,
)


class AccessQuestion(NamedTuple):
    """A client, and the operation that the client wants to carry out."""

    principal: str
    host: str
    """The client's address, without a port."""
    operation: int
    resource_type: int
    resource_name: str


class DecisionReason(Enum):
    """The reason for a decision."""

    SUPER_USER = "the principal is in super.users"
    RULE = "a rule"
    NO_RULE_OF_CLIENT = "the resource has rules, and no rule allows this client the operation"
    NO_RULE_OF_RESOURCE = "the resource has no rules, and the default for such resources decides"


class AclDecision(NamedTuple):
    """The answer to a question, and the rule behind the answer."""

    is_allowed: bool
    reason: DecisionReason
    rule: AclBinding | None = None


IMPLIED_BY: Final[Mapping[int, tuple[Operation, ...]]] = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}
"""The operations whose ALLOW allows another operation too."""

_NOT_IN_NAMES: Final = "\0"
"""A character that no name of a topic has: with it the name of a prefixed rule becomes a name without a rule of its
own."""

_Pattern = tuple[int, int, str]
"""The type of resource, the type of pattern and the name of a rule."""


class _Entries:
    """The rules of a pattern for a principal: by host, the operations as bits."""

    __slots__ = ("allowed", "denied")

    def __init__(self) -> None:
        self.allowed: dict[str, int] = {}
        self.denied: dict[str, int] = {}

    def of(self, permission: int) -> dict[str, int]:
        return self.denied if permission == Permission.DENY else self.allowed

    def __bool__(self) -> bool:
        return bool(self.allowed or self.denied)


class AclRules:
    """A set of ACLs. The same rule may be added twice, as a log may have it under two ids; it is gone when it is
    removed as often."""

    def __init__(self, rules: Iterable[AclBinding] = ()) -> None:
        self._counts: Counter[AclBinding] = Counter()
        self._entries: dict[_Pattern, dict[str, _Entries]] = {}
        """By pattern and principal."""
        self._prefix_lengths: dict[int, Counter[int]] = {}
        """The lengths of the names of prefixed patterns, by type of resource."""
        self._patterns_of: dict[tuple[int, str], set[_Pattern]] = {}
        """The patterns with rules, by type of resource and principal."""
        self._of_hosts = 0
        """The number of different rules about single hosts."""
        for rule in rules:
            self.add(rule)

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def has_addresses(self) -> bool:
        """Whether a rule is about the clients of a single host."""
        return bool(self._of_hosts)

    def add(self, rule: AclBinding) -> None:
        """Add a rule."""
        self._counts[rule] += 1
        if self._counts[rule] > 1 or not _is_known(rule):
            return
        self._of_hosts += rule.host != EVERY_NAME
        pattern = (rule.resource_type, rule.pattern_type, rule.resource_name)
        of_pattern = self._entries.get(pattern)
        if of_pattern is None:
            of_pattern = self._entries[pattern] = {}
            if rule.pattern_type == PatternType.PREFIXED:
                self._prefix_lengths.setdefault(rule.resource_type, Counter())[len(rule.resource_name)] += 1
        entries = of_pattern.get(rule.principal)
        if entries is None:
            entries = of_pattern[rule.principal] = _Entries()
            self._patterns_of.setdefault((rule.resource_type, rule.principal), set()).add(pattern)
        by_host = entries.of(rule.permission)
        by_host[rule.host] = by_host.get(rule.host, 0) | 1 << rule.operation

    def remove(self, rule: AclBinding) -> None:
        """Remove a rule, which is in the set."""
        self._counts[rule] -= 1
        if self._counts[rule]:
            return
        del self._counts[rule]
        if not _is_known(rule):
            return
        self._of_hosts -= rule.host != EVERY_NAME
        pattern = (rule.resource_type, rule.pattern_type, rule.resource_name)
        of_pattern = self._entries[pattern]
        entries = of_pattern[rule.principal]
        by_host = entries.of(rule.permission)
        by_host[rule.host] &= ~(1 << rule.operation)
        if not by_host[rule.host]:
            del by_host[rule.host]
        if entries:
            return
        del of_pattern[rule.principal]
        of_principal = self._patterns_of[rule.resource_type, rule.principal]
        of_principal.remove(pattern)
        if not of_principal:
            del self._patterns_of[rule.resource_type, rule.principal]
        if of_pattern:
            return
        del self._entries[pattern]
        if rule.pattern_type == PatternType.PREFIXED:
            lengths = self._prefix_lengths[rule.resource_type]
            lengths[len(rule.resource_name)] -= 1
            if not lengths[len(rule.resource_name)]:
                del lengths[len(rule.resource_name)]

    def decide(self, question: AccessQuestion, *, allows_without_rule: bool) -> AclDecision:
        """Answer the question, with the rule behind the answer. `allows_without_rule`: the answer for a resource
        without rules."""
        wanted = 1 << question.operation | 1 << ALL_OPERATIONS
        sufficient = wanted
        for implying in IMPLIED_BY.get(question.operation, ()):
            sufficient |= 1 << implying
        allowing: AclBinding | None = None
        has_rule = False
        for pattern, of_pattern in self._about(question.resource_type, question.resource_name):
            has_rule = True
            for principal in (question.principal, EVERY_PRINCIPAL):
                entries = of_pattern.get(principal)
                if entries is None:
                    continue
                for host in (question.host, EVERY_NAME):
                    if bits := entries.denied.get(host, 0) & wanted:
                        rule = _rule(pattern, principal, host, bits, Permission.DENY)
                        return AclDecision(is_allowed=False, reason=DecisionReason.RULE, rule=rule)
                    if allowing is None and (bits := entries.allowed.get(host, 0) & sufficient):
                        allowing = _rule(pattern, principal, host, bits, Permission.ALLOW)
        if allowing is not None:
            return AclDecision(is_allowed=True, reason=DecisionReason.RULE, rule=allowing)
        if has_rule:
            return AclDecision(is_allowed=False, reason=DecisionReason.NO_RULE_OF_CLIENT)
        return AclDecision(is_allowed=allows_without_rule, reason=DecisionReason.NO_RULE_OF_RESOURCE)

    def _about(self, resource_type: int, name: str) -> Iterator[tuple[_Pattern, dict[str, _Entries]]]:
        """The patterns that are about this resource, with their rules."""
        entries = self._entries
        found = entries.get(pattern := (resource_type, PatternType.LITERAL, name))
        if found is not None:
            yield pattern, found
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name):
                found = entries.get(pattern := (resource_type, PatternType.PREFIXED, name[:length]))
                if found is not None:
                    yield pattern, found
        if name != EVERY_NAME:
            found = entries.get(pattern := (resource_type, PatternType.LITERAL, EVERY_NAME))
            if found is not None:
                yield pattern, found

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: SecuredType, *, allows_without_rule: bool
    ) -> bool:
        """Whether there can be a resource of this type on which the client may carry out the operation."""
        names = {_NOT_IN_NAMES}
        for owner in (principal, EVERY_PRINCIPAL):
            for _, pattern_type, name in self._patterns_of.get((kind, owner), ()):
                if pattern_type == PatternType.PREFIXED:
                    names.add(name + _NOT_IN_NAMES)
                elif name != EVERY_NAME:
                    names.add(name)
        return any(
            self.decide(
                AccessQuestion(principal, host, operation, kind, name), allows_without_rule=allows_without_rule
            ).is_allowed
            for name in names
        )


def _is_known(rule: AclBinding) -> bool:
    """Whether the rule can decide a question."""
    return (
        rule.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED)
        and rule.permission in (Permission.DENY, Permission.ALLOW)
        and rule.operation >= ALL_OPERATIONS
    )


def _rule(pattern: _Pattern, principal: str, host: str, bits: int, permission: Permission) -> AclBinding:
    resource_type, pattern_type, name = pattern
    operation = (bits & -bits).bit_length() - 1
    return AclBinding(resource_type, name, pattern_type, principal, host, operation, permission)
