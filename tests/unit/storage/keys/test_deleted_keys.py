"""The records of key ranges that a log has deleted (decision 0099)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest

from tailrace.model.key_ranges import WHOLE, KeyRange, hash_of
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Log
from tailrace.storage.keys import batch_slots
from tailrace.storage.keys.deleted_keys import DELETED_KEYS, KEPT_MS
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_marker
from unit.storage.keys.key_logs import BATCH_BYTES, CONFIG, DIRECTORY, NEITHER, A, B, append, end_of, open_log

NOTE = f"{DIRECTORY}/{DELETED_KEYS}"
SOME_SEGMENTS = replace(CONFIG, retention_bytes=15 * BATCH_BYTES)
"""Retention keeps one or two segments, of ten batches each."""


def read_log(disk: SimulatedDisk, keys: bytes, config: TopicConfig = SOME_SEGMENTS) -> Log:
    """A log that was read by key before these keys came."""
    log = open_log(disk, config)
    assert log.keys.start(*A) == 0
    append(log, keys)
    log.flush()
    return log


def retain(log: Log, *, now_ms: int = 0, frees_all: bool = False) -> int:
    """Apply retention, with all steps that it takes; the number of retired segments."""
    retired = len(log.retention.apply(now_ms, log.flushed_offset, frees_all=frees_all))
    while log.keys.awaits_removal:
        while log.keys.examine_on(lambda: 0):
            pass
        retired += len(log.retention.apply(now_ms, log.flushed_offset, frees_all=frees_all))
    return retired


def start_of(log: Log, wanted: KeyRange) -> int:
    """The start, after all steps that it takes."""
    for _ in range(1_000):
        found = log.keys.start(*wanted)
        if found is not None:
            return found
        log.keys.index_on(lambda: 0)
    raise AssertionError(f"the start of {wanted} is not found")


def lost(log: Log, wanted: KeyRange | Sequence[KeyRange], *offsets: int) -> list[bool | None]:
    start_of(log, NEITHER)
    ranges = [wanted] if isinstance(wanted, KeyRange) else wanted
    return [log.keys.has_lost(ranges, offset) for offset in offsets]


def test_a_range_starts_behind_its_last_deleted_record(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"bbbbbbbbbb" + b"aaaaaaaaaa")
    assert retain(log) == 1
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]
    assert lost(log, A, 3, 4, 5, 9) == [True, True, False, False]
    assert lost(log, B, 9, 10) == [True, False]
    assert lost(log, NEITHER, 0) == [False]


def test_a_range_without_records_ends_where_its_deleted_records_ended(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    assert retain(log) == 1
    assert log.log_start_offset == 10
    assert [end_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 30, 0]
    log.advance_log_start(27)
    assert [end_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 30, 0]
    log.advance_log_start(30)
    assert [end_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 30, 0]
    append(log, b"b" * 9 + b"a")
    assert [end_of(log, wanted) for wanted in (A, B, NEITHER)] == [40, 39, 0]


def test_ranges_that_are_no_whole_slots_have_lost_what_their_whole_slots_have_lost(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    retain(log)
    one_hash = KeyRange(hash_of(b"b", 0), hash_of(b"b", 0))
    assert lost(log, one_hash, 0) == [False], "the deleted record of the slot may have another hash"
    assert lost(log, (one_hash, A), 4, 5) == [True, False]
    assert lost(log, KeyRange(B.first - 1, B.last + 1), 9, 10) == [True, False]
    assert lost(log, WHOLE, 9, 10) == [True, False]


def test_a_log_start_within_a_segment_counts_the_records_below(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"aabbabbbbb" * 3)
    log.advance_log_start(13)
    assert log.keys.start(*A) is None
    assert log.keys.has_lost([A], 0) is None
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [12, 13, 0]
    log.advance_log_start(25)
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [25, 24, 0]


@pytest.mark.parametrize("codec", [0, 2, 4])
def test_a_log_start_within_a_batch_counts_the_records_below(disk: SimulatedDisk, codec: int) -> None:
    log = read_log(disk, b"")
    records = [Record(0, 0, bytes([key]), b"v") for key in b"aababbbbab"]
    batch = bytes(build_batch(records, leader_epoch=0, codec=codec))
    log.append([AppendBatch(batch, read_header(batch))])
    for start, a_start, b_start in ((1, 1, 0), (5, 4, 5), (8, 4, 8), (9, 9, 8)):
        log.advance_log_start(start)
        assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [a_start, b_start, 0], start


def test_deleted_records_are_known_after_a_clean_stop(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    retain(log)
    log.close()
    log = open_log(disk, SOME_SEGMENTS, clean=True, recovery_point=30)
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]


@pytest.mark.parametrize("loses_power", [False, True])
def test_deleted_records_are_known_after_a_crash(disk: SimulatedDisk, loses_power: bool) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    retain(log)
    if loses_power:
        disk.power_cut()
        disk.reboot()
    log = open_log(disk, SOME_SEGMENTS)
    assert log.log_start_offset == 10
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]


def test_segments_that_go_after_a_start_are_examined_though_no_reader_has_come(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abbb")
    log.close()
    log = open_log(disk, SOME_SEGMENTS, clean=True, recovery_point=4)
    append(log, b"bbbbbb" + b"b" * 20)
    log.flush()
    assert log.retention.apply(0, log.flushed_offset) == []
    assert log.keys.awaits_removal
    assert log.log_start_offset == 0
    assert retain(log) == 1
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [1, 10, 0]


def test_segments_with_a_key_index_go_at_once(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    end_of(log, NEITHER)
    assert len(log.retention.apply(0, log.flushed_offset)) == 1
    assert [log.keys.start(*wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]


def test_an_examination_has_small_steps(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.storage.keys.deleted_keys.GROUP_BATCHES", 1)
    log = read_log(disk, b"ab" * 15)
    assert log.retention.apply(0, log.flushed_offset) == []
    ticks = count(0, 20)
    steps = 1
    while log.keys.examine_on(lambda: next(ticks)):
        steps += 1
    assert steps == 10, "a batch is a step if a step has no time"
    assert len(log.retention.apply(0, log.flushed_offset)) == 1


def test_a_log_without_a_reader_by_key_has_no_note(disk: SimulatedDisk) -> None:
    log = open_log(disk, SOME_SEGMENTS)
    append(log, b"ab" * 15)
    log.flush()
    assert len(log.retention.apply(0, log.flushed_offset)) == 1
    assert not log.keys.awaits_removal
    assert log.keys.noted is None
    log.close()
    assert not disk.exists(NOTE)


def test_records_that_were_deleted_before_the_first_reader_are_not_known(disk: SimulatedDisk) -> None:
    log = open_log(disk, SOME_SEGMENTS)
    append(log, b"ab" * 15)
    log.flush()
    log.retention.apply(0, log.flushed_offset)
    assert [start_of(log, wanted) for wanted in (A, NEITHER)] == [10, 10]
    assert lost(log, A, 3) == [False]
    append(log, b"b" * 10)
    log.flush()
    assert retain(log) == 1
    assert [start_of(log, wanted) for wanted in (A, NEITHER)] == [19, 10]
    assert lost(log, A, 3, 18, 19) == [True, True, False]
    assert lost(log, WHOLE, 3) == [True]


def test_markers_and_batches_that_cannot_be_split_are_no_deleted_records(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = read_log(disk, b"abb")
    log.append([stored_marker(3, producer_id=9, is_commit=True)])
    append(log, b"b")
    with monkeypatch.context() as small:
        append(log, b"a", value_bytes=200)
        append(log, b"bbbbbbb" + b"b" * 20)
        log.flush()
        small.setattr(batch_slots, "SPLIT_LIMITS", batch_slots.BatchLimits(150, 100))
        before = end_of(log, NEITHER)
        assert before == 6
        assert retain(log) > 0
        assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [1, log.log_start_offset, 0]
        assert lost(log, A, 0, 1) == [True, False]
        assert end_of(log, NEITHER) == before, "the end of a range does not move back"


def test_segments_do_not_wait_while_the_disk_is_short_of_space(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"ab" * 15)
    log.update_config(replace(SOME_SEGMENTS, retention_bytes=0))
    assert len(log.retention.apply(0, log.flushed_offset, frees_all=True)) == 3
    assert not log.keys.awaits_removal
    assert [start_of(log, A), end_of(log, A)] == [30, 30]
    assert lost(log, A, 3) == [False], "nothing is known"


def test_a_note_that_cannot_be_written_stops_no_retention(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    end_of(log, NEITHER)
    disk.fail_at(disk.operations + 1, "No space left on device")
    assert len(log.retention.apply(0, log.flushed_offset)) == 1
    assert start_of(log, A) == 5
    log = open_log(disk, SOME_SEGMENTS)
    assert [start_of(log, A), start_of(log, NEITHER)] == [10, 10]
    assert lost(log, A, 3) == [False]


def test_records_that_cannot_be_read_are_deleted_nevertheless(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    disk.fail_reads_of(log.segments.all[0].file.path)
    assert retain(log) == 1
    assert not log.is_offline
    assert [start_of(log, A), start_of(log, NEITHER)] == [10, 10]


def test_a_note_of_a_deletion_that_a_crash_has_prevented_says_nothing(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    end_of(log, NEITHER)
    log.keys.removable_to(10, 0)
    log.keys.note_removal(10, 0)
    log = open_log(disk, SOME_SEGMENTS)
    assert log.log_start_offset == 0
    assert [start_of(log, wanted) for wanted in (A, B)] == [0, 0]
    assert retain(log) == 1
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]


def test_a_log_that_begins_anew_has_deleted_what_its_leader_has_deleted(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    retain(log)
    note = log.keys.deleted.load()
    assert note is not None
    other_disk = SimulatedDisk.with_directory("/data")
    other = read_log(other_disk, b"bbb")
    other.truncate_fully_and_start_at(10)
    assert lost(other, A, 0) == [False], "nothing is known"
    other.keys.take_note(memoryview(note.to_bytes()))
    assert [start_of(other, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]
    assert lost(other, A, 4, 5) == [True, False]
    other = Log.open(DIRECTORY, files=other_disk, config=SOME_SEGMENTS, now_ms=0, log_start_offset=10)
    assert [start_of(other, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]


def test_a_follower_that_has_the_note_of_its_leader_examines_nothing(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    retain(log)
    note = log.keys.deleted.load()
    assert note is not None
    other = open_log(SimulatedDisk.with_directory("/data"), SOME_SEGMENTS)
    append(other, b"abababbbbb" + b"b" * 20)
    other.flush()
    other.keys.take_note(note.to_bytes())
    other.advance_log_start(10)
    assert len(other.retention.apply(0, 30, only_below_log_start=True)) == 1
    assert [start_of(other, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]


def test_a_truncation_leaves_what_was_deleted(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    retain(log)
    log.truncate_to(15)
    append(log, b"a" * 25)
    log.flush()
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [5, 10, 0]
    assert retain(log) == 1
    assert [start_of(log, wanted) for wanted in (A, B, NEITHER)] == [20, 15, 0]


def test_a_truncation_during_an_examination_begins_it_again(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"b" * 10 + b"ba" + b"b" * 18, replace(CONFIG, retention_bytes=BATCH_BYTES))
    assert log.retention.apply(0, log.flushed_offset) == []
    assert not log.keys.examine_on(lambda: 0)
    log.truncate_to(11)
    append(log, b"b" * 19)
    log.flush()
    assert retain(log) == 2
    assert [start_of(log, wanted) for wanted in (A, B)] == [0, 20]


def test_a_note_ends_some_days_after_the_last_reader(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"ab" * 15)
    assert retain(log, now_ms=1_000) == 1
    log.close()
    log = open_log(disk, SOME_SEGMENTS, clean=True, recovery_point=30)
    append(log, b"b" * 10)
    log.flush()
    assert retain(log, now_ms=1_000 + KEPT_MS) == 1
    assert disk.exists(NOTE)
    append(log, b"b" * 10)
    log.flush()
    assert len(log.retention.apply(1_001 + KEPT_MS, log.flushed_offset)) == 1
    assert not log.keys.awaits_removal
    assert not disk.exists(NOTE)
    assert lost(log, A, 1) == [False]


def test_a_note_does_not_end_while_there_are_readers(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"ab" * 15)
    retain(log, now_ms=1_000)
    start_of(log, A)
    append(log, b"b" * 10)
    log.flush()
    assert retain(log, now_ms=2_000 + KEPT_MS) == 1
    assert disk.exists(NOTE)
    assert lost(log, A, 1) == [True]


def test_without_key_indexes_there_is_no_note(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"ab" * 15)
    assert disk.exists(NOTE)
    log.update_config(replace(SOME_SEGMENTS, key_ranges_index="none"))
    assert not disk.exists(NOTE)
    assert len(log.retention.apply(0, log.flushed_offset)) == 1
    assert [log.keys.start(*A), end_of(log, NEITHER)] == [10, 10]
    assert log.keys.has_lost([A], 0) is False
    assert not disk.exists(NOTE)


def test_damage_of_the_note_is_ignored(disk: SimulatedDisk) -> None:
    log = read_log(disk, b"abababbbbb" + b"b" * 20)
    retain(log)
    log.close()
    disk.flip_bit(NOTE, 100)
    log = open_log(disk, SOME_SEGMENTS, clean=True, recovery_point=30)
    assert [start_of(log, A), start_of(log, NEITHER)] == [10, 10]
    assert lost(log, A, 0) == [False]
