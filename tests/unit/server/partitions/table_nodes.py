"""Nodes of one broker whose partition table has the topic `orders`, and its starts and stops."""

from typing import Any

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, topic_id_of
from testkit.nodes.ports import DeferredDisk, NotedFailures

ORDERS = TopicPartition("orders", 0)


OTHER_ID = TopicId(b"another topic id")


def new_node(
    files: SimulatedDisk | None = None, disk: DeferredDisk | None = None, failures: NotedFailures | None = None
) -> DataPath:
    return DataPath("/logs", files=files or SimulatedDisk(), disk=disk, failures=failures)


def write_recovery_points(node: DataPath) -> None:
    node.table.checkpoints.write_recovery_points()
    node.end_turn()


def code_of(caught: pytest.ExceptionInfo[KafkaError]) -> ErrorCode:
    return caught.value.code


def led_by(*replicas: BrokerId, topic_id: TopicId | None = None, leader_epoch: int = 0) -> PartitionState:
    """A partition of `orders` that its first replica leads."""
    return PartitionState(
        topic_id=topic_id or topic_id_of("orders"),
        replicas=replicas,
        in_sync_replicas=replicas,
        leader=replicas[0],
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=0,
    )


def add(node: DataPath, *, topic_id: TopicId | None = None, leader_epoch: int = 0) -> None:
    """Let the metadata bring the partition, which may sleep then."""
    state = led_by(BROKER, topic_id=topic_id, leader_epoch=leader_epoch)
    node.table.add(ORDERS, state=state, config=TopicConfig())


def added_node(*ports: Any) -> DataPath:
    node = new_node(*ports)
    add(node)
    return node


def started_node(files: SimulatedDisk | None = None) -> DataPath:
    """A node whose partition is open."""
    node = added_node(files)
    node.end_turn()
    return node


def stopped_node(files: SimulatedDisk) -> None:
    """A node that has kept one record, and was stopped cleanly."""
    node = started_node(files)
    node.produce("orders", b"kept")
    node.table.close()


def restarted_node(files: SimulatedDisk) -> DataPath:
    """A node whose partition has a record, and sleeps since the node was stopped cleanly."""
    stopped_node(files)
    return added_node(files)
