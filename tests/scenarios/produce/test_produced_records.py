"""The records of produced batches decide, not the headers of the batches: as in Kafka's LogValidator.

Each scenario is sent in every codec, to topics with each setting that changes how a batch is taken. A batch that no
reader can parse is INVALID_RECORD (87), which a producer does not send again.
"""

from typing import Any, NamedTuple

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.primitives import varint
from tailrace.protocol.records.batch import check_crc, read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import read_records
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record

NOW_MS = ManualClock().now_ms()
HOUR_MS = 3_600_000

CODECS = tuple(Codec)
TOPICS = {
    "an ordinary topic": TopicConfig(),
    "compression.type=gzip": TopicConfig(compression_type="gzip"),
    "compression.type=uncompressed": TopicConfig(compression_type="uncompressed"),
    "a compacted topic": TopicConfig(cleanup_policy=("compact",)),
    "LogAppendTime": TopicConfig(message_timestamp_type="LogAppendTime"),
    "message.timestamp.before.max.ms": TopicConfig(message_timestamp_before_max_ms=10 * HOUR_MS),
}


def pair(first: bytes, second: bytes = raw_record(1)) -> bytes:
    return first + second


LONG = raw_record(1, value=raw_bytes(b"v" * 20))


class Unreadable(NamedTuple):
    section: bytes
    at_fault: tuple[int, ...]
    """The record that the answer names; empty if the batch is at fault."""
    records: int = 2


UNREADABLE = {
    "a header with a null key": Unreadable(
        pair(raw_record(headers=varint(1) + raw_bytes(None) + raw_bytes(b"x"))), (0,)
    ),
    "a header with a negative key length": Unreadable(
        pair(raw_record(headers=varint(1) + varint(-2) + raw_bytes(b"x"))), (0,)
    ),
    "a header whose value is longer than its record": Unreadable(
        pair(raw_record(0), raw_record(1, headers=varint(1) + raw_bytes(b"h") + raw_bytes(b"x", 9))), (1,)
    ),
    "a negative number of headers": Unreadable(pair(raw_record(headers=varint(-1))), (0,)),
    "more headers than bytes": Unreadable(pair(raw_record(headers=varint(1_000_000))), (0,)),
    "fewer headers than bytes": Unreadable(pair(raw_record(headers=varint(0) + b"\2h\2x")), (0,)),
    "a key that is longer than its record": Unreadable(pair(raw_record(key=raw_bytes(b"k", 100))), (0,)),
    "a value that is longer than its record": Unreadable(pair(raw_record(0), raw_record(1, value=varint(9))), (1,)),
    "a negative key length": Unreadable(pair(raw_record(key=varint(-2))), (0,)),
    "a negative value length": Unreadable(pair(raw_record(value=varint(-5))), (0,)),
    "a record that is longer than its batch": Unreadable(pair(raw_record(0), raw_record(1, length=90)), (1,)),
    "a record that is shorter than its content": Unreadable(pair(raw_record(length=7)), (0,)),
    "a record of no bytes": Unreadable(pair(varint(0), LONG), (0,)),
    "a record of negative length": Unreadable(pair(varint(-9), LONG), (0,)),
    "a length of six bytes": Unreadable(pair(b"\x92\x80\x80\x80\x80\0" + raw_record()[1:]), (0,)),
    "a timestamp delta of eleven bytes": Unreadable(b"\x20\0" + b"\x80" * 10 + b"\0" + raw_record(1), (0,)),
    "a timestamp beyond 64 bits": Unreadable(pair(raw_record(0, 2**63 - 1)), (0,)),
    "bytes behind the last record": Unreadable(pair(raw_record()) + b"junk", ()),
    "more records than the header counts": Unreadable(pair(raw_record()) + raw_record(2), ()),
    "fewer records than the header counts": Unreadable(pair(raw_record(), LONG), (2,), 3),
}


def node_with(config: TopicConfig) -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=config)
    return node


def send(node: DataPath, records: bytes, *, version: int = 11) -> tuple[ErrorCode, tuple[int, ...]]:
    """The error code of the batch, and the records that the answer names."""
    data = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="orders", partition_data=(data,))
    answer = node.send(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=(topic,)), version).produced
    assert (answer.error_message is not None) is (answer.error_code != 0 and version >= 8)
    at_fault = tuple(error.batch_index for error in answer.record_errors)
    assert all(error.batch_index_error_message for error in answer.record_errors)
    return ErrorCode(answer.error_code), at_fault


def stored(node: DataPath, offset: int) -> bytes:
    records = node.fetch("orders", offset).fetched.records
    assert records is not None
    return bytes(records)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_records_that_no_reader_can_parse_are_87_and_the_record_at_fault_is_named(codec: Codec, topic: str) -> None:
    node = node_with(TOPICS[topic])
    for name, case in UNREADABLE.items():
        batch = raw_batch(case.section, count=case.records, codec=codec, base_timestamp=NOW_MS, max_timestamp=NOW_MS)
        code, at_fault = send(node, batch)
        assert (name, code, at_fault) == (name, ErrorCode.INVALID_RECORD, case.at_fault)
        assert node.table.get("orders", 0).log.log_end_offset == 0, name


@pytest.mark.parametrize("producer", [{"producer_id": 4, "producer_epoch": 0, "base_sequence": 0}, {}], ids=str)
def test_a_producer_with_sequence_numbers_gets_the_same_answer_and_its_sequence_does_not_move(
    producer: dict[str, Any],
) -> None:
    case = UNREADABLE["bytes behind the last record"]
    node = node_with(TopicConfig())
    code, _ = send(node, raw_batch(case.section, count=2, **producer))
    assert code is ErrorCode.INVALID_RECORD
    assert node.produce("orders", records=raw_batch([raw_record()], **producer)).produced.error_code == 0


def test_before_version_8_no_record_is_named() -> None:
    batch = raw_batch(UNREADABLE["a record of no bytes"].section, count=2)
    assert send(node_with(TopicConfig()), batch, version=7) == (ErrorCode.INVALID_RECORD, ())


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("codec", CODECS[1:], ids=lambda codec: codec.name)
def test_bytes_that_the_codec_cannot_unpack_are_87(codec: Codec, topic: str) -> None:
    node = node_with(TOPICS[topic])
    whole = raw_batch([raw_record(value=raw_bytes(bytes(range(200))))], codec=codec)
    for content in (b"\x1f\x8brubbish", b"", whole[61:-5]):
        assert send(node, raw_batch([raw_record()], codec=codec, stored=content))[0] is ErrorCode.INVALID_RECORD


def test_damage_on_the_way_stays_2_so_that_the_producer_sends_the_batch_again() -> None:
    for codec in CODECS:
        damaged = bytearray(raw_batch([raw_record()], codec=codec))
        damaged[-1] ^= 1
        assert send(node_with(TopicConfig()), bytes(damaged))[0] is ErrorCode.CORRUPT_MESSAGE


class Timed(NamedTuple):
    base: int
    deltas: tuple[int, ...]
    stated: int
    """The largest timestamp as the header has it."""
    largest: int


OLD = NOW_MS - 2 * HOUR_MS
TIMES = {
    "sarama: no largest time": Timed(OLD, (0, HOUR_MS), -1, OLD + HOUR_MS),
    "kafkajs: the largest time that was given": Timed(OLD, (0, 2 * HOUR_MS), OLD, NOW_MS),
    "too large": Timed(OLD, (0, 5), NOW_MS, OLD + 5),
    "far too large": Timed(OLD, (0, 5), NOW_MS + 100 * HOUR_MS, OLD + 5),
    "below the base": Timed(OLD, (0, 5), OLD - 1, OLD + 5),
    "a smallest number": Timed(OLD, (0, 5), -(2**63), OLD + 5),
    "a largest number": Timed(OLD, (0, 5), 2**63 - 1, OLD + 5),
    "a base that no record has": Timed(0, (OLD, NOW_MS), 0, NOW_MS),
    "a first record without a time": Timed(-1, (0, NOW_MS + 1), -1, NOW_MS),
    "a last record without a time": Timed(NOW_MS, (0, -NOW_MS - 1), NOW_MS - 3, NOW_MS),
    "no record with a time": Timed(-1, (0, 0), NOW_MS, -1),
    "times before 1970 alone": Timed(-50, (0, 5), -45, -1),
    "right": Timed(OLD, (7, 3), OLD + 7, OLD + 7),
}


@pytest.mark.parametrize("topic", [name for name in TOPICS if name != "LogAppendTime"])
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_the_largest_timestamp_is_that_of_the_records(codec: Codec, topic: str) -> None:
    node = node_with(TOPICS[topic])
    for name, case in TIMES.items():
        if topic == "message.timestamp.before.max.ms" and case.base in (0, -50):
            continue
        batch = raw_batch(
            [raw_record(index, delta) for index, delta in enumerate(case.deltas)],
            codec=codec,
            base_timestamp=case.base,
            max_timestamp=case.stated,
        )
        offset = node.table.get("orders", 0).log.log_end_offset
        assert (name, send(node, batch)[0]) == (name, ErrorCode.NONE)
        kept = stored(node, offset)
        header = read_header(kept)
        check_crc(kept, 0, header)
        assert (name, header.max_timestamp) == (name, case.largest)
        assert [record.timestamp for record in read_records(kept)] == [case.base + delta for delta in case.deltas]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_log_append_time_is_the_brokers_whatever_the_batch_says(codec: Codec) -> None:
    batch = raw_batch([raw_record(0, 5)], codec=codec, base_timestamp=3, max_timestamp=2)
    node = node_with(TOPICS["LogAppendTime"])
    assert send(node, batch)[0] is ErrorCode.NONE
    assert [record.timestamp for record in read_records(stored(node, 0))] == [NOW_MS]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize(("stated", "delta", "code"), [(OLD, 4, 32), (NOW_MS + 9 * HOUR_MS, 2, 0)], ids=str)
def test_a_batch_is_too_new_by_its_records_and_not_by_its_header(
    codec: Codec, stated: int, delta: int, code: int
) -> None:
    """The topic takes one hour after now; the records lie at two hours before now, and at `delta` hours behind that."""
    batch = raw_batch(
        [raw_record(), raw_record(1, delta * HOUR_MS)], codec=codec, base_timestamp=OLD, max_timestamp=stated
    )
    assert send(node_with(TopicConfig()), batch) == (ErrorCode(code), (1,) if code else ())


DELTAS = {"repeated": (0, 0), "reversed": (1, 0), "a gap": (0, 5), "negative": (-1, 0), "far": (2**31 - 1, -(2**31))}


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_offsets_within_the_batch_are_made_0_to_n_minus_1(codec: Codec, topic: str) -> None:
    """Kafka does so where a batch is compressed, and keeps a plain one as it is, which no strict reader can read."""
    node = node_with(TOPICS[topic])
    for name, deltas in DELTAS.items():
        batch = raw_batch(
            [
                raw_record(delta, index, value=raw_bytes(b"v%d" % index), attributes=index)
                for index, delta in enumerate(deltas)
            ],
            codec=codec,
            base_timestamp=NOW_MS,
            max_timestamp=NOW_MS - 9,
        )
        offset = node.table.get("orders", 0).log.log_end_offset
        assert (name, send(node, batch)[0]) == (name, ErrorCode.NONE)
        kept = stored(node, offset)
        records = read_records(kept, strict=True)
        assert [(record.offset - offset, record.value) for record in records] == [(0, b"v0"), (1, b"v1")]
        if topic != "LogAppendTime":
            assert [record.timestamp for record in records] == [NOW_MS, NOW_MS + 1]
            assert read_header(kept).max_timestamp == NOW_MS + 1
        expected = {"compression.type=gzip": Codec.GZIP, "compression.type=uncompressed": Codec.NONE}.get(topic, codec)
        assert read_header(kept).codec == expected
