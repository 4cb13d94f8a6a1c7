"""Offsets of a group in a producer's transaction, on a node."""

import pytest

from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import TransactionalClient, transaction_node
from testkit.nodes.faults import lose_power
from testkit.nodes.ports import HoldingDisk
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode
versions = pytest.mark.parametrize("version", [0, 2])


@versions
def test_offsets_count_when_their_transaction_commits(version: int) -> None:
    node = transaction_node()
    client = TransactionalClient.begun(node, version=version)
    node.commit("g", "orders", 3)
    for offset, is_commit in ((5, False), (6, True)):
        assert client.set_offset(offset) is E.NONE
        assert node.committed("g", "orders") == 3, "a fetch that does not ask for stable offsets sees the last one"
        assert node.stable_offset("g", "orders") is E.UNSTABLE_OFFSET_COMMIT
        assert node.stable_offset("g", "bills") == -1
        assert client.end(is_commit=is_commit) is E.NONE
        assert node.stable_offset("g", "orders") == (6 if is_commit else 3)


@versions
@pytest.mark.parametrize("is_verified", ["true", "false"])
@pytest.mark.parametrize(
    ("identity", "code"), [((-1, -1), E.INVALID_PRODUCER_ID_MAPPING), ((7, -1), E.INVALID_PRODUCER_EPOCH)]
)
def test_offsets_of_no_producer_are_not_pending(
    version: int, is_verified: str, identity: tuple[int, int], code: ErrorCode
) -> None:
    """A batch of no producer is not transactional, so no marker would ever end it."""
    node = transaction_node(settings={"transaction.partition.verification.enable": is_verified})
    client = TransactionalClient(node, "pay", version=version)
    node.find_transaction_coordinator("pay")
    client.take(*identity)
    assert client.commit_offset("g", "orders", 5) is code
    assert node.stable_offset("g", "orders") == -1


@versions
def test_pending_offsets_outlive_a_power_cut(version: int) -> None:
    files = SimulatedDisk(seed=8)
    node = transaction_node(files)
    client = TransactionalClient.begun(node, version=version)
    assert client.set_offset(5) is E.NONE
    lose_power(files)
    client.node = node = transaction_node(files, start=2)
    assert node.stable_offset("g", "orders") is E.UNSTABLE_OFFSET_COMMIT
    assert client.end(is_commit=True) is E.NONE
    assert node.stable_offset("g", "orders") == 5
    lose_power(files)
    assert transaction_node(files, start=3).stable_offset("g", "orders") == 5


def test_a_plain_commit_in_the_middle_of_a_transaction_stays() -> None:
    node = transaction_node()
    client = TransactionalClient.begun(node)
    assert client.set_offset(5) is E.NONE
    node.commit("g", "orders", 7)
    assert client.end(is_commit=True) is E.NONE
    assert node.stable_offset("g", "orders") == 7


@versions
def test_offsets_of_a_deleted_topic_do_not_come_back_with_their_transaction(version: int) -> None:
    files = SimulatedDisk(seed=9)
    node = transaction_node(files)
    client = TransactionalClient.begun(node, version=version)
    assert client.set_offset(5) is E.NONE
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    node.create_topics("orders")
    assert node.stable_offset("g", "orders") == -1
    assert client.end(is_commit=True) is E.NONE
    assert node.committed("g", "orders") == -1
    lose_power(files)
    assert transaction_node(files, start=2).committed("g", "orders") == -1


def test_a_topic_may_be_deleted_during_the_verification() -> None:
    clock = ManualClock()
    disk = HoldingDisk(clock.call_soon)
    node = transaction_node(clock=clock, disk=disk)
    client = TransactionalClient.begun(node, version=2)
    disk.holds = True
    exchange = client.ask_for_offset("g", "orders", 5)
    disk.holds = False
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    assert not exchange.is_answered
    disk.run()
    node.end_turn()
    assert exchange.response.topics[0].partitions[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    node.create_topics("orders")
    assert client.end(is_commit=True) is E.NONE
    assert node.committed("g", "orders") == -1


@versions
def test_a_deleted_group_does_not_come_back_with_a_transaction(version: int) -> None:
    files = SimulatedDisk(seed=10)
    node = transaction_node(files)
    client = TransactionalClient.begun(node, version=version)
    node.commit("g", "orders", 3)
    assert client.set_offset(5) is E.NONE
    (deleted,) = node.send(DeleteGroupsRequest(groups_names=("g",)), 2).response.results
    assert deleted.error_code == E.NONE
    assert node.send(ListGroupsRequest(), 5).response.groups == ()
    assert client.end(is_commit=True) is E.NONE
    assert node.send(ListGroupsRequest(), 5).response.groups == ()
    lose_power(files)
    again = transaction_node(files, start=2)
    assert again.committed("g", "orders") == -1
    assert again.send(ListGroupsRequest(), 5).response.groups == ()


def test_offsets_of_a_stranger_or_of_a_former_producer_are_refused() -> None:
    node = transaction_node()
    client = TransactionalClient.begun(node)
    member_id, generation_id = node.form_group("g")
    assert client.set_offset(5, member_id=member_id, generation_id=generation_id) is E.NONE
    assert client.set_offset(6, member_id=member_id, generation_id=generation_id + 1) is E.ILLEGAL_GENERATION
    assert client.set_offset(6, member_id="no-such-member", generation_id=generation_id) is E.UNKNOWN_MEMBER_ID
    assert TransactionalClient.begun(node).end(is_commit=True) is E.INVALID_TXN_STATE
    assert client.commit_offset("g", "orders", 6) is E.INVALID_PRODUCER_EPOCH
    assert client.commit_offset("g", "nothing", 6) is E.UNKNOWN_TOPIC_OR_PARTITION


def test_offsets_of_a_transaction_that_is_over_open_no_other() -> None:
    """KIP-890."""
    node = transaction_node()
    client = TransactionalClient.begun(node)
    assert client.commit_offset("g", "orders", 5) is E.TRANSACTION_ABORTABLE
    assert client.set_offset(5) is E.NONE
    assert client.end(is_commit=False) is E.NONE
    assert client.commit_offset("g", "orders", 6) is E.TRANSACTION_ABORTABLE
    assert node.stable_offset("g", "orders") == -1
