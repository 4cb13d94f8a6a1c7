from dataclasses import replace

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import HEADER_SIZE, LENGTH_OFFSET, BatchHeader, check_crc, read_header, seal
from tailrace.protocol.records.compression import Codec, compress
from tailrace.protocol.records.kernels import append_record
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.replication.admission import MOST_NAMED, Admission, InvalidRecords, LargeBatch
from testkit.nodes.data_path import batch_of

NOW_MS = 1_700_000_000_000


def admit(config: TopicConfig, batch: bytes) -> tuple[memoryview, BatchHeader]:
    buffer = memoryview(bytearray(batch))
    return Admission(config).admit(buffer, read_header(buffer), NOW_MS)


def refusal(config: TopicConfig, batch: bytes) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        admit(config, batch)
    return caught.value.code


def test_an_ordinary_batch_passes_as_it_is() -> None:
    batch = batch_of(b"a", b"b")
    stored, header = admit(TopicConfig(), batch)
    assert stored == batch
    assert header == read_header(batch)


def test_a_batch_above_max_message_bytes_is_too_large_and_one_above_a_segment_does_not_fit() -> None:
    batch = batch_of(b"v" * 200)
    assert refusal(TopicConfig(max_message_bytes=len(batch) - 1), batch) is ErrorCode.MESSAGE_TOO_LARGE
    assert refusal(TopicConfig(segment_bytes=len(batch) - 1), batch) is ErrorCode.RECORD_LIST_TOO_LARGE
    admit(TopicConfig(max_message_bytes=len(batch), segment_bytes=len(batch)), batch)


@pytest.mark.parametrize(("offset_ms", "is_legal"), [(-1000, True), (-1001, False), (500, True), (501, False)], ids=str)
def test_timestamps_lie_within_the_bounds_around_the_brokers_clock(offset_ms: int, is_legal: bool) -> None:
    config = TopicConfig(message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=500)
    batch = batch_of(b"a", now=lambda: NOW_MS + offset_ms)
    if is_legal:
        admit(config, batch)
    else:
        assert refusal(config, batch) is ErrorCode.INVALID_TIMESTAMP


def test_a_batch_without_timestamps_is_within_every_bound() -> None:
    batch = batch_of(b"a", now=lambda: -1)
    stored, header = admit(TopicConfig(message_timestamp_before_max_ms=0), batch)
    assert (stored, header.max_timestamp) == (batch, -1)


def test_log_append_time_replaces_every_timestamp_and_seals_the_batch_again() -> None:
    config = TopicConfig(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    stored, header = admit(config, batch_of(b"a", b"b", now=lambda: 5))
    check_crc(stored, 0, header)
    assert header.has_log_append_time
    assert [record.timestamp for record in read_records(stored)] == [NOW_MS, NOW_MS]


def test_a_compacted_topic_refuses_a_batch_with_a_record_without_key_and_names_the_record() -> None:
    records = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS, None, b"v"), Record(2, NOW_MS, b"", b"v")]
    with pytest.raises(InvalidRecords) as caught:
        admit(TopicConfig(cleanup_policy=("compact",)), bytes(build_batch(records)))
    assert caught.value.code is ErrorCode.INVALID_RECORD
    assert [index for index, _ in caught.value.record_errors] == [1]


@pytest.mark.parametrize("config", [TopicConfig(cleanup_policy=("compact",)), TopicConfig()], ids=["keys", "times"])
def test_a_refusal_names_the_first_records_at_fault_and_makes_nothing_of_the_others(config: TopicConfig) -> None:
    """A million records, 1 MB with zstd, were each named: 12 s of one turn, and 1.3 GB."""
    late = NOW_MS + 2 * 3_600_000
    records = [Record(0, NOW_MS, b"k", b"v")] + [Record(0, late, None, b"v")] * (MOST_NAMED + 5)
    with pytest.raises(InvalidRecords) as caught:
        admit(config, bytes(build_batch(records)))
    assert [index for index, _ in caught.value.record_errors] == list(range(1, MOST_NAMED + 1))
    assert f"more than {MOST_NAMED} of the batch's records" in caught.value.detail


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_batch_of_very_many_empty_members_is_unfolded_in_later_turns(codec: Codec) -> None:
    batch = batch_of(b"a", codec=codec)
    section = batch[HEADER_SIZE:] + compress(codec, b"") * 3_000
    made = batch[:HEADER_SIZE] + section
    large = with_header(made, batch_length=len(made) - LENGTH_OFFSET)
    with pytest.raises(LargeBatch) as caught:
        admit(TopicConfig(), large)
    steps = caught.value.steps()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            unfolded = end.value
            break
    buffer = memoryview(bytearray(large))
    stored, _ = Admission(TopicConfig()).admit(buffer, read_header(buffer), NOW_MS, unfolded)
    assert stored == large


def test_a_topic_with_a_codec_of_its_own_stores_every_batch_in_it_and_keeps_the_producers_identity() -> None:
    batch = batch_of(b"a" * 500, b"b" * 500, producer_id=4, producer_epoch=1, base_sequence=9)
    stored, header = admit(TopicConfig(compression_type="gzip"), batch)
    assert header.codec == Codec.GZIP
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4, 1, 9)
    assert read_records(stored) == read_records(batch)
    check_crc(stored, 0, header)


def with_header(batch: bytes, **changes: int) -> bytes:
    """The batch with a header that says something else, sealed."""
    buffer = bytearray(batch)
    header = read_header(buffer)
    for name, value in changes.items():
        setattr(header, name, value)
    buffer[:HEADER_SIZE] = header.to_bytes()
    seal(buffer)
    return bytes(buffer)


def test_a_recompressed_batch_is_not_too_new_whatever_its_header_has() -> None:
    """The broker writes that header, and would write a timestamp that the topic does not permit."""
    records = [Record(0, NOW_MS, b"k", b"v"), Record(1, NOW_MS + 501, b"k", b"v")]
    batch = with_header(bytes(build_batch(records)), max_timestamp=NOW_MS)
    config = TopicConfig(compression_type="gzip", message_timestamp_after_max_ms=500)
    with pytest.raises(InvalidRecords) as caught:
        admit(config, batch)
    assert caught.value.code is ErrorCode.INVALID_TIMESTAMP
    assert [index for index, _ in caught.value.record_errors] == [1]
    admit(replace(config, message_timestamp_after_max_ms=501), batch)
    admit(replace(config, message_timestamp_type="LogAppendTime"), batch)


def test_records_that_lie_further_apart_than_64_bits_keep_their_times_where_the_batch_is_compressed_anew() -> None:
    """The times fit, as do the deltas from the producer's base; the delta between the two records does not."""
    records = bytearray()
    for index, delta in enumerate((2**62, -(2**62) - 2**61)):
        append_record(records, index, delta, b"k", b"v", ())
    made = batch_of(b"a", b"b")[:HEADER_SIZE] + records
    batch = with_header(made, batch_length=len(made) - LENGTH_OFFSET, base_timestamp=-(2**61), max_timestamp=NOW_MS)
    for codec in ("producer", "gzip"):
        config = TopicConfig(compression_type=codec, message_timestamp_after_max_ms=2**63 - 1)
        stored, header = admit(config, batch)
        assert [record.timestamp for record in read_records(stored)] == [2**61, -(2**63)]
        assert header.max_timestamp == 2**61


def test_a_batch_in_the_topics_codec_is_not_touched() -> None:
    batch = batch_of(b"a" * 500, codec=Codec.LZ4)
    assert admit(TopicConfig(compression_type="lz4"), batch)[0] == batch
    assert admit(TopicConfig(compression_type="uncompressed"), batch)[1].codec == Codec.NONE
