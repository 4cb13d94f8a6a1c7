"""CreateAcls and DeleteAcls: records, errors of single rules, and limits."""

from collections.abc import Iterable

import pytest

from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.deciding import acls
from tailrace.metadata.deciding.acls import AclsCreated, AclsDeleted, CreateAcls, DeleteAcls
from tailrace.metadata.records.acls import ACLS, AccessControlEntryRecord, RemoveAccessControlEntryRecord
from tailrace.model.acls.bindings import AclBinding, AclFilter, PatternType
from tailrace.model.errors import ErrorCode
from testkit.quorum.controllers import controller_machine

READ, ALLOW = 3, 3
ORDERS = AclBinding(2, "orders", 3, "User:alice", "*", READ, ALLOW)
BILLS = ORDERS._replace(resource_name="bills")


@pytest.fixture
def machine() -> ControllerMachine:
    return controller_machine()


def created(machine: ControllerMachine, rules: Iterable[AclBinding]) -> list[ErrorCode | None]:
    decision = machine.decide(CreateAcls(rules=tuple(rules)), 0)
    assert all(isinstance(record, AccessControlEntryRecord) for record in decision.records)
    machine.apply_all(decision.records)
    assert isinstance(decision.response, AclsCreated)
    return [None if error is None else error.code for error in decision.response.errors]


def deleted(machine: ControllerMachine, *filters: AclFilter) -> list[tuple[AclBinding, ...] | ErrorCode]:
    decision = machine.decide(DeleteAcls(filters=filters), 0)
    assert all(isinstance(record, RemoveAccessControlEntryRecord) for record in decision.records)
    machine.apply_all(decision.records)
    assert isinstance(decision.response, AclsDeleted)
    return [found.removed if found.error is None else found.error.code for found in decision.response.outcomes]


def present(machine: ControllerMachine) -> list[AclBinding]:
    return list(ACLS.of(machine.image).values())


def test_a_rule_that_exists_is_no_error_and_has_no_second_record(machine: ControllerMachine) -> None:
    assert created(machine, [ORDERS, ORDERS, BILLS]) == [None, None, None]
    assert created(machine, [ORDERS]) == [None]
    assert present(machine) == [ORDERS, BILLS]


def test_an_invalid_rule_is_refused_alone(machine: ControllerMachine) -> None:
    invalid = ORDERS._replace(principal="alice")
    assert created(machine, [invalid, ORDERS]) == [ErrorCode.INVALID_REQUEST, None]
    assert present(machine) == [ORDERS]


def test_rules_above_the_limit_are_refused(machine: ControllerMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MOST_ACLS", 3)
    rules = [ORDERS._replace(resource_name=name) for name in "abcde"]
    refused = ErrorCode.POLICY_VIOLATION
    assert created(machine, rules) == [None, None, None, refused, refused]
    assert created(machine, [rules[0], rules[4]]) == [None, refused]
    assert deleted(machine, AclFilter(resource_name="a")) == [(rules[0],)]
    assert created(machine, [rules[4]]) == [None]


def test_a_rule_is_removed_once_and_named_by_each_filter_that_matches(machine: ControllerMachine) -> None:
    created(machine, [ORDERS, BILLS])
    named = AclFilter(resource_name="orders")
    assert deleted(machine, named, AclFilter(), AclFilter(principal="User:bob")) == [(ORDERS,), (ORDERS, BILLS), ()]
    assert present(machine) == []
    assert machine.image.tables == {}


def test_an_unknown_filter_is_refused_alone(machine: ControllerMachine) -> None:
    created(machine, [ORDERS, BILLS])
    unknown = AclFilter(operation=99)
    assert deleted(machine, unknown, AclFilter(resource_name="bills")) == [ErrorCode.INVALID_REQUEST, (BILLS,)]
    assert present(machine) == [ORDERS]


@pytest.mark.parametrize("pattern", [PatternType.ANY, PatternType.LITERAL, PatternType.MATCH])
def test_a_filter_with_a_name_matches_as_without_the_index(machine: ControllerMachine, pattern: PatternType) -> None:
    rules = [
        ORDERS,
        ORDERS._replace(pattern_type=PatternType.PREFIXED),
        ORDERS._replace(resource_name="ord", pattern_type=PatternType.PREFIXED),
        ORDERS._replace(resource_name="*"),
    ]
    created(machine, rules)
    wanted = AclFilter(resource_name="orders", pattern_type=pattern)
    assert deleted(machine, wanted) == [tuple(rule for rule in rules if wanted.matches(rule))]


def test_the_work_and_the_answer_of_a_request_are_limited(
    machine: ControllerMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(machine, [ORDERS, BILLS])
    monkeypatch.setattr(acls, "MOST_WALKS", 1)
    refused = ErrorCode.POLICY_VIOLATION
    assert deleted(machine, AclFilter(host="x"), AclFilter(), AclFilter(resource_name="x")) == [(), refused, ()]
    monkeypatch.setattr(acls, "MOST_ACLS", 1)
    assert deleted(machine, *[AclFilter(resource_name="bills")] * 2) == [(BILLS,), refused]
    assert present(machine) == [ORDERS]
