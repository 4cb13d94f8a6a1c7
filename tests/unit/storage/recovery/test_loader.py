"""Trust, checks and cuts when a log is opened: segments, indexes, producers."""

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.storage import Duplicate, Log, ReadLimits
from tailrace.storage.flushed_note import FLUSHED_OFFSET, read_note
from tailrace.storage.producers.snapshot_format import encode_snapshot
from tailrace.storage.producers.state import ProducerState
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch
from unit.storage.recovery.recovered_logs import (
    CONFIG,
    COUNT,
    DIRECTORY,
    SIZE,
    append_raw,
    forget_note,
    open_log,
    path_of,
    segments,
    tree,
)

NEXT = bytes(stored_batch(COUNT, producer_id=4, base_sequence=COUNT, leader_epoch=2).buffer)


def test_recovery_checks_only_segments_from_the_recovery_point_on(disk: SimulatedDisk) -> None:
    bases = segments(disk)
    report = open_log(disk, recovery_point=COUNT).recovery
    assert (report.segments_checked, report.batches_checked) == (1, COUNT - bases[-1])
    report = open_log(disk, recovery_point=bases[1]).recovery
    assert report.segments_checked == len(bases) - 1
    report = open_log(disk).recovery
    assert (report.segments_checked, report.records_checked) == (len(bases), COUNT)
    assert not report.clean
    assert not report.damaged
    assert (report.bytes_cut, report.cut_reason) == (0, "")


def test_recovery_keeps_a_good_tail_above_the_recovery_point(disk: SimulatedDisk) -> None:
    append_raw(disk, segments(disk)[-1], NEXT)
    log = open_log(disk, recovery_point=COUNT)
    assert log.log_end_offset == COUNT + 1
    assert log.producers.check(stored_batch(0, producer_id=4, base_sequence=COUNT).header) == Duplicate(
        COUNT, COUNT, FIRST_TIMESTAMP_MS + COUNT
    )


def test_recovery_finds_a_missing_segment_to_be_damage_or_the_log_end(disk: SimulatedDisk) -> None:
    first, second, *_ = segments(disk)
    disk.unlink(path_of(second))
    with pytest.raises(CorruptRecords, match=f"the segment before it ends at offset {second}"):
        open_log(disk, recovery_point=COUNT - COUNT + second + 1)
    forget_note(disk)
    log = open_log(disk)
    assert log.log_end_offset == second
    assert segments(disk) == [first]
    assert log.recovery.segments_removed >= 1


def test_recovery_removes_the_segments_behind_a_fault_in_an_unflushed_segment(disk: SimulatedDisk) -> None:
    first, second, *later = segments(disk)
    disk.flip_bit(path_of(second), SIZE + 70)
    forget_note(disk)
    log = open_log(disk, recovery_point=second)
    assert log.log_end_offset == second + 1
    assert segments(disk) == [first, second]
    assert log.recovery.segments_removed == len(later)
    assert log.recovery.bytes_cut == (COUNT - second - 1) * SIZE
    assert [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".snapshot")] == [second]
    assert log.epochs.entries == ((0, 0),) if second < 12 else log.epochs.entries[-1].start_offset <= second


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("harm", ["missing", "empty", "torn", "garbage"])
def test_recovery_makes_a_missing_or_wrong_index_anew(disk: SimulatedDisk, harm: str, clean: bool) -> None:
    open_log(disk).close()
    good = tree(disk)
    for name in [name for name in good if name.endswith("index")]:
        path = f"{DIRECTORY}/{name}"
        disk.unlink(path)
        if harm != "missing":
            file = disk.open(path, create=True)
            file.writev([{"empty": b"", "torn": good[name][:-3] + b"\0\0", "garbage": b"\xff" * 40}[harm]])
    log = open_log(disk, recovery_point=COUNT, clean=clean)
    for offset in range(COUNT):
        assert log.read(ReadLimits(offset, 1)).first_offset == offset
        found = log.offset_for_timestamp(FIRST_TIMESTAMP_MS + offset)
        assert found is not None
        assert found.offset == offset


def test_after_a_crash_a_producer_snapshot_above_the_recovery_point_is_not_believed_at_the_next_start_either() -> None:
    """A roll writes the snapshot before its batches are durable: a power cut may keep it and take the batches."""
    disk = SimulatedDisk()
    log = open_log(disk)
    for offset in range(3):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset)])
    stray = ProducerState()
    for offset in range(3):
        stray.apply(stored_batch(offset, producer_id=9, base_sequence=offset).header)
    disk.write_durably(path_of(3, ".snapshot"), encode_snapshot(stray.producers))
    log = open_log(disk)
    assert list(log.producers.producers) == [4]
    log.close()
    closed = log.closed
    assert closed is not None
    assert list(Log.reopen(DIRECTORY, closed, files=disk, config=CONFIG).producers.producers) == [4]
    assert list(open_log(disk, recovery_point=3, clean=True).producers.producers) == [4]


def test_recovery_drops_a_corrupt_producer_snapshot_for_an_older_one(disk: SimulatedDisk) -> None:
    open_log(disk).close()
    newest = max(int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".snapshot"))
    assert newest == COUNT
    disk.flip_bit(path_of(newest, ".snapshot"), 12)
    log = open_log(disk, clean=True)
    assert log.recovery.snapshots_discarded == 1
    assert not disk.exists(path_of(newest, ".snapshot"))
    for back in range(1, 6):
        offset = COUNT - back
        if offset > segments(disk)[-1]:
            assert log.producers.check(stored_batch(0, producer_id=4, base_sequence=offset).header) is not None


def test_producers_after_recovery_are_those_of_a_full_replay(disk: SimulatedDisk) -> None:
    expected = open_log(disk).producers.producers
    for name in disk.list_dir(DIRECTORY):
        if name.endswith(".snapshot"):
            disk.unlink(f"{DIRECTORY}/{name}")
    assert open_log(disk).producers.producers == expected


def test_recovery_cuts_a_torn_write_although_good_batches_follow_it(disk: SimulatedDisk) -> None:
    """A power cut keeps some pages of what was never flushed, and not those before."""
    active = segments(disk)[-1]
    tail = [stored_batch(COUNT + number, leader_epoch=2).buffer for number in range(3)]
    append_raw(disk, active, bytes(len(tail[0])) + tail[1] + tail[2])
    log = open_log(disk)
    assert (log.log_end_offset, log.recovery.lost_acknowledged) == (COUNT, False)
    assert log.recovery.cut_reason


def test_after_a_recovery_only_the_active_segment_keeps_its_indexes_in_memory(disk: SimulatedDisk) -> None:
    """A log of terabytes may be checked whole, and its indexes would stay for good."""
    log = open_log(disk)
    assert log.recovery.segments_checked == len(segments(disk)) > 2
    for base_offset in segments(disk)[:-1]:
        disk.fail_reads_of(path_of(base_offset, ".index"))
        with pytest.raises(StorageError, match=".index"):
            log.read(ReadLimits(base_offset, 1))
    assert log.read(ReadLimits(segments(disk)[-1], 1)).size_bytes


@pytest.mark.parametrize(
    "tail",
    [
        NEXT[:1],
        NEXT[:60],
        NEXT[:-1],
        bytes(500),
        bytes(7),
        stored_batch(COUNT + 1, leader_epoch=2).buffer,
        stored_batch(COUNT - 1, leader_epoch=2).buffer,
        stored_batch(COUNT, leader_epoch=1).buffer,
        NEXT[:-1] + b"!",
        b"\xff" * 200,
    ],
    ids=["byte", "header", "cut", "zeros", "few zeros", "gap", "again", "old epoch", "checksum", "garbage"],
)
def test_recovery_cuts_and_reports_a_bad_tail_above_the_recovery_point(disk: SimulatedDisk, tail: bytes) -> None:
    active = segments(disk)[-1]
    good = disk.read_bytes(path_of(active))
    append_raw(disk, active, tail)
    log = open_log(disk, recovery_point=COUNT)
    assert log.log_end_offset == log.flushed_offset == COUNT
    assert log.recovery.bytes_cut == len(tail)
    assert f"{path_of(active)} at position {len(good)}" in log.recovery.cut_reason
    assert disk.read_bytes(path_of(active)) == good
    before = tree(disk)
    assert open_log(disk, recovery_point=COUNT).recovery.bytes_cut == 0
    assert tree(disk) == before


def test_a_truncation_lowers_the_flushed_note_before_it_cuts(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.truncate_to(COUNT - 5)
    assert open_log(disk).log_end_offset == COUNT - 5
    log = open_log(disk)
    log.truncate_fully_and_start_at(COUNT + 5)
    assert open_log(disk).recovery.damage is None


def test_a_truncation_over_a_torn_flushed_note_promises_no_more_than_was_flushed() -> None:
    """Otherwise what a power cut takes below the cut would count as damage."""
    disk = SimulatedDisk()
    log = open_log(disk)
    disk.write_durably(f"{DIRECTORY}/{FLUSHED_OFFSET}", b"")
    log.append([stored_batch(offset) for offset in range(5)])
    log.truncate_to(4)
    note = read_note(disk, DIRECTORY)
    assert note is not None
    assert note.offset == log.flushed_offset == 0


def test_a_flipped_bit_in_the_flushed_note_takes_nothing_from_the_log(disk: SimulatedDisk) -> None:
    path = f"{DIRECTORY}/{FLUSHED_OFFSET}"
    good = disk.read_bytes(path)
    for bit in range(8 * len(good)):
        disk.overwrite(path, good)
        disk.flip_bit(path, bit // 8, bit % 8)
        assert open_log(disk, recovery_point=COUNT).log_end_offset == COUNT
