"""Control records: their bytes are Kafka's, and a reader survives any."""

import io
import uuid

import pytest
from kio.schema.end_txn_marker.v0 import EndTxnMarker
from kio.schema.leader_change_message import v0 as leader_change_v0
from kio.schema.leader_change_message import v1 as leader_change_v1
from kio.schema.snapshot_footer_record.v0 import SnapshotFooterRecord as KioFooter
from kio.schema.snapshot_header_record.v0 import SnapshotHeaderRecord as KioHeader
from kio.serial import entity_writer

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.control import (
    ControlType,
    ControlValue,
    EndTransactionMarker,
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeVoter,
    RecordedVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VoterEndpoint,
    VotersRecord,
    build_control_batch,
    build_marker,
    control_type,
    control_values,
    decode_control,
    encode_control,
)
from tailrace.protocol.records.record import read_records

DIRECTORY_ID = bytes(range(16))
VOTERS_V0 = (LeaderChangeVoter(voter_id=1), LeaderChangeVoter(voter_id=2))
VALUES: list[ControlValue] = [
    LeaderChangeMessage(version=0, leader_id=1, voters=VOTERS_V0, granting_voters=VOTERS_V0[:1]),
    LeaderChangeMessage(
        version=1, leader_id=1, voters=(LeaderChangeVoter(voter_id=1, voter_directory_id=DIRECTORY_ID),)
    ),
    SnapshotHeaderRecord(last_contained_log_timestamp=1_700_000_000_000),
    SnapshotFooterRecord(),
    KRaftVersionRecord(k_raft_version=1),
    VotersRecord(
        voters=(
            RecordedVoter(
                voter_id=1,
                voter_directory_id=DIRECTORY_ID,
                endpoints=(VoterEndpoint(name="CONTROLLER", host="localhost", port=9093),),
                k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
            ),
        )
    ),
    EndTransactionMarker(ControlType.COMMIT, 5),
    EndTransactionMarker(ControlType.ABORT, 0),
]


def kio_bytes(entity: object) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_control_record_says_what_was_written(value: ControlValue) -> None:
    assert decode_control(*encode_control(value)) == value


def test_the_bytes_are_those_of_a_foreign_codec() -> None:
    voter = leader_change_v0.data.Voter
    expected = leader_change_v0.LeaderChangeMessage(
        version=0, leader_id=1, voters=(voter(voter_id=1), voter(voter_id=2)), granting_voters=(voter(voter_id=1),)
    )
    assert encode_control(VALUES[0]) == (b"\0\0\0\x02", kio_bytes(expected))
    with_directory = leader_change_v1.data.Voter(voter_id=1, voter_directory_id=uuid.UUID(bytes=DIRECTORY_ID))
    expected_v1 = leader_change_v1.LeaderChangeMessage(
        version=1, leader_id=1, voters=(with_directory,), granting_voters=()
    )
    assert encode_control(VALUES[1])[1] == kio_bytes(expected_v1)
    header = KioHeader(version=0, last_contained_log_timestamp=1_700_000_000_000)
    assert encode_control(VALUES[2]) == (b"\0\0\0\x03", kio_bytes(header))
    assert encode_control(VALUES[3]) == (b"\0\0\0\x04", kio_bytes(KioFooter(version=0)))
    assert encode_control(VALUES[6]) == (b"\0\0\0\x01", b"\0\0" + kio_bytes(EndTxnMarker(coordinator_epoch=5)))


def test_a_snapshot_begins_with_one_batch_of_control_records() -> None:
    batch = build_control_batch(VALUES[2:6], timestamp=7, base_offset=3, leader_epoch=4)
    ((_, header),) = iter_batches(batch)
    assert header.is_control
    assert (header.base_offset, header.partition_leader_epoch, header.records_count) == (3, 4, 4)
    assert (header.producer_id, header.is_transactional) == (-1, False)
    assert control_values(read_records(batch)) == VALUES[2:6]


def test_a_marker_names_its_producer_and_has_no_sequence() -> None:
    marker = EndTransactionMarker(ControlType.ABORT, 9)
    batch = build_marker(marker, producer_id=77, producer_epoch=2, timestamp=7)
    ((_, header),) = iter_batches(batch)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, -1)
    assert control_values(read_records(batch)) == [marker]


def test_the_number_of_a_decision_stands_behind_the_bytes_of_a_marker_of_kafka() -> None:
    """KIP-98: later versions may add bytes to a marker, which older readers skip."""
    marker = EndTransactionMarker(ControlType.COMMIT, 5)
    numbered = EndTransactionMarker(ControlType.COMMIT, 5, decision_offset=2**40)
    key, value = encode_control(numbered)
    assert (key, value[:-8]) == encode_control(marker)
    assert decode_control(key, value) == numbered
    for other in (value[:-1], value + b"\0", b"\0\x01" + value[2:]):
        assert decode_control(key, other) == marker, "these bytes are of another version, and say something else"


def test_an_unknown_type_is_left_out() -> None:
    assert decode_control(b"\0\0\0\x63", b"whatever") is None
    assert control_type(b"\0\0\0\x63") is None


def test_a_longer_key_or_a_later_marker_is_read_as_today() -> None:
    assert control_type(b"\0\x01\0\x01more") is ControlType.COMMIT
    assert decode_control(b"\0\0\0\0", b"\0\x07\0\0\0\x05more") == EndTransactionMarker(ControlType.ABORT, 5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"", b""),
        (b"\0\0\0", b""),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\0", None),
        (b"\0\0\0\0", b"\0\0\0\0\0"),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0"),
        (b"\0\0\0\x02", b""),
        (b"\0\0\0\x02", b"\0\0\0"),
        (b"\0\0\0\x02", b"\xff\xff\0\0\0\x01\x01\x01\x00"),
        (b"\0\0\0\x06", b"\0\0\xff\xff\xff\xff\x0f"),
    ],
)
def test_a_control_record_that_lies_is_corrupt(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(CorruptRecords):
        decode_control(key, value)
