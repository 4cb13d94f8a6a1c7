"""ACLs and their filters: the rules that can be created, and the rules that a filter matches."""

import pytest

from tailrace.model.acls.bindings import ANY, AclBinding, AclFilter, PatternType
from tailrace.model.errors import ErrorCode, KafkaError

TOPIC, GROUP, CLUSTER = 2, 3, 4
MATCH, LITERAL, PREFIXED = 2, 3, 4
READ, WRITE, DENY, ALLOW = 3, 4, 2, 3
ORDERS = AclBinding(TOPIC, "orders", LITERAL, "User:alice", "*", READ, ALLOW)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"resource_type": ANY}, "Invalid resourceType ANY"),
        ({"resource_type": 0}, "Invalid resourceType UNKNOWN"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"pattern_type": ANY}, "Invalid patternType ANY"),
        ({"pattern_type": MATCH}, "Invalid patternType MATCH"),
        ({"pattern_type": 9}, "Invalid patternType UNKNOWN"),
        ({"operation": ANY}, "Invalid operation ANY"),
        ({"operation": 99}, "Invalid operation UNKNOWN"),
        ({"permission": ANY}, "Invalid permissionType ANY"),
        ({"permission": 0}, "Invalid permissionType UNKNOWN"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"principal": "alice"}, "Could not parse principal from `alice` (no colon is present"),
    ],
)
def test_a_rule_that_cannot_be_created_is_refused_with_kafkas_text(changes: dict[str, object], text: str) -> None:
    ORDERS.check()
    with pytest.raises(KafkaError) as refusal:
        ORDERS._replace(**changes).check()  # type: ignore[arg-type]
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
    assert refusal.value.detail.startswith(text)


def test_a_rule_may_be_about_the_cluster_and_about_all_operations() -> None:
    ORDERS._replace(resource_type=CLUSTER, resource_name="kafka-cluster", operation=2).check()


NAMES = {
    "orders": ORDERS,
    "orders-": ORDERS._replace(resource_name="orders", pattern_type=PREFIXED),
    "ord-": ORDERS._replace(resource_name="ord", pattern_type=PREFIXED),
    "*": ORDERS._replace(resource_name="*"),
    "other": ORDERS._replace(resource_name="other"),
}
"""Rules by a short name: a hyphen ends the name of a prefixed rule."""


@pytest.mark.parametrize(
    ("name", "pattern_type", "found"),
    [
        ("orders", PatternType.ANY, {"orders", "orders-"}),
        ("orders", MATCH, {"orders", "orders-", "ord-", "*"}),
        ("orders", LITERAL, {"orders"}),
        ("orders", PREFIXED, {"orders-"}),
        ("ord", MATCH, {"ord-", "*"}),
        ("*", MATCH, {"*"}),
        ("*", LITERAL, {"*"}),
        (None, LITERAL, {"orders", "*", "other"}),
        (None, PatternType.ANY, set(NAMES)),
        (None, MATCH, set(NAMES)),
    ],
)
def test_a_filter_matches_names_as_its_pattern_says(name: str | None, pattern_type: int, found: set[str]) -> None:
    wanted = AclFilter(resource_name=name, pattern_type=pattern_type)
    assert {short for short, rule in NAMES.items() if wanted.matches(rule)} == found


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("resource_type", GROUP),
        ("principal", "User:bob"),
        ("host", "10.0.0.1"),
        ("operation", WRITE),
        ("permission", DENY),
    ],
)
def test_each_field_of_a_filter_leaves_out_rules_with_another_value(field: str, other: object) -> None:
    wanted = AclFilter(**{field: getattr(ORDERS, field)})
    assert wanted.matches(ORDERS)
    assert not wanted.matches(ORDERS._replace(**{field: other}))  # type: ignore[arg-type]


@pytest.mark.parametrize("changes", [{"resource_type": 0}, {"pattern_type": 0}, {"operation": 0}, {"permission": 9}])
def test_a_filter_with_an_unknown_number_is_refused(changes: dict[str, int]) -> None:
    AclFilter().check()
    with pytest.raises(KafkaError, match="Unknown") as refusal:
        AclFilter()._replace(**changes).check()  # type: ignore[arg-type]
    assert refusal.value.code is ErrorCode.INVALID_REQUEST
