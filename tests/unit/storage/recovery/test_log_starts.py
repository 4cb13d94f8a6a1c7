"""A log start above the end of the log that is opened."""

import pytest

from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.recovery.recovered_logs import COUNT, SIZE, assert_whole, forget_note, open_log, path_of, segments


@pytest.mark.parametrize("is_durable", [False, True], ids=["page-cache", "flushed"])
def test_a_log_that_ends_below_its_start_begins_there_anew(disk: SimulatedDisk, is_durable: bool) -> None:
    """Unless the log was promised to be flushed to its end, a power cut may have taken the later records."""
    if is_durable:
        forget_note(disk)
    log = open_log(disk, log_start_offset=COUNT + 20, is_durable=is_durable)
    assert (log.log_start_offset, log.log_end_offset) == (COUNT + 20, COUNT + 20)
    assert segments(disk) == [COUNT + 20]
    assert log.recovery.bytes_cut == COUNT * SIZE
    assert log.recovery.ignored_log_start is None


@pytest.mark.parametrize(
    ("recovery_point", "clean", "has_note"),
    [(0, False, True), (COUNT, False, False), (COUNT // 2, False, True), (COUNT, True, True), (COUNT, True, False)],
)
def test_a_log_start_above_the_end_of_a_log_that_is_whole_is_ignored(
    disk: SimulatedDisk, recovery_point: int, clean: bool, has_note: bool
) -> None:
    """The checkpoint of log starts has no checksum. A log start is never above the flushed end; all below is there."""
    if clean:
        open_log(disk).close()
    if not has_note:
        forget_note(disk)
    log = open_log(disk, recovery_point=recovery_point, clean=clean, log_start_offset=COUNT + 20)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    assert_whole(log)
    assert log.recovery.ignored_log_start == COUNT + 20
    assert not log.recovery.lost_acknowledged
    assert log.recovery.bytes_cut == 0


def test_a_log_start_that_is_ignored_leaves_the_epochs_of_the_whole_log(disk: SimulatedDisk) -> None:
    """The file of leader epochs begins where the log did, perhaps within a segment."""
    log = open_log(disk)
    log.advance_log_start(14)
    log.close()
    log = open_log(disk, recovery_point=COUNT, clean=True, log_start_offset=COUNT + 20)
    assert log.epochs.entries == ((0, 0), (1, 12), (2, 24))


def test_a_log_start_above_the_end_of_a_log_that_was_cut_for_its_damage_is_believed(disk: SimulatedDisk) -> None:
    """An operator has chosen to lose what lies behind: the log was flushed further than it goes now."""
    base_offset = segments(disk)[1]
    content = bytearray(disk.read_bytes(path_of(base_offset)))
    content[SIZE - 1] ^= 1
    disk.unlink(path_of(base_offset))
    disk.open(path_of(base_offset), create=True).writev([content])
    log = open_log(disk, log_start_offset=COUNT - 1, cuts_damage=True, check_from=base_offset)
    assert (log.log_start_offset, log.log_end_offset) == (COUNT - 1, COUNT - 1)
    assert log.recovery.ignored_log_start is None


def test_the_flushed_offset_of_an_earlier_log_does_not_judge_the_log_start(disk: SimulatedDisk) -> None:
    """The log was begun anew; nothing of it was flushed yet when its log start was noted and the power went."""
    log = open_log(disk)
    log.truncate_fully_and_start_at(COUNT)
    log.flush()
    log.append([stored_batch(COUNT)])
    log = open_log(disk, recovery_point=COUNT, log_start_offset=COUNT + 20)
    assert (log.log_start_offset, log.log_end_offset) == (COUNT + 20, COUNT + 20)
    assert log.recovery.ignored_log_start is None
