"""Requests for an end that wait for records acknowledged with acks=1, on a node with a slow disk and no sockets."""

from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.protocol.messages.topics import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tailrace.server.partitions.acknowledged_ends import MAX_WAIT_MS, MOST_WAITING
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, Exchange, batch_of
from testkit.nodes.ports import DeferredDisk

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
STILL = TopicConfig(min_insync_replicas=2)


@pytest.fixture
def disk() -> DeferredDisk:
    return DeferredDisk()


@pytest.fixture
def node(disk: DeferredDisk) -> DataPath:
    """A leader whose follower in sync has none of the records yet."""
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1, 2))
    return node


def follow(node: DataPath, disk: DeferredDisk, *, in_sync: Sequence[int] = (1,)) -> None:
    """Let the high watermark rise: the leader's flush is done, and the follower in sync has left."""
    disk.run()
    node.create(replicas=(1, 2), in_sync=in_sync)
    node.end_turn()


def ends(node: DataPath, timestamp: int = LATEST, *, replica_id: int = -1, isolation: int = 0) -> Exchange:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsTopic(name="orders", partitions=(wanted,))
    return node.send(ListOffsetsRequest(replica_id=replica_id, isolation_level=isolation, topics=(topic,)), 9)


def epoch_end(node: DataPath, *, replica_id: int = -1) -> Exchange:
    topic = OffsetForLeaderTopic(
        topic="orders", partitions=(OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0),)
    )
    return node.send(OffsetForLeaderEpochRequest(replica_id=replica_id, topics=(topic,)), 4)


def delete(node: DataPath, offset: int) -> Exchange:
    topic = DeleteRecordsTopic(name="orders", partitions=(DeleteRecordsPartition(partition_index=0, offset=offset),))
    return node.send(DeleteRecordsRequest(topics=(topic,), timeout_ms=1000), 2)


def listed(exchange: Exchange) -> Any:
    ((answer,),) = (topic.partitions for topic in exchange.response.topics)
    return answer


@pytest.mark.parametrize("timestamp", [LATEST, MAX_TIMESTAMP, 1])
@pytest.mark.parametrize("isolation", [0, 1])
def test_an_end_waits_for_the_acknowledged_record(
    node: DataPath, disk: DeferredDisk, timestamp: int, isolation: int
) -> None:
    assert node.produce("orders", b"a", acks=1).is_answered
    waiting = ends(node, timestamp, isolation=isolation)
    assert not waiting.is_answered
    follow(node, disk)
    assert listed(waiting).offset == (1 if timestamp == LATEST else 0)
    assert len(node.deadlines) == 0


def test_the_acknowledged_end_of_an_epoch_waits_for_a_consumer_alone(node: DataPath, disk: DeferredDisk) -> None:
    node.produce("orders", b"a", acks=1)
    assert epoch_end(node, replica_id=2).is_answered
    waiting = epoch_end(node)
    assert not waiting.is_answered
    follow(node, disk)
    ((answer,),) = (topic.partitions for topic in waiting.response.topics)
    assert answer.end_offset == 1


@pytest.mark.parametrize("offset", [1, -1])
def test_acknowledged_records_can_be_deleted(node: DataPath, disk: DeferredDisk, offset: int) -> None:
    node.produce("orders", b"a", acks=1)
    waiting = delete(node, offset)
    follow(node, disk)
    for _ in range(3):  # the log starts are written
        disk.run()
        node.end_turn()
    assert (listed(waiting).error_code, listed(waiting).low_watermark) == (0, 1)


def test_a_replica_that_is_asked_for_its_own_log_does_not_wait(node: DataPath) -> None:
    node.produce("orders", b"a", acks=1)
    assert listed(ends(node, replica_id=-2)).offset == 0


@pytest.mark.parametrize("timestamp", [EARLIEST, EARLIEST_LOCAL, LATEST_TIERED])
def test_a_start_does_not_wait(node: DataPath, timestamp: int) -> None:
    node.produce("orders", b"a", acks=1)
    assert ends(node, timestamp).is_answered


def test_records_that_are_not_acknowledged_are_not_waited_for(node: DataPath) -> None:
    assert not node.produce("orders", b"a", acks=-1).is_answered
    node.produce("orders", b"a", acks=0)
    assert listed(ends(node)).offset == 0


def test_no_acknowledged_end_is_awaited_while_too_few_replicas_are_in_sync(disk: DeferredDisk) -> None:
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1,), config=STILL)
    node.produce("orders", b"a", acks=1)
    assert listed(ends(node)).offset == 0


def test_a_replica_that_hangs_delays_an_end_and_no_more(node: DataPath) -> None:
    node.produce("orders", b"a", acks=1)
    waiting, deletion = ends(node), delete(node, 1)
    node.clock.advance(MAX_WAIT_MS - 1)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert (listed(waiting).error_code, listed(waiting).offset) == (0, 0)
    assert listed(deletion).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(node.deadlines) == 0


def test_the_end_of_a_leadership_ends_the_wait_for_an_acknowledged_end(node: DataPath) -> None:
    node.produce("orders", b"a", acks=1)
    waiting = ends(node)
    node.create(replicas=(1, 2), in_sync=(2,), leader=2, leader_epoch=1)
    assert listed(waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(node.deadlines) == 0


def test_a_new_leadership_has_acknowledged_nothing(node: DataPath) -> None:
    node.produce("orders", b"a", acks=1)
    node.create(replicas=(1, 2), in_sync=(1, 2), leader_epoch=1)
    assert ends(node).is_answered


def test_requests_beyond_the_limit_do_not_wait(node: DataPath) -> None:
    node.produce("orders", b"a", acks=1)
    waiting = [ends(node) for _ in range(MOST_WAITING)]
    assert not any(exchange.is_answered for exchange in waiting)
    assert listed(ends(node)).offset == 0
    node.clock.advance(MAX_WAIT_MS)
    assert all(exchange.is_answered for exchange in waiting)


def test_acks_one_of_a_leader_that_is_alone_leaves_no_end_to_wait_for(disk: DeferredDisk) -> None:
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    written = node.produce("orders", records=batch_of(b"a"), acks=1)
    assert listed(ends(node)).offset == 0, "not acknowledged yet"
    disk.run()
    node.end_turn()
    assert written.is_answered
    assert listed(ends(node)).offset == 1
