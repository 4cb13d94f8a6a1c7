"""Records of consumer groups in Kafka's formats, byte by byte."""

import pytest

from tailrace.coordinators.groups.consumer.group import ConsumerGroup
from tailrace.coordinators.groups.consumer_records import (
    VALUE_OF,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRecord,
    ConsumerRecordKind,
    ConsumerValue,
    CurrentMemberAssignmentValue,
    RegularExpressionValue,
    StoredTopicPartitions,
    TargetAssignmentMemberValue,
    TargetAssignmentMetadataValue,
)
from tailrace.coordinators.groups.records import decode_record, encode_record

K = ConsumerRecordKind
TOPIC = bytes(range(16))
PARTITIONS = (StoredTopicPartitions(topic_id=TOPIC, partitions=(1, 2)),)
ON_DISK = b"\x02" + TOPIC + b"\x03\0\0\0\x01\0\0\0\x02\0"
"""A list of a single topic: count + 1, id, partitions + 1, numbers, no tags."""

RECORDS: list[tuple[ConsumerRecordKind, str, ConsumerValue, bytes]] = [
    (K.GROUP, "", ConsumerGroupMetadataValue(epoch=7), b"\0\0\0\x07\0"),
    (
        K.GROUP,
        "",
        ConsumerGroupMetadataValue(epoch=7, metadata_hash=1),
        b"\0\0\0\x07\x01\0\x08\0\0\0\0\0\0\0\x01",
    ),
    (
        K.MEMBER,
        "m",
        ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="/h",
            subscribed_topic_names=("t",),
            rebalance_timeout_ms=5,
            classic_member_metadata=None,
        ),
        bytes.fromhex("0000 0263 032f68 02 0274 00 00000005 00 01000100"),  # as Kafka 4.1 writes it, here and below
    ),
    (
        K.MEMBER,
        "m",
        ConsumerGroupMemberMetadataValue(
            client_id="c",
            client_host="/h",
            subscribed_topic_names=("t",),
            rebalance_timeout_ms=5,
            classic_member_metadata=ClassicMemberMetadata(
                session_timeout_ms=10, supported_protocols=(ClassicProtocol(name="range", metadata=b"\1\2"),)
            ),
        ),
        bytes.fromhex("0000 0263 032f68 02 0274 00 00000005 00 01 00 11 010000000a020672616e67650301020000"),
    ),
    (
        K.MEMBER,
        "m",
        ConsumerGroupMemberMetadataValue(client_id="c", client_host="/h", rebalance_timeout_ms=5),
        bytes.fromhex("0000 0263 032f68 01 00 00000005 00 00"),
    ),
    (K.TARGET, "", TargetAssignmentMetadataValue(assignment_epoch=7), b"\0\0\0\x07\0"),
    (K.TARGET_MEMBER, "m", TargetAssignmentMemberValue(topic_partitions=PARTITIONS), ON_DISK + b"\0"),
    (
        K.CURRENT,
        "m",
        CurrentMemberAssignmentValue(
            member_epoch=7,
            previous_member_epoch=6,
            state=1,
            assigned_partitions=PARTITIONS,
            partitions_pending_revocation=(),
        ),
        b"\0\0\0\x07\0\0\0\x06\x01" + ON_DISK + b"\x01\0",
    ),
]


@pytest.mark.parametrize(("kind", "member_id", "value", "encoded"), RECORDS)
def test_a_record_is_kafkas(kind: ConsumerRecordKind, member_id: str, value: ConsumerValue, encoded: bytes) -> None:
    record = ConsumerGroupRecord(kind=kind, group_id="g", member_id=member_id, value=value)
    key = kind.to_bytes(2, "big") + b"\0\x01g" + (b"\0\x01m" if member_id else b"")
    assert encode_record(record) == (key, b"\0\0" + encoded)
    assert decode_record(key, b"\0\0" + encoded) == record
    tombstone = ConsumerGroupRecord(kind=kind, group_id="g", member_id=member_id, value=None)
    assert encode_record(tombstone) == (key, None)
    assert decode_record(key, None) == tombstone


def test_a_regular_expression_is_recorded_as_kafka_does() -> None:
    value = RegularExpressionValue(topics=("t", "u"), version=7, timestamp=9)
    record = ConsumerGroupRecord(kind=K.EXPRESSION, group_id="g", regular_expression="o.*", value=value)
    key = bytes.fromhex("0010 000167 00036f2e2a")
    encoded = bytes.fromhex("0000 03027402750000000000000007000000000000000900")  # as Kafka 4.1 writes it
    assert encode_record(record) == (key, encoded)
    assert decode_record(key, encoded) == record
    tombstone = ConsumerGroupRecord(kind=K.EXPRESSION, group_id="g", regular_expression="o.*", value=None)
    assert decode_record(key, None) == tombstone
    group = ConsumerGroup()
    group.apply(record)
    assert (group.matches("o.*"), group.is_gone) == ({"t", "u"}, False)
    group.apply(tombstone)
    assert group == ConsumerGroup()


def test_kinds_that_newer_servers_write_are_passed_over() -> None:
    for kind in (4, 9, 10):
        assert decode_record(kind.to_bytes(2, "big") + b"\0\x01g", b"\0\0") is None
    assert set(VALUE_OF) == set(ConsumerRecordKind)


def test_tombstones_of_all_that_there_is_leave_nothing() -> None:
    group = ConsumerGroup()
    for kind, member_id, value, _ in RECORDS:
        group.apply(ConsumerGroupRecord(kind=kind, group_id="g", member_id=member_id, value=value))
    assert not group.is_gone
    for kind, member_id, _, _ in RECORDS:
        group.apply(ConsumerGroupRecord(kind=kind, group_id="g", member_id=member_id, value=None))
    assert group.is_gone
    assert group == ConsumerGroup()
