"""Records of the latest snapshot that are out of date, which decide when the next is due (KIP-630, "When to Snapshot").

A record of the log adds records to the snapshot that would be written next, modifies some or deletes some. `key_of`
names a record of a snapshot, so that it can be found again in the next one. These count:

- records of the latest snapshot that have another value in the state now, or are gone. A record whose old value has
  come back is as in the snapshot, and does not count.
- records that were added since and then modified or deleted, whatever has become of them: "If a snapshot record was
  added and then modify or deleted then it counts against the ratio." New ones do not count.
"""

from collections.abc import Iterator

from tailrace.metadata.image import ClusterImage, ConfigResource, ImageDelta, RecordKey, RecordKind
from tailrace.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
)
from tailrace.model.ids import BrokerId

PRODUCER_IDS: RecordKey = (RecordKind.PRODUCER_IDS,)
_NEVER_AGAIN = (RecordKind.TOPIC, RecordKind.PARTITION)
"""A topic id does not come back and a partition's epoch only rises: such a record never says its old value again."""


def key_of(record: MetadataRecord) -> RecordKey:
    """The name of a snapshot's record: no two of a snapshot have the same."""
    match record:
        case TopicRecord():
            return RecordKind.TOPIC, record.topic_id
        case PartitionRecord():
            return RecordKind.PARTITION, record.topic_id, record.partition_id
        case ConfigRecord():
            return RecordKind.SETTING, ConfigResource(record.resource_type, record.resource_name), record.name
        case RegisterBrokerRecord():
            return RecordKind.BROKER, record.broker_id
        case RegisterControllerRecord():
            return RecordKind.CONTROLLER, record.controller_id
        case FeatureLevelRecord():
            return RecordKind.FEATURE, record.name
        case ProducerIdsRecord():
            return PRODUCER_IDS
        case _:
            raise AssertionError(f"no record of a snapshot: {record}")


class ChangedRecords:
    """Counts the records that are out of date, from one snapshot to the next."""

    def __init__(self, image: ClusterImage, *, snapshot_records: int | None) -> None:
        """`image` is the state in the snapshot, of `snapshot_records` records; None while it is being written."""
        self._image = image
        self.snapshot_records = snapshot_records
        self._keys: set[RecordKey] = set()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Count the changes of this delta, which have led to this image.

        When as many records have changed as the snapshot holds, more make no difference, and take no memory.
        """
        if self.snapshot_records is None or len(self._keys) < self.snapshot_records:
            self._keys |= delta.superseded
        for key in self._perhaps_restored(delta):
            stated = _value(self._image, key)
            if stated is not None and _value(image, key) == stated:
                self._keys.discard(key)

    def _perhaps_restored(self, delta: ImageDelta) -> Iterator[RecordKey]:
        """The keys whose values may be those of the snapshot again."""
        before = self._image
        yield from (key for key in delta.superseded if key[0] not in _NEVER_AGAIN)
        for resource in delta.changed_configs:
            yield from ((RecordKind.SETTING, resource, name) for name in before.overrides(resource))
        yield from ((RecordKind.BROKER, broker_id) for broker_id in delta.changed_brokers)
        yield from ((RecordKind.FEATURE, name) for name in before.features)


def _value(image: ClusterImage, key: RecordKey) -> object:
    """The value of this key in the image; None if there is none."""
    match key:
        case (RecordKind.SETTING, ConfigResource() as resource, str() as name):
            return image.overrides(resource).get(name)
        case (RecordKind.BROKER, int() as broker_id):
            return image.brokers.get(BrokerId(broker_id))
        case (RecordKind.CONTROLLER, int() as controller_id):
            return image.controllers.get(BrokerId(controller_id))
        case (RecordKind.FEATURE, str() as name):
            return image.features.get(name)
        case _:
            assert key == PRODUCER_IDS, f"not a record that can say its old value again: {key}"
            return image.next_producer_id or None
