"""Logs that hold headers as producers wrote them: of older releases, of other programs, from older leaders.

A largest time below the first time cannot be believed there: each reader of times asks the records then.
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
from tailrace.storage.flushed_note import FLUSHED_OFFSET
from tailrace.testing.disk import SimulatedDisk
from testkit.records.raw_batches import raw_batch, raw_bytes, raw_record

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
CODECS = pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
CONFIG = TopicConfig(retention_ms=HOUR_MS, segment_bytes=1000, index_interval_bytes=100)


def stored(
    offset: int, times: Sequence[int], *, codec: int = 0, stated: int = -1, first: int | None = None, **fields: Any
) -> AppendBatch:
    """A batch with records of these times, and a header that states another largest time, and perhaps first time."""
    first = times[0] if first is None else first
    records = [raw_record(index, time - first, value=raw_bytes(b"v" * 40)) for index, time in enumerate(times)]
    batch = raw_batch(
        records,
        codec=codec,
        base_timestamp=first,
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
    assert log.retention.apply(NOW_MS + HOUR_MS - 60_000, log.log_end_offset) == []
    assert log.retention.apply(NOW_MS + 2 * HOUR_MS, log.log_end_offset) == []
    assert log.times.await_check(NOW_MS + 2 * HOUR_MS)
    while log.times.check_on(lambda: 0):
        pass
    assert len(log.retention.apply(NOW_MS + 2 * HOUR_MS, log.log_end_offset)) == count - 1


@CODECS
def test_a_segment_rolls_by_the_time_of_its_records(codec: Codec) -> None:
    config = TopicConfig(segment_ms=10_000, retention_ms=-1)
    log = filled(SimulatedDisk(), codec, config)
    assert log.segment_count == 5


@CODECS
def test_compaction_waits_and_hurries_by_the_time_of_the_records(codec: Codec) -> None:
    base = TopicConfig(cleanup_policy=("compact",), segment_bytes=1000)
    young = filled(SimulatedDisk(), codec, replace(base, min_compaction_lag_ms=100_000))
    assert young.compactions.cleanable(NOW_MS, end_offset=60).segment_count == 0
    late = filled(SimulatedDisk(), codec, replace(base, max_compaction_lag_ms=20_000))
    assert late.compactions.cleanable(NOW_MS, end_offset=60).is_overdue
    assert not late.compactions.cleanable(NOW_MS - 59_000, end_offset=60).is_overdue


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


# Headers that are possible and wrong


def mixed(disk: SimulatedDisk, codec: int, *, stated_ms: int, count: int = 30, **how: Any) -> Log:
    """Batches of an old record and one of now, as some clients send them; their headers state another largest time."""
    log = open_log(disk)
    for _ in range(count):
        offset = log.log_end_offset
        log.append([stored(offset, (NOW_MS - 2 * HOUR_MS, NOW_MS + offset), codec=codec, stated=stated_ms)], **how)
    return log


def of_older_release(disk: SimulatedDisk, codec: int, *, stated_ms: int) -> Log:
    """The same log as left by a release that believed the headers: its index files are made of the headers."""
    mixed(disk, codec, stated_ms=stated_ms, checked_from=0).close(clean=True)
    disk.unlink(f"/data/orders-0/{FLUSHED_OFFSET}")
    return open_log(disk, clean=True)


def check_all(log: Log) -> int:
    steps = 1
    while log.times.check_on(lambda: 0):
        steps += 1
    assert not log.times.are_doubtful
    return steps


OLD_MS = NOW_MS - 2 * HOUR_MS
STATED = pytest.mark.parametrize("stated_ms", [OLD_MS, OLD_MS + 5, NOW_MS + HOUR_MS], ids=["first", "old", "late"])


@CODECS
@STATED
def test_a_log_of_an_older_release_is_looked_through_before_a_lookup(codec: Codec, stated_ms: int) -> None:
    disk = SimulatedDisk()
    log = of_older_release(disk, codec, stated_ms=stated_ms)
    assert log.segment_count >= 3
    assert log.times.are_doubtful
    check_all(log)
    for offset in (0, 28, 58):
        found = log.offset_for_timestamp(NOW_MS + offset)
        assert found is not None
        assert (found.offset, found.timestamp) == (offset + 1, NOW_MS + offset)
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert (largest.offset, largest.timestamp) == (59, NOW_MS + 58)
    assert log.offset_for_timestamp(NOW_MS + 59) is None


@CODECS
@STATED
def test_retention_looks_at_the_records_before_a_segment_goes(codec: Codec, stated_ms: int) -> None:
    disk = SimulatedDisk()
    log = of_older_release(disk, codec, stated_ms=stated_ms)
    now_ms, end = NOW_MS + HOUR_MS // 2, log.log_end_offset
    assert log.retention.apply(now_ms, end) == []
    disk.modified_at_ms = NOW_MS
    is_old_by_header = stated_ms < NOW_MS
    assert log.times.await_check(now_ms) == is_old_by_header
    disk.modified_at_ms = OLD_MS
    assert log.times.await_check(now_ms), "the file is old: the header may be of a time that has not come"
    check_all(log)
    assert not log.times.await_check(now_ms)
    assert log.retention.apply(now_ms, end) == []
    assert len(log.retention.apply(NOW_MS + HOUR_MS + 1_000, end)) >= 2
    assert log.segment_count == 1


@STATED
def test_a_batch_whose_sender_does_not_vouch_has_the_time_of_its_records_at_once(stated_ms: int) -> None:
    log = mixed(SimulatedDisk(), 0, stated_ms=stated_ms)
    assert log.times.checked_from > log.log_end_offset
    assert not log.times.are_doubtful
    found = log.offset_for_timestamp(NOW_MS + 20)
    assert found is not None
    assert (found.offset, found.timestamp) == (21, NOW_MS + 20)


def test_a_header_for_which_a_leader_vouches_is_believed_also_after_a_restart() -> None:
    disk = SimulatedDisk()
    log = mixed(disk, 0, stated_ms=OLD_MS, checked_from=0)
    assert log.times.checked_from == 0
    assert log.offset_for_timestamp(NOW_MS) is None
    log = reopened(disk, log, keeps_indexes=True)
    assert log.times.checked_from == 0
    assert not log.times.are_doubtful
    assert not log.times.await_check(NOW_MS + 9 * HOUR_MS)
    assert log.retention.apply(NOW_MS, log.log_end_offset)


def test_batches_are_checked_from_the_first_one_on_for_which_the_leader_vouches() -> None:
    disk = SimulatedDisk()
    log = mixed(disk, 0, stated_ms=NOW_MS, checked_from=0, count=2)
    log.flush()
    log.append([stored(4, (NOW_MS,), stated=NOW_MS)])
    assert log.times.checked_from > log.log_end_offset
    crashed = open_log(disk)  # before the next flush: the note says so already
    assert crashed.times.checked_from == crashed.log_end_offset == 5
    log.append([stored(5, (NOW_MS,), stated=NOW_MS)], checked_from=6)
    assert log.times.checked_from > log.log_end_offset
    log.append([stored(6, (NOW_MS,), stated=NOW_MS)], checked_from=6)
    assert log.times.checked_from == 6
    log.flush()
    assert open_log(disk).times.checked_from == 6


def test_a_check_is_done_in_steps_beside_appends() -> None:
    disk = SimulatedDisk()
    log = of_older_release(disk, 0, stated_ms=OLD_MS)
    time_ms, steps = 0, 0

    def clock() -> int:
        nonlocal time_ms
        time_ms += 20
        return time_ms

    while log.times.check_on(clock):
        steps += 1
        if steps < 20:
            offset = log.log_end_offset
            log.append([stored(offset, (NOW_MS + offset, NOW_MS + offset), stated=NOW_MS + offset)], checked_from=0)
    assert steps > 20
    assert not log.times.are_doubtful
    for offset in (0, 28, 58):
        found = log.offset_for_timestamp(NOW_MS + offset)
        assert found is not None
        assert found.offset == offset + 1
    largest = log.max_timestamp_offset()
    assert largest is not None
    assert largest.offset == log.log_end_offset - 2


@CODECS
def test_the_scrubber_makes_time_indexes_of_records(codec: Codec) -> None:
    disk = SimulatedDisk()
    log = of_older_release(disk, codec, stated_ms=OLD_MS)
    for _ in range(2):
        scrub = log.begin_scrub(mends=True)
        while (part := scrub.next_slice(max_bytes=1000)) is not None:
            part.run()
            scrub.finish_slice(part)
    assert not scrub.indexes_rebuilt
    assert sum(segment.has_doubtful_times for segment in log.segments.all) == 1


@pytest.mark.parametrize("is_reopened", [True, False])
def test_a_checked_batch_is_not_unpacked_although_its_largest_time_is_below_its_first(
    monkeypatch: pytest.MonkeyPatch, is_reopened: bool
) -> None:
    """A producer can send such a batch, and a batch may unfold to 128 MiB."""
    disk = SimulatedDisk()
    log = open_log(disk)
    unpacked: list[object] = []
    if not is_reopened:
        monkeypatch.setattr("tailrace.protocol.records.record_times.check_records", unpacked.append)
    for _ in range(30):
        begin, times = log.log_end_offset, (NOW_MS - 500, NOW_MS - 400)
        batch = stored(begin, times, codec=Codec.GZIP, stated=NOW_MS - 400, first=NOW_MS)
        log.append([batch], checked_from=0)
    if is_reopened:
        log.flush()
        log = reopened(disk, log, keeps_indexes=True)
        assert log.times.checked_from == 0
        monkeypatch.setattr("tailrace.protocol.records.record_times.check_records", unpacked.append)
    found = log.offset_for_timestamp(NOW_MS - 450)
    assert found is not None
    assert (found.offset, found.timestamp) == (1, NOW_MS - 400)
    assert log.max_timestamp_offset() is not None
    assert unpacked == []
