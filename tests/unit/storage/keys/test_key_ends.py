"""Ends of key ranges, found in steps: the cost of a question."""

from dataclasses import replace
from itertools import count

import pytest

from tailrace.model.errors import KafkaError, StorageError
from tailrace.model.key_ranges import KeyRange, hash_of, slot_of
from tailrace.storage.keys import batch_slots, key_ends, key_indexes
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_marker
from unit.storage.keys.key_logs import BATCH_BYTES, CONFIG, DIRECTORY, NEITHER, A, B, append, end_of, open_log


def test_a_batch_of_the_key_logs_has_the_size_that_these_tests_count_on(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"a")
    assert log.size_bytes == BATCH_BYTES


def test_the_end_of_a_key_range_is_known_after_steps_and_not_before(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"abaa")
    assert log.keys.end(*A, 4) is None
    assert not log.keys.index_on(lambda: 0)
    assert [log.keys.end(*wanted, 4) for wanted in (A, B)] == [4, 2]
    assert not log.keys.index_on(lambda: 0)


def test_a_key_range_without_records_ends_behind_its_deleted_records(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    assert log.keys.end(*A, 0) == 0
    append(log, b"b" * 25)
    assert end_of(log, A) == 0
    log.flush()
    log.advance_log_start(13)
    assert end_of(log, A) == 0
    log.advance_log_start(25)
    assert [end_of(log, A), end_of(log, B)] == [0, 25]


def test_a_key_range_without_records_may_get_some(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 100)
    assert end_of(log, A) == 0
    append(log, b"b" * 2)
    assert end_of(log, A) == 0
    append(log, b"a" + b"b" * 30)
    assert end_of(log, A) == 103
    assert end_of(log, A, 102) == 0


def test_the_end_of_a_key_range_does_not_count_batches_above_the_asked_end(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"abab" * 5)
    assert [end_of(log, A, end) for end in range(12)] == [0, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11]
    assert end_of(log, A, 1_000) == 19


def test_a_marker_counts_for_every_key_range(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"aa")
    log.append([stored_marker(2, producer_id=7, is_commit=True)])
    append(log, b"a")
    assert [end_of(log, B, end) for end in range(5)] == [0, 0, 0, 3, 3]


def test_the_end_of_a_key_range_within_a_slot_is_answered_from_the_records(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"aba" * 6)
    exactly = hash_of(b"b", 0)
    assert end_of(log, KeyRange(exactly, exactly)) == 17
    assert end_of(log, KeyRange(exactly + 1, B.last)) == 0
    assert end_of(log, KeyRange(B.first, exactly), 16) == 14


def test_the_first_end_of_a_key_range_of_an_old_log_is_found_from_the_log_end(
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


def test_key_ends_look_at_new_batches_once_and_know_ends_a_little_behind(
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


def test_a_step_of_a_key_index_looks_at_so_many_bytes(
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


def test_a_step_of_a_key_index_ends_after_its_time_and_does_something(
    disk: SimulatedDisk, looked_at: list[int]
) -> None:
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


def test_a_log_remembers_so_many_questions_for_key_ends(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_question_for_a_key_end_that_takes_long_does_not_hold_up_another(
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


def test_key_ends_make_a_wrong_offset_index_anew(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_damage_under_a_key_index_puts_the_log_offline(disk: SimulatedDisk) -> None:
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


def test_a_key_index_passes_over_batches_without_a_record_of_the_slots(disk: SimulatedDisk) -> None:
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


def test_a_log_has_a_few_key_indexes_in_memory(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    append(log, b"b" * 100)
    log.flush()
    assert end_of(log, A) == 0
    indexes = log.keys.ends.indexes
    loaded = [index for index in indexes._indexes.values() if index is not None and index.has_entries]
    assert len(indexes._indexes) == 10
    assert len(loaded) == key_indexes.MAX_LOADED + 1
    assert [end_of(log, B, end) for end in range(101)] == list(range(101))
