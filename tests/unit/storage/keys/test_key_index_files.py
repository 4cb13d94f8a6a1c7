"""The files of key indexes: which files a log leaves, and which files it believes."""

from dataclasses import replace
from itertools import count

import pytest

from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch
from tailrace.storage.keys import key_ends
from tailrace.testing.disk import SimulatedDisk
from testkit.records.compaction import compact
from unit.storage.keys.key_logs import (
    BATCH_BYTES,
    CONFIG,
    DIRECTORY,
    NEITHER,
    A,
    B,
    append,
    end_of,
    files_of,
    indexed_log,
    open_log,
)


def path_of(base_offset: int) -> str:
    return f"{DIRECTORY}/{base_offset:020d}.khx"


def test_a_log_that_is_not_read_by_key_has_no_index(disk: SimulatedDisk, looked_at: list[int]) -> None:
    log = open_log(disk)
    append(log, b"ab" * 30)
    assert not log.keys.index_on(lambda: 0)
    log.close()
    assert (files_of(disk), looked_at) == ([], [])


def test_key_index_files_are_written_of_sealed_segments_that_are_flushed(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"ab" * 12)
    assert end_of(log, NEITHER) == 0
    assert files_of(disk) == []
    log.flush()
    for _ in range(2):
        assert not log.keys.index_on(lambda: 0)
    assert files_of(disk) == [0, 10]
    log.close()
    assert files_of(disk) == [0, 10, 20]


def test_key_index_files_go_when_they_are_not_wanted_any_more(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.update_config(replace(CONFIG, key_ranges_index="none"))
    assert files_of(disk) == []
    assert end_of(log, A) == 23


def test_a_key_index_after_a_clean_start_looks_at_no_batch(disk: SimulatedDisk, looked_at: list[int]) -> None:
    indexed_log(disk).close()
    looked_at.clear()
    log = open_log(disk, recovery_point=24, clean=True)
    assert (log.keys.end(*A, 24), log.keys.end(*NEITHER, 24)) == (23, 0)
    assert end_of(log, A, 21) == 21
    append(log, b"b")
    assert end_of(log, A) == 23
    assert looked_at == [24]


def test_a_log_looks_for_many_key_index_files_in_steps(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 200)
    log.flush()
    assert end_of(log, A) == 0
    log.close()
    assert files_of(disk) == list(range(0, 200, 10))
    log = open_log(disk, recovery_point=200, clean=True)
    assert log.keys.end(*A, 200) is None
    assert len(log.keys.ends.indexes._indexes) == 4
    late = count(0, key_ends.STEP_MS)
    assert log.keys.index_on(late.__next__)
    assert len(log.keys.ends.indexes._indexes) == 5
    assert end_of(log, A) == 0


def test_after_a_crash_the_key_index_files_of_sealed_segments_are_believed(
    disk: SimulatedDisk, looked_at: list[int]
) -> None:
    indexed_log(disk).close()
    looked_at.clear()
    log = open_log(disk, recovery_point=24)
    assert files_of(disk) == [0, 10]
    assert end_of(log, NEITHER) == 0
    assert sorted(looked_at) == [20, 21, 22, 23]


def test_a_truncation_takes_the_key_index_files_of_what_it_cuts(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.truncate_to(15)
    assert files_of(disk) == [0]
    append(log, b"b" * 10)
    assert (end_of(log, A), end_of(log, B)) == (15, 25)
    log.truncate_fully_and_start_at(7)
    assert files_of(disk) == []
    assert end_of(log, A) == 7


def test_retention_takes_the_key_index_files_of_what_it_retires(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.update_config(replace(CONFIG, retention_bytes=0))
    assert len(log.retention.apply(0, 24)) == 2
    assert [name[20:] for name in disk.list_dir(DIRECTORY) if "khx" in name] == [".khx.deleted"] * 2
    log.retention.apply(0, 24)
    assert not [name for name in disk.list_dir(DIRECTORY) if "khx" in name]
    assert (end_of(log, A), end_of(log, NEITHER)) == (23, 0)


def test_a_compaction_takes_the_key_index_files_of_what_it_replaces(disk: SimulatedDisk) -> None:
    log = open_log(disk, replace(CONFIG, cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0))
    append(log, b"ab" * 12)
    log.flush()
    assert (end_of(log, A, 10), end_of(log, NEITHER)) == (9, 0)
    log.keys.index_on(lambda: 0)
    assert files_of(disk) == [0, 10]
    assert compact(log, 0, end_offset=24) is not None
    assert files_of(disk) == []
    assert (end_of(log, A, 10), end_of(log, A, 20), end_of(log, A)) == (0, 19, 23)
    assert set(log.keys.ends.indexes._indexes) <= set(log.segments.all)
    assert set(log.keys.ends.indexes._loaded) <= set(log.segments.all)


def test_a_log_removes_stray_key_index_files_at_its_start(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.close()
    for name in (f"{5:020d}.khx", f"{5:020d}.khx.deleted", f"{30:020d}.khx"):
        disk.write_durably(f"{DIRECTORY}/{name}", b"stray")
    open_log(disk, recovery_point=24, clean=True)
    assert files_of(disk) == [0, 10, 20]
    assert not disk.exists(f"{DIRECTORY}/{5:020d}.khx.deleted")


@pytest.mark.parametrize("position", [0, 40, 90, 500, 2_100, 2_190])
def test_a_damaged_key_index_file_is_made_anew(disk: SimulatedDisk, position: int) -> None:
    indexed_log(disk).close()
    before = disk.read_bytes(path_of(10))
    disk.flip_bit(path_of(10), position)
    log = open_log(disk, recovery_point=24, clean=True)
    log.flush()
    assert [end_of(log, A, end) for end in (19, 20, 24)] == [19, 19, 23]
    assert end_of(log, NEITHER) == 0
    assert [end_of(log, NEITHER, end) for end in (19, 20, 23)] == [0, 0, 0]
    assert disk.read_bytes(path_of(10)) == before


def test_the_key_index_file_of_batches_that_another_program_has_changed_is_not_believed(disk: SimulatedDisk) -> None:
    """The program has cut the log at 15, and appended five batches as large as the batches that were there."""
    indexed_log(disk).close()
    stale = disk.read_bytes(path_of(10))
    log = open_log(disk, recovery_point=24, clean=True)
    log.truncate_to(15)
    log.epochs.assign(1, 15)
    for offset in range(15, 20):
        batch = bytes(build_batch([Record(0, 0, b"b", bytes(31))], base_offset=offset, leader_epoch=1))
        log.append([AppendBatch(batch, read_header(batch))])
    log.close()
    disk.write_durably(path_of(10), stale)
    log = open_log(disk, recovery_point=20, clean=True)
    assert log.size_bytes == 20 * BATCH_BYTES
    assert end_of(log, A) == 15


def test_a_log_without_key_index_files_keeps_the_ends_in_memory(disk: SimulatedDisk, looked_at: list[int]) -> None:
    log = open_log(disk, replace(CONFIG, key_ranges_index="none"))
    append(log, b"ab" * 12)
    log.flush()
    assert end_of(log, NEITHER) == 0
    looked_at.clear()
    append(log, b"b")
    assert (end_of(log, NEITHER), end_of(log, A)) == (0, 23)
    assert looked_at == [24]
    log.close()
    assert files_of(disk) == []


def test_a_full_disk_costs_a_log_its_key_index_file_alone(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 24)
    log.flush()
    disk.free_space = 100
    assert (end_of(log, A), end_of(log, B)) == (0, 24)
    log.keys.index_on(lambda: 0)
    assert files_of(disk) == []
    assert not log.is_offline
