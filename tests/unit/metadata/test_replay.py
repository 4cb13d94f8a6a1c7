"""Records in, image out."""

import pytest

from tailrace.metadata import derive
from tailrace.metadata.feature_levels import METADATA_VERSION, METADATA_VERSION_FEATURE, OLDEST_METADATA_VERSION
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ConfigResource, ResourceType
from tailrace.metadata.records.brokers import (
    BrokerEvent,
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from tailrace.metadata.records.cluster import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    NoOpRecord,
    ProducerIdsRecord,
    ZkMigrationStateRecord,
)
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ClearElrRecord, ConfigRecord, PartitionChangeRecord, RemoveTopicRecord
from tailrace.metadata.replay import apply, apply_all
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.protocol.schema import replace
from testkit.quorum.metadata_records import derived_changes, new_broker, new_topic

ORDERS = TopicId(b"orders__________")
RETURNS = TopicId(b"returns_________")


def image_of(*records: MetadataRecord) -> ClusterImage:
    image = EMPTY_IMAGE
    for record in records:
        image = apply(image, sealed(image, record))
    return image


def sealed(image: ClusterImage, record: MetadataRecord) -> MetadataRecord:
    if not isinstance(record, BrokerEvent):
        return record
    changes = derived_changes(image, record)
    return replace(record, derived_count=len(changes), derived_crc=derive.checksum(changes))


def broker(broker_id: int, epoch: int = 10) -> tuple[MetadataRecord, MetadataRecord]:
    registration = new_broker(broker_id, epoch=epoch, incarnation_id=epoch.to_bytes(16, "big"))
    return registration, UnfenceBrokerRecord(id=broker_id, epoch=epoch)


def topic(name: str = "orders", topic_id: TopicId = ORDERS, *replicas: tuple[int, ...]) -> list[MetadataRecord]:
    return new_topic(name, topic_id, *replicas)


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = image_of(*topic("orders", ORDERS, (1,), (2,)))
    assert image.topics["orders"].topic_id == ORDERS
    assert image.topic_by_id(ORDERS) == image.topics["orders"]
    assert sorted(image.topics["orders"].partitions) == [0, 1]
    assert image.partition("orders", 1).leader == 2  # type: ignore[union-attr]
    assert image.partition("orders", 2) is None
    assert image.topic_by_id(RETURNS) is None


def test_an_image_is_not_changed_by_what_is_applied_to_it() -> None:
    before = image_of(*broker(1), *topic("orders", ORDERS, (1,)))
    kept = (dict(before.topics), dict(before.topics["orders"].partitions), dict(before.brokers), dict(before.configs))
    apply_all(
        before,
        [
            PartitionChangeRecord(partition_id=0, topic_id=ORDERS, leader=-1),
            ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1"),
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, fenced=1),
            RemoveTopicRecord(topic_id=ORDERS),
        ],
    )
    assert kept == (
        dict(before.topics),
        dict(before.topics["orders"].partitions),
        dict(before.brokers),
        dict(before.configs),
    )


def test_a_removed_topic_takes_its_settings_and_its_name_with_it() -> None:
    image = image_of(
        *topic("a.b", ORDERS, (1,)),
        ConfigRecord(resource_type=2, resource_name="a.b", name="retention.ms", value="1"),
        RemoveTopicRecord(topic_id=ORDERS),
    )
    assert image == EMPTY_IMAGE


def test_a_change_of_leader_raises_both_epochs_and_a_change_of_replicas_in_sync_only_one() -> None:
    image = image_of(
        *topic("orders", ORDERS, (1, 2)),
        PartitionChangeRecord(partition_id=0, topic_id=ORDERS, isr=(1,)),
        PartitionChangeRecord(partition_id=0, topic_id=ORDERS, isr=(1, 2), leader=2),
    )
    state = image.topics["orders"].partitions[0]
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 1, 2)
    assert state.in_sync_replicas == (1, 2)


def test_a_log_may_have_topic_settings_under_their_former_names() -> None:
    def setting(name: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="orders", name=name, value=value)

    former, current = "key.sharing.enable", "key.ranges.enable"
    image = image_of(*topic(), setting(former, "false"))
    assert image.topic_overrides("orders") == {current: "false"}
    assert image_of(*topic(), setting(former, "false"), setting(current, None)).topic_overrides("orders") == {}


def test_settings_are_overridden_and_taken_back() -> None:
    resource = ConfigResource(ResourceType.TOPIC, "orders")
    set_it = ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1")
    image = image_of(*topic(), set_it)
    assert image.overrides(resource) == {"retention.ms": "1"}
    image = apply(image, ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value=None))
    assert image.configs == {}
    assert image.overrides(resource) == {}


IN_BETWEEN = (*broker(1), *topic("orders", ORDERS, (1,), (1,)))


@pytest.mark.parametrize("cut", range(len(IN_BETWEEN) + 2))
def test_a_transaction_counts_when_it_has_ended_wherever_it_is_cut_into_batches(cut: int) -> None:
    records = [BeginTransactionRecord(name="import"), *IN_BETWEEN, EndTransactionRecord()]
    before, _ = apply_all(EMPTY_IMAGE, topic("returns", RETURNS, (1,)))
    first, _ = apply_all(before, records[:cut])
    assert (first.topics, first.brokers) == (before.topics, before.brokers)
    assert (first.open_transaction is None) is (cut == 0)
    whole, delta = apply_all(first, records[cut:])
    assert whole == apply_all(before, IN_BETWEEN)[0]
    assert [created.name for created in delta.created_topics] == ["orders"]


@pytest.mark.parametrize("cut", range(len(IN_BETWEEN) + 2))
def test_an_aborted_transaction_leaves_nothing(cut: int) -> None:
    records = [BeginTransactionRecord(), *IN_BETWEEN, AbortTransactionRecord(reason="no")]
    first, _ = apply_all(EMPTY_IMAGE, records[:cut])
    assert apply_all(first, records[cut:])[0] == EMPTY_IMAGE


@pytest.mark.parametrize(
    "records", [[EndTransactionRecord()], [AbortTransactionRecord()], [BeginTransactionRecord()] * 2], ids=str
)
def test_transactions_begin_and_end_in_turn(records: list[MetadataRecord]) -> None:
    with pytest.raises(AssertionError, match="transaction"):
        apply_all(EMPTY_IMAGE, records)


@pytest.mark.parametrize("name", ["orders", ""])
def test_eligible_leaders_are_forgotten_of_one_topic_or_of_all(name: str) -> None:
    def eligible(topic_id: TopicId) -> MetadataRecord:
        return PartitionChangeRecord(
            partition_id=0, topic_id=topic_id, eligible_leader_replicas=(2,), last_known_elr=(1,)
        )

    both = (*topic("orders", ORDERS, (1, 2), (1, 2)), *topic("returns", RETURNS, (1, 2)))
    before, _ = apply_all(EMPTY_IMAGE, (*both, eligible(ORDERS), eligible(RETURNS)))
    image, delta = apply_all(before, [ClearElrRecord(topic_name=name)])
    left = {topic: bool(image.topics[topic].partitions[0].eligible_leader_replicas) for topic in ("orders", "returns")}
    assert left == {"orders": False, "returns": name != ""}
    assert image.topics["orders"].partitions[0].last_known_leaders == ()
    assert image.topics["orders"].partitions[0].partition_epoch == 2
    assert image.topics["orders"].partitions[1] == before.topics["orders"].partitions[1]
    assert len(delta.changed_partitions) == (1 if name else 2)


def test_producer_ids_only_rise() -> None:
    image = image_of(ProducerIdsRecord(broker_id=1, next_producer_id=1000))
    assert image.next_producer_id == 1000
    with pytest.raises(AssertionError):
        apply(image, ProducerIdsRecord(broker_id=1, next_producer_id=1000))


def test_a_metadata_version_above_ours_is_refused() -> None:
    record = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION + 1)
    with pytest.raises(KafkaError, match="newer release") as refusal:
        apply(EMPTY_IMAGE, record)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_metadata_version_below_ours_is_refused_with_the_way_out() -> None:
    record = FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=OLDEST_METADATA_VERSION - 1)
    with pytest.raises(KafkaError, match="the metadata log has metadata.version 25.*raise the level there") as refusal:
        apply(EMPTY_IMAGE, record)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_a_fenced_broker_gives_up_its_partitions_and_gets_those_back_that_waited_for_it() -> None:
    image = image_of(*broker(1), *broker(2), *topic("orders", ORDERS, (1, 2), (1,), (2, 1)))
    fenced = apply(image, sealed(image, FenceBrokerRecord(id=1, epoch=10)))
    shared, alone, other = (fenced.topics["orders"].partitions[number] for number in range(3))
    assert (shared.leader, shared.in_sync_replicas, shared.leader_epoch) == (2, (2,), 1)
    assert (alone.leader, alone.in_sync_replicas, alone.leader_epoch) == (-1, (), 1)
    assert alone.eligible_leader_replicas == (1,)
    assert (other.leader, other.in_sync_replicas, other.leader_epoch, other.partition_epoch) == (2, (2,), 0, 1)
    back = apply(fenced, sealed(fenced, UnfenceBrokerRecord(id=1, epoch=10)))
    shared, alone, other = (back.topics["orders"].partitions[number] for number in range(3))
    assert shared.leader == 2
    assert (alone.leader, alone.leader_epoch) == (1, 2)
    assert other.leader == 2


def test_a_broker_that_registers_again_leads_in_a_new_epoch() -> None:
    """Unflushed records of the old process may be gone, and readers must find that out (KIP-320)."""
    image = image_of(*broker(1, 10), *topic("orders", ORDERS, (1,)), *broker(1, 20))
    state = image.topics["orders"].partitions[0]
    assert (state.leader, state.leader_epoch) == (1, 2)
    assert image.brokers[BrokerId(1)].broker_epoch == 20


def test_no_dead_broker_is_elected() -> None:
    image = image_of(*broker(1), *broker(2), *topic("orders", ORDERS, (1, 2)))
    image = apply(image, sealed(image, FenceBrokerRecord(id=1, epoch=10)))
    image = apply(image, sealed(image, FenceBrokerRecord(id=2, epoch=10)))
    state = image.topics["orders"].partitions[0]
    assert (state.leader, state.in_sync_replicas, state.eligible_leader_replicas) == (-1, (), (2,))


def test_a_node_that_derives_something_else_stops() -> None:
    image = image_of(*broker(1), *topic("orders", ORDERS, (1,)))
    with pytest.raises(AssertionError, match="must not go on"):
        apply(image, FenceBrokerRecord(id=1, epoch=10, derived_count=0))


def test_from_a_record_of_a_foreign_controller_nothing_is_derived() -> None:
    """Kafka writes the changes of partitions out, in records of their own."""
    image = image_of(*broker(1), *topic("orders", ORDERS, (1,)))
    after = apply(image, FenceBrokerRecord(id=1, epoch=10))
    assert after.brokers[BrokerId(1)].fenced
    assert after.topics == image.topics


def test_a_record_of_an_earlier_registration_stops_the_node() -> None:
    image = image_of(*broker(1, 10), *broker(1, 20))
    with pytest.raises(AssertionError):
        apply(image, UnregisterBrokerRecord(broker_id=1, broker_epoch=10))


def test_one_bad_record_of_a_batch_leaves_no_trace_of_the_others() -> None:
    image = image_of(*broker(1))
    with pytest.raises((AssertionError, KeyError)):
        apply_all(image, [*topic("orders", ORDERS, (1,)), RemoveTopicRecord(topic_id=RETURNS)])
    assert image.topics == {}


def test_the_delta_names_what_differs() -> None:
    before = image_of(*broker(1), *topic("orders", ORDERS, (1,)), *topic("returns", RETURNS, (1,)))
    new_id = TopicId(b"new_____________")
    after, delta = apply_all(
        before,
        [
            RemoveTopicRecord(topic_id=RETURNS),
            *topic("returns", new_id, (1,), (1,)),
            PartitionChangeRecord(partition_id=0, topic_id=ORDERS, leader=1),
            ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1"),
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=10, in_controlled_shutdown=1),
            NoOpRecord(),
        ],
    )
    assert delta.created_topics == (after.topics["returns"],)
    assert delta.deleted_topics == (before.topics["returns"],)
    assert delta.removed_ids == (RETURNS,)
    assert delta.changed_partitions == ((("orders", 0), after.topics["orders"].partitions[0]),)
    assert delta.changed_configs == (ConfigResource(ResourceType.TOPIC, "orders"),)
    assert delta.changed_brokers == (1,)


def test_a_topic_that_came_and_went_in_one_batch_is_in_the_delta_by_its_id_alone() -> None:
    _, delta = apply_all(EMPTY_IMAGE, [*topic("orders", ORDERS, (1,)), RemoveTopicRecord(topic_id=ORDERS)])
    assert (delta.created_topics, delta.deleted_topics, delta.changed_partitions) == ((), (), ())
    assert delta.removed_ids == (ORDERS,)


def test_removed_ids_are_in_the_pieces_of_a_long_delta() -> None:
    created = [record for number in range(5) for record in topic(f"t{number}", TopicId(bytes([number + 1]) * 16), (1,))]
    _, delta = apply_all(EMPTY_IMAGE, [*topic("orders", ORDERS, (1,)), RemoveTopicRecord(topic_id=ORDERS), *created])
    assert [piece.removed_ids for piece in delta.pieces(2)] == [(ORDERS,), (), (), ()]


def test_records_of_kafkas_migration_change_nothing() -> None:
    """A new log of Kafka 3.4 to 3.9 has this record, even without ZooKeeper before; Kafka 4 reads over the record."""
    image, _ = apply_all(EMPTY_IMAGE, topic("orders", ORDERS, (1,)))
    assert apply(image, ZkMigrationStateRecord(zk_migration_state=0)) == image


def test_names_that_kafka_let_collide_come_and_go_one_by_one() -> None:
    """Kafka checks the topics of one request against existing topics, not against each other."""
    both = image_of(*topic("a_b", ORDERS, (1,)), *topic("a.b", RETURNS, (1,)))
    assert both.confusable_names == {"a_b": ("a.b", "a_b")}
    without_orders = apply(both, RemoveTopicRecord(topic_id=ORDERS))
    assert without_orders.confusable_names == {"a_b": ("a.b",)}
    assert apply(without_orders, RemoveTopicRecord(topic_id=RETURNS)).confusable_names == {}
