from typing import Any

import pytest

from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode
from tailrace.model.proofs import NO_SECRET
from tailrace.protocol.messages.list_offsets import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath
from testkit.nodes.ports import DeferredController, DeferredDisk, broker_images, with_secret

SECRET = b"of the replica 2"


def ask(
    node: DataPath,
    epoch: int,
    *,
    current: int = -1,
    partition: int = 0,
    replica_id: int = -1,
    version: int = 4,
    secret: bytes = NO_SECRET,
) -> EpochEndOffset:
    wanted = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    topics = (OffsetForLeaderTopic(topic="orders", partitions=(wanted,)),)
    if version < 3:
        request = OffsetForLeaderEpochRequest(topics=topics)
    else:
        request = OffsetForLeaderEpochRequest(replica_id=replica_id, topics=topics, secret=secret)
    answer: EpochEndOffset = node.send(request, version).response.topics[0].partitions[0]
    return answer


@pytest.fixture
def node() -> DataPath:
    """Epoch 1 has offsets 0 and 1, epoch 4 offset 2."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(leader_epoch=1)
    node.produce("orders", b"a", b"b")
    node.create(leader_epoch=4)
    node.produce("orders", b"c")
    return node


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("epoch", "expected"), [(4, (4, 3)), (1, (1, 2)), (3, (1, 2)), (0, (0, 0)), (5, (-1, -1)), (-1, (-1, -1))]
)
def test_an_epoch_ends_where_the_next_one_starts(
    node: DataPath, version: int, epoch: int, expected: tuple[int, int]
) -> None:
    answer = ask(node, epoch, version=version)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, *expected)


def test_errors_are_those_of_the_leader_check(node: DataPath) -> None:
    assert ask(node, 4, current=3).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert ask(node, 4, current=5).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert ask(node, 4, partition=9).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    node.create(leader=2, leader_epoch=5)
    assert ask(node, 4).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_only_a_follower_gets_an_end_above_the_high_watermark() -> None:
    disk = DeferredDisk()
    controller = DeferredController(ClusterImage(brokers=broker_images({1: 10, 2: 20, 3: 30})))
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk, controller=controller)
    node.create(replicas=(1, 2))
    node.produce("orders", b"a", acks=1)
    others: list[dict[str, Any]] = [{}, {"replica_id": -2}, {"replica_id": 2}, {"replica_id": 3, "current": 0}]
    for options in others:
        assert ask(node, 0, **options).end_offset == 0, options
    assert ask(node, 0, replica_id=2, current=0).end_offset == 1
    controller.image = with_secret(controller.image, 2, SECRET)
    assert ask(node, 0, replica_id=2, current=0).end_offset == 0, "the registration needs a secret"
    assert ask(node, 0, replica_id=2, current=0, secret=SECRET).end_offset == 1
    disk.run()
    assert ask(node, 0).end_offset == 1


def test_a_new_leader_does_not_let_a_consumer_take_its_lag_for_a_truncation() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    node.produce("orders", b"a", acks=1)
    node.create(leader_epoch=1)
    assert ask(node, 0).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    disk.run()
    assert ask(node, 0).end_offset == 1
