"""Images become partitions."""

import pytest

from tailrace.metadata.broker_commands import (
    FenceBroker,
    UnfenceBroker,
)
from tailrace.metadata.commands import (
    DeleteTopics,
    TopicReference,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing.admin_path import AdminPath
from tailrace.testing.data_path import BROKER
from tailrace.testing.disk import SimulatedDisk


def fence(node: AdminPath) -> None:
    epoch = node.controller.image.brokers[BROKER].broker_epoch
    node.submit(FenceBroker(broker_id=BROKER, broker_epoch=epoch))
    node.end_turn()


def unfence(node: AdminPath) -> None:
    epoch = node.controller.image.brokers[BROKER].broker_epoch
    node.submit(UnfenceBroker(broker_id=BROKER, broker_epoch=epoch))
    node.end_turn()


def test_a_partition_follows_the_leader_epochs_of_the_image() -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders")
    partition = node.table.get("orders", 0)
    assert (partition.is_leader, partition.leader_epoch) == (True, 0)
    fence(node)
    assert not partition.is_leader
    unfence(node)
    assert (partition.is_leader, partition.leader_epoch) == (True, 2)


def test_after_a_restart_every_partition_is_led_again_in_a_new_epoch() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders", partitions=3)
    node.produce("orders", b"kept")
    node.stop()
    again = AdminPath("/data", files=files, start=2)
    assert [again.table.get("orders", number).leader_epoch for number in range(3)] == [2, 2, 2]
    assert again.records_of("orders") == [b"kept"]


def test_a_partition_that_cannot_be_opened_spares_the_others_and_is_named() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders", partitions=2)
    node.produce("orders", b"flushed")
    node.stop()
    files.flip_bit("/data/orders-0/00000000000000000000.log", 65)
    files.unlink("/data/.kafka_cleanshutdown")
    again = AdminPath("/data", files=files, start=2)
    assert again.is_ready
    assert again.applier.failed == {("orders", 0)}
    assert again.table.get("orders", 1).is_leader
    with pytest.raises(KafkaError) as refusal:
        again.table.get("orders", 0)
    assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR


def test_a_failed_partition_can_still_be_deleted() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders")
    node.produce("orders", b"flushed")
    node.stop()
    files.flip_bit("/data/orders-0/00000000000000000000.log", 65)
    files.unlink("/data/.kafka_cleanshutdown")
    again = AdminPath("/data", files=files, start=2)
    again.submit(DeleteTopics(topics=(TopicReference(name="orders"),)))
    again.end_turn()
    assert again.applier.failed == set()
    assert again.controller.image.topics == {}
