"""The index of ACLs answers as a walk over all rules does, after every change of the rules (CVE-2024-27309)."""

from random import Random
from typing import Final

import pytest

from tailrace.metadata.image import EMPTY_IMAGE
from tailrace.metadata.records.acls import ACLS, RemoveAccessControlEntryRecord, acl_record
from tailrace.metadata.replay import apply_all
from tailrace.model.acls.bindings import AclBinding
from tailrace.model.acls.rules import AccessQuestion, AclRules

SEEDS: Final = range(8)
CHANGES: Final = 250
QUESTIONS: Final = 60
"""The questions after each change: 120,000 in all seeds."""

NAMES: Final = ("a", "ab", "abc", "abcd", "ab.c", "b", "ba", "*", "a*", "é", "е", "kafka-cluster")
"""Names that are prefixes of each other, `*`, and letters that look alike."""
PRINCIPALS: Final = ("User:a", "User:ab", "User:*", "Group:a", "User:")
HOSTS: Final = ("*", "10.0.0.1", "10.0.0.10", "::1")
KINDS: Final = (2, 3, 4, 5)


def oracle(rules: list[AclBinding], asked: AccessQuestion, default: bool) -> bool:
    """Kafka's rules, one after the other."""
    implied = {8: (3, 4, 6, 7), 10: (11,)}
    about_resource = [
        rule
        for rule in rules
        if rule.resource_type == asked.resource_type
        and (
            (rule.pattern_type == 3 and rule.resource_name in (asked.resource_name, "*"))
            or (rule.pattern_type == 4 and asked.resource_name.startswith(rule.resource_name))
        )
    ]
    about_client = [
        rule
        for rule in about_resource
        if rule.principal in (asked.principal, "User:*") and rule.host in (asked.host, "*")
    ]
    for rule in about_client:
        if rule.permission == 2 and rule.operation in (asked.operation, 2):
            return False
    for rule in about_client:
        if rule.permission == 3 and rule.operation in (asked.operation, 2, *implied.get(asked.operation, ())):
            return True
    return default if not about_resource else False


def any_rule(random: Random) -> AclBinding:
    return AclBinding(
        random.choice(KINDS),
        random.choice(NAMES),
        random.choice((3, 4)),
        random.choice(PRINCIPALS),
        random.choice(HOSTS),
        random.randint(2, 14),
        random.choice((2, 3, 3)),
    )


def any_question(random: Random) -> AccessQuestion:
    name = random.choice(NAMES) + random.choice(("", "", "x", "c"))
    host = random.choice(HOSTS[1:])
    return AccessQuestion(random.choice(PRINCIPALS), host, random.randint(3, 14), random.choice(KINDS), name)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_index_decides_as_a_walk_over_all_rules(seed: int) -> None:
    random = Random(seed)
    index, image = AclRules(), EMPTY_IMAGE
    outcomes = {True: 0, False: 0}
    most = random.choice((4, 12, 60))
    for number in range(CHANGES):
        rules = ACLS.of(image)
        if rules and (len(rules) >= most or random.random() < 0.4):
            acl_id = random.choice(list(rules))
            index.remove(rules[acl_id])
            image, _ = apply_all(image, [RemoveAccessControlEntryRecord(id=acl_id)])
        else:
            rule = any_rule(random)
            index.add(rule)
            image, _ = apply_all(image, [acl_record(number.to_bytes(16), rule)])
        present = list(ACLS.of(image).values())
        for _ in range(QUESTIONS):
            asked, default = any_question(random), random.random() < 0.5
            decision = index.decide(asked, allows_without_rule=default)
            assert decision.is_allowed is oracle(present, asked, default), (asked, present)
            assert decision.rule is None or decision.rule in present
            outcomes[decision.is_allowed] += 1
    assert min(outcomes.values()) > CHANGES * QUESTIONS // 20


def test_an_index_without_rules_keeps_nothing() -> None:
    random = Random(0)
    rules = [any_rule(random) for _ in range(500)]
    index = AclRules(rules)
    random.shuffle(rules)
    for rule in rules:
        index.remove(rule)
    emptied = {name: value for name, value in vars(index).items() if name != "_prefix_lengths"}
    assert not any(emptied.values())
    assert not any(index._prefix_lengths.values())
