"""Records of the metadata log as only tests write and derive them."""

from tailrace.metadata.derive import PartitionChange
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.records.brokers import BrokerEvent
from tailrace.metadata.records.kinds import FRAME_VERSION, KINDS, MetadataRecord
from tailrace.metadata.replay import derivation
from tailrace.model.steps import result_of
from tailrace.protocol.primitives import uvarint
from tailrace.protocol.schema import encode_bytes


def encode_record_in(record: MetadataRecord, version: int) -> bytes:
    """The value of the log record in this version, frame included: that of an older release, too."""
    frame = uvarint(FRAME_VERSION) + uvarint(KINDS.of(record).number) + uvarint(version)
    return frame + encode_bytes(record, version)


def derived_changes(image: ClusterImage, record: BrokerEvent) -> tuple[PartitionChange, ...]:
    """The changes that follow from this record for the partitions of this image, the one before it."""
    return result_of(derivation(image, record)).changes
