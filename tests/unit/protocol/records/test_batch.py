"""The batch header: what the broker checks and changes without touching the records (kafka.md of KIP-98)."""

from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.protocol.records import batch as batches
from tailrace.protocol.records.batch import (
    HEADER_SIZE,
    check_crc,
    crc_is_valid,
    iter_batches,
    read_header,
    seal,
    stamp,
    stamp_log_append_time,
    stamp_producer,
    validate_produced,
)
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import BatchBuilder, Record, build_batch, read_records

RECORDS = [Record(i, 1000 + i, b"k%d" % i, b"v%d" % i) for i in range(3)]


def produced(**changes: int) -> bytearray:
    """A good batch with fields changed afterwards and the checksum made right again."""
    built = build_batch(RECORDS)
    header = read_header(built)
    for name, value in changes.items():
        setattr(header, name, value)
    built[:HEADER_SIZE] = header.to_bytes()
    if "batch_length" not in changes and "crc" not in changes:
        seal(built)
    return built


def refusal(records: bytes | bytearray, produce_version: int = 9) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validate_produced(records, produce_version=produce_version)
    return caught.value


def test_a_good_batch_is_taken_and_its_header_read() -> None:
    header = validate_produced(produced(), produce_version=3)
    assert (header.base_offset, header.last_offset, header.end_offset) == (0, 2, 3)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1002)
    assert header.size_bytes == len(produced())
    assert header.records_count == 3
    assert (header.attributes, header.has_producer_id, header.last_sequence) == (0, False, -1)


def test_a_view_of_a_receive_buffer_is_taken_as_it_is() -> None:
    frame = bytearray(b"before") + produced() + b"after"
    view = memoryview(frame)[6:-5]
    assert validate_produced(view, produce_version=9) == validate_produced(produced(), produce_version=9)


INVALID, CORRUPT = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE

REFUSED: dict[str, tuple[bytes | bytearray, ErrorCode, str]] = {
    "no bytes": (b"", INVALID, "0 bytes"),
    "less than a header": (produced()[:60], INVALID, "60 bytes"),
    "a short message set v1": (bytes(16) + b"\x01" + bytes(20), INVALID, "format v1"),
    "a message set v0": (produced(magic=0), INVALID, "format v0"),
    "an unknown format": (produced(magic=3), CORRUPT, "format v3"),
    "negative magic": (produced(magic=-1), CORRUPT, "format v-1"),
    "cut short": (produced()[:-1], INVALID, "were sent"),
    "two batches": (produced() * 2, INVALID, "exactly one batch"),
    "bytes behind the batch": (produced() + b"\0", INVALID, "1 bytes after the batch"),
    "length below an empty batch": (produced(batch_length=48), CORRUPT, "48"),
    "negative length": (produced(batch_length=-1), CORRUPT, "-1"),
    "wrong checksum": (produced(crc=1), CORRUPT, "checksum 0x00000001"),
    "codec 5": (produced(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "codec 5"),
    "codec 7": (produced(attributes=7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "codec 7"),
    "base offset": (produced(base_offset=1), INVALID, "base offset 1"),
    "no records": (produced(records_count=0), INVALID, "0 records"),
    "negative count": (produced(records_count=-1), INVALID, "-1 records"),
    "count above the offsets": (produced(records_count=4), INVALID, "4 records"),
    "negative last offset delta": (produced(last_offset_delta=-1), INVALID, "delta -1"),
    "more records than bytes": (produced(records_count=99, last_offset_delta=98), INVALID, "cannot fit"),
    "too many records": (
        produced(records_count=1_000_001, last_offset_delta=1_000_000, attributes=Codec.ZSTD),
        INVALID,
        "at most 100000",
    ),
    "a control batch": (produced(attributes=batches.CONTROL), INVALID, "control"),
    "the broker's clock": (produced(attributes=batches.LOG_APPEND_TIME), ErrorCode.INVALID_TIMESTAMP, "LogAppendTime"),
    "a delete horizon": (produced(attributes=batches.DELETE_HORIZON), INVALID, "horizon"),
    "an unknown attribute": (produced(attributes=0x100), INVALID, "0x0100"),
    "all attributes": (produced(attributes=-8), INVALID, "control"),
    "producer id without a sequence": (produced(producer_id=7, producer_epoch=0), INVALID, "sequence -1"),
    "producer id without an epoch": (produced(producer_id=7, base_sequence=0), INVALID, "epoch -1"),
    "transaction without a producer id": (produced(attributes=batches.TRANSACTIONAL), INVALID, "without a producer id"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_batch_is_refused_with_kafkas_code_and_the_reason(case: str) -> None:
    records, code, words = REFUSED[case]
    error = refusal(records)
    assert error.code is code
    assert words in error.detail


def test_zstd_needs_produce_v7() -> None:
    records = build_batch(RECORDS, codec=Codec.ZSTD)
    assert refusal(records, produce_version=6).code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert validate_produced(records, produce_version=7).codec == Codec.ZSTD


def test_an_idempotent_and_a_transactional_batch_are_taken() -> None:
    identity: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 5}
    assert validate_produced(build_batch(RECORDS, **identity), produce_version=3).last_sequence == 7
    transactional = build_batch(RECORDS, **identity, is_transactional=True)
    assert validate_produced(transactional, produce_version=3).is_transactional


def test_every_flipped_bit_under_the_checksum_is_noticed() -> None:
    good = bytes(build_batch(RECORDS))
    for position in range(21, len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            assert refusal(damaged).code in (CORRUPT, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)


def test_stamping_offsets_leaves_the_checksum_valid() -> None:
    buffer = bytearray(b"xx") + build_batch(RECORDS)
    before = read_header(buffer, 2)
    stamp(memoryview(buffer), 2, 2**40, 9)
    header = read_header(buffer, 2)
    assert header == replace(before, base_offset=2**40, partition_leader_epoch=9)
    assert (header.base_offset, header.partition_leader_epoch, header.end_offset) == (2**40, 9, 2**40 + 3)
    check_crc(buffer, 2, header)
    assert [record.offset for record in read_records(buffer, 2)] == [2**40, 2**40 + 1, 2**40 + 2]


def test_stamping_the_append_time_gives_it_to_every_record_under_a_new_checksum() -> None:
    buffer = bytearray(b"xx") + build_batch(RECORDS)
    stamp_log_append_time(buffer, 2, 5_000_000)
    header = read_header(buffer, 2)
    assert header.has_log_append_time
    assert (header.base_timestamp, header.max_timestamp) == (1000, 5_000_000)
    assert header.crc == crc32c(buffer[2 + 21 :])
    assert {record.timestamp for record in read_records(buffer, 2)} == {5_000_000}


def test_stamping_a_producer_gives_a_batch_that_is_taken() -> None:
    buffer = build_batch(RECORDS)
    stamp_producer(buffer, 0, producer_id=9, producer_epoch=2, base_sequence=4)
    header = validate_produced(buffer, produce_version=9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 4)


def test_stamping_a_transactional_producer_marks_the_batch() -> None:
    buffer = build_batch(RECORDS)
    stamp_producer(buffer, 0, producer_id=9, producer_epoch=2, base_sequence=4, is_transactional=True)
    assert validate_produced(buffer, produce_version=9).is_transactional
    assert [record.value for record in read_records(buffer)] == [record.value for record in RECORDS]


def test_sequence_numbers_wrap_from_the_largest_to_zero() -> None:
    builder = BatchBuilder(producer_id=1, producer_epoch=0, base_sequence=2**31 - 2)
    for _ in range(4):
        builder.append(1, None, b"")
    assert read_header(builder.build()).last_sequence == 1


def test_batches_are_walked_up_to_an_incomplete_tail() -> None:
    first = build_batch(RECORDS)
    two = build_batch(RECORDS, base_offset=3)
    whole = bytes(first + two)
    for size in range(len(whole) + 1):
        found = [(position, header.base_offset) for position, header in iter_batches(whole[:size])]
        assert found == [(0, 0), (len(first), 3)][: (size >= len(first)) + (size >= len(whole))]
    assert [position for position, _ in iter_batches(whole, len(first))] == [len(first)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"magic": 1}, "format v1"),
        ({"batch_length": 48}, "batch length 48"),
        ({"base_offset": -1}, "offset -1"),
        ({"last_offset_delta": -1}, "+ -1"),
        ({"base_offset": 2**63 - 3}, "offset"),
        ({"records_count": 4}, "4 records"),
        ({"records_count": -1}, "-1 records"),
    ],
)
def test_a_header_that_contradicts_itself_is_corrupt(changes: dict[str, int], words: str) -> None:
    with pytest.raises(CorruptRecords) as caught:
        read_header(produced(**changes))
    assert words in caught.value.detail
    with pytest.raises(CorruptRecords):
        list(iter_batches(produced(**changes)))


def test_a_header_needs_61_bytes() -> None:
    with pytest.raises(CorruptRecords, match="60 bytes"):
        read_header(bytes(60))
    with pytest.raises(CorruptRecords):
        read_header(bytes(100), -1)


def test_a_compacted_batch_keeps_its_offsets_with_fewer_records() -> None:
    assert read_header(produced(last_offset_delta=10)).end_offset == 11


def test_a_batch_that_is_not_all_there_has_no_valid_checksum() -> None:
    good = produced()
    header = read_header(good)
    assert crc_is_valid(good, 0, header)
    assert not crc_is_valid(good[:-1], 0, header)
    with pytest.raises(CorruptRecords, match="are here"):
        check_crc(good[:-1], 0, header)
    good[-1] ^= 1
    assert not crc_is_valid(good, 0, header)
    with pytest.raises(CorruptRecords, match="states checksum"):
        check_crc(good, 0, header)
