"""Metadata records: Kafka's bytes both ways, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from tailrace.metadata.records import acls, brokers, cluster, kinds, quotas, topics, users
from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.protocol.primitives import uvarint
from testkit.quorum.metadata_records import encode_record_in

GOLDEN = Path(__file__).parents[2] / "golden" / "metadata_records.txt"


def uuid(number: int) -> bytes:
    return bytes(range(1, 9)) + number.to_bytes(8, "big")


ENDPOINT = brokers.RecordedEndpoint(name="PLAINTEXT", host="127.0.0.1", port=59092, security_protocol=0)
FEATURE = brokers.RecordedFeature(name="metadata.version", min_supported_version=7, max_supported_version=25)
BROKER: dict[str, Any] = {
    "broker_id": 1,
    "incarnation_id": uuid(5),
    "broker_epoch": 42,
    "end_points": (ENDPOINT,),
    "features": (FEATURE,),
}
PARTITION: dict[str, Any] = {
    "partition_id": 3,
    "topic_id": uuid(1),
    "replicas": (1, 2, 3),
    "isr": (1, 2),
    "leader": 1,
    "leader_epoch": 4,
    "partition_epoch": 9,
}
DIRECTORIES = (uuid(9), uuid(10), uuid(11))

RECORDS: dict[str, kinds.MetadataRecord] = {
    **{f"register_broker-{v}": brokers.RegisterBrokerRecord(**BROKER, rack="rack-a") for v in (0, 1, 2)},
    "register_broker-3": brokers.RegisterBrokerRecord(**BROKER, rack="rack-a", log_dirs=(uuid(9),)),
    "register_broker_bare-3": brokers.RegisterBrokerRecord(
        broker_id=2, incarnation_id=uuid(6), broker_epoch=7, end_points=(), features=(), rack=None, fenced=False
    ),
    "unregister_broker-0": brokers.UnregisterBrokerRecord(broker_id=1, broker_epoch=42),
    "topic-0": topics.TopicRecord(name="orders", topic_id=uuid(1)),
    "partition-0": topics.PartitionRecord(**PARTITION),
    "partition-1": topics.PartitionRecord(**PARTITION, directories=DIRECTORIES),
    "partition-2": topics.PartitionRecord(
        **PARTITION, directories=DIRECTORIES, eligible_leader_replicas=(3,), last_known_elr=()
    ),
    "partition_recovering-2": topics.PartitionRecord(
        partition_id=0,
        topic_id=uuid(1),
        replicas=(1,),
        isr=(1,),
        leader=1,
        leader_recovery_state=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=(uuid(9),),
    ),
    "config-0": topics.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="1000"),
    "config_removed-0": topics.ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value=None),
    "partition_change-0": topics.PartitionChangeRecord(partition_id=3, topic_id=uuid(1), isr=(2,), leader=2),
    "partition_change_all-2": topics.PartitionChangeRecord(
        partition_id=3,
        topic_id=uuid(1),
        isr=(2,),
        leader=-1,
        replicas=(2, 3),
        removing_replicas=(1,),
        adding_replicas=(3,),
        leader_recovery_state=0,
        eligible_leader_replicas=(3,),
        last_known_elr=(1,),
        directories=(uuid(9), uuid(10)),
    ),
    "partition_change_none-2": topics.PartitionChangeRecord(partition_id=3, topic_id=uuid(1)),
    "fence_broker-0": brokers.FenceBrokerRecord(id=1, epoch=42),
    "unfence_broker-0": brokers.UnfenceBrokerRecord(id=1, epoch=42),
    "remove_topic-0": topics.RemoveTopicRecord(topic_id=uuid(1)),
    "feature_level-0": cluster.FeatureLevelRecord(name="metadata.version", feature_level=25),
    "producer_ids-0": cluster.ProducerIdsRecord(broker_id=1, broker_epoch=42, next_producer_id=1000),
    "broker_registration_change-0": brokers.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=42, fenced=1),
    "broker_registration_change-1": brokers.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=42, fenced=-1, in_controlled_shutdown=1
    ),
    "broker_registration_change-2": brokers.BrokerRegistrationChangeRecord(
        broker_id=1, broker_epoch=42, log_dirs=(uuid(9),)
    ),
    "no_op-0": cluster.NoOpRecord(),
    "zk_migration_state-0": cluster.ZkMigrationStateRecord(zk_migration_state=3),
    "begin_transaction-0": cluster.BeginTransactionRecord(name="Bootstrap records"),
    "begin_transaction_bare-0": cluster.BeginTransactionRecord(),
    "end_transaction-0": cluster.EndTransactionRecord(),
    "abort_transaction-0": cluster.AbortTransactionRecord(reason="why"),
    "client_quota-0": quotas.quota_record((("user", "alice"), ("client-id", None)), "producer_byte_rate", 1024.5),
    "client_quota_removed-0": quotas.quota_record((("ip", None),), "connection_creation_rate", None),
    "user_scram_credential-0": users.UserScramCredentialRecord(
        name="alice", mechanism=2, salt=b"salt", stored_key=b"stored", server_key=b"server", iterations=8_192
    ),
    "remove_user_scram_credential-0": users.RemoveUserScramCredentialRecord(name="alice", mechanism=1),
    "clear_elr-0": topics.ClearElrRecord(topic_name="orders"),
    "clear_elr_all-0": topics.ClearElrRecord(topic_name=""),
    "register_controller-0": brokers.RegisterControllerRecord(
        controller_id=1,
        incarnation_id=uuid(5),
        zk_migration_ready=False,
        end_points=(brokers.RecordedEndpoint(name="CONTROLLER", host="127.0.0.1", port=9093, security_protocol=0),),
        features=(brokers.RecordedFeature(name="metadata.version", min_supported_version=7, max_supported_version=25),),
    ),
    "access_control_entry-0": acls.AccessControlEntryRecord(
        id=uuid(12),
        resource_type=2,
        resource_name="orders",
        pattern_type=4,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=2,
    ),
    "remove_access_control_entry-0": acls.RemoveAccessControlEntryRecord(id=uuid(12)),
}


def golden() -> dict[str, bytes]:
    lines = (line.split() for line in GOLDEN.read_text().splitlines() if not line.startswith("#"))
    return {name: bytes.fromhex(value) for name, value in lines}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_has_the_bytes_that_kafka_writes(name: str) -> None:
    assert encode_record_in(RECORDS[name], int(name[-1])) == golden()[name]


@pytest.mark.parametrize("name", RECORDS)
def test_kafkas_bytes_read_as_the_record_they_were_made_of(name: str) -> None:
    assert kinds.decode_record(golden()[name]) == RECORDS[name]


def test_every_record_type_has_golden_bytes_in_every_version() -> None:
    assert set(golden()) == set(RECORDS)
    covered = {(type(record), int(name[-1])) for name, record in RECORDS.items()}
    for kind in kinds.KINDS.by_number.values():
        for version in range(kind.version + 1):
            if kind.record is not topics.PartitionChangeRecord or version != 1:  # v1 is a subset of v2
                assert (kind.record, version) in covered


@pytest.mark.parametrize("name", ["register_broker-3", "partition-2", "partition_change_all-2", "no_op-0"])
def test_a_record_is_written_in_the_version_of_this_release(name: str) -> None:
    assert kinds.encode_record(RECORDS[name]) == golden()[name]


def test_our_own_fields_are_tagged_and_absent_when_nothing_is_derived() -> None:
    sealed = brokers.FenceBrokerRecord(id=1, epoch=42, derived_count=2, derived_crc=0xDEADBEEF)
    encoded = kinds.encode_record(sealed)
    assert kinds.decode_record(encoded) == sealed
    assert encoded.startswith(golden()["fence_broker-0"][:-1])


@pytest.mark.parametrize(
    ("value", "what"),
    [
        (uvarint(0) + uvarint(20) + uvarint(0) + b"\0", "frame version 0"),
        (uvarint(2) + uvarint(20) + uvarint(0) + b"\0", "frame version 2"),
        (uvarint(1) + uvarint(99) + uvarint(0) + b"\0", "type 99"),
        (uvarint(1) + uvarint(6) + uvarint(0) + b"\0", "type 6"),
        (uvarint(1) + uvarint(20) + uvarint(1) + b"\0", "version 1"),
        (uvarint(1) + uvarint(3) + uvarint(3) + b"\0", "version 3"),
    ],
)
def test_a_record_of_a_newer_release_is_refused_with_the_way_out(value: bytes, what: str) -> None:
    with pytest.raises(KafkaError, match="newer release") as refusal:
        kinds.decode_record(value)
    assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert what in refusal.value.detail


@pytest.mark.parametrize("cut", [0, 1, 2, 5])
def test_a_metadata_record_that_is_cut_is_malformed(cut: int) -> None:
    with pytest.raises(MalformedMessage):
        kinds.decode_record(golden()["topic-0"][:cut])


def test_bytes_after_a_record_are_malformed() -> None:
    with pytest.raises(MalformedMessage):
        kinds.decode_record(golden()["topic-0"] + b"\0")
