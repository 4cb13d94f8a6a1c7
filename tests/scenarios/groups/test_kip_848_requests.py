"""KIP-848: the first heartbeats of members, and the commits and fetches of offsets of a consumer group."""

from typing import Any

import pytest

from scenarios.groups.consumer_group_nodes import VALID, code_of_commit, new_node, two_members
from tailrace.metadata.commands import TopicReference
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest, HeartbeatTopicPartitions
from tailrace.protocol.messages.offsets import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from testkit.coordinators.consumer_groups import TableMember
from testkit.coordinators.group_path import GroupPath
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode

OWNS = (HeartbeatTopicPartitions(topic_id=bytes(15) + b"\1", partitions=(0,)),)


class TestFirstHeartbeats:
    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({}, E.NONE),
            ({"group_id": ""}, E.INVALID_REQUEST),
            ({"group_id": "  "}, E.INVALID_REQUEST),
            ({"member_id": ""}, E.INVALID_REQUEST),
            ({"member_id": "  "}, E.INVALID_REQUEST),
            ({"instance_id": ""}, E.INVALID_REQUEST),
            ({"rack_id": ""}, E.INVALID_REQUEST),
            ({"member_epoch": -3}, E.INVALID_REQUEST),
            ({"member_epoch": -2}, E.INVALID_REQUEST),
            ({"rebalance_timeout_ms": -1}, E.INVALID_REQUEST),
            ({"topic_partitions": None}, E.INVALID_REQUEST),
            ({"topic_partitions": OWNS}, E.INVALID_REQUEST),
            ({"subscribed_topic_names": None}, E.INVALID_REQUEST),
            ({"subscribed_topic_names": ()}, E.NONE),
            ({"subscribed_topic_names": ("x" * 30_000,) * 280}, E.INVALID_REQUEST),
            ({"server_assignor": "mine"}, E.UNSUPPORTED_ASSIGNOR),
            ({"server_assignor": "range"}, E.NONE),
            ({"subscribed_topic_regex": "o.*"}, E.NONE),
            ({"subscribed_topic_names": None, "subscribed_topic_regex": "o.*"}, E.NONE),
            ({"subscribed_topic_regex": "("}, E.INVALID_REGULAR_EXPRESSION),
            ({"subscribed_topic_regex": "(?=o)"}, E.INVALID_REGULAR_EXPRESSION),
            ({"subscribed_topic_regex": "o" * 4093 + "o{2}"}, E.INVALID_REGULAR_EXPRESSION),
            ({"subscribed_topic_regex": "((a{100}){100}){100}"}, E.INVALID_REGULAR_EXPRESSION),
        ],
    )
    def test_the_first_heartbeat_of_a_member_is_checked(
        self, node: GroupPath, change: dict[str, Any], code: ErrorCode
    ) -> None:
        assert node.send(ConsumerGroupHeartbeatRequest(**{**VALID, **change}), 1).response.error_code == code

    def test_a_node_without_the_protocol_refuses_its_members_and_keeps_classic_groups(self) -> None:
        node = new_node(group_coordinator_rebalance_protocols="classic")
        exchange = node.send(ConsumerGroupHeartbeatRequest(**VALID), 1)
        assert exchange.response.error_code == E.UNSUPPORTED_VERSION
        assert "group.coordinator.rebalance.protocols" in exchange.response.error_message

    def test_before_v1_of_a_heartbeat_the_coordinator_makes_the_member_id(self, node: GroupPath) -> None:
        answer = node.send(ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""}), 0).response
        assert answer.error_code == E.NONE
        assert answer.member_id

    def test_a_long_client_id_is_no_part_of_the_member_id(self, node: GroupPath) -> None:
        """Clients name themselves in up to 32,767 bytes, and a record's key has room for a member id of as many."""
        request = ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""})
        answer = node.send(request, 0, client_id="z" * 32_760).response
        assert (answer.error_code, "z" in answer.member_id) == (E.NONE, False)

    def test_a_heartbeat_that_no_record_can_hold_leaves_nothing_behind(
        self, node: GroupPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = node.coordinators.host_of("g").machine
        monkeypatch.setattr(machine, "_new_member_id", lambda prefix: "m" * 40_000)
        request = ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""})
        assert node.send(request, 0).response.error_code == E.INVALID_REQUEST
        assert not machine.has_group("g")
        assert (machine._histories, machine._consumers._topics_seen) == ({}, {})
        assert machine.next_deadline_ms is None or machine.tick(machine.next_deadline_ms) == []

    def test_a_heartbeat_that_no_record_can_hold_hides_no_new_topic_from_the_next(
        self, node: GroupPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a = TableMember(node, "a")
        a.join()
        node.submit(delete_topics(TopicReference(name="orders")))
        node.end_turn()
        node.create_topics("orders", partitions=6)
        machine = node.coordinators.host_of("g").machine
        monkeypatch.setattr(machine, "_new_member_id", lambda prefix: "m" * 40_000)
        request = ConsumerGroupHeartbeatRequest(**{**VALID, "member_id": ""})
        assert node.send(request, 0).response.error_code == E.INVALID_REQUEST
        for _ in range(3):
            a.beat()
        assert len(a.partitions()) == 6

    def test_a_consumer_group_takes_no_more_members_than_the_limit(self) -> None:
        node = new_node(group_consumer_max_size="1")
        assert TableMember(node, "a").join() is E.NONE
        assert TableMember(node, "b").join() is E.GROUP_MAX_SIZE_REACHED
        assert TableMember(node, "a").join() is E.NONE

    def test_the_answer_to_a_heartbeat_gives_the_heartbeat_interval(self, node: GroupPath) -> None:
        assert node.send(ConsumerGroupHeartbeatRequest(**VALID), 1).response.heartbeat_interval_ms == 5_000


class TestOffsetsOfConsumerGroups:
    @pytest.mark.parametrize(
        ("member", "ahead", "version", "code"),
        [
            ("a", 0, 9, E.NONE),
            ("a", -1, 9, E.STALE_MEMBER_EPOCH),
            ("a", 1, 9, E.STALE_MEMBER_EPOCH),
            ("x", 0, 9, E.UNKNOWN_MEMBER_ID),
            ("a", 0, 8, E.UNSUPPORTED_VERSION),
        ],
    )
    def test_a_commit_to_a_consumer_group_needs_the_epoch_of_the_member(
        self, node: GroupPath, member: str, ahead: int, version: int, code: ErrorCode
    ) -> None:
        a, _ = two_members(node)
        commit = node.commit("g", "orders", 7, generation_id=a.epoch + ahead, member_id=member, version=version)
        assert code_of_commit(commit) is code

    def test_an_administrator_commits_offsets_of_an_empty_consumer_group_alone(self, node: GroupPath) -> None:
        a, b = two_members(node)
        assert code_of_commit(node.commit("g", "orders", 7)) is E.UNKNOWN_MEMBER_ID
        a.leave()
        b.leave()
        assert code_of_commit(node.commit("g", "orders", 7)) is E.NONE

    @pytest.mark.parametrize(
        ("member", "ahead", "code"),
        [("a", 0, E.NONE), ("a", 1, E.STALE_MEMBER_EPOCH), ("x", 0, E.UNKNOWN_MEMBER_ID), (None, None, E.NONE)],
    )
    def test_a_fetch_of_offsets_that_names_a_member_is_checked(
        self, node: GroupPath, member: str | None, ahead: int | None, code: ErrorCode
    ) -> None:
        a, _ = two_members(node)
        topics = (OffsetFetchRequestTopics(name="orders", partition_indexes=(0,)),)
        epoch = -1 if ahead is None else a.epoch + ahead
        asked = OffsetFetchRequestGroup(group_id="g", member_id=member, member_epoch=epoch, topics=topics)
        (group,) = node.send(OffsetFetchRequest(groups=(asked,)), 9).response.groups
        assert group.error_code == code


def test_offsets_of_a_consumer_group_expire_by_subscription_and_the_group_with_the_last() -> None:
    """KIP-211 for these groups: what a member subscribes to stays."""
    node = new_node(offsets_retention_minutes="1", offsets_retention_check_interval_ms="10000")
    a = TableMember(node, "a")
    a.join()
    for topic in ("orders", "returns"):
        node.commit("g", topic, 7, generation_id=a.epoch, member_id="a")
    for _ in range(7):
        node.clock.advance(10_000)
        a.beat()
    assert (node.committed("g", "orders"), node.committed("g", "returns")) == (7, -1)
    a.leave()
    node.clock.advance(10_000)
    assert all(not host.machine.committed.groups for host in node.coordinators.active_hosts())
