"""The records of the metadata log `__cluster_metadata-0`, in Kafka's schemas, and the frame around each.

A record's value is three unsigned varints (frame version, always 1; record type; version) and then the message in that
version. The key is null. Kafka's log dump and metadata shell read these.

Our additions are tagged fields from 10000 on, which Kafka's tools skip.
"""

from typing import get_args

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.primitives import Buffer, read_uvarint, uvarint
from tailrace.protocol.schema import (
    Int8,
    Int16,
    Int32,
    Int64,
    UInt16,
    UInt32,
    Uuid,
    decode,
    encode_bytes,
    field,
    message,
    struct,
)

FRAME_VERSION = 1
METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION = 27
"""The metadata.version of a new cluster: Kafka's 4.1-IV1. It fixes the version of each record below."""
FIRST_WITH_KEY_SHARING = 27
"""All brokers know key ranges and committed ranges (KIP-X). The records below are those of 26."""
OLDEST_METADATA_VERSION = 26
"""Kafka's 4.1-IV0, the first with eligible leaders as we derive them. A log of an older level is refused."""

TRANSACTION_VERSION_FEATURE = "transaction.version"
TRANSACTION_VERSION = 2
"""Each transaction of a producer has an epoch of its own, and the coordinator adds its partitions (KIP-890)."""

NOT_DERIVED = -1
"""Nothing is derived from this record: Kafka's own controllers write all partition changes out."""
UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
"""A replica whose log directory its broker has not chosen yet (KIP-858)."""


@struct
class BrokerEndpoint:
    name: str
    host: str
    port: UInt16
    security_protocol: Int16


@struct
class BrokerFeature:
    name: str
    min_supported_version: Int16
    max_supported_version: Int16


@message(name="RegisterBrokerRecord", versions="0-3", flexible="0+")
class RegisterBrokerRecord:
    """A broker has started. Its epoch is the offset of this record."""

    broker_id: Int32
    is_migrating_zk_broker: bool = field(versions="2+", default=False)
    incarnation_id: Uuid
    broker_epoch: Int64
    end_points: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...]
    rack: str | None
    fenced: bool = True
    in_controlled_shutdown: bool = field(versions="1+", default=False)
    log_dirs: tuple[Uuid, ...] = field(versions="3+", tag=0, default=())
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    """The number of partition changes that follow from this record, see `derive`."""
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)
    is_unclean: bool = field(versions="0+", tag=10002, default=False)
    """The broker cannot vouch that it still has all acknowledged records (KIP-966)."""


@message(name="UnregisterBrokerRecord", versions="0", flexible="0+")
class UnregisterBrokerRecord:
    """A broker will not come back."""

    broker_id: Int32
    broker_epoch: Int64


@message(name="TopicRecord", versions="0", flexible="0+")
class TopicRecord:
    """A new topic; its partitions follow in the same batch."""

    name: str
    topic_id: Uuid


@message(name="PartitionRecord", versions="0-2", flexible="0+")
class PartitionRecord:
    """A new partition."""

    partition_id: Int32 = -1
    topic_id: Uuid
    replicas: tuple[Int32, ...]
    isr: tuple[Int32, ...]
    removing_replicas: tuple[Int32, ...] = ()
    adding_replicas: tuple[Int32, ...] = ()
    leader: Int32 = -1
    leader_recovery_state: Int8 = field(versions="0+", tag=0, default=0)
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: tuple[Uuid, ...] = field(versions="1+", default=())
    """One per replica, in the same order."""
    eligible_leader_replicas: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=1, default=None)
    last_known_elr: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=2, default=None)
    unclean_epoch: Int32 = field(versions="0+", tag=10000, default=-1)
    """The leader epoch that began with the last unclean election; in snapshots, whose changes are not there."""
    accepts_loss: bool = field(versions="0+", tag=10001, default=False)
    """An administrator has given up what the log of this leader lacks, and it has not recovered yet."""


@message(name="ConfigRecord", versions="0", flexible="0+")
class ConfigRecord:
    """One setting of a topic or broker; a null value removes it."""

    resource_type: Int8
    resource_name: str
    name: str
    value: str | None


NO_LEADER_CHANGE = -2
NO_RECOVERY_CHANGE = -1
RECOVERING = 1


@message(name="PartitionChangeRecord", versions="0-2", flexible="0+")
class PartitionChangeRecord:
    """Changes of a partition: null and -2 mean "as before"."""

    partition_id: Int32 = -1
    topic_id: Uuid
    isr: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=0, default=None)
    leader: Int32 = field(versions="0+", tag=1, default=NO_LEADER_CHANGE)
    replicas: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=2, default=None)
    removing_replicas: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=3, default=None)
    adding_replicas: tuple[Int32, ...] | None = field(versions="0+", nullable="0+", tag=4, default=None)
    leader_recovery_state: Int8 = field(versions="0+", tag=5, default=NO_RECOVERY_CHANGE)
    directories: tuple[Uuid, ...] | None = field(versions="1+", nullable="1+", tag=8, default=None)
    eligible_leader_replicas: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=6, default=None)
    last_known_elr: tuple[Int32, ...] | None = field(versions="2+", nullable="2+", tag=7, default=None)
    accepts_loss: bool = field(versions="0+", tag=10000, default=False)
    """An administrator has named this leader, and gives up what its log lacks."""


@message(name="FenceBrokerRecord", versions="0", flexible="0+")
class FenceBrokerRecord:
    """A broker may no longer lead. The partition changes are derived from this record, not written out."""

    id: Int32
    epoch: Int64
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)


@message(name="UnfenceBrokerRecord", versions="0", flexible="0+")
class UnfenceBrokerRecord:
    """A broker may lead again. The partition changes are derived from this record, not written out."""

    id: Int32
    epoch: Int64
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)


@message(name="RemoveTopicRecord", versions="0", flexible="0+")
class RemoveTopicRecord:
    """A topic is gone, with its partitions and settings."""

    topic_id: Uuid


@message(name="FeatureLevelRecord", versions="0", flexible="0+")
class FeatureLevelRecord:
    """The finalized level of a feature; 0 removes it."""

    name: str
    feature_level: Int16


@message(name="ProducerIdsRecord", versions="0", flexible="0+")
class ProducerIdsRecord:
    """A broker has taken a block of producer ids; the next block starts at `next_producer_id`."""

    broker_id: Int32
    broker_epoch: Int64 = -1
    next_producer_id: Int64


@message(name="BrokerRegistrationChangeRecord", versions="0-2", flexible="0+")
class BrokerRegistrationChangeRecord:
    """A change of a registration: `fenced` 1 fences, -1 unfences, 0 leaves it.

    The partition changes of a controlled shutdown are derived from it.
    """

    broker_id: Int32
    broker_epoch: Int64
    fenced: Int8 = field(versions="0+", tag=0, default=0)
    in_controlled_shutdown: Int8 = field(versions="1+", tag=1, default=0)
    log_dirs: tuple[Uuid, ...] = field(versions="2+", tag=2, default=())
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)


@message(name="NoOpRecord", versions="0", flexible="0+")
class NoOpRecord:
    """Nothing; keeps the high watermark moving in an idle cluster."""


@message(name="ZkMigrationStateRecord", versions="0", flexible="0+")
class ZkMigrationStateRecord:
    """The state of Kafka's migration from ZooKeeper to KRaft: without effect here.

    Kafka 3.4 to 3.9 write one into each new log and into snapshots; ours never do.
    """

    zk_migration_state: Int8


@struct
class ControllerEndpoint:
    name: str
    host: str
    port: UInt16
    security_protocol: Int16


@struct
class ControllerFeature:
    name: str
    min_supported_version: Int16
    max_supported_version: Int16


@message(name="RegisterControllerRecord", versions="0", flexible="0+")
class RegisterControllerRecord:
    """A controller has started."""

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: bool
    end_points: tuple[ControllerEndpoint, ...]
    features: tuple[ControllerFeature, ...]


@message(name="BeginTransactionRecord", versions="0", flexible="0+")
class BeginTransactionRecord:
    """The records up to its end, perhaps in several batches, take effect together or not at all (KIP-868).

    Kafka's controllers write this; ours never do.
    """

    name: str | None = field(versions="0+", nullable="0+", tag=0, default=None)


@message(name="EndTransactionRecord", versions="0", flexible="0+")
class EndTransactionRecord:
    """The records since the BeginTransactionRecord take effect here."""


@message(name="AbortTransactionRecord", versions="0", flexible="0+")
class AbortTransactionRecord:
    """The records since the BeginTransactionRecord never take effect."""

    reason: str | None = field(versions="0+", nullable="0+", tag=0, default=None)


@message(name="ClearElrRecord", versions="0", flexible="0+")
class ClearElrRecord:
    """No replica outside the ISR is eligible any more, of this topic, or of all without a name (KIP-966)."""

    topic_name: str


MetadataRecord = (
    RegisterBrokerRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | ConfigRecord
    | PartitionChangeRecord
    | FenceBrokerRecord
    | UnfenceBrokerRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | BrokerRegistrationChangeRecord
    | NoOpRecord
    | ZkMigrationStateRecord
    | RegisterControllerRecord
    | BeginTransactionRecord
    | EndTransactionRecord
    | AbortTransactionRecord
    | ClearElrRecord
)

RECORD_TYPES: dict[int, type[MetadataRecord]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    7: FenceBrokerRecord,
    8: UnfenceBrokerRecord,
    9: RemoveTopicRecord,
    12: FeatureLevelRecord,
    15: ProducerIdsRecord,
    17: BrokerRegistrationChangeRecord,
    20: NoOpRecord,
    21: ZkMigrationStateRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    27: RegisterControllerRecord,
    28: ClearElrRecord,
}
"""Kafka's number of each record type."""

HIGHEST_VERSIONS: dict[type[MetadataRecord], int] = {
    RegisterBrokerRecord: 3,
    PartitionRecord: 2,
    PartitionChangeRecord: 2,
    BrokerRegistrationChangeRecord: 2,
}
"""The version to write, and the highest that can be read, where it is not 0."""

_TYPE_NUMBERS = {record_type: number for number, record_type in RECORD_TYPES.items()}
assert set(_TYPE_NUMBERS) == set(get_args(MetadataRecord))


def type_number(record_type: type[MetadataRecord]) -> int:
    """Kafka's number of this type of record."""
    return _TYPE_NUMBERS[record_type]


def encode_record(record: MetadataRecord) -> bytes:
    """The value of the log record, frame included, in the version this release writes."""
    version = HIGHEST_VERSIONS.get(type(record), 0)
    frame = uvarint(FRAME_VERSION) + uvarint(_TYPE_NUMBERS[type(record)]) + uvarint(version)
    return frame + encode_bytes(record, version)


def decode_record(value: Buffer) -> MetadataRecord:
    """The inverse of `encode_record`.

    Raises KafkaError(UNSUPPORTED_VERSION) for a frame, type or version that this release does not know. A replay
    must then stop: a log with a hole in it is another log. Raises MalformedMessage for bytes that are no such message.
    """
    frame_version, position = read_uvarint(value, 0)
    if frame_version != FRAME_VERSION:
        raise _unknown(f"frame version {frame_version}")
    number, position = read_uvarint(value, position)
    version, position = read_uvarint(value, position)
    record_type = RECORD_TYPES.get(number)
    if record_type is None:
        raise _unknown(f"type {number}")
    if version > HIGHEST_VERSIONS.get(record_type, 0):
        raise _unknown(f"type {number} ({record_type.__name__}) in version {version}")
    return decode(record_type, version, value, position)


def _unknown(what: str) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_VERSION,
        f"the metadata log holds a record of {what}, which this release does not know; start this node with the newer"
        " release that wrote it",
    )
