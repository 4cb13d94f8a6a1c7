"""Views in Metadata and DescribeTopicPartitions: shown to a client that names them, and in no list."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId
from tailrace.protocol.messages.metadata import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponseTopic,
    TopicRequest,
)
from tailrace.server.metadata import metadata
from testkit.nodes.view_readers import ViewNode

VIEW = "orders.shared-8"
READ_OPERATIONS = 1 << 3 | 1 << 8 | 1 << 10
EVERY_OPERATION = READ_OPERATIONS | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 11


@pytest.fixture
def node() -> ViewNode:
    return ViewNode(partitions=3, settings={"auto.create.topics.enable": "true"})


def ask(node: ViewNode, *names: str, version: int = 13, **options: bool) -> list[MetadataResponseTopic]:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    return send(node, MetadataRequest(topics=topics, **options), version)


def ask_by_id(node: ViewNode, *ids: bytes, version: int = 13) -> list[MetadataResponseTopic]:
    topics = tuple(MetadataRequestTopic(topic_id=topic_id, name=None) for topic_id in ids)
    return send(node, MetadataRequest(topics=topics), version)


def send(node: ViewNode, request: MetadataRequest, version: int) -> list[MetadataResponseTopic]:
    return list(node.send(request, version).response.topics)


@pytest.mark.parametrize("version", range(14))
def test_a_view_is_shown_by_name(node: ViewNode, version: int) -> None:
    (topic,) = ask(node, VIEW, version=version)
    assert (topic.error_code, topic.name, topic.is_internal) == (0, VIEW, False)
    assert [each.partition_index for each in topic.partitions] == list(range(24))
    assert all(each.leader_id == 1 and each.error_code == 0 for each in topic.partitions)
    assert all(each.replica_nodes == each.isr_nodes == (1,) for each in topic.partitions)
    assert topic.topic_id == (node.view_id(VIEW) if version >= 10 else ZERO_TOPIC_ID)


@pytest.mark.parametrize("version", [12, 13])
def test_a_view_is_shown_by_id(node: ViewNode, version: int) -> None:
    (topic,) = ask_by_id(node, node.view_id(VIEW), version=version)
    assert (topic.error_code, topic.name, len(topic.partitions)) == (0, VIEW, 24)


@pytest.mark.parametrize("version", [0, 1, 13])
def test_a_list_of_all_has_no_views(node: ViewNode, version: int) -> None:
    ask(node, VIEW)
    request = MetadataRequest(topics=() if version == 0 else None)
    assert [topic.name for topic in send(node, request, version)] == ["orders"]


def test_a_view_can_only_be_read(node: ViewNode) -> None:
    topics = ask(node, VIEW, "orders", version=10, include_topic_authorized_operations=True)
    assert [topic.topic_authorized_operations for topic in topics] == [READ_OPERATIONS, EVERY_OPERATION]


@pytest.mark.parametrize("name", ["missing.shared-8", "orders.shared-8.shared-4", "missing.shared-16"])
def test_no_view_is_created_on_first_sight(node: ViewNode, name: str) -> None:
    for _ in range(2):
        (topic,) = ask(node, name, allow_auto_topic_creation=True)
        assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert list(node.controller.image.topics) == ["orders"]


@pytest.mark.parametrize("name", ["a.shared-3", "a.shared-016", "a.shared-1", "a.shared-512", "a.shared-"])
def test_a_name_of_another_form_is_created(node: ViewNode, name: str) -> None:
    ask(node, name, allow_auto_topic_creation=True)
    (topic,) = ask(node, name)
    assert (topic.error_code, len(topic.partitions)) == (0, 1)


@pytest.mark.parametrize("name", [".shared-16", "x" * 249, "x" * 241 + ".shared-2", "a.shared-16\0"])
def test_hostile_names_are_answered_as_those_of_topics(node: ViewNode, name: str) -> None:
    (topic,) = ask(node, name, allow_auto_topic_creation=False)
    legal = len(name) <= 249 and "\0" not in name
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION
    assert topic.error_code == code


def test_an_id_that_folds_to_nothing_is_unknown(node: ViewNode) -> None:
    beyond = bytearray(node.topic_id("orders"))
    beyond[15] ^= 9
    for topic_id in (bytes(beyond), TopicId(b"\xff" * 16), TopicId(bytes(15) + b"\x03")):
        (topic,) = ask_by_id(node, bytes(topic_id))
        assert (topic.error_code, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, topic_id)


def test_views_with_too_many_partitions_together_are_refused(node: ViewNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MAX_VIEW_PARTITIONS", 30)
    topics = ask(node, "orders.shared-2", VIEW, "orders.shared-4", "orders")
    assert [(topic.error_code, len(topic.partitions)) for topic in topics] == [
        (0, 6),
        (0, 24),
        (ErrorCode.POLICY_VIOLATION, 0),
        (0, 3),
    ]


def test_there_are_no_views_where_they_are_switched_off() -> None:
    node = ViewNode(settings={"group.key.ranges.enable": "false"})
    (topic,) = ask(node, VIEW, allow_auto_topic_creation=False)
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (topic,) = ask_by_id(node, node.view_id(VIEW))
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_ID


def describe(
    node: ViewNode, *names: str, limit: int = 2_000, cursor: Cursor | None = None
) -> DescribeTopicPartitionsResponse:
    request = DescribeTopicPartitionsRequest(
        topics=tuple(TopicRequest(name=name) for name in names), response_partition_limit=limit, cursor=cursor
    )
    response = node.send(request, 0).response
    assert isinstance(response, DescribeTopicPartitionsResponse)
    return response


def test_a_view_is_described_page_by_page(node: ViewNode) -> None:
    found, cursor = [], None
    while True:
        response = describe(node, VIEW, limit=10, cursor=cursor)
        (topic,) = response.topics
        assert (topic.error_code, topic.name, topic.topic_id) == (0, VIEW, node.view_id(VIEW))
        assert topic.topic_authorized_operations == READ_OPERATIONS
        assert all(each.leader_id == 1 for each in topic.partitions)
        found += [each.partition_index for each in topic.partitions]
        if response.next_cursor is None:
            break
        cursor = Cursor(topic_name=VIEW, partition_index=response.next_cursor.partition_index)
    assert found == list(range(24))


def test_a_description_of_all_has_no_views(node: ViewNode) -> None:
    assert [topic.name for topic in describe(node).topics] == ["orders"]
