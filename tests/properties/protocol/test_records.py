"""Record batches: what is built is read, foreign libraries agree, and no bytes whatever do harm."""

import contextlib
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from tailrace.model.errors import CorruptRecords, KafkaError
from tailrace.protocol.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    check_crc,
    iter_batches,
    read_header,
    seal,
    stamp,
    stamp_log_append_time,
    validate_produced,
)
from tailrace.protocol.records.compression import Codec, compress, decompress
from tailrace.protocol.records.control import decode_control
from tailrace.protocol.records.record import Record, build_batch, read_records

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
BYTES = st.none() | st.binary(max_size=40) | st.binary(min_size=100, max_size=300)
TIMESTAMPS = st.integers(0, 2**41) | st.integers(-1, 2**53)
CODECS = st.sampled_from(list(Codec))


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    bodies = draw(
        st.lists(
            st.tuples(TIMESTAMPS, BYTES, BYTES, st.lists(st.tuples(TEXT, BYTES), max_size=3).map(tuple)),
            min_size=1,
            max_size=12,
        )
    )
    return [Record(offset, *body) for offset, body in enumerate(bodies)]


IDENTITIES: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {
        "producer_id": st.integers(0, 2**63 - 1),
        "producer_epoch": st.integers(0, 2**15 - 1),
        "base_sequence": st.integers(0, 2**31 - 1),
        "is_transactional": st.booleans(),
    }
)


@given(record_lists(), CODECS, IDENTITIES)
def test_a_built_batch_is_valid_and_reads_back(records: list[Record], codec: Codec, identity: dict[str, int]) -> None:
    batch = build_batch(records, codec=codec, **identity)  # type: ignore[arg-type]
    header = validate_produced(batch, produce_version=9)
    assert header == read_header(batch)
    assert header.max_timestamp == max(record.timestamp for record in records)
    assert read_records(batch, strict=True) == records
    assert header.to_bytes() == batch[:HEADER_SIZE]


@given(record_lists(), CODECS)
def test_aiokafka_and_kafka_python_read_what_we_build(records: list[Record], codec: Codec) -> None:
    from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch

    batch = bytes(build_batch(records, codec=codec))
    readers = [AiokafkaBatch] if codec is Codec.SNAPPY else [AiokafkaBatch, KafkaPythonBatch]
    for reader in readers:
        foreign = reader(batch)
        assert foreign.validate_crc()
        assert [
            Record(found.offset, found.timestamp, found.key, found.value, tuple(found.headers)) for found in foreign
        ] == records


@given(record_lists(), CODECS)
def test_we_read_what_aiokafka_builds(records: list[Record], codec: Codec) -> None:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    # aiokafka takes a first timestamp of -1 for "not set yet".
    records = [record._replace(timestamp=max(record.timestamp, 0)) for record in records]
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    assert read_records(bytes(builder.build()), strict=True) == records


@given(record_lists())
def test_kio_reads_what_we_build(records: list[Record]) -> None:
    # kio keeps whole seconds only.
    in_range = [record._replace(timestamp=record.timestamp % 2**41 // 1000 * 1000) for record in records]
    foreign = read_batch(bytes(build_batch(in_range)), 0)[0]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert [
        Record(
            found.offset,
            (found.timestamp - epoch) // timedelta(milliseconds=1),
            found.key,
            found.value,
            tuple((header.key.decode(), header.value) for header in found.headers),
        )
        for found in foreign.records
    ] == in_range


@given(record_lists(), CODECS, st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_stamping_never_touches_what_the_checksum_covers(
    records: list[Record], codec: Codec, base_offset: int, leader_epoch: int
) -> None:
    batch = build_batch(records, codec=codec)
    before = bytes(batch)
    stamp(batch, 0, base_offset, leader_epoch)
    header = read_header(batch)
    check_crc(batch, 0, header)
    assert batch[16:] == before[16:]
    assert [record.offset for record in read_records(batch)] == list(range(base_offset, header.end_offset))


@given(record_lists(), CODECS, st.integers(0, 2**53))
def test_append_time_keeps_everything_but_the_timestamps(records: list[Record], codec: Codec, now_ms: int) -> None:
    batch = build_batch(records, codec=codec)
    stamp_log_append_time(batch, 0, now_ms)
    assert read_records(batch) == [record._replace(timestamp=now_ms) for record in records]


@given(record_lists(), CODECS)
def test_a_batch_cut_short_anywhere_is_refused(records: list[Record], codec: Codec) -> None:
    batch = bytes(build_batch(records[:3], codec=codec))
    for size in range(len(batch)):
        assert list(iter_batches(batch[:size])) == []
        for refuse in (lambda cut: validate_produced(cut, produce_version=9), read_records):
            try:
                refuse(batch[:size])
            except KafkaError:
                continue
            raise AssertionError(f"{size} of {len(batch)} bytes were taken")


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_corrupt_or_nothing_else(data: bytes) -> None:
    for read in (read_header, read_records, lambda raw: list(iter_batches(raw))):
        with contextlib.suppress(CorruptRecords):
            read(data)
    with contextlib.suppress(KafkaError):
        validate_produced(data, produce_version=9)


@given(st.binary(max_size=300), st.integers(0, 40), CODECS, st.booleans())
def test_arbitrary_record_bytes_under_a_right_checksum_are_records_or_corrupt(
    section: bytes, count: int, codec: Codec, is_compressed: bool
) -> None:
    stored = compress(codec, section) if is_compressed else section
    header = BatchHeader(0, 49 + len(stored), 0, 2, 0, codec, max(count - 1, 0), 0, 0, -1, -1, -1, count)
    batch = bytearray(header.to_bytes() + stored)
    seal(batch)
    try:
        records = read_records(batch)
    except CorruptRecords:
        return
    assert len(records) == count
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))


@given(record_lists(), CODECS, st.data())
def test_a_changed_byte_under_a_right_checksum_does_no_harm(
    records: list[Record], codec: Codec, data: st.DataObject
) -> None:
    batch = build_batch(records, codec=codec)
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(21, len(batch) - 1))] = data.draw(st.integers(0, 255))
    seal(batch)
    for read in (read_records, lambda raw: validate_produced(raw, produce_version=9)):
        with contextlib.suppress(KafkaError):
            read(batch)


@given(st.sampled_from([codec for codec in Codec if codec]), st.binary(max_size=300))
def test_arbitrary_compressed_bytes_unfold_within_the_limit_or_are_corrupt(codec: Codec, data: bytes) -> None:
    with contextlib.suppress(CorruptRecords):
        assert len(decompress(codec, data, max_bytes=10_000)) <= 10_000


@given(st.sampled_from([codec for codec in Codec if codec]), st.binary(min_size=1, max_size=500), st.data())
def test_damaged_compressed_bytes_unfold_within_the_limit_or_are_corrupt(
    codec: Codec, plain: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(compress(codec, plain * 9))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptRecords):
        assert len(decompress(codec, damaged, max_bytes=10_000)) <= 10_000


@given(st.none() | st.binary(max_size=8), st.none() | st.binary(max_size=60))
def test_arbitrary_control_records_are_known_unknown_or_corrupt(key: bytes | None, value: bytes | None) -> None:
    with contextlib.suppress(CorruptRecords):
        decode_control(key, value)
