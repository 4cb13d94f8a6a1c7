"""Ends of key ranges, found in steps: what a question costs, which files it leaves, and which of them are believed."""

from dataclasses import replace
from itertools import count

import pytest

from tailrace.model.errors import KafkaError, StorageError
from tailrace.model.key_ranges import KeyRange, hash_of, of_slots, slot_of
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Buffer, Log
from tailrace.storage.keys import batch_slots, key_ends, key_indexes
from tailrace.storage.keys.batch_slots import BatchGroup
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_marker
from testkit.records.compaction import compact
from testkit.records.key_ends import end_by_index

DIRECTORY = "/data/orders-0"
CONFIG = TopicConfig(segment_bytes=1_000, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=0)
A, B = (of_slots(slot_of(hash_of(key, 0)), slot_of(hash_of(key, 0))) for key in (b"a", b"b"))
NEITHER = of_slots(99, 99)
BATCH_BYTES = 100
"""The size of a batch with one record: ten such batches fill a segment."""


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return disk


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the batches that were looked at, in that order."""
    offsets: list[int] = []
    add = BatchGroup.add

    def noted(group: BatchGroup, stored: Buffer, header: BatchHeader) -> None:
        offsets.append(header.base_offset)
        add(group, stored, header)

    monkeypatch.setattr(BatchGroup, "add", noted)
    return offsets


def open_log(disk: SimulatedDisk, config: TopicConfig = CONFIG, *, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=0, recovery_point=recovery_point, clean=clean)


def append(log: Log, keys: bytes, *, value_bytes: int = BATCH_BYTES - 61 - 8) -> None:
    """A batch for each key, a byte."""
    for key in keys:
        record = Record(0, 0, bytes([key]), bytes(value_bytes))
        batch = bytes(build_batch([record], base_offset=log.log_end_offset, leader_epoch=0))
        log.append([AppendBatch(batch, read_header(batch))])


def end_of(log: Log, wanted: KeyRange, end: int | None = None) -> int:
    """The end, after all steps that it takes."""
    return end_by_index(log, wanted, log.log_end_offset if end is None else end)


def files_of(disk: SimulatedDisk) -> list[int]:
    """The segments with a key index, by their base offsets."""
    return [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(".khx")]


def path_of(base_offset: int) -> str:
    return f"{DIRECTORY}/{base_offset:020d}.khx"


def indexed_log(disk: SimulatedDisk) -> Log:
    """A log of three segments, all of them indexed; the sealed ones have files."""
    log = open_log(disk)
    append(log, b"ab" * 12)
    log.flush()
    assert end_of(log, NEITHER) == 0
    while log.keys.index_on(lambda: 0):
        pass
    assert [segment.base_offset for segment in log.segments.all] == [0, 10, 20]
    log.keys.index_on(lambda: 0)
    assert files_of(disk) == [0, 10]
    return log


def test_a_batch_has_the_size_that_these_tests_count_on(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"a")
    assert log.size_bytes == BATCH_BYTES


def test_a_log_that_is_not_read_by_key_has_no_index(disk: SimulatedDisk, looked_at: list[int]) -> None:
    log = open_log(disk)
    append(log, b"ab" * 30)
    assert not log.keys.index_on(lambda: 0)
    log.close()
    assert (files_of(disk), looked_at) == ([], [])


def test_an_end_is_known_after_steps_and_not_before(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"abaa")
    assert log.keys.end(*A, 4) is None
    assert not log.keys.index_on(lambda: 0)
    assert [log.keys.end(*wanted, 4) for wanted in (A, B)] == [4, 2]
    assert not log.keys.index_on(lambda: 0)


def test_a_range_without_records_ends_at_the_log_start(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    assert log.keys.end(*A, 0) == 0
    append(log, b"b" * 25)
    assert end_of(log, A) == 0
    log.flush()
    log.advance_log_start(13)
    assert end_of(log, A) == 13
    log.advance_log_start(25)
    assert end_of(log, B) == 25


def test_batches_above_the_end_do_not_count(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"abab" * 5)
    assert [end_of(log, A, end) for end in range(12)] == [0, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11]
    assert end_of(log, A, 1_000) == 19


def test_a_marker_is_one_of_every_key(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"aa")
    log.append([stored_marker(2, producer_id=7, is_commit=True)])
    append(log, b"a")
    assert [end_of(log, B, end) for end in range(5)] == [0, 0, 0, 3, 3]


def test_a_finer_range_is_answered_from_the_records(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"aba" * 6)
    exactly = hash_of(b"b", 0)
    assert end_of(log, KeyRange(exactly, exactly)) == 17
    assert end_of(log, KeyRange(exactly + 1, B.last)) == 0
    assert end_of(log, KeyRange(B.first, exactly), 16) == 14


def test_the_first_end_of_an_old_log_is_found_from_its_end(
    disk: SimulatedDisk, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ends, "_BACK_BYTES", 300)
    log = open_log(disk)
    append(log, b"b" * 300 + b"a" + b"b" * 7)
    assert end_of(log, B) == 308
    assert min(looked_at) >= 302
    assert end_of(log, A) == 301
    assert min(looked_at) >= 300
    assert len(looked_at) == len(set(looked_at))


def test_new_batches_are_looked_at_once_and_ends_a_little_behind_are_known(
    disk: SimulatedDisk, looked_at: list[int]
) -> None:
    """The high watermark follows the log end. Every place is asked for; no place costs another look."""
    log = open_log(disk, replace(CONFIG, segment_bytes=100_000))
    append(log, b"ab" * 20)
    assert (end_of(log, A, 9), end_of(log, A, 10)) == (9, 9)
    assert [log.keys.end(*A, end) for end in range(10, 41)] == [end // 2 * 2 - 1 + end % 2 * 2 for end in range(10, 41)]
    append(log, b"b")
    assert end_of(log, A) == 39
    assert sorted(looked_at) == list(range(41))


def test_a_step_looks_at_so_many_bytes(
    disk: SimulatedDisk, looked_at: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_slots, "GROUP_BATCHES", 2)
    log = open_log(disk, replace(CONFIG, segment_bytes=1 << 30))
    append(log, b"b" * 10, value_bytes=1 << 20)
    assert log.keys.end(*A, 10) is None
    steps, most = 0, 0
    while log.keys.index_on(lambda: 0):
        most = max(most, len(looked_at))
        looked_at.clear()
        steps += 1
    assert (steps, most) == (2, 4)


def test_a_step_ends_after_its_time_and_does_something(disk: SimulatedDisk, looked_at: list[int]) -> None:
    log = open_log(disk)
    append(log, b"b" * 40)
    assert log.keys.end(*A, 40) is None
    late = count(0, key_ends.STEP_MS)
    steps = 1
    while log.keys.index_on(late.__next__):
        steps += 1
        assert steps < 100
    assert steps >= 4, "a segment in each step, at most"
    assert end_of(log, A) == 0


def test_files_are_written_of_sealed_segments_that_are_flushed(disk: SimulatedDisk) -> None:
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


def test_a_clean_start_looks_at_no_batch(disk: SimulatedDisk, looked_at: list[int]) -> None:
    indexed_log(disk).close()
    looked_at.clear()
    log = open_log(disk, recovery_point=24, clean=True)
    assert (log.keys.end(*A, 24), log.keys.end(*NEITHER, 24)) == (23, 0)
    assert end_of(log, A, 21) == 21
    append(log, b"b")
    assert end_of(log, A) == 23
    assert looked_at == [24]


def test_many_files_are_looked_for_in_steps(disk: SimulatedDisk) -> None:
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


def test_after_a_crash_the_sealed_segments_are_believed(disk: SimulatedDisk, looked_at: list[int]) -> None:
    indexed_log(disk).close()
    looked_at.clear()
    log = open_log(disk, recovery_point=24)
    assert files_of(disk) == [0, 10]
    assert end_of(log, NEITHER) == 0
    assert sorted(looked_at) == [20, 21, 22, 23]


def test_a_truncation_takes_the_files_of_what_it_cuts(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.truncate_to(15)
    assert files_of(disk) == [0]
    append(log, b"b" * 10)
    assert (end_of(log, A), end_of(log, B)) == (15, 25)
    log.truncate_fully_and_start_at(7)
    assert files_of(disk) == []
    assert end_of(log, A) == 7


def test_retention_takes_the_files_of_what_it_retires(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.update_config(replace(CONFIG, retention_bytes=0))
    assert len(log.retention.apply(0, 24)) == 2
    assert [name[20:] for name in disk.list_dir(DIRECTORY) if "khx" in name] == [".khx.deleted"] * 2
    log.retention.apply(0, 24)
    assert not [name for name in disk.list_dir(DIRECTORY) if "khx" in name]
    assert (end_of(log, A), end_of(log, NEITHER)) == (23, 20)


def test_a_compaction_takes_the_files_of_what_it_replaces(disk: SimulatedDisk) -> None:
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


def test_stray_files_are_removed_at_a_start(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.close()
    for name in (f"{5:020d}.khx", f"{5:020d}.khx.deleted", f"{30:020d}.khx"):
        disk.write_durably(f"{DIRECTORY}/{name}", b"stray")
    open_log(disk, recovery_point=24, clean=True)
    assert files_of(disk) == [0, 10, 20]
    assert not disk.exists(f"{DIRECTORY}/{5:020d}.khx.deleted")


@pytest.mark.parametrize("position", [0, 40, 90, 500, 2_100, 2_190])
def test_a_damaged_file_is_made_anew(disk: SimulatedDisk, position: int) -> None:
    indexed_log(disk).close()
    before = disk.read_bytes(path_of(10))
    disk.flip_bit(path_of(10), position)
    log = open_log(disk, recovery_point=24, clean=True)
    log.flush()
    assert [end_of(log, A, end) for end in (19, 20, 24)] == [19, 19, 23]
    assert end_of(log, NEITHER) == 0
    assert [end_of(log, NEITHER, end) for end in (19, 20, 23)] == [0, 0, 0]
    assert disk.read_bytes(path_of(10)) == before


def test_the_file_of_batches_that_another_program_has_changed_is_not_believed(disk: SimulatedDisk) -> None:
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


def test_without_files_the_ends_are_kept_in_memory(disk: SimulatedDisk, looked_at: list[int]) -> None:
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


def test_files_go_when_they_are_not_wanted_any_more(disk: SimulatedDisk) -> None:
    log = indexed_log(disk)
    log.update_config(replace(CONFIG, key_ranges_index="none"))
    assert files_of(disk) == []
    assert end_of(log, A) == 23


def test_a_few_indexes_are_in_memory(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 100)
    log.flush()
    assert end_of(log, A) == 0
    indexes = log.keys.ends.indexes
    loaded = [index for index in indexes._indexes.values() if index is not None and index.has_entries]
    assert len(indexes._indexes) == 10
    assert len(loaded) == key_indexes.MAX_LOADED + 1
    assert [end_of(log, B, end) for end in range(101)] == list(range(101))


def test_a_log_remembers_so_many_questions(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ends, "MAX_QUESTIONS", 5)
    log = open_log(disk)
    append(log, b"ab" * 10)
    for number in range(50):
        log.keys.end(number, number, 20)
    keys = log.keys.ends
    assert len(keys._waiting) == 5
    while log.keys.index_on(lambda: 0):
        pass
    for number in range(20):
        end_of(log, KeyRange(number, number))
    assert (len(keys._answers), len(keys._reached)) == (5, 0)


def test_a_question_that_takes_long_does_not_hold_up_another(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_ends, "STEP_MS", 0)
    log = open_log(disk)
    append(log, b"b" * 400)
    assert log.keys.end(*NEITHER, 400) is None
    log.keys.index_on(lambda: 0)
    exactly = hash_of(b"b", 0)
    for _ in range(6):
        if log.keys.end(exactly, exactly, 395) is not None:
            break
        assert log.keys.index_on(lambda: 0)
    assert log.keys.end(exactly, exactly, 395) == 395
    assert log.keys.end(*NEITHER, 400) is None
    assert end_of(log, NEITHER) == 0


def test_a_range_without_records_may_get_some(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 100)
    assert end_of(log, A) == 0
    append(log, b"b" * 2)
    assert end_of(log, A) == 0
    append(log, b"a" + b"b" * 30)
    assert end_of(log, A) == 103
    assert end_of(log, A, 102) == 0


def test_a_wrong_offset_index_is_made_anew(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ends, "_BACK_BYTES", 300)
    log = open_log(disk)
    append(log, b"a" + b"b" * 23)
    segment = log.segments.all[1]
    segment.boundary_before(0)
    assert segment._indexes is not None
    positions = segment._indexes.offsets._positions
    for at in range(len(positions)):
        positions[at] += 1
    assert end_of(log, A) == 1
    assert not log.is_offline


def test_damage_puts_the_log_offline(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 24)
    log.flush()
    disk.flip_bit(f"{DIRECTORY}/{10:020d}.log", 308, 7)  # the length of the fourth batch
    with pytest.raises(StorageError, match=f"{10:020d}.log at position"):
        end_of(log, A)
    assert log.is_damaged
    with pytest.raises(StorageError, match="offline"):
        log.keys.end(*A, 24)
    with pytest.raises(StorageError, match="offline"):
        log.keys.index_on(lambda: 0)
    assert log.keys.next_match(1, 0, 24) == 0


def test_a_full_disk_costs_the_file_alone(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 24)
    log.flush()
    disk.free_space = 100
    assert (end_of(log, A), end_of(log, B)) == (0, 24)
    log.keys.index_on(lambda: 0)
    assert files_of(disk) == []
    assert not log.is_offline


def test_batches_are_passed_over_that_have_no_record_of_the_slots(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"a" + b"b" * 11 + b"a" + b"b" * 12)
    slots = 1 << slot_of(A.first)
    assert log.keys.next_match(slots, 3, 25) == 3, "nothing is known"
    assert end_of(log, NEITHER) == 0
    assert [log.keys.next_match(slots, offset, 25) for offset in (0, 1, 10, 11, 12, 13, 20, 25)] == [
        0,
        10,
        12,
        12,
        12,
        20,
        25,
        25,
    ]
    assert log.keys.next_match(slots, 1, 5) == 5
    with pytest.raises(KafkaError):
        log.advance_log_start(26)
    log.advance_log_start(4)
    assert log.keys.next_match(slots, 1, 25) == 1, "it cannot be read"
