"""The records of the metadata log `__cluster_metadata-0`, in Kafka's schemas, and the frame around each.

A record's value is three unsigned varints (frame version, always 1; record type; version) and then the message in that
version. The key is null. Kafka's log dump and metadata shell read these.

Our additions are tagged fields from 10000 on, which Kafka's tools skip. Beside each record stands its row in the table
of record kinds (`kinds`).
"""

from tailrace.metadata.records.brokers import (
    NOT_DERIVED,
    BrokerEndpoint,
    BrokerEvent,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    broker_endpoints,
    broker_features,
    controller_registration,
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
from tailrace.metadata.records.kinds import (
    FRAME_VERSION,
    KINDS,
    MetadataRecord,
    RecordKind,
    decode_record,
    encode_record,
    key_of,
)
from tailrace.metadata.records.topics import (
    NO_LEADER_CHANGE,
    NO_RECOVERY_CHANGE,
    RECOVERING,
    UNASSIGNED_DIRECTORY,
    ClearElrRecord,
    ConfigRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    changed_partition,
    created_partition,
    partition_record,
)

__all__ = [
    "FRAME_VERSION",
    "KINDS",
    "NOT_DERIVED",
    "NO_LEADER_CHANGE",
    "NO_RECOVERY_CHANGE",
    "RECOVERING",
    "UNASSIGNED_DIRECTORY",
    "AbortTransactionRecord",
    "BeginTransactionRecord",
    "BrokerEndpoint",
    "BrokerEvent",
    "BrokerFeature",
    "BrokerRegistrationChangeRecord",
    "ClearElrRecord",
    "ConfigRecord",
    "ControllerEndpoint",
    "ControllerFeature",
    "EndTransactionRecord",
    "FeatureLevelRecord",
    "FenceBrokerRecord",
    "MetadataRecord",
    "NoOpRecord",
    "PartitionChangeRecord",
    "PartitionRecord",
    "ProducerIdsRecord",
    "RecordKind",
    "RegisterBrokerRecord",
    "RegisterControllerRecord",
    "RemoveTopicRecord",
    "TopicRecord",
    "UnfenceBrokerRecord",
    "UnregisterBrokerRecord",
    "ZkMigrationStateRecord",
    "broker_endpoints",
    "broker_features",
    "changed_partition",
    "controller_registration",
    "created_partition",
    "decode_record",
    "encode_record",
    "key_of",
    "partition_record",
]
