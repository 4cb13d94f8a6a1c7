"""Outdated records of a snapshot, counted as KIP-630 says, record by record."""

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord, PartitionChangeRecord, RemoveTopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import ChangedRecords
from testkit.quorum.metadata_records import new_topic

A, B = (bytes([number]) * 16 for number in (1, 2))


def topic(name: str, topic_id: bytes, partitions: int) -> list[MetadataRecord]:
    return new_topic(name, topic_id, *[(1,)] * partitions)


def settings(value: str | None, count: int = 20) -> list[MetadataRecord]:
    return [
        ConfigRecord(resource_type=2, resource_name="a", name=f"setting-{number}", value=value)
        for number in range(count)
    ]


SNAPSHOT, _ = apply_all(EMPTY_IMAGE, [*topic("a", A, 2), *settings("1")])


def counted(*steps: list[MetadataRecord], base: ClusterImage = SNAPSHOT, snapshot_records: int | None = None) -> int:
    changed, image = ChangedRecords(base, snapshot_records=snapshot_records), base
    for records in steps:
        image, delta = apply_all(image, records)
        changed.add(image, delta)
    return len(changed)


def test_each_setting_is_a_record() -> None:
    assert counted(settings("2")) == 20
    assert counted(settings(None)) == 20
    assert counted(settings("2"), settings("3")) == 20


def test_a_setting_that_stays_as_it_is_has_not_changed() -> None:
    assert counted(settings("1")) == 0
    assert counted(settings("2"), settings("1")) == 0
    assert counted(settings(None), settings("1")) == 0


def test_a_deleted_topic_counts_with_its_partitions_and_settings() -> None:
    assert counted([RemoveTopicRecord(topic_id=A)]) == 23


def test_a_new_record_does_not_count() -> None:
    assert counted(topic("b", B, 3)) == 0


def test_a_record_that_was_added_and_then_modified_counts() -> None:
    change = PartitionChangeRecord(topic_id=B, partition_id=1, leader=-1)
    assert counted(topic("b", B, 3), [change]) == 1
    assert counted([*topic("b", B, 3), change]) == 1
    assert counted(topic("b", B, 3), [change], [change]) == 1


def test_a_record_that_was_added_and_then_deleted_counts() -> None:
    assert counted(topic("b", B, 3), [RemoveTopicRecord(topic_id=B)]) == 4
    assert counted([*topic("b", B, 3), RemoveTopicRecord(topic_id=B)]) == 4


def test_more_than_the_snapshot_holds_are_not_remembered() -> None:
    steps = [
        [*topic("b", bytes([number]) * 16, 3), RemoveTopicRecord(topic_id=bytes([number]) * 16)]
        for number in range(2, 200)
    ]
    assert counted(*steps) == 4 * 198
    assert 23 <= counted(*steps, snapshot_records=23) < 23 + 4
