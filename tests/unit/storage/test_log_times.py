"""Look-ups of offsets by time."""

import pytest

from tailrace.model.errors import StorageError
from tailrace.protocol.records.batch import read_header, seal
from tailrace.storage import AppendBatch
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch
from unit.storage.small_logs import DIRECTORY, NOW, fill, names, open_log


def test_a_log_finds_offsets_by_timestamp_inside_batches() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 20, count=5)
    for offset in range(100):
        assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + offset) == (FIRST_TIMESTAMP_MS + offset, offset, 0)
    assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 100) is None
    assert log.offset_for_timestamp(0) == (FIRST_TIMESTAMP_MS, 0, 0)
    log.advance_log_start(33)
    assert log.offset_for_timestamp(0) == (FIRST_TIMESTAMP_MS + 33, 33, 0)


def test_the_largest_timestamp_of_a_log_may_lie_anywhere() -> None:
    log = open_log(SimulatedDisk())
    for offset in range(30):
        late = 10_000 if offset in (11, 17) else 0
        log.append([stored_batch(offset, first_timestamp=NOW + offset + late)])
    assert log.max_timestamp_offset() == (NOW + 10_017, 17, 0)
    assert log.offset_for_timestamp(NOW + 9000) == (NOW + 10_011, 11, 0)


def test_a_log_finds_its_largest_readable_timestamp_without_reading_every_segment(
    disk: SimulatedDisk,
) -> None:
    """A segment in which the log starts is searched; a sender with a wrong timestamp costs no record."""
    log = open_log(disk)
    for offset in range(40):
        log.append([stored_batch(offset, first_timestamp=NOW + 10_000 - offset if offset < 3 else NOW + offset)])
    assert log.max_timestamp_offset() == (NOW + 10_000, 0, 0)
    log.advance_log_start(2)
    assert log.max_timestamp_offset() == (NOW + 9_998, 2, 0)
    log.advance_log_start(3)
    assert log.max_timestamp_offset() == (NOW + 39, 39, 0)
    liar = bytearray(stored_batch(40).buffer)
    liar[35:43] = (NOW + 20_000).to_bytes(8, "big")
    seal(liar)
    log.append([AppendBatch(bytes(liar), read_header(liar))], checked_from=0)
    disk.fail_reads_of(f"{DIRECTORY}/{names(disk, '.log')[1]:020d}.log")
    assert log.max_timestamp_offset() is None


def test_an_unreadable_batch_of_a_log_does_not_end_the_search_for_a_time() -> None:
    """Only its checksum is right: its sender is believed about what it holds."""
    log = open_log(SimulatedDisk())
    unreadable = bytearray(stored_batch(1).buffer)
    unreadable[61:] = b"\xff" * (len(unreadable) - 61)
    seal(unreadable)
    log.append([stored_batch(0), AppendBatch(bytes(unreadable), read_header(unreadable)), stored_batch(2)])
    assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 1) == (FIRST_TIMESTAMP_MS + 2, 2, 0)


def test_a_damaged_batch_of_a_log_ends_the_search_for_a_time(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    size = len(fill(log, 3)[0].buffer)
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 2 * size - 1)
    with pytest.raises(StorageError, match="checksum"):
        log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 1)
    assert log.is_offline


def test_a_look_up_by_time_looks_into_compressed_batches() -> None:
    log = open_log(SimulatedDisk())
    log.append([stored_batch(0, 50, codec=4), stored_batch(50, 50, codec=1)])
    assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 77) == (FIRST_TIMESTAMP_MS + 77, 77, 0)
