"""The records that groups have not read, as leaders count them here and on other brokers (decision 0100)."""

from typing import Any

import pytest

from tailrace.metadata.views import Views
from tailrace.model.ids import BrokerId
from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import key_range_of
from tailrace.server.groups.group_lags import FIRST_WITH_COUNTS, GroupLags
from testkit.nodes.ports import DeferredPeer
from testkit.nodes.view_readers import ViewNode

VIEW = "orders.shared-4"
KEYS = [b"key-%d" % number for number in range(60)]
OTHER = BrokerId(7)


@pytest.fixture
def node() -> ViewNode:
    node = ViewNode()
    node.write(*KEYS)
    return node


def left(number: int, offset: int) -> int:
    wanted = [key_range_of(number, 4)]
    return sum(contains(wanted, hash_of(key, 0)) for key in KEYS[offset:])


def lags_beside(node: ViewNode, peer: DeferredPeer) -> GroupLags:
    """The lags as another broker sees them."""
    return GroupLags(
        broker_id=OTHER,
        find_partition=lambda *_: None,
        image=lambda: node.broker.controller.image,
        views=Views(),
        readable=node.broker.readable_views,
        peer=peer,
        timeout_ms=1_000,
    )


@pytest.mark.parametrize("offset", [0, 13, 60, 61])
def test_the_leader_counts_the_records_of_a_slot_and_of_a_partition(node: ViewNode, offset: int) -> None:
    lags = node.broker.group_lags
    for number in range(4):
        where = TopicPartition(VIEW, number)
        assert lags.other_leader(where) is None
        assert lags.here(where, offset, lags.new_scan()) == left(number, offset)
    assert lags.here(TopicPartition("orders", 0), offset, lags.new_scan()) == max(60 - offset, 0)


@pytest.mark.parametrize("where", [("absent", 0), ("absent.shared-4", 0), ("orders", 1), (VIEW, 4)])
def test_partitions_that_do_not_exist_have_no_lag(node: ViewNode, where: tuple[str, int]) -> None:
    lags = node.broker.group_lags
    assert lags.other_leader(TopicPartition(*where)) is None
    assert lags.here(TopicPartition(*where), 0, lags.new_scan()) is None


def test_another_leader_is_asked_for_its_counts(node: ViewNode) -> None:
    peer = DeferredPeer()
    lags = lags_beside(node, peer)
    wanted = {TopicPartition(VIEW, number): 20 for number in range(4)} | {TopicPartition("orders", 0): 50}
    leaders = {lags.other_leader(where) for where in wanted}
    assert leaders == {node.broker.config.broker_id}
    assert lags.here(TopicPartition(VIEW, 0), 20, lags.new_scan()) is None, "it is no replica"
    known: list[Any] = []
    lags.ask(BrokerId(1), {**wanted, TopicPartition("absent", 0): 0}, known.append)
    ((_, request, on_reply),) = peer.waiting
    on_reply(node.send(request, FIRST_WITH_COUNTS).response)
    assert known == [{TopicPartition("orders", 0): 10} | {TopicPartition(VIEW, n): left(n, 20) for n in range(4)}]


def test_a_leader_without_an_answer_leaves_the_lags_unknown(node: ViewNode) -> None:
    peer = DeferredPeer()
    known: list[Any] = []
    lags_beside(node, peer).ask(BrokerId(1), {TopicPartition(VIEW, 0): 0}, known.append)
    peer.waiting[0][2](None)
    assert known == [{}]
