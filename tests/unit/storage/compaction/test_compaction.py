"""A log that is compacted: steps, gaps, truncation, retention, settings that change."""

from dataclasses import replace

import pytest

from tailrace.model.errors import StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, iter_batches, read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.record import Record, build_batch, read_records
from tailrace.protocol.records.spans import STEP_RECORDS
from tailrace.storage import AppendBatch, Log, ReadLimits, checkpoints, readable_log
from tailrace.storage.compaction.compaction import Compaction
from tailrace.storage.segment_files.segment_limits import SegmentLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch, stored_marker
from testkit.records.compaction import compact

DIRECTORY = "/data/orders-0"
NOW_MS = 1_700_000_000_000
CONFIG = TopicConfig(cleanup_policy=("compact",), segment_bytes=500, index_interval_bytes=150, file_delete_delay_ms=0)


def open_log(disk: SimulatedDisk, config: TopicConfig = CONFIG, *, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=NOW_MS, recovery_point=recovery_point, clean=clean)


def fill(log: Log, count: int, *, keys: int = 1, value: bytes = b"v" * 30) -> None:
    for _ in range(count):
        start = log.log_end_offset
        records = [Record(0, NOW_MS + start + at, b"%d" % ((start + at) % keys), value) for at in range(3)]
        buffer = build_batch(records, base_offset=start, leader_epoch=0)
        log.append([AppendBatch(bytes(buffer), read_header(buffer))])
    log.flush()


def log_of_empty_batches(disk: SimulatedDisk) -> Log:
    """A compacted log with the last batch of each of 40 producers: two of the batches have a record."""
    log = open_log(disk)
    for producer_id in range(40):
        log.append([stored_batch(log.log_end_offset, value_bytes=400, producer_id=producer_id)])
    log.flush()
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    return log


def begun(log: Log) -> Compaction:
    compaction = log.compactions.begin(NOW_MS, end_offset=log.log_end_offset, memory_bytes=1 << 20)
    assert compaction is not None
    return compaction


def offsets(log: Log) -> list[int]:
    found: list[int] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(ReadLimits(offset, 1))
        if not result.size_bytes:
            break  # the log ends in a gap
        for chunk in result.records:
            for position, _ in iter_batches(chunk):
                found += [record.offset for record in read_records(chunk, position)]
        offset = result.next_offset
    return found


def bases(disk: SimulatedDisk) -> list[int]:
    return [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".log")]


def test_compaction_makes_one_of_old_segments_and_keeps_the_last_record_of_each_key(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    active = bases(disk)[-1]
    compaction = compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert compaction is not None
    assert compaction.end_offset == log.compactions.first_dirty_offset == active
    assert offsets(log) == [active - 1, *range(active, 30)]
    assert log.size_bytes == sum(disk.size_of(f"{DIRECTORY}/{base:020d}.log") for base in bases(disk))
    assert compact(log, NOW_MS, end_offset=log.log_end_offset) is None, "nothing is dirty"
    fill(log, 2)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert bases(disk) == [0, active + 6], "the small ones have become one"


def batches(disk: SimulatedDisk) -> list[BatchHeader]:
    """The headers of every batch in the log's files."""
    paths = [f"{DIRECTORY}/{base:020d}.log" for base in bases(disk)]
    return [header for path in paths for _, header in iter_batches(disk.read_bytes(path))]


def append_without_keys(log: Log, count: int) -> None:
    """Written before the topic was compacted, say: nothing of it stays."""
    for _ in range(count):
        buffer = build_batch([Record(0, NOW_MS, None, b"v" * 200)], base_offset=log.log_end_offset, leader_epoch=0)
        log.append([AppendBatch(bytes(buffer), read_header(buffer))])
    log.flush()


def empty_batches(disk: SimulatedDisk) -> list[int]:
    """The end offsets of batches without records."""
    return [header.end_offset for header in batches(disk) if not header.records_count]


def test_a_compaction_leaves_no_empty_batches(disk: SimulatedDisk) -> None:
    """Runs of batches without a record lead some readers astray; an offset that is missing leads none."""
    log = open_log(disk)
    for _ in range(3):
        fill(log, 20, keys=2)
        compact(log, NOW_MS, end_offset=log.log_end_offset)
        assert log.compactions.first_dirty_offset == bases(disk)[-1]
        assert empty_batches(disk) == []
    assert [log.read(ReadLimits(offset, 1)).next_offset > offset for offset in range(180)] == [True] * 180


def test_an_empty_batch_stays_if_the_rewritten_part_ends_without_a_record(disk: SimulatedDisk) -> None:
    """No batch may be behind the part: a reader could not get past, or take the log's end for known."""
    log = open_log(disk)
    for _ in range(3):
        append_without_keys(log, 8)
        active = bases(disk)[-1]
        compact(log, NOW_MS, end_offset=log.log_end_offset)
        assert log.compactions.first_dirty_offset == active
        assert empty_batches(disk) == [active], "the one of before is needed no more"
    fill(log, 5)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert empty_batches(disk) == []
    again = open_log(disk, recovery_point=log.log_end_offset)
    assert (again.log_end_offset, offsets(again)) == (log.log_end_offset, offsets(log))


def test_segments_without_anything_do_not_hide_where_the_compacted_part_ends(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append_without_keys(log, 8)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    with_nothing = [base for base in bases(disk)[:-1] if not disk.size_of(f"{DIRECTORY}/{base:020d}.log")]
    assert with_nothing, "a segment of which nothing is left is there until it is merged with other segments"
    assert empty_batches(disk) == [log.compactions.first_dirty_offset]
    append_without_keys(log, 8)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert empty_batches(disk) == [log.compactions.first_dirty_offset]


def test_a_read_goes_on_over_segments_that_hold_empty_batches_alone(disk: SimulatedDisk) -> None:
    """Every producer's last batch stays. A reader that gets no record takes the batch for a too large record."""
    log = log_of_empty_batches(disk)
    assert [header.records_count for header in batches(disk)] == [0] * 38 + [1, 1]
    assert len(bases(disk)) > 10
    for max_bytes in (1, 61, 1000, 1 << 20):
        result = log.read(ReadLimits(0, max_bytes))
        assert (result.first_offset, result.next_offset) == (0, 39)
        read = b"".join(bytes(chunk) for chunk in result.records)
        assert len(read) == result.size_bytes
        assert [header.base_offset for _, header in iter_batches(read)] == list(range(39))


def test_a_read_over_empty_batches_keeps_to_its_end_and_to_its_bytes(disk: SimulatedDisk) -> None:
    log = log_of_empty_batches(disk)
    assert log.read(ReadLimits(0, 1 << 20), 30).next_offset == 30
    # Not the first partition of an answer: there is no more room than this.
    result = log.read(ReadLimits(0, 200, min_one_message=False))
    assert (result.size_bytes, result.next_offset) == (183, 3)
    assert log.read(ReadLimits(0, 60, min_one_message=False)).size_bytes == 0


def test_a_read_over_empty_batches_looks_into_so_many_segments(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read must not hold up the event loop."""
    monkeypatch.setattr(readable_log, "MAX_READS", 3)
    log = log_of_empty_batches(disk)
    assert len(bases(disk)) > 10
    offset, reads = 0, 0
    while offset < 40:
        result = log.read(ReadLimits(offset, 1 << 20))
        assert offset < result.next_offset <= 40
        offset, reads = result.next_offset, reads + 1
    assert reads > 3


def test_compaction_does_not_write_a_log_without_repeated_keys_anew(disk: SimulatedDisk) -> None:
    config = replace(CONFIG, segment_bytes=400)
    log = open_log(disk, config)
    fill(log, 5, keys=1000)
    before = bases(disk)
    compaction = compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert compaction is not None
    assert compaction.swaps == 0
    assert bases(disk) == before


def test_a_gap_at_the_end_of_a_compacted_segment_is_clean_too(disk: SimulatedDisk) -> None:
    """A follower's log of what its leader has compacted: its segments end where they are full, at a gap mostly."""
    log = open_log(disk)
    for offset in (0, 6, 20, 26, 40):
        buffer = build_batch([Record(0, NOW_MS, b"k", b"v" * 150)], base_offset=offset, leader_epoch=0)
        log.append([AppendBatch(bytes(buffer), read_header(buffer))])
    log.flush()
    assert bases(disk) == [0, 20, 40]
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert log.compactions.first_dirty_offset == 40
    assert compact(log, NOW_MS, end_offset=log.log_end_offset) is None, "nothing is dirty"


def test_a_segment_with_an_undecided_transaction_stays_dirty_for_compaction(disk: SimulatedDisk) -> None:
    """A transaction whose end is in the active segment keeps the segment it begins in dirty."""
    log = open_log(disk)
    for offset in range(3):
        is_transactional = offset == 1
        batch = stored_batch(
            offset, value_bytes=160, producer_id=7 if is_transactional else -1, is_transactional=is_transactional
        )
        log.append([batch])
    log.append([stored_marker(3, producer_id=7, is_commit=True)])
    log.flush()
    assert bases(disk) == [0, 2]
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert log.compactions.first_dirty_offset == 1, "where the transaction begins"
    again = compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert again is not None
    assert again.is_complete
    assert (log.compactions.first_dirty_offset, again.bytes_written) == (1, 0)


def test_reads_between_two_steps_of_a_compaction_see_one_log_or_the_other(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 10, keys=2)
    last = offsets(log)[-1]
    compaction = begun(log)
    steps = 0
    while not compaction.is_over:
        compaction.step(1)
        if compaction.needs_sync:
            log.flush()
        found = offsets(log)
        assert found == sorted(found)
        assert found[-1] == last
        steps += 1
    log.compactions.finish(compaction)
    assert steps > 20


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_a_batch_of_many_records_is_compacted_in_steps(disk: SimulatedDisk, codec: Codec) -> None:
    """A million records in a batch of 1 MB would take 20 s of one step, and again when it is rewritten."""
    log, count = open_log(disk), 40 * STEP_RECORDS
    records = [Record(0, NOW_MS, b"%d" % (at % 700), None if at % 2 else b"v", (("h", b"x"),)) for at in range(count)]
    buffer = build_batch(records, leader_epoch=0, codec=codec)
    log.append([AppendBatch(bytes(buffer), read_header(buffer))])
    fill(log, 10)
    expected = {b"%d" % (at % 700): at for at in range(count)}
    compaction = begun(log)
    of_batch = 0
    while not compaction.is_over:
        of_batch += compaction.step(1 << 20) == 0
        if compaction.needs_sync:
            log.flush()
    log.compactions.finish(compaction)
    assert compaction.is_complete
    assert of_batch > 4 * count // STEP_RECORDS, "to find keys, to put them, and both again to choose what stays"
    kept = [offset for offset in offsets(log) if offset < count]
    assert kept == sorted(offset for key, offset in expected.items() if key != b"0")


def test_a_reader_of_a_log_that_is_compacted_keeps_its_bytes(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    (chunk,) = log.read(ReadLimits(0, 10_000)).records
    before = bytes(chunk)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert bytes(chunk) == before


@pytest.mark.parametrize("way", ["truncate", "retain", "restart", "switch", "close"])
def test_a_cut_of_the_log_ends_the_compaction(disk: SimulatedDisk, way: str) -> None:
    log = open_log(disk)
    fill(log, 10)
    compaction = begun(log)
    while not compaction.needs_sync:
        compaction.step(1)
    match way:
        case "truncate":
            log.truncate_to(20)
        case "retain":
            log.advance_log_start(12)
            assert log.retention.apply(NOW_MS, log.log_end_offset)
        case "restart":
            log.truncate_fully_and_start_at(40)
        case "switch":
            log.update_config(replace(CONFIG, cleanup_policy=("delete",)))
        case "close":
            log.close()
    assert compaction.is_over
    assert not compaction.is_complete
    assert compaction.step(1000) == 0
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".cleaned")]


def test_a_flush_that_was_under_way_at_the_end_of_a_compaction_does_no_harm(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    compaction = begun(log)
    while not compaction.needs_sync:
        compaction.step(1)
    ticket = log.flushes.begin()
    log.truncate_to(20)
    ticket.sync()
    log.flushes.finish(ticket)
    fill(log, 3)
    assert not log.flushes.has_work


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("offset", range(24))
def test_a_compacted_log_may_be_truncated_into_a_gap(disk: SimulatedDisk, offset: int, is_clean: bool) -> None:
    log = open_log(disk)
    fill(log, 10)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    log.truncate_to(offset)
    end_offset = log.log_end_offset
    assert offset - 3 < end_offset <= offset
    assert log.compactions.first_dirty_offset <= end_offset
    assert all(found < end_offset for found in offsets(log)) if log.size_bytes else True
    if is_clean:
        log.close()
    again = open_log(disk, recovery_point=end_offset, clean=is_clean)
    assert again.log_end_offset == end_offset
    fill(again, 3)
    assert offsets(again)[-1] == end_offset + 8


def test_gaps_of_a_log_stay_legal_when_the_topic_is_not_compacted_any_more(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    kept = offsets(log)
    plain = replace(CONFIG, cleanup_policy=("delete",), retention_ms=-1)
    again = open_log(disk, plain, recovery_point=30)
    assert offsets(again) == kept
    assert again.recovery.damage is None


def test_a_change_of_the_policy_costs_no_sync_where_nothing_new_is_to_be_noted(disk: SimulatedDisk) -> None:
    """A topic may have a thousand partitions, and they change in one turn."""
    plain = replace(CONFIG, cleanup_policy=("delete",), retention_ms=-1)
    log = open_log(disk, plain)
    before = disk.operations
    for config in (CONFIG, plain, CONFIG):
        log.update_config(config)
    assert disk.operations == before, "it is empty"
    log.update_config(plain)
    fill(log, 10)
    before = disk.operations
    log.update_config(CONFIG)
    assert disk.operations == before, "all that was rolled is flushed"
    fill(log, 10)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    kept = offsets(log)
    before = disk.operations
    log.update_config(plain)
    assert disk.operations == before, "it is noted where offsets are missing"
    assert offsets(open_log(disk, plain, recovery_point=60)) == kept


def test_gaps_of_a_compacted_log_that_another_program_has_made_stay_legal(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    compact(log, NOW_MS, end_offset=14)
    kept, end_offset = offsets(log), log.log_end_offset
    fill(log, 1)
    log.truncate_to(end_offset)
    log.close()
    disk.unlink(f"{DIRECTORY}/{checkpoints.GAP_BOUND}")
    again = open_log(disk, clean=True)
    compact(again, NOW_MS, end_offset=24)
    fill(again, 1)
    assert checkpoints.read_gap_bound(disk, DIRECTORY) == end_offset
    assert offsets(open_log(disk, recovery_point=end_offset))[-6:] == [*kept[-3:], *range(end_offset, end_offset + 3)]


def test_a_segment_that_is_lost_above_the_compacted_part_of_a_log_is_damage(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 4)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    fill(log, 10)
    lost = bases(disk)[-2]
    for suffix in (".log", ".index", ".timeindex"):
        disk.unlink(f"{DIRECTORY}/{lost:020d}{suffix}")
    again = open_log(disk, recovery_point=42)
    with pytest.raises(StorageError, match=f"offset {lost} is missing"):
        again.read(ReadLimits(lost, 1))
    assert again.is_offline


def test_compact_and_delete_removes_old_segments_of_a_compacted_log(disk: SimulatedDisk) -> None:
    log = open_log(disk, replace(CONFIG, cleanup_policy=("compact", "delete"), retention_ms=1000))
    fill(log, 10)
    compact(log, NOW_MS, end_offset=log.log_end_offset)
    active = bases(disk)[-1]
    assert log.retention.apply(NOW_MS + 10_000, log.log_end_offset)
    assert log.log_start_offset == active
    assert offsets(log) == list(range(active, 30))


def test_compaction_without_space_for_a_copy_leaves_the_log_as_it_is(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 10)
    disk.free_space = 100
    with pytest.raises(StorageError, match="no space"):
        compact(log, NOW_MS, end_offset=log.log_end_offset)
    assert not log.is_offline
    assert offsets(log) == list(range(30))


def test_the_active_segment_rolls_in_time_for_the_maximum_compaction_lag() -> None:
    compacted = TopicConfig(cleanup_policy=("compact",), max_compaction_lag_ms=1000)
    assert SegmentLimits(compacted, name="").segment_ms == 1000
    assert SegmentLimits(replace(compacted, cleanup_policy=("delete",)), name="").segment_ms == compacted.segment_ms


def test_logs_that_began_together_roll_apart_by_at_most_the_jitter() -> None:
    config = TopicConfig(segment_ms=10_000, segment_jitter_ms=1000)
    times = {SegmentLimits(config, name=f"/data/orders-{number}").segment_ms for number in range(50)}
    assert len(times) > 30
    assert all(9_000 < time <= 10_000 for time in times)
    assert SegmentLimits(config, name="a").segment_ms == 9_624, "the same in every process"
    assert SegmentLimits(replace(config, segment_jitter_ms=2**62), name="b").segment_ms > 0
