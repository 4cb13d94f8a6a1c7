"""The decision of a set of ACLs: examples, each with the deciding rule."""

import pytest

from tailrace.model.access import Operation, SecuredType
from tailrace.model.acls.bindings import AclBinding
from tailrace.model.acls.rules import AccessQuestion, AclRules, DecisionReason

LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ALL = 2


def rule(
    permission: int,
    operation: int,
    name: str = "orders",
    *,
    pattern_type: int = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
    kind: SecuredType = SecuredType.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern_type, principal, host, operation, permission)


def question(operation: Operation, name: str = "orders") -> AccessQuestion:
    return AccessQuestion("User:alice", "10.0.0.1", operation, SecuredType.TOPIC, name)


READ, DESCRIBE = Operation.READ, Operation.DESCRIBE
MAY_READ = rule(ALLOW, READ)


@pytest.mark.parametrize(
    ("rules", "asked", "allowed", "deciding"),
    [
        ([MAY_READ], question(READ), True, 0),
        ([MAY_READ], question(DESCRIBE), True, 0),
        ([MAY_READ], question(Operation.WRITE), False, None),
        ([rule(ALLOW, DESCRIBE)], question(READ), False, None),
        ([rule(ALLOW, Operation.ALTER_CONFIGS)], question(Operation.DESCRIBE_CONFIGS), True, 0),
        ([rule(ALLOW, Operation.ALTER_CONFIGS)], question(DESCRIBE), False, None),
        ([rule(ALLOW, ALL)], question(Operation.DELETE), True, 0),
        ([rule(DENY, READ), rule(ALLOW, ALL)], question(READ), False, 0),
        ([rule(DENY, READ), rule(ALLOW, ALL)], question(DESCRIBE), True, 1),
        ([rule(DENY, ALL), MAY_READ], question(READ), False, 0),
        ([rule(DENY, READ, "ord", pattern_type=PREFIXED), MAY_READ], question(READ), False, 0),
        ([rule(DENY, READ, "*"), MAY_READ], question(READ), False, 0),
        ([rule(ALLOW, READ, "*")], question(READ), True, 0),
        ([rule(ALLOW, READ, "*", pattern_type=PREFIXED)], question(READ), False, None),
        ([rule(ALLOW, READ, "ord", pattern_type=PREFIXED)], question(READ), True, 0),
        ([rule(ALLOW, READ, "orders-x", pattern_type=PREFIXED)], question(READ), False, None),
        ([rule(ALLOW, READ, "", pattern_type=PREFIXED)], question(READ), True, 0),
        ([rule(ALLOW, READ, principal="User:*")], question(READ), True, 0),
        ([rule(ALLOW, READ, principal="User:bob")], question(READ), False, None),
        ([rule(ALLOW, READ, principal="Group:alice")], question(READ), False, None),
        ([rule(ALLOW, READ, host="10.0.0.1")], question(READ), True, 0),
        ([rule(ALLOW, READ, host="10.0.0.2")], question(READ), False, None),
        ([rule(DENY, READ, host="10.0.0.1"), MAY_READ], question(READ), False, 0),
        ([rule(ALLOW, READ, kind=SecuredType.GROUP)], question(READ), False, None),
        ([AclBinding(2, "orders", 9, "User:alice", "*", READ, ALLOW)], question(READ), False, None),
        ([rule(9, READ)], question(READ), False, None),
        ([rule(ALLOW, 0), rule(ALLOW, -5)], question(READ), False, None),
    ],
)
def test_a_question_has_an_answer_and_its_deciding_rule(
    rules: list[AclBinding], asked: AccessQuestion, allowed: bool, deciding: int | None
) -> None:
    decision = AclRules(rules).decide(asked, allows_without_rule=False)
    assert (decision.is_allowed, decision.rule) == (allowed, None if deciding is None else rules[deciding])


@pytest.mark.parametrize("default", [True, False])
def test_the_default_decides_on_a_resource_without_any_rule_alone(default: bool) -> None:
    rules = AclRules([rule(ALLOW, READ, principal="User:bob")])
    unknown = rules.decide(question(READ, "other"), allows_without_rule=default)
    assert (unknown.is_allowed, unknown.reason) == (default, DecisionReason.NO_RULE_OF_RESOURCE)
    known = rules.decide(question(READ), allows_without_rule=default)
    assert (known.is_allowed, known.reason) == (False, DecisionReason.NO_RULE_OF_CLIENT)


def test_a_rule_that_was_added_twice_is_gone_after_two_removals() -> None:
    rules = AclRules([MAY_READ, MAY_READ])
    rules.remove(MAY_READ)
    assert rules.decide(question(READ), allows_without_rule=False).is_allowed
    rules.remove(MAY_READ)
    assert rules.decide(question(READ), allows_without_rule=True).reason is DecisionReason.NO_RULE_OF_RESOURCE
    assert len(rules) == 0


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], False),
        ([rule(ALLOW, Operation.WRITE)], True),
        ([MAY_READ], False),
        ([rule(ALLOW, Operation.WRITE, "o", pattern_type=PREFIXED)], True),
        ([rule(ALLOW, Operation.WRITE, "*")], True),
        ([rule(ALLOW, Operation.WRITE), rule(DENY, Operation.WRITE)], False),
        ([rule(ALLOW, Operation.WRITE), rule(DENY, Operation.WRITE, "*")], False),
        ([rule(ALLOW, Operation.WRITE, "*"), rule(DENY, Operation.WRITE)], True),
        (
            [
                rule(ALLOW, Operation.WRITE, "orders", pattern_type=PREFIXED),
                rule(DENY, Operation.WRITE, "ord", pattern_type=PREFIXED),
            ],
            False,
        ),
        (
            [
                rule(ALLOW, Operation.WRITE, "ord", pattern_type=PREFIXED),
                rule(DENY, Operation.WRITE, "orders", pattern_type=PREFIXED),
            ],
            True,
        ),
        ([rule(ALLOW, Operation.WRITE, principal="User:*")], True),
        ([rule(ALLOW, Operation.WRITE, kind=SecuredType.GROUP)], False),
    ],
)
def test_a_client_may_write_to_some_topic_if_no_denial_is_about_it(rules: list[AclBinding], allowed: bool) -> None:
    found = AclRules(rules).allows_any(
        "User:alice", "10.0.0.1", Operation.WRITE, SecuredType.TOPIC, allows_without_rule=False
    )
    assert found is allowed
