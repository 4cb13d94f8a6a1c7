from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.consumer.coordinator import ConsumerGroups
from tailrace.coordinators.groups.consumer.heartbeat import ConsumerHeartbeat
from tailrace.coordinators.groups.consumer.sessions import MemberKey, Sessions
from tailrace.coordinators.groups.history import GroupHistory
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from testkit.coordinators.group_coordinator import NoTopics


def test_members_that_come_and_go_do_not_pile_up() -> None:
    sessions = Sessions(lambda _: 45_000)
    stays = MemberKey("g", "stays")
    sessions.heard(stays, 0, None)
    for number in range(10_000):
        key = MemberKey("g", f"member-{number}")
        sessions.heard(key, 1, None)
        sessions.forget(key)
    assert len(sessions) < 200
    assert [key for key, _ in sessions.take_due(45_000)] == [stays]


def test_nothing_is_remembered_of_a_group_that_did_not_come_to_be() -> None:
    histories: dict[str, GroupHistory] = {}
    groups = ConsumerGroups(GroupConfig(), histories, topics=NoTopics(), new_member_id=lambda prefix: prefix)
    request = ConsumerGroupHeartbeatRequest(
        group_id="g",
        member_id="a",
        member_epoch=0,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=("orders",),
        topic_partitions=(),
    )
    command = ConsumerHeartbeat(
        request=request,
        client_id="c",
        client_host="/127.0.0.1",
    )
    groups.heartbeat(None, command, 0)
    assert list(histories) == ["g"]
    groups.write_failed(MemberKey("g", "a"), None, 0, keeps_history=False)
    assert not histories
    assert list(groups.take_due(45_000)) == []
    assert groups.remove(MemberKey("g", "a"), None, "late", 45_000) is None
