"""The form in which a broker stores a producer's batch, as a table, through the wire."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from scenarios.produce.produced_batches import AT_APPEND, NOW_MS, batch
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import LOG_APPEND_TIME, BatchHeader, check_crc, iter_batches
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath


@dataclass(frozen=True, kw_only=True)
class StoredScenario:
    name: str
    sent: bytes
    config: TopicConfig = field(default_factory=TopicConfig)
    then: Callable[[BatchHeader, list[Record]], bool]
    log_append_time_ms: int = -1


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
def test_a_produced_batch_is_stored_as_kafka_stores_it(scenario: StoredScenario) -> None:
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


def test_a_duplicate_batch_is_answered_with_the_time_at_which_the_first_was_stored() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(config=AT_APPEND)
    records = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    first = node.produce("orders", records=records).produced
    node.clock.advance(1_000)
    again = node.produce("orders", records=records).produced
    assert (again.base_offset, again.log_append_time_ms) == (first.base_offset, first.log_append_time_ms)
    assert first.log_append_time_ms == NOW_MS
