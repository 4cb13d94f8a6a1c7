"""Members that share a topic by its view: how soon a slot that is given up has its next owner (decision 0105)."""

import pytest

from scenarios.groups.consumer_group_nodes import new_node
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from testkit.coordinators.consumer_groups import TableMember
from testkit.coordinators.group_path import GroupPath

E = ErrorCode
VIEW = "orders.shared-4"


@pytest.fixture
def node() -> GroupPath:
    return new_node()


def _withdraw(node: GroupPath, member: TableMember, *, keeps: int) -> None:
    """Subscribe to nothing, and name one partition that is still busy."""
    (topic_id,) = member.owned
    owned = HeartbeatTopicPartitions(topic_id=topic_id, partitions=(keeps,))
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id=member.name,
        member_epoch=member.epoch,
        subscribed_topic_names=(),
        subscribed_topic_regex="",
        topic_partitions=(owned,),
    )
    assert node.send(request, 1).response.error_code == 0
    member.owned = {TopicId(topic_id): {keeps}}


@pytest.mark.parametrize("topic", ["orders", VIEW])
def test_partitions_that_a_leaver_has_released_are_free_while_it_keeps_a_busy_partition(
    node: GroupPath, topic: str
) -> None:
    a, b = TableMember(node, "a", topics=(topic,)), TableMember(node, "b", topics=(topic,))
    assert (a.join(), b.join()) == (E.NONE, E.NONE)
    for member in (a, a, b):
        assert member.beat() is E.NONE
    (topic_id,) = a.owned
    busy, *_ = sorted(a.owned[topic_id])
    everything = a.owned[topic_id] | b.owned[topic_id]
    _withdraw(node, a, keeps=busy)
    assert b.beat() is E.NONE
    assert b.owned[topic_id] == everything - {busy}
    assert a.leave() is E.NONE
    assert b.beat() is E.NONE
    assert b.owned[topic_id] == everything


def test_a_member_that_shares_by_key_has_a_short_heartbeat_interval(node: GroupPath) -> None:
    slots, whole = TableMember(node, "a", topics=(VIEW,)), TableMember(node, "b", group_id="h")
    node.find_coordinator("h")
    assert (slots.join(), whole.join()) == (E.NONE, E.NONE)
    assert (slots.interval_ms, whole.interval_ms) == (500, 5_000)
    slots.subscribe("orders")
    assert slots.interval_ms == 5_000


def test_many_members_that_share_by_key_send_heartbeats_less_often(node: GroupPath) -> None:
    members = [TableMember(node, f"m{number}", topics=(VIEW,)) for number in range(120)]
    assert {member.join() for member in members} == {E.NONE}
    for member in members * 3:
        assert member.beat() is E.NONE
    assert {member.interval_ms for member in members} == {600}
