"""Truncations of a log, and logs that begin within a batch or at a gap."""

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.protocol.records.batch import iter_batches
from tailrace.storage import Duplicate, Log, ReadLimits
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch
from unit.storage.small_logs import DIRECTORY, NOW, SMALL, fill, names, offsets, open_log


def _read_one(log: Log, offset: int) -> bytes:
    return b"".join(log.read(ReadLimits(offset, 1)).records)


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 9, 19, 24, 39])
def test_a_truncation_cuts_the_log_to_the_start_of_the_batch_that_holds_the_offset(
    disk: SimulatedDisk, offset: int
) -> None:
    log = open_log(disk)
    made = fill(log, 20, count=2)
    log.flush()
    log.truncate_to(offset)
    end = offset // 2 * 2
    assert (log.log_end_offset, log.flushed_offset) == (end, end)
    assert all(name <= end for name in (*names(disk, ".log"), *names(disk, ".snapshot")))
    log.append([stored_batch(end, 2, text="new")])
    found = [header.base_offset for each in range(0, end + 2, 2) for _, header in iter_batches(_read_one(log, each))]
    assert found == list(range(0, end + 2, 2))
    assert _read_one(log, end) != made[end // 2].buffer
    again = open_log(disk)
    assert again.log_end_offset == end + 2
    assert not again.recovery.bytes_cut


def test_a_truncation_takes_producers_and_epochs_of_the_log_back() -> None:
    log = open_log(SimulatedDisk())
    for n in range(20):
        log.append([stored_batch(n, producer_id=1, base_sequence=n, leader_epoch=n // 5)])
    log.truncate_to(12)
    assert log.epochs.entries == ((0, 0), (1, 5), (2, 10))
    retry = log.producers.check(stored_batch(0, producer_id=1, base_sequence=11).header)
    assert retry == Duplicate(11, 11, FIRST_TIMESTAMP_MS + 11)
    assert log.producers.check(stored_batch(12, producer_id=1, base_sequence=12).header) is None
    log.truncate_to(12)
    log.truncate_to(99)
    assert log.log_end_offset == 12


def test_a_truncation_that_cannot_load_the_producers_puts_the_log_offline(disk: SimulatedDisk) -> None:
    """The producers of the longer log would let a batch pass for a duplicate of a batch that was cut off."""
    log = open_log(disk)
    for n in range(20):
        log.append([stored_batch(n, producer_id=1, base_sequence=n)])
    log.flush()
    cut = names(disk, ".log")[1] + 1
    disk.fail_reads_of(f"{DIRECTORY}/{names(disk, '.snapshot')[0]:020d}.snapshot")
    with pytest.raises(StorageError):
        log.truncate_to(cut)
    assert log.is_offline
    with pytest.raises(StorageError, match=f"a truncation to {cut} failed"):
        log.truncate_to(cut)


def test_a_truncation_that_meets_damage_says_that_any_of_the_log_may_be_damaged(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    for n in range(20):
        log.append([stored_batch(n)])
    log.close()
    log = open_log(disk)
    base = names(disk, ".log")[1]
    disk.flip_bit(f"{DIRECTORY}/{base:020d}.log", 9, 3)  # the length of its first batch
    with pytest.raises(CorruptRecords):
        log.truncate_to(base + 2)
    assert (log.is_damaged, log.good_end_offset) == (True, 0)


def test_a_full_truncation_starts_the_log_somewhere_else(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 30)
    log.truncate_fully_and_start_at(500)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.size_bytes) == (500, 500, 500, 0)
    assert log.epochs.entries == ()
    fill(log, 2)
    assert offsets(log.read(ReadLimits(500, 1000)).records) == [500, 501]
    assert open_log(disk).log_end_offset == 502


def test_an_empty_log_may_begin_with_a_batch_that_its_start_lies_in(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.truncate_fully_and_start_at(105)
    log.begin_within(stored_batch(100, 10, producer_id=7, leader_epoch=2))
    assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (105, 105, 110)
    assert names(disk, ".log") == [100]
    assert log.epochs.entries == ((2, 105),)
    assert log.producers.check(stored_batch(0, 10, producer_id=7).header) == Duplicate(100, 109, NOW + 109)
    log.append([stored_batch(110, 3, producer_id=7, base_sequence=10, leader_epoch=2)])
    assert offsets(log.read(ReadLimits(105, 1000)).records) == [100, 110]
    log.close()
    again = Log.open(DIRECTORY, files=disk, config=SMALL, now_ms=NOW, log_start_offset=105, clean=True)
    assert (again.log_start_offset, again.log_end_offset) == (105, 113)
    assert offsets(again.read(ReadLimits(105, 1000)).records) == [100, 110]


def test_a_log_that_fails_to_begin_within_a_batch_is_as_it_was_or_offline() -> None:
    reached = 0
    for number in range(1, 100):
        disk = SimulatedDisk()
        log = open_log(disk)
        log.truncate_fully_and_start_at(105)
        first = disk.operations
        disk.fail_at(first + number)
        try:
            log.begin_within(stored_batch(100, 10))
        except StorageError:
            reached += 1
            disk.forget_faults()
            if not log.is_offline:
                assert (log.log_start_offset, log.log_end_offset, names(disk, ".log")) == (105, 105, [105])
                assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".cleaned")]
                log.begin_within(stored_batch(100, 10))
                assert log.log_end_offset == 110
            assert open_log(disk, recovery_point=105).log_end_offset in (105, 110)
    assert reached > 15


@pytest.mark.parametrize("rolls", [False, True], ids=["before the gap", "at a roll behind it"])
def test_a_log_whose_sync_below_a_gap_fails_is_offline(disk: SimulatedDisk, rolls: bool) -> None:
    """No later sync writes the data that such a sync has not written."""
    log = open_log(disk)
    fill(log, 3)
    if rolls:
        log.append([stored_batch(7)], may_have_gaps=True)
    history = len(disk.history)
    disk.on_operation = lambda number, what: disk.fail_at(number) if f" sync {DIRECTORY}" in what else None
    with pytest.raises(StorageError):
        log.append([stored_batch(offset) for offset in range(8, 30)], may_have_gaps=True)
    assert any(".log" in line for line in disk.history[history:])
    assert log.is_offline
