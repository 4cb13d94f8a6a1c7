"""The difference of two images is what records between the first image and the second would have reported."""

from dataclasses import replace

from tailrace.metadata.image import EMPTY_IMAGE, ConfigResource, ResourceType, full_delta
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord, PartitionChangeRecord, RemoveTopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import difference
from testkit.quorum.metadata_records import new_broker, new_topic

A, B, C = (bytes([number]) * 16 for number in (1, 2, 3))


def topic(name: str, topic_id: bytes, partitions: int = 2) -> list[MetadataRecord]:
    return new_topic(name, topic_id, *[(1,)] * partitions)


def setting(value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=ResourceType.TOPIC, resource_name="a", name="retention.ms", value=value)


BEFORE, _ = apply_all(EMPTY_IMAGE, [new_broker(1), new_broker(2), *topic("a", A), *topic("b", B), setting("1")])


def test_nothing_differs_from_itself() -> None:
    assert difference(BEFORE, replace(BEFORE)) == difference(EMPTY_IMAGE, EMPTY_IMAGE)


def test_from_nothing_it_is_everything() -> None:
    found, whole = difference(EMPTY_IMAGE, BEFORE), full_delta(BEFORE)
    assert found.created_topics == whole.created_topics
    assert set(found.changed_configs) == set(whole.changed_configs)
    assert set(found.changed_brokers) == set(whole.changed_brokers)


def test_it_is_what_the_records_report() -> None:
    records = [
        PartitionChangeRecord(partition_id=1, topic_id=A, isr=(), leader=-1),
        setting("2"),
        RemoveTopicRecord(topic_id=B),
        *topic("c", C),
        new_broker(3),
    ]
    after, reported = apply_all(BEFORE, records)
    assert difference(BEFORE, after) == reported


def test_a_topic_that_was_made_again_is_another_one() -> None:
    after, _ = apply_all(BEFORE, [RemoveTopicRecord(topic_id=A), *topic("a", C)])
    found = difference(BEFORE, after)
    assert [entry.topic_id for entry in found.deleted_topics] == [A]
    assert [entry.topic_id for entry in found.created_topics] == [C]
    assert found.changed_partitions == ()
    assert found.changed_configs == (ConfigResource(ResourceType.TOPIC, "a"),)
