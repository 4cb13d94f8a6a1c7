"""DescribeQuorum (55) on a node that keeps the metadata log alone: its voter is found where its broker is."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.quorum import DescribedQuorumPartition, DescribedQuorumTopic, DescribeQuorumRequest
from tailrace.protocol.schema import ZERO_UUID
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import DIRECTORY_ID, ENDPOINT, AdminPath
from testkit.nodes.data_path import BROKER


@pytest.fixture
def node() -> AdminPath:
    return AdminPath("/data", files=SimulatedDisk())


def described(topic: str, *partitions: int) -> DescribedQuorumTopic:
    parts = tuple(DescribedQuorumPartition(partition_index=index) for index in partitions)
    return DescribedQuorumTopic(topic_name=topic, partitions=parts)


METADATA = described("__cluster_metadata", 0)


def test_a_description_of_the_quorum_shows_the_only_voter_with_all_of_the_log(node: AdminPath) -> None:
    before = node.send(DescribeQuorumRequest(topics=(METADATA,)), 2).response.topics[0].partitions[0]
    node.create_topics("orders")
    response = node.send(DescribeQuorumRequest(topics=(METADATA,)), 2).response
    ((partition,),) = [topic.partitions for topic in response.topics]
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, BROKER, 1)
    assert partition.high_watermark == node.log.end_offset > before.high_watermark
    (voter,) = partition.current_voters
    assert (voter.replica_id, voter.replica_directory_id) == (BROKER, DIRECTORY_ID)
    assert voter.log_end_offset == partition.high_watermark
    assert voter.last_fetch_timestamp == voter.last_caught_up_timestamp == node.clock.now_ms()
    assert partition.observers == ()
    ((listener,),) = [described.listeners for described in response.nodes]
    assert (listener.name, listener.host, listener.port) == (ENDPOINT.listener_name, ENDPOINT.host, ENDPOINT.port)


@pytest.mark.parametrize(("version", "has_times"), [(0, False), (1, True)])
def test_older_versions_tell_less(node: AdminPath, version: int, has_times: bool) -> None:
    response = node.send(DescribeQuorumRequest(topics=(METADATA,)), version).response
    (voter,) = response.topics[0].partitions[0].current_voters
    assert (voter.last_fetch_timestamp > 0) == has_times
    assert (voter.replica_directory_id, response.nodes) == (ZERO_UUID, ())


@pytest.mark.parametrize(
    "topics",
    [
        (described("orders", 0),),
        (described("__cluster_metadata", 1),),
        (METADATA, METADATA),
        (described("__cluster_metadata", 0, 0),),
    ],
)
def test_only_the_metadata_log_has_a_quorum(node: AdminPath, topics: tuple[DescribedQuorumTopic, ...]) -> None:
    response = node.send(DescribeQuorumRequest(topics=topics), 2).response
    errors = [(topic.topic_name, each.error_code) for topic in response.topics for each in topic.partitions]
    assert errors == [
        (topic.topic_name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) for topic in topics for _ in topic.partitions
    ]
