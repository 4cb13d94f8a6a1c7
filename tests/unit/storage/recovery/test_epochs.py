"""Leader epochs of a log that is opened: from its batches, and from the checkpoint of epochs."""

import pytest

from tailrace.storage import DamagedLog, ReadLimits
from tailrace.storage.flushed_note import FLUSHED_OFFSET
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.recovery.recovered_logs import (
    COMPACTED,
    COUNT,
    DIRECTORY,
    SIZE,
    forget_note,
    open_log,
    path_of,
    segments,
)

EPOCHS = f"{DIRECTORY}/leader-epoch-checkpoint"


@pytest.mark.parametrize("content", [None, b"garbage", b"0\n0\n"])
def test_recovery_finds_leader_epochs_in_the_batches(disk: SimulatedDisk, content: bytes | None) -> None:
    disk.unlink(EPOCHS)
    if content is not None:
        disk.open(EPOCHS, create=True).writev([content])
    assert open_log(disk).epochs.entries == ((0, 0), (1, 12), (2, 24))


def test_recovery_forgets_a_leader_epoch_without_records(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.epochs.assign(9, COUNT)
    log.flush()
    assert open_log(disk, recovery_point=COUNT).epochs.latest_epoch == 2


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("bit", range(32))
def test_a_flipped_bit_in_a_leader_epoch_is_damage_of_that_batch(disk: SimulatedDisk, bit: int, clean: bool) -> None:
    """No checksum covers the epoch. The file of epochs proves it, as far as the file is known to be whole."""
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), SIZE + 12 + bit // 8, bit % 8)
    with pytest.raises(DamagedLog, match=f"position {SIZE}: leader epoch"):
        open_log(disk, recovery_point=COUNT, clean=clean)


@pytest.mark.parametrize("clean", [False, True])
def test_a_leader_epoch_that_the_metadata_does_not_know_is_damage_of_that_batch(
    disk: SimulatedDisk, clean: bool
) -> None:
    active = segments(disk)[-1]
    disk.flip_bit(path_of(active), 12, 5)
    forget_note(disk)
    with pytest.raises(DamagedLog, match="position 0: leader epoch .* has not begun; the partition's is 2"):
        open_log(disk, recovery_point=COUNT, leader_epoch=2, clean=clean)


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("position", range(len(b"0 3 0 0 1 12 2 24 ")))
def test_recovery_believes_the_batches_before_a_checkpoint_of_leader_epochs_with_a_flipped_bit(
    disk: SimulatedDisk, position: int, clean: bool
) -> None:
    if clean:
        open_log(disk).close()
    good = disk.read_bytes(EPOCHS)
    for bit in range(8):
        disk.write_durably(EPOCHS, good)
        disk.flip_bit(EPOCHS, position, bit)
        log = open_log(disk, recovery_point=COUNT, clean=clean, leader_epoch=2)
        assert (log.log_end_offset, log.epochs.entries) == (COUNT, ((0, 0), (1, 12), (2, 24)))
        assert log.read(ReadLimits(0, 10**6)).next_offset > 0


def test_a_flushed_note_that_is_older_than_the_checkpoint_of_leader_epochs_does_not_cost_epochs() -> None:
    """A power cut may take the note back. Epochs that a compaction has left no batch of are in that file alone."""
    disk = SimulatedDisk()
    log = open_log(disk, COMPACTED)
    log.append([stored_batch(0)])
    log.flush()
    older = disk.read_bytes(f"{DIRECTORY}/{FLUSHED_OFFSET}")
    log.epochs.assign(1, 3)
    log.append([stored_batch(5, leader_epoch=2)])
    log.flush()
    log.append([stored_batch(6, leader_epoch=3)])
    disk.overwrite(f"{DIRECTORY}/{FLUSHED_OFFSET}", older)
    log = open_log(disk, COMPACTED, recovery_point=6)
    assert log.epochs.entries == ((0, 0), (1, 3), (2, 5), (3, 6))


def test_leader_epochs_that_recovery_found_outlive_the_next_recovery(disk: SimulatedDisk) -> None:
    disk.open(EPOCHS, create=True).writev([b"0\n1\n0 0\n"])
    found = open_log(disk)
    # The second one looks at the last segment only.
    assert open_log(disk, recovery_point=found.flushed_offset).epochs.entries == ((0, 0), (1, 12), (2, 24))


def test_recovery_takes_no_leader_epoch_that_was_cut_off_from_a_checkpoint_that_still_has_it() -> None:
    """The leader of epoch 1 cut the log back to 0 and wrote there; the checkpoint says what was so before."""
    disk = SimulatedDisk()
    log = open_log(disk)
    log.append([stored_batch(0, leader_epoch=0)])
    log.close()
    log = open_log(disk, clean=True)
    log.truncate_to(0)
    log.append([stored_batch(0, leader_epoch=1)])
    log = open_log(disk)
    assert log.epochs.entries == ((1, 0),)
