"""Records of the metadata log that only tests write and derive."""

from typing import Any

from tailrace.metadata.derive import PartitionChange
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.brokers import BrokerEvent, RegisterBrokerRecord
from tailrace.metadata.records.kinds import FRAME_VERSION, KINDS, MetadataRecord
from tailrace.metadata.records.topics import PartitionRecord, TopicRecord
from tailrace.metadata.replay import derivation
from tailrace.model.steps import result_of
from tailrace.protocol.primitives import uvarint
from tailrace.protocol.schema import encode_bytes


def encode_record_in(record: MetadataRecord, version: int) -> bytes:
    """The value of the log record in this version, with its frame. The version may be that of an older release."""
    frame = uvarint(FRAME_VERSION) + uvarint(KINDS.of(record).number) + uvarint(version)
    return frame + encode_bytes(record, version)


def new_broker(broker_id: int, *, epoch: int | None = None, **fields: Any) -> RegisterBrokerRecord:
    """A registration without listeners and features; its epoch is the broker's id by default."""
    epoch = broker_id if epoch is None else epoch
    bare = {"incarnation_id": bytes(16), "end_points": (), "features": (), "rack": None}
    return RegisterBrokerRecord(broker_id=broker_id, broker_epoch=epoch, **{**bare, **fields})


def new_topic(name: str, topic_id: bytes, *replicas: tuple[int, ...], **fields: Any) -> list[MetadataRecord]:
    """A topic and its partitions, every partition with these replicas."""
    partitions = (new_partition(topic_id, number, *ids, **fields) for number, ids in enumerate(replicas))
    return [TopicRecord(name=name, topic_id=topic_id), *partitions]


def new_partition(topic_id: bytes, number: int, *replicas: int, **fields: Any) -> PartitionRecord:
    """A partition whose replicas are in sync, led by the first replica in sync."""
    in_sync = fields.get("isr") or replicas
    usual = {"isr": in_sync, "leader": in_sync[0], "leader_epoch": 0, "partition_epoch": 0}
    return PartitionRecord(partition_id=number, topic_id=topic_id, replicas=replicas, **{**usual, **fields})


def derived_changes(image: ClusterImage, record: BrokerEvent) -> tuple[PartitionChange, ...]:
    """The changes that follow from this record for the partitions of this image, which is the image before the
    record."""
    return result_of(derivation(image, record)).changes
