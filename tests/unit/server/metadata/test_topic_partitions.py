"""DescribeTopicPartitions (75): topics page by page."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk())
    for name, count in (("b", 3), ("a", 2), ("c", 1)):
        node.create_topics(name, partitions=count)
    return node


def describe(
    node: AdminPath, *names: str, limit: int = 2_000, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    at = None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1])
    request = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in names), response_partition_limit=limit, cursor=at
    )
    response = node.send(request, 0).response
    assert isinstance(response, DescribeTopicPartitionsResponse)
    return response


def shown(response: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in response.topics]


def test_topic_partitions_of_no_topics_are_all_by_name(node: AdminPath) -> None:
    response = describe(node)
    assert shown(response) == [("a", [0, 1]), ("b", [0, 1, 2]), ("c", [0])]
    assert response.next_cursor is None
    assert response.topics[0].topic_id == node.topic_id("a")


def test_a_partition_tells_its_leader_and_copies(node: AdminPath) -> None:
    partition = describe(node, "c").topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ((1,), (1,), ())
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ((), ())


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 6, 0, -5])
def test_pages_put_together_are_the_whole(node: AdminPath, limit: int) -> None:
    found: list[tuple[str | None, int]] = []
    cursor = None
    while True:
        response = describe(node, limit=limit, cursor=cursor)
        page = [(name, number) for name, numbers in shown(response) for number in numbers]
        assert 1 <= len(page) <= max(limit, 1)
        found += page
        if response.next_cursor is None:
            break
        cursor = (response.next_cursor.topic_name, response.next_cursor.partition_index)
    assert found == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)]


def test_a_page_continues_after_a_deleted_topic(node: AdminPath) -> None:
    assert shown(describe(node, cursor=("aa", 5))) == [("b", [0, 1, 2]), ("c", [0])]


def test_a_topic_that_is_not_there_has_an_error(node: AdminPath) -> None:
    response = describe(node, "missing", "c", "a/b")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("c", ErrorCode.NONE),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_operations_are_given_for_every_name(node: AdminPath) -> None:
    response = describe(node, "missing", "c", "a/b")
    assert [topic.topic_authorized_operations for topic in response.topics] == [3576] * 3


@pytest.mark.parametrize("cursor", [("b", 0), ("c", -1)])
def test_a_cursor_that_cannot_be_is_refused(node: AdminPath, cursor: tuple[str, int]) -> None:
    response = describe(node, "a", "c", cursor=cursor)
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_partition_whose_log_cannot_be_opened_has_no_leader_and_an_offline_replica() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders")
    node.produce("orders", b"a")
    node.table.checkpoints.write_recovery_points()
    node.end_turn()
    files.flip_bit("/data/orders-0/00000000000000000000.log", 65)
    damaged = describe(AdminPath("/data", files=files, start=2), "orders").topics[0].partitions[0]
    assert (damaged.error_code, damaged.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert tuple(damaged.offline_replicas) == (1,)
