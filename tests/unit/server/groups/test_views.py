"""Groups that read views (decision 0057): offsets are ordinary, and KIP-848 groups are assigned view partitions."""

from collections.abc import Sequence

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.model.views import folded_id
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from tailrace.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic, DeleteTopicsRequest
from tailrace.protocol.messages.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tailrace.server.groups import consumer_groups
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.consumer_groups import TableMember, describe
from testkit.coordinators.group_path import GroupPath

VIEW = "orders.shared-4"


def new_node(**settings: str) -> GroupPath:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    node = GroupPath("/data", files=SimulatedDisk(), settings=named)
    node.create_topics("orders", partitions=2)
    node.find_coordinator("g")
    return node


@pytest.fixture
def node() -> GroupPath:
    return new_node()


def view_id(node: GroupPath) -> TopicId:
    return folded_id(node.topic_id("orders"), 4)


def code_of_commit(node: GroupPath, topic: str, offset: int, *, partition: int = 0, version: int = 9) -> int:
    response = node.commit("g", topic, offset, partition=partition, version=version).response
    code: int = response.topics[0].partitions[0].error_code
    return code


def test_an_offset_in_a_view_is_its_own(node: GroupPath) -> None:
    assert code_of_commit(node, VIEW, 7, partition=5) == 0
    assert node.committed("g", VIEW, partition=5) == 7
    assert [node.committed("g", name, partition=0) for name in (VIEW, "orders", "orders.shared-8")] == [-1, -1, -1]


@pytest.mark.parametrize("version", range(2, 10))
def test_every_version_commits_by_name(node: GroupPath, version: int) -> None:
    assert code_of_commit(node, VIEW, version, partition=1, version=version) == 0
    assert node.committed("g", VIEW, partition=1) == version


def test_offsets_are_committed_and_fetched_by_id(node: GroupPath) -> None:
    topic = OffsetCommitRequestTopic(
        name="",
        topic_id=view_id(node),
        partitions=(OffsetCommitRequestPartition(partition_index=7, committed_offset=70, committed_metadata=""),),
    )
    response = node.send(
        OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=(topic,)), 10
    ).response
    assert response.topics[0].partitions[0].error_code == 0
    wanted = OffsetFetchRequestTopics(topic_id=view_id(node), partition_indexes=(7, 6))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=(wanted,)),))
    (found,) = node.send(request, 10).response.groups[0].topics
    assert [(partition.error_code, partition.committed_offset) for partition in found.partitions] == [(0, 70), (0, -1)]


@pytest.mark.parametrize("partition", [-1, 8, 2**31 - 1])
def test_an_offset_in_a_partition_that_a_view_does_not_have_is_refused(node: GroupPath, partition: int) -> None:
    assert code_of_commit(node, VIEW, 7, partition=partition) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["orders.shared-3", "missing.shared-4", "orders.shared-4.shared-4"])
def test_an_offset_in_no_view_is_refused(node: GroupPath, name: str) -> None:
    assert code_of_commit(node, name, 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def all_offsets(node: GroupPath) -> dict[tuple[str, int], int]:
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=None),))
    (group,) = node.send(request, 8).response.groups
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in group.topics
        for partition in topic.partitions
    }


def test_a_fetch_of_all_offsets_has_those_in_views(node: GroupPath) -> None:
    node.commit("g", VIEW, 7, partition=5)
    node.commit("g", "orders", 8, partition=1)
    assert all_offsets(node) == {(VIEW, 5): 7, ("orders", 1): 8}


def test_offsets_in_a_view_are_deleted(node: GroupPath) -> None:
    node.commit("g", VIEW, 7, partition=5)
    wanted = tuple(OffsetDeleteRequestPartition(partition_index=number) for number in (5, 8))
    request = OffsetDeleteRequest(group_id="g", topics=(OffsetDeleteRequestTopic(name=VIEW, partitions=wanted),))
    response = node.send(request, 0).response
    assert [partition.error_code for partition in response.topics[0].partitions] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert all_offsets(node) == {}


def delete_orders(node: GroupPath) -> None:
    node.send(DeleteTopicsRequest(topic_names=("orders",), timeout_ms=1_000), 5)


def test_offsets_in_a_view_end_with_the_topic(node: GroupPath) -> None:
    node.create_topics("others")
    for name in (VIEW, "orders.shared-256", "orders", "others", "others.shared-4"):
        node.commit("g", name, 7)
    delete_orders(node)
    node.create_topics("orders", partitions=2)
    assert all_offsets(node) == {("others", 0): 7, ("others.shared-4", 0): 7}


def restarted(node: GroupPath, **settings: str) -> GroupPath:
    node.stop()
    again = GroupPath("/data", files=node.files, start=2, settings=settings)
    again.find_coordinator("g")
    return again


def test_offsets_in_a_view_outlive_a_restart(node: GroupPath) -> None:
    node.commit("g", VIEW, 7, partition=5)
    again = restarted(node)
    assert again.committed("g", VIEW, partition=5) == 7


def test_offsets_in_a_view_outlive_the_time_in_which_it_is_not_served(node: GroupPath) -> None:
    node.commit("g", VIEW, 7, partition=5)
    off = restarted(node, **{"group.key.ranges.enable": "false"})
    assert all_offsets(off) == {}
    assert code_of_commit(off, VIEW, 8) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    on = restarted(off)
    assert on.committed("g", VIEW, partition=5) == 7


def test_offsets_of_a_topic_that_ended_while_no_coordinator_was_active_are_deleted(node: GroupPath) -> None:
    node.commit("g", VIEW, 7, partition=5)
    delete_orders(node)
    node.create_topics("orders", partitions=2)
    again = restarted(node)
    assert all_offsets(again) == {}


def share_orders(node: GroupPath, value: str) -> None:
    change = IncrementallyAlterableConfig(name="key.ranges.enable", config_operation=0, value=value)
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(change,))
    node.send(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)


def commit_in_transaction(node: GroupPath, topic: str, partition: int) -> list[int]:
    commit = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=9, committed_metadata="")
    request = TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=5,
        producer_epoch=0,
        topics=(TxnOffsetCommitRequestTopic(name=topic, partitions=(commit,)),),
    )
    response = node.send(request, 3).response
    return [each.error_code for topic in response.topics for each in topic.partitions]


def test_an_offset_in_a_view_is_committed_in_a_transaction() -> None:
    node = new_node(transaction_partition_verification_enable="false")
    assert commit_in_transaction(node, VIEW, 3) == [0]
    assert commit_in_transaction(node, VIEW, 8) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


# KIP-848


def given(members: Sequence[TableMember], topic_id: TopicId) -> list[list[int]]:
    for _ in range(6):
        for member in members:
            assert member.beat() is ErrorCode.NONE
    return [sorted(member.owned.get(topic_id, set())) for member in members]


def test_a_group_shares_a_view_out(node: GroupPath) -> None:
    members = [TableMember(node, name, topics=(VIEW,)) for name in ("a", "b", "c")]
    for member in members:
        assert member.join() is ErrorCode.NONE
    shares = given(members, view_id(node))
    assert sorted(number for share in shares for number in share) == list(range(8))
    assert all(2 <= len(share) <= 3 for share in shares)
    assert all(list(member.owned) == [view_id(node)] for member in members)
    members.pop().leave()
    shares = given(members, view_id(node))
    assert [len(share) for share in shares] == [4, 4]


def test_a_group_is_described_with_the_name_of_the_view(node: GroupPath) -> None:
    member = TableMember(node, "a", topics=(VIEW,))
    member.join()
    given([member], view_id(node))
    (shown,) = describe(node, "g").members
    assert shown.subscribed_topic_names == (VIEW,)
    (assigned,) = shown.assignment.topic_partitions
    assert (assigned.topic_id, assigned.topic_name) == (view_id(node), VIEW)
    assert assigned.partitions == tuple(range(8))


def test_a_pattern_matches_no_view(node: GroupPath) -> None:
    member = TableMember(node, "a", topics=(), regex="orders.*")
    member.join()
    given([member], view_id(node))
    assert list(member.owned) == [node.topic_id("orders")]


def test_a_group_follows_its_view(node: GroupPath) -> None:
    member = TableMember(node, "a", topics=(VIEW,))
    member.join()
    given([member], view_id(node))
    more = CreatePartitionsTopic(name="orders", count=3, assignments=None)
    node.send(CreatePartitionsRequest(topics=(more,), timeout_ms=1_000, validate_only=False), 3)
    assert given([member], view_id(node)) == [list(range(12))]
    share_orders(node, "false")
    assert given([member], view_id(node)) == [[]]
    share_orders(node, "true")
    assert given([member], view_id(node)) == [list(range(12))]
    before = view_id(node)
    delete_orders(node)
    node.create_topics("orders", partitions=1)
    given([member], view_id(node))
    assert dict(member.owned) == {view_id(node): set(range(4))}
    assert before not in member.owned


def test_a_member_may_not_subscribe_to_too_many_partitions_of_views(
    node: GroupPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_groups, "MAX_VIEW_PARTITIONS", 20)
    for names, code in (((VIEW, "orders"), 0), ((VIEW, "orders.shared-8"), ErrorCode.INVALID_REQUEST)):
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id=f"member-{len(names[1])}",
            member_epoch=0,
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=names,
            topic_partitions=(),
        )
        assert node.send(request, 1).response.error_code == code
