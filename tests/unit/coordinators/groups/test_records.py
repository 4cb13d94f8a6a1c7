"""The records of `__consumer_offsets` against bytes that Apache Kafka wrote."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinators.groups.records import (
    GroupMetadataValue,
    GroupRecord,
    MemberMetadata,
    OffsetCommitValue,
    OffsetRecord,
    decode_record,
    encode_record,
)
from tailrace.model.errors import CorruptRecords
from tailrace.protocol.schema import ZERO_UUID, encode_bytes, replace

GOLDEN = dict(
    line.split()
    for line in (Path(__file__).parents[3] / "golden" / "group_records.txt").read_text().splitlines()
    if not line.startswith("#")
)
GOLDEN_BYTES = {name: bytes.fromhex(text) for name, text in GOLDEN.items()}
OFFSET_KEY, GROUP_KEY = GOLDEN_BYTES["offset_key"], GOLDEN_BYTES["group_key"]

OFFSET = OffsetCommitValue(
    offset=123456789012,
    leader_epoch=5,
    metadata="note é",
    commit_timestamp=1_700_000_000_000,
    topic_id=bytes(range(1, 17)),
)
MEMBERS = (
    MemberMetadata(
        member_id="a-1",
        group_instance_id="one",
        client_id="a",
        client_host="/127.0.0.1",
        rebalance_timeout=30_000,
        session_timeout=10_000,
        subscription=b"\x01\x02",
        assignment=b"\x03",
    ),
    MemberMetadata(
        member_id="b-2",
        group_instance_id=None,
        client_id="b",
        client_host="/127.0.0.2",
        rebalance_timeout=60_000,
        session_timeout=45_000,
        subscription=b"",
        assignment=b"",
    ),
)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=4,
    protocol="range",
    leader="a-1",
    current_state_timestamp=1_700_000_000_000,
    members=MEMBERS,
)
EMPTY_GROUP = replace(GROUP, generation=5, protocol=None, leader=None, members=())

ONE_ID_LESS = replace(OFFSET, topic_id=ZERO_UUID)
OF_VERSION = {
    "offset-0": replace(ONE_ID_LESS, leader_epoch=-1),
    "offset-1": replace(ONE_ID_LESS, leader_epoch=-1, expire_timestamp=1_700_000_600_000),
    "offset-2": replace(ONE_ID_LESS, leader_epoch=-1),
    "offset-3": ONE_ID_LESS,
    "offset-4": OFFSET,
    "offset_without_id-4": ONE_ID_LESS,
    "group-0": replace(
        GROUP,
        current_state_timestamp=-1,
        members=tuple(replace(m, group_instance_id=None, rebalance_timeout=-1) for m in MEMBERS),
    ),
    "group-1": replace(
        GROUP, current_state_timestamp=-1, members=tuple(replace(m, group_instance_id=None) for m in MEMBERS)
    ),
    "group-2": replace(GROUP, members=tuple(replace(m, group_instance_id=None) for m in MEMBERS)),
    "group-3": GROUP,
    "group-4": GROUP,
    "group_empty-3": EMPTY_GROUP,
}


def test_every_golden_value_is_tested() -> None:
    assert {*OF_VERSION, "offset_key", "group_key"} == set(GOLDEN)


@pytest.mark.parametrize("name", OF_VERSION)
def test_kafkas_records_are_read_and_written_alike(name: str) -> None:
    value, version = OF_VERSION[name], int(name.rpartition("-")[2])
    key = OFFSET_KEY if name.startswith("offset") else GROUP_KEY
    record = decode_record(key, GOLDEN_BYTES[name])
    assert record is not None
    assert record.value == value
    assert version.to_bytes(2, "big") + encode_bytes(value, version) == GOLDEN_BYTES[name]


@pytest.mark.parametrize(
    ("value", "golden"),
    [(OFFSET, "offset-4"), (replace(OF_VERSION["offset-1"], leader_epoch=5), "offset-1"), (GROUP, "group-3")],
)
def test_values_are_written_in_the_versions_that_kafka_writes(
    value: OffsetCommitValue | GroupMetadataValue, golden: str
) -> None:
    if isinstance(value, OffsetCommitValue):
        written = encode_record(OffsetRecord(group_id="billing", topic="orders", partition=3, value=value))
        assert written[0] == OFFSET_KEY
    else:
        written = encode_record(GroupRecord(group_id="billing", value=value))
        assert written[0] == GROUP_KEY
    assert written[1] == GOLDEN_BYTES[golden]


def test_a_tombstone_has_no_value() -> None:
    offset = OffsetRecord(group_id="billing", topic="orders", partition=3, value=None)
    group = GroupRecord(group_id="billing", value=None)
    assert encode_record(offset) == (OFFSET_KEY, None)
    assert encode_record(group) == (GROUP_KEY, None)
    assert decode_record(OFFSET_KEY, None) == offset
    assert decode_record(GROUP_KEY, None) == group


def test_the_oldest_keys_are_read() -> None:
    record = decode_record(b"\0\0" + OFFSET_KEY[2:], GOLDEN_BYTES["offset-0"])
    assert isinstance(record, OffsetRecord)
    assert (record.group_id, record.topic, record.partition) == ("billing", "orders", 3)


@pytest.mark.parametrize("kind", [4, 9, 10])
def test_records_of_newer_group_protocols_are_passed_over(kind: int) -> None:
    assert decode_record(kind.to_bytes(2, "big") + b"anything", b"at all") is None


@given(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_any_bytes_are_a_record_or_corrupt(key: bytes | None, value: bytes | None) -> None:
    with suppress(CorruptRecords):
        decode_record(key, value)


@given(st.integers(0, 2), st.binary(max_size=60), st.integers(0, 5), st.binary(max_size=60))
def test_any_bytes_behind_a_known_kind_are_a_record_or_corrupt(
    kind: int, key: bytes, version: int, value: bytes
) -> None:
    with suppress(CorruptRecords):
        decode_record(kind.to_bytes(2, "big") + key, version.to_bytes(2, "big") + value)
