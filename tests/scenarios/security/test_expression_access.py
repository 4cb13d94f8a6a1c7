"""Regular expressions of consumer groups (KIP-848) match topics that the member may describe."""

import pytest

from tailrace.model.access import Operation, SecuredType
from tailrace.model.errors import ErrorCode
from testkit.coordinators.consumer_groups import TableMember
from testkit.coordinators.secured_path import ADMIN, SecuredPath

ALICE, BOB = "User:alice", "User:bob"
TOPIC, GROUP = SecuredType.TOPIC, SecuredType.GROUP
READ, DESCRIBE = Operation.READ, Operation.DESCRIBE
E = ErrorCode


@pytest.fixture
def node() -> SecuredPath:
    node = SecuredPath()
    node.create_topics("orders", "orders-secret", partitions=2)
    node.find_coordinator("g")
    for principal in (ALICE, BOB):
        node.allow(principal, READ, GROUP, "g")
        node.allow(principal, READ, TOPIC, "orders")
    return node


def member(node: SecuredPath, principal: str, **fields: object) -> TableMember:
    """A member of the group that subscribes to every topic that begins with `orders`."""
    name = principal.removeprefix("User:")
    connection = node.connection_of(principal)
    return TableMember(node, name, topics=(), regex="orders.*", connection=connection, **fields)  # type: ignore[arg-type]


def settle(*members: TableMember) -> None:
    """Heartbeats until the members have their targets."""
    for _ in range(4):
        for beating in members:
            assert beating.beat() is E.NONE


def targets(node: SecuredPath, name: str) -> set[str]:
    """The topics in the target of a member."""
    group = node.coordinators.host_of("g").machine.committed.groups["g"].consumer
    assert group is not None
    names = node.controller.image.topic_names
    return {names[topic_id] for topic_id, _ in group.targets[name]}  # type: ignore[index]


def test_a_member_is_assigned_no_topic_that_it_may_not_describe(node: SecuredPath) -> None:
    alice = member(node, ALICE)
    assert alice.join() is E.NONE
    assert (alice.topics_read, targets(node, "alice")) == ({"orders"}, {"orders"})


def test_forbidden_topics_go_to_the_members_that_may_read_them(node: SecuredPath) -> None:
    node.allow(BOB, READ, TOPIC, "orders-secret")
    alice, bob = member(node, ALICE), member(node, BOB)
    alice.join()
    bob.join()
    settle(alice, bob)
    assert alice.topics_read == {"orders"}
    assert bob.partitions("orders-secret") == {0, 1}
    assert alice.partitions() | bob.partitions() == {0, 1}


def test_a_change_of_the_rules_moves_the_topics_at_the_next_heartbeat(node: SecuredPath) -> None:
    alice, bob = member(node, ALICE), member(node, BOB)
    alice.join()
    bob.join()
    settle(alice, bob)
    rule = node.allow(BOB, DESCRIBE, TOPIC, "orders-secret")
    settle(alice, bob)
    assert (alice.topics_read, bob.partitions("orders-secret")) == ({"orders"}, {0, 1})
    node.revoke(rule)
    settle(alice, bob)
    assert bob.topics_read == {"orders"}
    assert targets(node, "bob") == {"orders"}


def test_a_change_of_the_rules_about_other_topics_is_no_rebalance(node: SecuredPath) -> None:
    alice = member(node, ALICE)
    alice.join()
    settle(alice)
    epoch = alice.epoch
    node.allow(ALICE, READ, TOPIC, "returns")
    settle(alice)
    assert alice.epoch == epoch


def test_a_rule_about_a_host_is_asked_with_the_address_of_the_member(node: SecuredPath) -> None:
    node.allow(ALICE, READ, TOPIC, "orders-secret", host="10.0.0.9")
    alice = member(node, ALICE)
    alice.join()
    assert alice.topics_read == {"orders"}
    node.allow(ALICE, READ, TOPIC, "orders-secret", host="127.0.0.1")
    settle(alice)
    assert alice.topics_read == {"orders", "orders-secret"}


def test_a_coordinator_that_takes_over_knows_the_clients_of_members(node: SecuredPath) -> None:
    alice = member(node, ALICE)
    alice.join()
    group = node.coordinators.host_of("g").machine.committed.groups["g"].consumer
    assert group is not None
    assert group.members["alice"].subscription.principal == ALICE


def test_the_same_member_id_of_another_client_is_asked_anew(node: SecuredPath) -> None:
    alice = member(node, ALICE)
    alice.join()
    settle(alice)
    assert alice.topics_read == {"orders"}
    alice.connection = node.connection_of(ADMIN)
    settle(alice)
    assert alice.topics_read == {"orders", "orders-secret"}
    alice.connection = node.connection_of(ALICE)
    settle(alice)
    assert alice.topics_read == {"orders"}
