"""A broker's rules for the batches of producers, and their stored form. As tables, through the wire.

The rules are those of Kafka's own broker: for requests, for batches, for settings of topics, and for the time of
answers. Each scenario names its rule. Sequence numbers are in test_kip_98.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.records.batch import (
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    check_crc,
    iter_batches,
    read_header,
    seal,
)
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of
from testkit.nodes.ports import DeferredDisk

NOW_MS = ManualClock().now_ms()
HOUR_MS = 3_600_000


def batch(*timestamps: int, key: bytes | None = b"k", **options: Any) -> bytes:
    """A batch with a record per timestamp, or one of now."""
    records = [Record(number, at, key, b"value") for number, at in enumerate(timestamps or (NOW_MS,))]
    return bytes(build_batch(records, **options))


def altered(**changes: int) -> bytes:
    """A batch of two records whose header says something else, with a checksum that is right."""
    built = bytearray(batch(NOW_MS, NOW_MS))
    header = read_header(built)
    for name, value in changes.items():
        setattr(header, name, value)
    built[:HEADER_SIZE] = header.to_bytes()
    seal(built)
    return bytes(built)


def damaged() -> bytes:
    built = bytearray(batch())
    built[-1] ^= 1
    return bytes(built)


def keys(*present: bool) -> bytes:
    """A batch with a record for each flag, which says whether the record has a key."""
    records = [Record(number, NOW_MS, b"k" if has_key else None, b"v") for number, has_key in enumerate(present)]
    return bytes(build_batch(records))


@dataclass(frozen=True, kw_only=True)
class ProduceScenario:
    name: str
    records: bytes
    config: TopicConfig = field(default_factory=TopicConfig)
    version: int = 12
    code: ErrorCode = ErrorCode.NONE
    at_fault: tuple[int, ...] = ()
    """The records that the answer names."""


COMPACTED = TopicConfig(cleanup_policy=("compact",))
BOUNDED = TopicConfig(message_timestamp_before_max_ms=HOUR_MS, message_timestamp_after_max_ms=HOUR_MS)

BATCHES = (
    ProduceScenario(name="a good batch is taken", records=batch()),
    # The request: from version 3 on one batch of format v2 per partition.
    ProduceScenario(
        name="exactly one batch per partition: not two", records=batch() * 2, code=ErrorCode.INVALID_RECORD
    ),
    ProduceScenario(name="exactly one batch per partition: not none", records=b"", code=ErrorCode.INVALID_RECORD),
    ProduceScenario(name="nothing behind the batch", records=batch() + b"\0", code=ErrorCode.INVALID_RECORD),
    ProduceScenario(name="format v2: not v1", records=altered(magic=1), code=ErrorCode.INVALID_RECORD),
    ProduceScenario(name="format v2: not v0", records=altered(magic=0), code=ErrorCode.INVALID_RECORD),
    ProduceScenario(
        name="zstd from Produce v7 on: not in v6",
        records=batch(codec=Codec.ZSTD),
        version=6,
        code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    ProduceScenario(name="zstd from Produce v7 on", records=batch(codec=Codec.ZSTD), version=7),
    # The batch.
    ProduceScenario(name="base offset 0", records=altered(base_offset=1), code=ErrorCode.INVALID_RECORD),
    ProduceScenario(name="the checksum is right", records=damaged(), code=ErrorCode.CORRUPT_MESSAGE),
    ProduceScenario(
        name="lastOffsetDelta + 1 > 0",
        records=altered(last_offset_delta=-1, records_count=0),
        code=ErrorCode.INVALID_RECORD,
    ),
    ProduceScenario(name="count > 0", records=altered(records_count=0), code=ErrorCode.INVALID_RECORD),
    ProduceScenario(
        name="count = lastOffsetDelta + 1", records=altered(records_count=1), code=ErrorCode.INVALID_RECORD
    ),
    ProduceScenario(
        name="no control batch from a client", records=altered(attributes=CONTROL), code=ErrorCode.INVALID_RECORD
    ),
    ProduceScenario(
        name="no delete horizon from a client",
        records=altered(attributes=DELETE_HORIZON),
        code=ErrorCode.INVALID_RECORD,
    ),
    ProduceScenario(
        name="no LogAppendTime from a client",
        records=altered(attributes=LOG_APPEND_TIME),
        code=ErrorCode.INVALID_TIMESTAMP,
    ),
    ProduceScenario(
        name="a producer id comes with a sequence",
        records=altered(producer_id=7, producer_epoch=0, base_sequence=-1),
        code=ErrorCode.INVALID_RECORD,
    ),
    ProduceScenario(
        name="a codec that exists",
        records=altered(attributes=5),
        code=ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ),
    # The topic: sizes.
    ProduceScenario(
        name="max.message.bytes",
        records=batch(),
        config=TopicConfig(max_message_bytes=len(batch()) - 1),
        code=ErrorCode.MESSAGE_TOO_LARGE,
    ),
    ProduceScenario(
        name="max.message.bytes is the largest size that is taken",
        records=batch(),
        config=TopicConfig(max_message_bytes=len(batch())),
    ),
    ProduceScenario(
        name="a batch fits into a segment",
        records=batch(),
        config=TopicConfig(segment_bytes=len(batch()) - 1),
        code=ErrorCode.RECORD_LIST_TOO_LARGE,
    ),
    # The topic: keys.
    ProduceScenario(name="a compacted topic takes records with keys", records=keys(True, True), config=COMPACTED),
    ProduceScenario(
        name="a compacted topic refuses the batch for each null key, and names them from v8 on",
        records=keys(True, False, True, False),
        config=COMPACTED,
        version=8,
        code=ErrorCode.INVALID_RECORD,
        at_fault=(1, 3),
    ),
    ProduceScenario(
        name="before v8 no record is named",
        records=keys(False),
        config=COMPACTED,
        version=7,
        code=ErrorCode.INVALID_RECORD,
    ),
    ProduceScenario(
        name="compact,delete is compacted too",
        records=keys(False),
        config=TopicConfig(cleanup_policy=("compact", "delete")),
        code=ErrorCode.INVALID_RECORD,
        at_fault=(0,),
    ),
    ProduceScenario(name="an empty key is a key", records=batch(key=b""), config=COMPACTED),
    # The topic: timestamps.
    ProduceScenario(
        name="within now - before.max and now + after.max", records=batch(NOW_MS - HOUR_MS), config=BOUNDED
    ),
    ProduceScenario(name="up to now + after.max", records=batch(NOW_MS + HOUR_MS), config=BOUNDED),
    ProduceScenario(
        name="not before now - before.max",
        records=batch(NOW_MS - HOUR_MS - 1),
        config=BOUNDED,
        code=ErrorCode.INVALID_TIMESTAMP,
        at_fault=(0,),
    ),
    ProduceScenario(
        name="not after now + after.max, and the records at fault are named",
        records=batch(NOW_MS, NOW_MS + HOUR_MS + 1, NOW_MS),
        config=BOUNDED,
        code=ErrorCode.INVALID_TIMESTAMP,
        at_fault=(1,),
    ),
    ProduceScenario(
        name="every record counts, and not only the first: a record that is too old comes later",
        records=batch(NOW_MS, NOW_MS - HOUR_MS - 1),
        config=BOUNDED,
        code=ErrorCode.INVALID_TIMESTAMP,
        at_fault=(1,),
    ),
    ProduceScenario(
        name="every record counts: in a compressed batch too",
        records=batch(NOW_MS, NOW_MS - HOUR_MS - 1, codec=Codec.GZIP),
        config=BOUNDED,
        code=ErrorCode.INVALID_TIMESTAMP,
        at_fault=(1,),
    ),
    ProduceScenario(name="a record without timestamp is never outside", records=batch(-1), config=BOUNDED),
    ProduceScenario(
        name="with LogAppendTime the producer's timestamps do not matter",
        records=batch(1),
        config=TopicConfig(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=HOUR_MS),
    ),
)


@pytest.mark.parametrize("scenario", BATCHES, ids=lambda scenario: scenario.name)
def test_a_batch(scenario: ProduceScenario) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=scenario.config)
    data = PartitionProduceData(index=0, records=scenario.records)
    topic = TopicProduceData(name="orders", partition_data=(data,))
    answer = node.send(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=(topic,)), scenario.version).produced
    assert ErrorCode(answer.error_code) is scenario.code
    assert tuple(error.batch_index for error in answer.record_errors) == scenario.at_fault
    if scenario.code and scenario.version >= 8:
        assert answer.error_message, "v8 and later say what is wrong"
    # 'any failing record rejects the whole batch'
    assert (node.table.get("orders", 0).log.log_end_offset > 0) is (scenario.code is ErrorCode.NONE)


@dataclass(frozen=True, kw_only=True)
class StoredScenario:
    name: str
    sent: bytes
    config: TopicConfig = field(default_factory=TopicConfig)
    then: Callable[[BatchHeader, list[Record]], bool]
    log_append_time_ms: int = -1


AT_APPEND = TopicConfig(message_timestamp_type="LogAppendTime")

STORED = (
    StoredScenario(
        name="baseOffset is the log's end, lastOffset is it + n - 1",
        sent=batch(NOW_MS, NOW_MS),
        then=lambda header, records: (
            (header.base_offset, header.last_offset) == (3, 4) and [record.offset for record in records] == [3, 4]
        ),
    ),
    StoredScenario(
        name="the leader's epoch is stamped",
        sent=batch(leader_epoch=99),
        then=lambda header, records: header.partition_leader_epoch == 5,
    ),
    StoredScenario(
        name="CreateTime keeps the timestamps of records",
        sent=batch(NOW_MS - 7, NOW_MS + 7, NOW_MS),
        then=lambda header, records: (
            [record.timestamp - NOW_MS for record in records] == [-7, 7, 0]
            and header.max_timestamp == NOW_MS + 7
            and not header.attributes & LOG_APPEND_TIME
        ),
    ),
    StoredScenario(
        name="LogAppendTime sets the type bit and maxTimestamp = now, for every record",
        sent=batch(NOW_MS - 7, NOW_MS - 3),
        config=AT_APPEND,
        log_append_time_ms=NOW_MS,
        then=lambda header, records: (
            bool(header.attributes & LOG_APPEND_TIME)
            and header.max_timestamp == NOW_MS
            and {record.timestamp for record in records} == {NOW_MS}
        ),
    ),
    StoredScenario(
        name="LogAppendTime in a compressed batch",
        sent=batch(NOW_MS - 7, codec=Codec.LZ4),
        config=AT_APPEND,
        log_append_time_ms=NOW_MS,
        then=lambda header, records: header.codec == Codec.LZ4 and records[0].timestamp == NOW_MS,
    ),
    StoredScenario(
        name="compression.type=producer keeps the codec",
        sent=batch(codec=Codec.SNAPPY),
        then=lambda header, records: header.codec == Codec.SNAPPY,
    ),
    *(
        StoredScenario(
            name=f"compression.type={name} compresses anew",
            sent=batch(NOW_MS, NOW_MS + 1, codec=Codec.GZIP if codec is not Codec.GZIP else Codec.NONE),
            config=TopicConfig(compression_type=name),
            then=partial(
                lambda codec, header, records: (
                    header.codec == codec and [record.value for record in records] == [b"value"] * 2
                ),
                codec,
            ),
        )
        for name, codec in (
            ("uncompressed", Codec.NONE),
            ("gzip", Codec.GZIP),
            ("snappy", Codec.SNAPPY),
            ("lz4", Codec.LZ4),
            ("zstd", Codec.ZSTD),
        )
    ),
    StoredScenario(
        name="a batch that is compressed anew keeps its producer",
        sent=batch(producer_id=7, producer_epoch=2, base_sequence=0),
        config=TopicConfig(compression_type="gzip"),
        then=lambda header, records: (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 0),
    ),
    StoredScenario(
        name="null and empty keys, values and headers stay what they are",
        sent=bytes(
            build_batch(
                [
                    Record(0, NOW_MS, None, None, ((("h"), None),)),
                    Record(1, NOW_MS, b"", b"", (("h", b""), ("h", b"x"))),
                ]
            )
        ),
        then=lambda header, records: (
            [(record.key, record.value, tuple(record.headers)) for record in records]
            == [(None, None, (("h", None),)), (b"", b"", (("h", b""), ("h", b"x")))]
        ),
    ),
)


@pytest.mark.parametrize("scenario", STORED, ids=lambda scenario: scenario.name)
def test_as_it_is_stored(scenario: StoredScenario) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=scenario.config, leader_epoch=5)
    node.produce("orders", b"three", b"records", b"before")
    answer = node.produce("orders", records=scenario.sent).produced
    assert (answer.error_code, answer.base_offset) == (0, 3)
    assert answer.log_append_time_ms == scenario.log_append_time_ms
    stored = node.fetch("orders", 3).fetched.records
    assert stored is not None
    ((position, header),) = iter_batches(stored)
    check_crc(stored, position, header)  # 'changing maxTimestamp or the type bit forces a new checksum'; offsets do not
    assert scenario.then(header, list(read_records(stored, position)))


# The time of answers


@pytest.mark.parametrize("version", [3, 8, 12])
@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_acks_in_minus_1_0_1_else_21(acks: int, version: int) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    answer = node.produce("orders", b"v", acks=acks, version=version).produced
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert node.values("orders") == []


def test_acks_0_has_no_response_and_any_error_closes_the_connection() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    assert node.produce("orders", b"v", acks=0).is_answered
    assert (node.connection.answers, node.connection.is_open) == ({0: None}, True)
    node.produce("orders", records=damaged(), acks=0)
    assert not node.connection.is_open
    assert node.table.get("orders", 0).log.log_end_offset == 1


def test_acks_1_answers_after_the_local_append_and_acks_all_when_the_high_watermark_has_passed() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1, 2))
    by_leader, by_all = node.produce("orders", b"v", acks=1), node.produce("orders", b"w", acks=-1)
    assert (by_leader.is_answered, by_all.is_answered) == (True, False)
    disk.run()
    node.end_turn()
    assert not by_all.is_answered
    node.create(replicas=(1, 2), in_sync=(1,))
    assert by_all.produced.base_offset == 1


def test_acks_1_of_a_leader_alone_in_sync_answers_when_the_high_watermark_has_passed() -> None:
    """Decision 0078: the record can be read by any request that comes behind the answer, as in Kafka."""
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create()
    produced = node.produce("orders", b"v", acks=1)
    assert not produced.is_answered
    disk.run()
    node.end_turn()
    assert produced.produced.base_offset == 0
    assert node.values("orders") == [b"v"]


def test_acks_all_answers_7_at_its_timeout_and_the_records_stay() -> None:
    disk = DeferredDisk()
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1, 2))
    waiting = node.produce("orders", b"v", timeout_ms=500)
    node.clock.advance(499)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert waiting.produced.error_code == ErrorCode.REQUEST_TIMED_OUT
    disk.run()
    node.create(replicas=(1, 2), in_sync=(1,))
    node.end_turn()
    assert node.values("orders") == [b"v"]


def in_sync_of_two(*in_sync: int, min_insync_replicas: int = 2, **options: Any) -> DataPath:
    node = DataPath("/logs", files=SimulatedDisk(), **options)
    config = TopicConfig(min_insync_replicas=min_insync_replicas)
    node.create(replicas=(1, 2), in_sync=in_sync, config=config)
    return node


def test_acks_all_with_fewer_in_sync_replicas_than_min_insync_replicas_is_19_before_the_append() -> None:
    node = in_sync_of_two(1)
    assert node.produce("orders", b"v").produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert node.table.get("orders", 0).log.log_end_offset == 0
    assert node.produce("orders", b"v", acks=1).produced.error_code == 0


def test_min_insync_replicas_is_at_most_the_number_of_replicas() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=TopicConfig(min_insync_replicas=3))
    assert node.produce("orders", b"v").produced.error_code == 0


def test_the_high_watermark_does_not_pass_with_too_few_in_sync_replicas_so_acks_all_waits() -> None:
    """Kafka answers 20 when the high watermark passes; here it does not pass (KIP-966), and 20 comes at the end."""
    node = in_sync_of_two(1, 2)
    waiting = node.produce("orders", b"v", timeout_ms=500)
    node.create(replicas=(1, 2), in_sync=(1,), config=TopicConfig(min_insync_replicas=2))
    node.end_turn()
    assert not waiting.is_answered
    assert node.table.get("orders", 0).high_watermark == 0
    node.clock.advance(500)
    assert waiting.produced.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state"])
def test_internal_topics_are_refused_with_17_unless_the_admin_client_writes(topic: str) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(topic)
    assert node.produce(topic, b"v", acks=1).produced.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert node.produce(topic, b"v", acks=1, client_id="__admin_client").produced.error_code == 0


def test_each_partition_fails_alone() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    node.create(partition=1)
    parts = tuple(
        PartitionProduceData(index=index, records=records) for index, records in ((0, damaged()), (1, batch()))
    )
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=(TopicProduceData(name="orders", partition_data=parts),)
    )
    (topic,) = node.send(request, 12).response.responses
    assert [answer.error_code for answer in topic.partition_responses] == [ErrorCode.CORRUPT_MESSAGE, 0]


def test_a_leader_that_has_gone_is_6_and_from_v10_on_the_new_one_is_named() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(leader=2, leader_epoch=4, replicas=(1, 2), in_sync=(1, 2))
    for version, named in ((9, (-1, -1)), (10, (2, 4))):
        answer = node.produce("orders", b"v", version=version).produced
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == named


def test_checks_come_before_the_producers_state_so_a_refused_batch_leaves_no_trace_in_it() -> None:
    """'validate sizes -> ... -> producer-state check -> write': the next batch has the refused one's number."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=TopicConfig(max_message_bytes=200))
    too_large = batch_of(b"v" * 300, producer_id=7, producer_epoch=0, base_sequence=0)
    assert node.produce("orders", records=too_large).produced.error_code == ErrorCode.MESSAGE_TOO_LARGE
    small = batch_of(b"v", producer_id=7, producer_epoch=0, base_sequence=0)
    assert node.produce("orders", records=small).produced.base_offset == 0


def test_a_duplicate_is_answered_with_the_time_it_was_stored_at() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=AT_APPEND)
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    first = node.produce("orders", records=records).produced
    node.clock.advance(1_000)
    again = node.produce("orders", records=records).produced
    assert (again.base_offset, again.log_append_time_ms) == (first.base_offset, first.log_append_time_ms)
    assert first.log_append_time_ms == NOW_MS
