"""OffsetDelete (47): a group deletes the offsets of topics to which no member is subscribed."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tailrace.protocol.messages.membership import JoinGroupRequest, JoinGroupRequestProtocol
from tailrace.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from tailrace.protocol.schema import encode_prefixed
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.group_path import GroupPath


@pytest.fixture
def node() -> GroupPath:
    node = GroupPath("/data", files=SimulatedDisk())
    node.create_topics("orders", "others", partitions=2)
    node.find_coordinator("group")
    return node


def delete(node: GroupPath, *partitions: tuple[str, int], group: str = "group") -> OffsetDeleteResponse:
    topics = tuple(
        OffsetDeleteRequestTopic(name=name, partitions=(OffsetDeleteRequestPartition(partition_index=index),))
        for name, index in partitions
    )
    response = node.send(OffsetDeleteRequest(group_id=group, topics=topics), 0).response
    assert isinstance(response, OffsetDeleteResponse)
    return response


def codes(response: OffsetDeleteResponse) -> list[int]:
    return [each.error_code for topic in response.topics for each in topic.partitions]


def join(node: GroupPath, *topics: str, protocol_type: str = "consumer") -> None:
    """Join a member that reads these topics."""
    metadata = encode_prefixed(ConsumerProtocolSubscription(topics=topics), 0)
    request = JoinGroupRequest(
        group_id="group",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=30_000,
        member_id="",
        protocol_type=protocol_type,
        protocols=(JoinGroupRequestProtocol(name="range", metadata=metadata),),
    )
    joined = node.send(request, 3).response
    node.sync("group", joined.member_id, joined.generation_id, {joined.member_id: b"all"})


def test_the_offset_of_a_group_without_members_goes(node: GroupPath) -> None:
    node.commit("group", "orders", 7)
    node.commit("group", "others", 8)
    response = delete(node, ("orders", 0), ("orders", 1), ("missing", 0), ("orders", 2))
    assert response.error_code == 0
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(response) == [ErrorCode.NONE, ErrorCode.NONE, unknown, unknown]
    assert node.committed("group", "orders") == -1
    assert node.committed("group", "others") == 8


def test_offsets_in_subscribed_topics_stay(node: GroupPath) -> None:
    node.commit("group", "orders", 7)
    node.commit("group", "others", 8)
    join(node, "orders")
    assert codes(delete(node, ("orders", 0), ("others", 0))) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
    assert node.committed("group", "orders") == 7
    assert node.committed("group", "others") == -1


def test_no_offset_is_deleted_while_a_subscription_is_unknown(node: GroupPath) -> None:
    node.commit("group", "orders", 7)
    join(node, "orders", protocol_type="connect")
    response = delete(node, ("others", 0))
    assert (response.error_code, response.topics) == (ErrorCode.NON_EMPTY_GROUP, ())


@pytest.mark.parametrize(
    ("group", "code"), [("nobody", ErrorCode.GROUP_ID_NOT_FOUND), ("", ErrorCode.INVALID_GROUP_ID)]
)
def test_a_group_that_is_not_there_has_an_error(node: GroupPath, group: str, code: ErrorCode) -> None:
    assert delete(node, ("orders", 0), group=group).error_code == code


def test_deleted_offsets_stay_deleted_after_a_restart() -> None:
    files = SimulatedDisk()
    node = GroupPath("/data", files=files)
    node.create_topics("orders")
    node.find_coordinator("group")
    node.commit("group", "orders", 7)
    delete(node, ("orders", 0))
    node.stop()
    node = GroupPath("/data", files=files, start=2)
    node.find_coordinator("group")
    assert node.committed("group", "orders") == -1
