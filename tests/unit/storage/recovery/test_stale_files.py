"""Files that an earlier process, or Kafka, has left in the directory of a log."""

import pytest

from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch, stored_marker
from unit.storage.recovery.recovered_logs import (
    COMPACTED,
    COUNT,
    DIRECTORY,
    assert_whole,
    forget_note,
    open_log,
    path_of,
    segments,
)


def test_recovery_removes_stale_files_of_a_log(disk: SimulatedDisk) -> None:
    for name in ("x.tmp", f"{5:020d}.index", f"{5:020d}.timeindex.deleted"):
        disk.open(f"{DIRECTORY}/{name}", create=True)
    disk.open(f"{DIRECTORY}/notes.txt", create=True)
    open_log(disk)
    left = disk.list_dir(DIRECTORY)
    assert "notes.txt" in left
    assert not [name for name in left if name.endswith((".tmp", ".deleted")) or name.startswith(f"{5:020d}")]


def test_recovery_finishes_a_half_done_retention(disk: SimulatedDisk) -> None:
    first, second, third, *_ = segments(disk)
    disk.rename(path_of(second), path_of(second, ".log.deleted"))
    log = open_log(disk, recovery_point=COUNT)
    assert log.log_start_offset == third
    assert segments(disk)[0] == third
    assert not disk.exists(path_of(first, ".index"))


@pytest.mark.parametrize("clean", [False, True])
def test_a_truncation_by_kafka_proves_nothing_about_the_segments_before_it(disk: SimulatedDisk, clean: bool) -> None:
    """Kafka renames what it cuts off as what it retires, and removes it a minute later if it still runs."""
    open_log(disk).close()
    *kept, last_but_one, last = segments(disk)
    for base_offset in (last_but_one, last):
        disk.rename(path_of(base_offset), path_of(base_offset, ".log.deleted"))
    disk.unlink(path_of(COUNT, ".snapshot"))
    if not clean:
        forget_note(disk)  # after Kafka's clean stop what we once noted does not count
    log = open_log(disk, recovery_point=last_but_one, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, last_but_one)
    assert segments(disk) == kept
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".deleted")]


def test_a_truncation_by_kafka_proves_nothing_after_later_appends_either(disk: SimulatedDisk) -> None:
    """Behind the cut its segments begin elsewhere."""
    first, second, third, *_ = segments(disk)
    disk.open(path_of(third - 1, ".log.deleted"), create=True).writev([b"cut off"])
    log = open_log(disk, recovery_point=COUNT)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    assert segments(disk)[:3] == [first, second, third]


def test_a_compaction_by_kafka_proves_nothing_about_the_segment_that_it_wrote(disk: SimulatedDisk) -> None:
    first, second, third, *_ = segments(disk)
    for base_offset in (first, second):
        content = disk.read_bytes(path_of(base_offset))
        disk.open(path_of(base_offset, ".log.deleted"), create=True).writev([content])
    disk.unlink(path_of(second))
    log = open_log(disk, COMPACTED, recovery_point=COUNT)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    assert segments(disk)[:2] == [first, third]


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("suffix", [".log", ".log.swap", ".log.deleted", ".snapshot"])
@pytest.mark.parametrize("digits", ["9" * 20, "٠" * 20, "0" * 19 + "x", "0" * 19, "0" * 20 + "."])
def test_a_name_that_is_no_offset_names_nothing_of_the_log(
    disk: SimulatedDisk, digits: str, suffix: str, clean: bool
) -> None:
    open_log(disk).close()
    disk.open(f"{DIRECTORY}/{digits}{suffix}", create=True).writev([b"x" * 100])
    log = open_log(disk, recovery_point=COUNT, clean=clean)
    assert (log.log_start_offset, log.log_end_offset) == (0, COUNT)
    assert_whole(log)
    assert len(log.producers) == 1


@pytest.mark.parametrize("are_later_lost", [False, True], ids=["later segments are left", "later segments are lost"])
def test_recovery_removes_index_files_of_a_rolled_segment_that_is_active_again(are_later_lost: bool) -> None:
    """A power cut may take a rolled segment's batches and leave its index files, which were written at once."""
    disk = SimulatedDisk.with_directory("/data")
    log = open_log(disk)
    for offset in range(0, COUNT, 2):
        log.append([stored_batch(offset, producer_id=4, base_sequence=offset // 2, is_transactional=True)])
        log.append([stored_marker(offset + 1, producer_id=4, is_commit=False)])
    bases = segments(disk)
    lost = bases[1]
    log.close()
    assert disk.exists(path_of(lost, ".txnindex"))
    disk.open(path_of(lost)).truncate(0)
    for base in bases[2:] if are_later_lost else []:
        disk.unlink(path_of(base))
    forget_note(disk)

    log = open_log(disk, recovery_point=lost)
    assert log.log_end_offset == lost
    assert [name for name in disk.list_dir(DIRECTORY) if name.startswith(f"{lost:020d}") and "index" in name] == []
    aborted = log.aborted_transactions(0, COUNT)
    assert [transaction.last_offset for transaction in aborted] == list(range(1, lost, 2))
    log.close()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=lost, clean=True).aborted_transactions(0, COUNT) == aborted
