"""Logs that hold headers as producers wrote them: of older releases, of other programs, from older leaders.

No leader of today stores a batch whose largest time is below its first. Each reader of times asks the records then.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record_times import is_doubtful, largest_time
from tailrace.storage import AppendBatch, Log
from tailrace.testing.disk import SimulatedDisk
from testkit.raw_batches import raw_batch, raw_bytes, raw_record

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CODECS = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
CONFIG = TopicConfig(retention_ms=HOUR_MS, segment_bytes=1000, index_interval_bytes=100)


def stored(offset: int, times: Sequence[int], *, codec: int = 0, stated: int = -1, **fields: Any) -> AppendBatch:
    """A batch with records of these times, and a header that states another largest time."""
    records = [raw_record(index, time - times[0], value=raw_bytes(b"v" * 40)) for index, time in enumerate(times)]
    batch = raw_batch(
        records,
        codec=codec,
        base_timestamp=times[0],
        max_timestamp=stated,
        base_offset=offset,
        partition_leader_epoch=0,
        **fields,
    )
    return AppendBatch(bytearray(batch), read_header(batch))


def open_log(disk: SimulatedDisk, config: TopicConfig = CONFIG, *, clean: bool = False) -> Log:
    return Log.open("/data/orders-0", files=disk, config=config, now_ms=NOW_MS, clean=clean)


def filled(disk: SimulatedDisk, codec: int, config: TopicConfig = CONFIG, *, count: int = 30, stated: int = -1) -> Log:
    """Batches of two records each, a second apart; the newest record is of now."""
    log = open_log(disk, config)
    for number in range(count):
        last = NOW_MS - (count - 1 - number) * 2000
        log.append([stored(log.log_end_offset, (last - 1000, last), codec=codec, stated=stated)])
    return log


def reopened(disk: SimulatedDisk, log: Log, *, keeps_indexes: bool) -> Log:
    log.close(clean=True)
    if not keeps_indexes:
        for name in disk.list_dir("/data/orders-0"):
            if name.endswith(("index", ".timeindex")):
                disk.unlink(f"/data/orders-0/{name}")
    return open_log(disk, clean=True)


@CODECS
@pytest.mark.parametrize("stated", [-1, 5, -(2**63)])
@pytest.mark.parametrize("is_reopened", [None, True, False], ids=["open", "reopened", "without indexes"])
def test_lookups_find_the_record_by_its_own_time(codec: Codec, stated: int, is_reopened: bool | None) -> None:
    disk = SimulatedDisk()
    log = filled(disk, codec, stated=stated)
    if is_reopened is not None:
        log = reopened(disk, log, keeps_indexes=is_reopened)
    for offset in (0, 1, 31, 58, 59):
        found = log.offset_for_timestamp(NOW_MS - (59 - offset) * 1000)
        assert found is not None
        assert (found.offset, found.timestamp) == (offset, NOW_MS - (59 - offset) * 1000)
    assert log.offset_for_timestamp(NOW_MS + 1) is None
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert (largest.offset, largest.timestamp) == (59, NOW_MS)
    log.advance_log_start(41)
    assert log.max_timestamp_offset() == largest


@CODECS
def test_retention_keeps_records_that_are_young_and_takes_those_that_are_old(codec: Codec) -> None:
    disk = SimulatedDisk()
    log = reopened(disk, filled(disk, codec), keeps_indexes=True)
    count = log.segment_count
    assert count >= 3
    assert log.apply_retention(NOW_MS + HOUR_MS - 60_000, log.log_end_offset) == []
    assert len(log.apply_retention(NOW_MS + 2 * HOUR_MS, log.log_end_offset)) == count - 1


@CODECS
def test_a_segment_rolls_by_the_time_of_its_records(codec: Codec) -> None:
    config = TopicConfig(segment_ms=10_000, retention_ms=-1)
    log = filled(SimulatedDisk(), codec, config)
    assert log.segment_count == 5


@CODECS
def test_compaction_waits_and_hurries_by_the_time_of_the_records(codec: Codec) -> None:
    base = TopicConfig(cleanup_policy=("compact",), segment_bytes=1000)
    young = filled(SimulatedDisk(), codec, replace(base, min_compaction_lag_ms=100_000))
    assert young.cleanable(NOW_MS, end_offset=60).segment_count == 0
    late = filled(SimulatedDisk(), codec, replace(base, max_compaction_lag_ms=20_000))
    assert late.cleanable(NOW_MS, end_offset=60).is_overdue
    assert not late.cleanable(NOW_MS - 59_000, end_offset=60).is_overdue


def test_a_producer_whose_records_have_no_time_is_not_forgotten_while_it_writes() -> None:
    log = open_log(SimulatedDisk())
    batch = stored(0, (-1, -1), producer_id=4, producer_epoch=0, base_sequence=0)
    log.producers.stage(batch.header)
    log.append([batch])
    assert log.producers.expire(NOW_MS, expiration_ms=HOUR_MS) == 0
    assert log.producers.expire(NOW_MS + HOUR_MS - 1, expiration_ms=HOUR_MS) == 0
    assert log.producers.expire(NOW_MS + HOUR_MS, expiration_ms=HOUR_MS) == 1


def test_a_header_that_may_be_right_is_believed_without_a_look_at_the_records() -> None:
    fields: dict[str, Any]
    for fields in ({"stated": NOW_MS}, {"stated": NOW_MS + 5}, {"attributes": 0x48}, {"attributes": 0x20}):
        batch = stored(0, (NOW_MS, NOW_MS + 9), **fields)
        assert not is_doubtful(batch.header)
        assert largest_time(b"", batch.header) == batch.header.max_timestamp


def test_a_batch_that_no_reader_can_parse_has_the_time_of_its_header() -> None:
    batch = raw_batch(b"junk", count=1, base_timestamp=NOW_MS, max_timestamp=-1)
    assert largest_time(batch, read_header(batch)) == -1
