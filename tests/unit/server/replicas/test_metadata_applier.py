"""Images become partitions."""

from dataclasses import replace

import pytest

from tailrace.metadata.broker_commands import FenceBroker, UnfenceBroker
from tailrace.metadata.commands import ConfigChange, ResourceChanges, TopicReference
from tailrace.metadata.image import ALL_BROKERS, ChangedPartition, ConfigResource, ImageDelta, ResourceType
from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.replication.partition import Partition
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import BROKER, batch_of
from testkit.quorum.controller_commands import alter_configs, delete_topics


def fence(node: AdminPath) -> None:
    epoch = node.controller.image.brokers[BROKER].broker_epoch
    node.submit(FenceBroker(broker_id=BROKER, broker_epoch=epoch))
    node.end_turn()


def unfence(node: AdminPath) -> None:
    epoch = node.controller.image.brokers[BROKER].broker_epoch
    node.submit(UnfenceBroker(broker_id=BROKER, broker_epoch=epoch, secret=node.secret))
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


def test_a_partition_that_cannot_be_changed_spares_the_others_and_is_named_until_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders", partitions=3)
    partitions = [node.table.get("orders", number) for number in range(3)]

    step_down = Partition.step_down

    def fail(partition: Partition, state: PartitionState | None = None) -> None:
        if partition is partitions[1]:
            raise StorageError("its log has failed")
        step_down(partition, state)

    monkeypatch.setattr(Partition, "step_down", fail)
    fence(node)
    assert [partition.is_leader for partition in partitions] == [False, True, False]
    assert node.applier.failed == {("orders", 1)}
    monkeypatch.undo()
    unfence(node)
    assert [partition.leader_epoch for partition in partitions] == [2, 2, 2]
    assert node.applier.failed == set()


def test_a_failed_partition_can_still_be_deleted() -> None:
    files = SimulatedDisk()
    node = AdminPath("/data", files=files)
    node.create_topics("orders")
    node.produce("orders", b"flushed")
    node.stop()
    files.flip_bit("/data/orders-0/00000000000000000000.log", 65)
    files.unlink("/data/.kafka_cleanshutdown")
    again = AdminPath("/data", files=files, start=2)
    again.submit(delete_topics(TopicReference(name="orders")))
    again.end_turn()
    assert again.applier.failed == set()
    assert again.controller.image.topics == {}


def test_a_state_comes_with_the_settings_of_its_image_also_in_an_earlier_portion() -> None:
    """Between the two, a leader could commit a record that neither of them permits."""
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders")
    partition = node.table.get("orders", 0)
    before = node.controller.image
    state = before.partition("orders", 0)
    assert state is not None
    orders = ConfigResource(ResourceType.TOPIC, "orders")
    image = replace(before, configs={orders: {"min.insync.replicas": "2"}})
    follower = replace(state, replicas=(BROKER, BrokerId(2)), leader_epoch=LeaderEpoch(1), partition_epoch=1)
    changed = ChangedPartition(TopicPartition("orders", 0), follower)
    delta = ImageDelta(changed_partitions=(changed, changed), changed_configs=(orders,))
    first, *_, last = delta.pieces(1)
    assert (first.changed_configs, last.changed_partitions) == ((), ())
    node.applier.on_image(image, first)
    assert partition.config.min_insync_replicas == 2
    with pytest.raises(KafkaError) as refusal:
        node.table.get("orders", 0).append_as_leader(
            batch_of(b"a"), acks=-1, produce_version=9, now_ms=0, on_done=lambda _: None
        )
    assert refusal.value.code is ErrorCode.NOT_ENOUGH_REPLICAS


def test_topics_that_say_the_same_share_their_settings_until_the_defaults_change() -> None:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders", "returns")
    orders, returns = (node.table.get(name, 0) for name in ("orders", "returns"))
    assert orders.config is returns.config
    change = ConfigChange(name="min.insync.replicas", value="3")
    node.submit(alter_configs(ResourceChanges(resource=ALL_BROKERS, changes=(change,))))
    node.end_turn()
    assert orders.config is returns.config
    assert orders.config.min_insync_replicas == 3


def test_a_setting_of_the_broker_that_topics_do_not_inherit_changes_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An administrator throttles replication while 100,000 partitions are here."""
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders")
    updated: list[object] = []
    monkeypatch.setattr(node.table, "update_configs", updated.append)

    def set_to(name: str, value: str) -> int:
        change = ConfigChange(name=name, value=value)
        node.submit(alter_configs(ResourceChanges(resource=ALL_BROKERS, changes=(change,))))
        node.end_turn()
        return len(updated)

    names = ("leader.replication.throttled.rate", "log.retention.ms", "follower.replication.throttled.rate")
    assert [set_to(name, "77777") for name in names] == [0, 1, 1]
