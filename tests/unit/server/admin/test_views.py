"""Requests that would create, write, change or delete a view are refused with the reason (decision 0057)."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.protocol.messages import replicas
from tailrace.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
    ListConfigResourcesRequest,
)
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.messages.replicas import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from tailrace.protocol.messages.topics import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from testkit.nodes.data_path import batch_of
from testkit.nodes.view_readers import ViewNode

VIEW = "orders.shared-8"
INVALID, POLICY = ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.POLICY_VIOLATION


@pytest.fixture
def node() -> ViewNode:
    return ViewNode(partitions=2)


def assert_reason(message: str | None) -> None:
    assert message is not None
    assert "is a view of orders" in message


def create(node: ViewNode, name: str) -> Any:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
    (result,) = node.send(CreateTopicsRequest(topics=(topic,), timeout_ms=1_000), 7).response.topics
    return result


@pytest.mark.parametrize("name", [VIEW, "missing.shared-2", "orders.shared-8.shared-4"])
def test_no_topic_gets_the_name_of_a_view(node: ViewNode, name: str) -> None:
    result = create(node, name)
    assert result.error_code == INVALID
    assert "name of a view" in result.error_message


@pytest.mark.parametrize("name", ["orders.shared-3", "orders.shared-016", "orders.shared-1", "..shared-16"])
def test_a_topic_may_have_a_name_that_is_no_views(node: ViewNode, name: str) -> None:
    assert create(node, name).error_code == 0


@pytest.mark.parametrize("by_id", [False, True])
def test_a_view_is_not_deleted(node: ViewNode, by_id: bool) -> None:
    named = DeleteTopicState(name=None, topic_id=node.view_id(VIEW)) if by_id else DeleteTopicState(name=VIEW)
    request = DeleteTopicsRequest(topics=(named,), timeout_ms=1_000)
    (result,) = node.send(request, 6).response.responses
    assert result.error_code == INVALID
    assert_reason(result.error_message)
    assert node.end(VIEW, 0) == 0


def test_a_view_gets_no_partitions(node: ViewNode) -> None:
    topic = CreatePartitionsTopic(name=VIEW, count=32, assignments=None)
    request = CreatePartitionsRequest(topics=(topic,), timeout_ms=1_000, validate_only=False)
    (result,) = node.send(request, 3).response.results
    assert result.error_code == INVALID
    assert_reason(result.error_message)


@pytest.mark.parametrize("version", [3, 7, 12, 13])
def test_a_view_is_not_written(node: ViewNode, version: int) -> None:
    data = TopicProduceData(
        name=VIEW if version < 13 else "",
        topic_id=node.view_id(VIEW) if version >= 13 else bytes(16),
        partition_data=(PartitionProduceData(index=0, records=batch_of(b"v", now=node.clock.now_ms)),),
    )
    produced = node.send(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=(data,)), version).produced
    assert produced.error_code == INVALID
    if version >= 8:
        assert_reason(produced.error_message)
    assert node.table.get("orders", 0).log.log_end_offset == 0


def test_records_of_a_view_are_not_deleted(node: ViewNode) -> None:
    node.write(b"a", b"b")
    topic = DeleteRecordsTopic(name=VIEW, partitions=(DeleteRecordsPartition(partition_index=0, offset=1),))
    response = node.send(DeleteRecordsRequest(topics=(topic,), timeout_ms=1_000), 2).response
    assert response.topics[0].partitions[0].error_code == INVALID
    assert node.table.get("orders", 0).log.log_start_offset == 0


def test_the_settings_of_a_view_cannot_be_changed(node: ViewNode) -> None:
    change = IncrementallyAlterableConfig(name="retention.ms", config_operation=0, value="1")
    incremental = IncrementalAlterConfigsRequest(
        resources=(IncrementalAlterConfigsResource(resource_type=2, resource_name=VIEW, configs=(change,)),),
        validate_only=False,
    )
    all_of_them = AlterConfigsRequest(
        resources=(
            AlterConfigsResource(
                resource_type=2, resource_name=VIEW, configs=(AlterableConfig(name="retention.ms", value="1"),)
            ),
        ),
        validate_only=False,
    )
    for request, version in ((incremental, 1), (all_of_them, 2)):
        (result,) = node.send(request, version).response.responses
        assert result.error_code == POLICY
        assert_reason(result.error_message)


def test_a_view_has_the_settings_of_its_topic_which_are_read_only(node: ViewNode) -> None:
    change = IncrementallyAlterableConfig(name="retention.ms", config_operation=0, value="777")
    resource = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(change,))
    node.send(IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False), 1)
    request = DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
            for name in ("orders", VIEW, "missing.shared-8")
        )
    )
    own, of_view, missing = node.send(request, 4).response.results
    assert (of_view.error_code, of_view.resource_name) == (0, VIEW)
    assert [(config.name, config.value) for config in of_view.configs] == [
        (config.name, config.value) for config in own.configs
    ]
    assert {config.name: config.value for config in of_view.configs}["retention.ms"] == "777"
    assert all(config.read_only for config in of_view.configs)
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_no_list_of_resources_has_views(node: ViewNode) -> None:
    response = node.send(ListConfigResourcesRequest(resource_types=(2,)), 1).response
    assert [resource.resource_name for resource in response.config_resources] == ["orders"]


def test_no_leader_is_elected_for_a_view(node: ViewNode) -> None:
    request = ElectLeadersRequest(
        election_type=0, topic_partitions=(replicas.ElectLeadersTopic(topic=VIEW, partitions=(0,)),), timeout_ms=1_000
    )
    response = node.send(request, 2).response
    result = response.replica_election_results[0].partition_result[0]
    assert result.error_code == INVALID
    assert_reason(result.error_message)


def test_no_replica_of_a_view_is_moved(node: ViewNode) -> None:
    request = AlterPartitionReassignmentsRequest(
        timeout_ms=1_000,
        topics=(
            replicas.ReassignableTopic(
                name=VIEW, partitions=(replicas.ReassignablePartition(partition_index=0, replicas=(1,)),)
            ),
        ),
    )
    result = node.send(request, 0).response.responses[0].partitions[0]
    assert result.error_code == INVALID
    assert_reason(result.error_message)
    listed = ListPartitionReassignmentsRequest(
        timeout_ms=1_000, topics=(replicas.ListPartitionReassignmentsTopic(name=VIEW, partition_indexes=(0,)),)
    )
    assert node.send(listed, 0).response.topics == ()


def test_new_topics_leave_the_ids_of_views_free(node: ViewNode) -> None:
    node.create_topics(*(f"topic-{number}" for number in range(40)))
    prefixes = [bytes(topic_id[:15]) + bytes((topic_id[15] >> 4,)) for topic_id in node.controller.image.topic_names]
    assert len(set(prefixes)) == len(prefixes)
    assert TopicId(bytes(16)) not in node.controller.image.topic_names
