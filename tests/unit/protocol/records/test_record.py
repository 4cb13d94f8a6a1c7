"""Records inside a batch: building and strict reading."""

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode
from tailrace.protocol.records.batch import HEADER_SIZE, read_header, seal
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import BatchBuilder, Record, build_batch, read_records, record_size_bound

RECORDS = [
    Record(0, 1000, b"key", b"value", (("name", b"content"), ("null", None), ("", b""))),
    Record(1, 990, None, None),
    Record(2, 2**41, b"", b""),
]


def with_section(section: bytes, *, count: int = 1, last_offset_delta: int | None = None) -> bytearray:
    """A batch of these record bytes under a right checksum."""
    built = build_batch([Record(0, 0, None, None)])
    header = read_header(built)
    header.batch_length = HEADER_SIZE - 12 + len(section)
    header.records_count = count
    header.last_offset_delta = count - 1 if last_offset_delta is None else last_offset_delta
    batch = bytearray(header.to_bytes() + section)
    seal(batch)
    return batch


@pytest.mark.parametrize("codec", Codec)
def test_a_built_batch_is_read_back(codec: Codec) -> None:
    assert read_records(build_batch(RECORDS, codec=codec), strict=True) == RECORDS


def test_the_builder_knows_its_size_and_its_times() -> None:
    builder = BatchBuilder()
    assert (builder.size_bytes, builder.count) == (HEADER_SIZE, 0)
    for index, record in enumerate(RECORDS):
        bound = record_size_bound(record.key, record.value, record.headers)
        before = builder.size_bytes
        assert builder.append(record.timestamp, record.key, record.value, record.headers) == index
        assert before < builder.size_bytes <= before + bound
    built = builder.build()
    header = read_header(built)
    assert len(built) == builder.size_bytes == header.size_bytes
    assert (header.base_timestamp, header.max_timestamp, builder.max_timestamp) == (1000, 2**41, 2**41)


def test_a_builder_may_build_again_after_more_records() -> None:
    builder = BatchBuilder()
    builder.append(1, None, b"one")
    first = builder.build()
    builder.append(2, None, b"two")
    assert [record.value for record in read_records(builder.build())] == [b"one", b"two"]
    assert [record.value for record in read_records(first)] == [b"one"]


def test_keys_and_values_may_be_any_buffer() -> None:
    builder = BatchBuilder()
    builder.append(1, bytearray(b"key"), memoryview(b"value"), [("h", bytearray(b"content"))])
    assert read_records(builder.build()) == [Record(0, 1, b"key", b"value", (("h", b"content"),))]


def test_text_is_not_taken_for_bytes() -> None:
    with pytest.raises(TypeError):
        BatchBuilder().append(1, "key", b"value")  # type: ignore[arg-type]


def test_under_append_time_all_records_have_the_brokers_time() -> None:
    assert {record.timestamp for record in read_records(build_batch(RECORDS, log_append_time=77))} == {77}


def test_a_wrong_checksum_is_refused_before_anything_is_read() -> None:
    batch = build_batch(RECORDS)
    batch[-1] ^= 1
    with pytest.raises(CorruptRecords, match="checksum"):
        read_records(batch)


GOOD = bytes(build_batch([Record(0, 0, b"k", b"v", (("h", b"x"),))])[HEADER_SIZE:])
# length, attributes, timestamp delta, offset delta, key, value, header count, header key, header value
assert GOOD == b"\x18\0\0\0\x02k\x02v\x02\x02h\x02x"

DAMAGED = {
    "length is no varint": b"\xff\xff\xff\xff\x1f" + GOOD[1:],
    "length beyond the batch": b"\x1a" + GOOD[1:],
    "negative length": b"\x01" + GOOD[1:],
    "length too small for a record": b"\x0a" + GOOD[1:6],
    "timestamp delta without end": b"\x18\0" + b"\xff" * 11,
    "timestamp delta above 64 bits": b"\x1e\0" + b"\xff" * 9 + b"\x02" + b"\0\1\1\0\0",
    "offset delta not from 0": b"\x18\0\0\x02" + GOOD[4:],
    "negative offset delta": b"\x18\0\0\x01" + GOOD[4:],
    "key length -2": b"\x18\0\0\0\x03" + GOOD[5:],
    "key beyond the record": b"\x18\0\0\0\x12" + GOOD[5:],
    "value length -2": b"\x18\0\0\0\x02k\x03" + GOOD[7:],
    "value beyond the record": b"\x18\0\0\0\x02k\x0e" + GOOD[7:],
    "negative header count": b"\x18\0\0\0\x02k\x02v\x01\x02h\x02x",
    "2^31 headers": b"\x20\0\0\0\x02k\x02v\xfe\xff\xff\xff\x0f\x02h\x02x"[:17],
    "header key is null": b"\x18\0\0\0\x02k\x02v\x02\x01h\x02x",
    "header key beyond the record": b"\x18\0\0\0\x02k\x02v\x02\x0ah\x02x",
    "header value -2": b"\x18\0\0\0\x02k\x02v\x02\x02h\x03x",
    "header value beyond the record": b"\x18\0\0\0\x02k\x02v\x02\x02h\x04x",
    "bytes left in the record": b"\x18\0\0\0\x02k\x02v\0\x02h\x02x",
    "bytes left in the batch": GOOD + b"\0",
    "no bytes": b"",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_record_bytes_that_lie_are_corrupt(case: str) -> None:
    with pytest.raises(CorruptRecords, match="batch at offset 0") as caught:
        read_records(with_section(DAMAGED[case]), strict=True)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


def test_the_undamaged_record_is_read() -> None:
    assert read_records(with_section(GOOD), strict=True) == [Record(0, 0, b"k", b"v", (("h", b"x"),))]


def test_a_count_that_lies_is_corrupt() -> None:
    for count in (2, 1000):
        with pytest.raises(CorruptRecords):
            read_records(with_section(GOOD, count=count))
    with pytest.raises(CorruptRecords, match="left over"):
        read_records(with_section(GOOD + GOOD, count=1))


def test_gaps_between_offsets_are_read_unless_the_batch_must_be_fresh() -> None:
    gap = GOOD + b"\x18\0\0\x08" + GOOD[4:]
    batch = with_section(gap, count=2, last_offset_delta=9)
    assert [record.offset for record in read_records(batch)] == [0, 4]
    with pytest.raises(CorruptRecords, match="record 1: the offset delta"):
        read_records(batch, strict=True)


@pytest.mark.parametrize("delta", [b"\0", b"\x14"])
def test_offsets_rise_and_stay_within_the_batch(delta: bytes) -> None:
    batch = with_section(GOOD + b"\x18\0\0" + delta + GOOD[4:], count=2, last_offset_delta=9)
    with pytest.raises(CorruptRecords, match="offset delta"):
        read_records(batch)


def test_a_timestamp_beyond_64_bits_is_corrupt() -> None:
    batch = with_section(b"\x18\0\x02" + GOOD[3:])
    header = read_header(batch)
    header.base_timestamp = 2**63 - 1
    batch[:HEADER_SIZE] = header.to_bytes()
    seal(batch)
    with pytest.raises(CorruptRecords, match="timestamp"):
        read_records(batch)


def test_a_header_key_that_is_not_utf8_is_read_with_replacements() -> None:
    (record,) = read_records(with_section(b"\x18\0\0\0\x02k\x02v\x02\x02\xff\x02x"))
    assert record.headers == (("\ufffd", b"x"),)


def test_a_batch_that_compaction_emptied_has_no_records() -> None:
    batch = with_section(b"", count=0, last_offset_delta=4)
    assert read_records(batch) == []


def test_the_reader_chooses_the_largest_size_of_an_unfolded_batch() -> None:
    batch = build_batch([Record(0, 1, None, bytes(100_000))], codec=Codec.ZSTD)
    assert len(read_records(batch, max_bytes=200_000)) == 1
    with pytest.raises(CorruptRecords, match="more than 50000 bytes"):
        read_records(batch, max_bytes=50_000)


def test_an_unknown_codec_is_named() -> None:
    batch = build_batch(RECORDS)
    batch[22] |= 6
    seal(batch)
    with pytest.raises(CorruptRecords, match="codec 6") as caught:
        read_records(batch)
    assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
