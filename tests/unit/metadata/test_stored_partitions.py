"""Records that are read the short way say the same as decoded records."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.metadata.records.kinds import MetadataRecord, decode_record, encode_record
from tailrace.metadata.records.topics import (
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
    created_partition,
)
from tailrace.metadata.stored_partitions import RecordReader, StoredChange, StoredPartition, StoredRecord
from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.protocol.schema import replace as replace_record
from testkit.quorum.metadata_records import encode_record_in

int32 = st.integers(-(2**31), 2**31 - 1)
brokers = st.lists(int32, max_size=4).map(tuple)
uuids = st.binary(min_size=16, max_size=16)
records = st.builds(
    PartitionRecord,
    partition_id=int32,
    topic_id=uuids,
    replicas=brokers | st.just(tuple(range(200))),
    isr=brokers,
    removing_replicas=brokers,
    adding_replicas=brokers,
    leader=int32,
    leader_recovery_state=st.sampled_from([0, 1]),
    leader_epoch=int32,
    partition_epoch=int32,
    directories=st.lists(uuids, max_size=3).map(tuple) | st.just((bytes(16),) * 130),
    eligible_leader_replicas=st.none() | brokers,
    last_known_elr=st.none() | brokers,
)
PLAIN = PartitionRecord(
    partition_id=3,
    topic_id=b"t" * 16,
    replicas=(1, 2, 3),
    isr=(1, 2, 3),
    leader=1,
    leader_epoch=4,
    partition_epoch=5,
    directories=(b"a" * 16, b"b" * 16, b"c" * 16),
)
CHANGE = PartitionChangeRecord(partition_id=3, topic_id=b"t" * 16, isr=(1, 2), leader=2)


@given(st.lists(records, max_size=4), st.integers(0, 2))
def test_any_partition_record_in_any_version(found: list[PartitionRecord], version: int) -> None:
    reader = RecordReader()
    for record in found:
        value = encode_record_in(record, version)
        decoded = decode_record(value)
        assert isinstance(decoded, PartitionRecord)
        expected = StoredPartition(decoded.partition_id, created_partition(TopicId(decoded.topic_id), decoded))
        assert reader.read(value) == expected


changes = st.builds(
    PartitionChangeRecord,
    partition_id=int32,
    topic_id=uuids,
    isr=st.none() | brokers,
    leader=int32,
    replicas=st.none() | brokers,
    removing_replicas=st.none() | brokers,
    adding_replicas=st.none() | brokers,
    leader_recovery_state=st.sampled_from([-1, 0, 1]),
    directories=st.none() | st.lists(uuids, max_size=3).map(tuple),
    eligible_leader_replicas=st.none() | brokers,
    last_known_elr=st.none() | brokers,
)


@given(st.lists(st.tuples(changes, st.integers(0, 2), int32, uuids), max_size=4))
def test_any_change_in_any_version_and_the_same_change_of_another_partition(
    found: list[tuple[PartitionChangeRecord, int, int, bytes]],
) -> None:
    reader = RecordReader()
    for record, version, number, topic_id in found:
        for stored in (record, replace_record(record, partition_id=number, topic_id=topic_id)):
            value = encode_record_in(stored, version)
            assert as_record(reader.read(value)) == decode_record(value)


def as_record(read: StoredRecord) -> MetadataRecord | StoredPartition:
    """A change as the record that it is."""
    if not isinstance(read, StoredChange):
        return read
    return replace_record(read.change, topic_id=read.topic_id, partition_id=read.number)


@given(st.data())
def test_bytes_that_are_no_record_are_refused_in_the_same_way(data: st.DataObject) -> None:
    records: list[MetadataRecord] = [PLAIN, CHANGE]
    value = bytearray(encode_record(data.draw(st.sampled_from(records))))
    at = data.draw(st.integers(0, len(value) - 1))
    value[at] = data.draw(st.integers(0, 255))
    damaged = bytes(value[: data.draw(st.integers(0, len(value)))])
    try:
        decoded = decode_record(damaged)
    except KafkaError as refusal:
        with pytest.raises(type(refusal)):
            RecordReader().read(damaged)
    else:
        read = as_record(RecordReader().read(damaged))
        if isinstance(decoded, PartitionRecord):
            assert read == StoredPartition(decoded.partition_id, created_partition(TopicId(decoded.topic_id), decoded))
        else:
            assert read == decoded


def test_lists_that_are_equal_are_one_object() -> None:
    reader = RecordReader()
    first, second = (reader.read(encode_record(replace_record(PLAIN, partition_id=number))) for number in (0, 1))
    assert isinstance(first, StoredPartition)
    assert isinstance(second, StoredPartition)
    assert first.state.replicas is first.state.in_sync_replicas is second.state.replicas
    assert first.state.directories is second.state.directories
    assert replace(first.state) == second.state


@pytest.mark.parametrize(
    "record", [TopicRecord(name="orders", topic_id=b"t" * 16), RemoveTopicRecord(topic_id=b"t" * 16)]
)
def test_other_records_are_decoded(record: TopicRecord | RemoveTopicRecord) -> None:
    assert RecordReader().read(encode_record(record)) == record
