"""Damage that is found when a log is opened: below the flushed end it is reported, and cut if an operator says so."""

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.storage import AppendBatch, DamagedLog, ReadLimits
from tailrace.storage.flushed_note import read_note
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.recovery.recovered_logs import (
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


@pytest.mark.parametrize("position", [0, 8, 20, 70, SIZE + 20, 3 * SIZE + 65])
def test_damage_below_the_recovery_point_is_not_cut_but_reported(disk: SimulatedDisk, position: int) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), position, 6)
    before = tree(disk)
    start = position // SIZE * SIZE
    with pytest.raises(CorruptRecords, match=rf"{active:020d}\.log at position {start}"):
        open_log(disk, recovery_point=COUNT)
    assert tree(disk) == before


@pytest.mark.parametrize("position", [0, 8, 70], ids=["offset", "length", "record"])
@pytest.mark.parametrize("batch", [0, 3, COUNT - 1])
def test_damage_above_the_recovery_point_is_damage_as_far_as_the_log_was_flushed(
    disk: SimulatedDisk, batch: int, position: int
) -> None:
    """No checkpoint was written since these batches were flushed, and acknowledged."""
    base = max(base for base in segments(disk) if base <= batch)
    disk.flip_bit(path_of(base), (batch - base) * SIZE + position, 5)
    before = tree(disk)
    with pytest.raises(DamagedLog, match=f"position {(batch - base) * SIZE}") as refused:
        open_log(disk)
    damage = refused.value.damage
    assert (damage.path, damage.good_end_offset, damage.flushed_end_offset) == (path_of(base), batch, COUNT)
    assert tree(disk) == before
    report = open_log(disk, allow_damage=True).recovery
    assert report.lost_acknowledged
    assert (report.end_offset, report.acknowledged_end_offset) == (batch, COUNT)


def test_damage_below_the_checkpointed_high_watermark_is_damage(disk: SimulatedDisk) -> None:
    """The note of the flushed end may be lost in a power cut; what is below the high watermark was flushed."""
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 70)
    forget_note(disk)
    with pytest.raises(DamagedLog, match=f"flushed up to {active + 2}"):
        open_log(disk, high_watermark=active + 2)
    assert not open_log(disk, high_watermark=active + 1).recovery.lost_acknowledged
    assert open_log(disk, high_watermark=active + 1).log_end_offset == active + 1


def test_damage_of_a_log_can_be_cut_if_an_operator_says_so(disk: SimulatedDisk) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 70)
    log = open_log(disk, recovery_point=COUNT, cuts_damage=True)
    assert log.log_end_offset == log.flushed_offset == active + 1
    assert log.recovery.lost_acknowledged
    assert open_log(disk).log_end_offset == active + 1


@pytest.mark.parametrize("last", [0, 1])
def test_a_base_offset_that_does_not_follow_is_damage_of_a_log_after_a_clean_stop_too(
    disk: SimulatedDisk, last: int
) -> None:
    """Found by fuzzing: no checksum covers the base offset, and the log would go on from 2^24 more."""
    active = segments(disk)[-1]
    position = disk.size_of(path_of(active)) - SIZE if last else SIZE
    disk.flip_bit(path_of(active), position + 4)
    with pytest.raises(CorruptRecords, match=rf"position {position}: offset 1677"):
        open_log(disk, recovery_point=COUNT, clean=True)


def test_a_damaged_log_can_be_read_up_to_the_damage_and_not_written(disk: SimulatedDisk) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), 2 * SIZE + 70)
    before = tree(disk)
    log = open_log(disk, recovery_point=COUNT, allow_damage=True)
    assert log.recovery.damaged
    assert log.log_end_offset == active + 2
    assert log.read(ReadLimits(0, 1)).first_offset == 0
    assert log.read(ReadLimits(active + 1, 10**6)).next_offset == active + 2
    with pytest.raises(StorageError, match="is offline"):
        log.append([stored_batch(active + 2, leader_epoch=3)])
    log.close()
    assert tree(disk) == before


def test_a_log_shorter_than_its_recovery_point_is_damaged(disk: SimulatedDisk) -> None:
    disk.unlink(path_of(segments(disk)[-1]))
    with pytest.raises(CorruptRecords, match=f"was flushed up to {COUNT}"):
        open_log(disk, recovery_point=COUNT)
    forget_note(disk)
    assert open_log(disk).recovery.damage is None


def test_a_broken_tail_of_a_cleanly_closed_log_is_damage(disk: SimulatedDisk) -> None:
    open_log(disk).close()
    append_raw(disk, segments(disk)[-1], b"x" * 100)
    with pytest.raises(CorruptRecords, match="at position"):
        open_log(disk, clean=True)


def test_recovery_finds_each_flipped_bit_of_a_flushed_batch() -> None:
    batch: AppendBatch = stored_batch(0, 2, leader_epoch=1)
    for bit in range(8 * len(batch.buffer)):
        disk = SimulatedDisk()
        log = open_log(disk)
        log.append([batch, stored_batch(2, leader_epoch=1)])
        log.flush()
        disk.flip_bit(path_of(0), bit // 8, bit % 8)
        with pytest.raises(CorruptRecords):
            open_log(disk, recovery_point=3)


def test_under_page_cache_durability_a_loss_below_the_high_watermark_is_cut_and_reported(disk: SimulatedDisk) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 70)
    forget_note(disk)
    log = open_log(disk, high_watermark=COUNT, is_durable=False)
    assert log.log_end_offset == active + 1
    assert log.recovery.lost_acknowledged
    assert not log.recovery.damaged
    log.append([stored_batch(active + 1, leader_epoch=3)])


@pytest.mark.parametrize("segment", [0, 1])
def test_after_damage_was_cut_the_flushed_note_promises_no_more(disk: SimulatedDisk, segment: int) -> None:
    base = segments(disk)[segment]
    disk.flip_bit(path_of(base), 70)
    log = open_log(disk, cuts_damage=True)
    assert log.log_end_offset == base
    assert log.recovery.lost_acknowledged
    log.close(clean=False)
    note = read_note(disk, DIRECTORY)
    assert note is not None
    assert note.offset == base
    again = open_log(disk)
    assert (again.log_end_offset, again.recovery.lost_acknowledged) == (base, False)
