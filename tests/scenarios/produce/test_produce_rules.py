"""A broker's rules for the batches of producers, as a table, through the wire.

The rules are those of Kafka's own broker: for requests, for batches, for settings of topics. Each scenario names its
rule. The stored form and the time of answers have files of their own; sequence numbers are in test_kip_98.
"""

from dataclasses import dataclass, field

import pytest

from scenarios.produce.produced_batches import NOW_MS, batch, damaged
from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.records.batch import CONTROL, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME, read_header, seal
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath

HOUR_MS = 3_600_000


def altered(**changes: int) -> bytes:
    """A batch of two records whose header says something else, with a checksum that is right."""
    built = bytearray(batch(NOW_MS, NOW_MS))
    header = read_header(built)
    for name, value in changes.items():
        setattr(header, name, value)
    built[:HEADER_SIZE] = header.to_bytes()
    seal(built)
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
def test_a_produced_batch_is_taken_or_refused(scenario: ProduceScenario) -> None:
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
