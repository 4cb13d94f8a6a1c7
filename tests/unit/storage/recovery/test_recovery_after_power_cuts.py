"""Logs after power cuts and failed writes: what was flushed is there, and nothing that the log refused."""

import pytest

from tailrace.model.errors import StorageError
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.recovery.recovered_logs import COUNT, DIRECTORY, SIZE, fill, open_log


@pytest.mark.parametrize("seed", range(12))
def test_batches_of_a_failed_append_do_not_come_back_after_a_power_cut(seed: int) -> None:
    disk = SimulatedDisk(seed)
    log = open_log(disk)
    log.append([stored_batch(0)])
    log.flush()
    disk.sync_dir("/data")
    disk.sync_dir("/")
    disk.write_short_at(disk.operations + 1, SIZE + 10)
    with pytest.raises(StorageError):
        log.append([stored_batch(1), stored_batch(2)])
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=1).log_end_offset == 1


@pytest.mark.parametrize("seed", range(12))
def test_file_names_that_an_earlier_process_did_not_sync_are_synced_by_the_first_flush_of_a_log(seed: int) -> None:
    disk = SimulatedDisk.with_directory("/data", seed)
    open_log(disk)
    log = open_log(disk)
    log.append([stored_batch(0)])
    log.flush()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=1).log_end_offset == 1


@pytest.mark.parametrize("is_flush_under_way", [False, True])
def test_a_log_that_was_never_flushed_does_not_begin_at_a_later_segment(is_flush_under_way: bool) -> None:
    """A power cut keeps names in any order: a log that begins later passes for a log that retention has shortened."""
    for seed in range(40):
        disk = SimulatedDisk.with_directory("/data", seed)
        log = open_log(disk)
        disk.sync_dir("/data")
        if is_flush_under_way:
            log.flushes.begin()
        fill(log)
        assert log.segment_count > 1
        disk.power_cut()
        disk.reboot()
        assert open_log(disk).log_start_offset == 0


def test_a_log_whose_first_name_cannot_be_synced_goes_offline_at_its_first_roll() -> None:
    disk = SimulatedDisk()
    log = open_log(disk)

    def fail_syncs_of_names(number: int, operation: str) -> None:
        if operation.endswith(f"sync directory {DIRECTORY}"):
            disk.fail_at(number)

    disk.on_operation = fail_syncs_of_names
    with pytest.raises(StorageError):
        log.append([stored_batch(offset) for offset in range(COUNT)])
    assert log.is_offline
    assert log.segment_count == 1


def test_recovery_does_not_believe_the_page_cache_after_a_failed_flush(disk: SimulatedDisk) -> None:
    """The bytes of a failed sync can be read, but no later sync writes them: recovery writes them again."""
    disk.sync_dir("/data")
    disk.sync_dir("/")
    log = open_log(disk, recovery_point=COUNT)
    log.append([stored_batch(COUNT, leader_epoch=2)])
    disk.fail_at(disk.operations + 1)
    with pytest.raises(StorageError):
        log.flush()
    assert open_log(disk, recovery_point=COUNT).flushed_offset == COUNT + 1
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=COUNT + 1).log_end_offset == COUNT + 1
