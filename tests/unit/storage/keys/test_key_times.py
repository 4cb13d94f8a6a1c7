"""Lookups by time for key ranges: the found records, and the cost of a step (decision 0099)."""

import random
from collections.abc import Generator, Mapping
from dataclasses import replace

import pytest

from tailrace.model.errors import StorageError
from tailrace.model.key_ranges import KeyRange, contains, hash_of, of_slots, slot_of
from tailrace.protocol.records.batch import BatchHeader, read_header
from tailrace.protocol.records.record import Record, build_batch
from tailrace.storage import AppendBatch, Log
from tailrace.storage.keys import batch_slots, key_times
from tailrace.storage.keys.batch_slots import readable_batch
from tailrace.storage.keys.key_times import Found, first_at_least, largest
from tailrace.storage.readable_log import TimestampOffset
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_marker
from testkit.records.key_ends import end_by_index
from unit.storage.keys.key_logs import CONFIG, NEITHER, A, B, open_log

KEYS = [b"a", b"b", b"c", b"d", None]
RANGES = [A, B, NEITHER, of_slots(0, 127), of_slots(128, 255), of_slots(slot_of(hash_of(b"c", 0)), 255)]
Stored = list[tuple[int, int, bytes | None]]
"""The offset, time and key of each record."""


def write(log: Log, records: list[tuple[int, bytes | None]], codec: int = 0) -> Stored:
    """Write a batch of records with these times and keys."""
    first = log.log_end_offset
    built = [Record(first + number, time, key, b"v" * 20) for number, (time, key) in enumerate(records)]
    batch = bytes(build_batch(built, base_offset=first, leader_epoch=0, codec=codec))
    log.append([AppendBatch(batch, read_header(batch))], checked_from=0)
    return [(record.offset, record.timestamp, record.key) for record in built]


def done(walk: Generator[None, None, Found]) -> tuple[Found, int]:
    """The result, and the number of steps."""
    steps = 0
    while True:
        try:
            next(walk)
        except StopIteration as end:
            return end.value, steps
        steps += 1


def ends_of(log: Log, end_offset: int | None = None) -> dict[KeyRange, int]:
    end = log.log_end_offset if end_offset is None else end_offset
    return {wanted: end_by_index(log, wanted, end) for wanted in RANGES}


def first_by_walk(log: Log, stored: Stored, timestamp: int, ends: Mapping[KeyRange, int]) -> Found:
    found: Found = {}
    for wanted, end in ends.items():
        for offset, time, key in stored:
            is_own = log.log_start_offset <= offset < end and contains([wanted], hash_of(key, offset))
            if is_own and time >= timestamp:
                found[wanted] = TimestampOffset(time, offset, 0)
                break
    return found


def random_log(disk: SimulatedDisk, chooses: random.Random, *, rises: bool) -> tuple[Log, Stored]:
    log = open_log(disk)
    stored: Stored = []
    for number in range(60):
        times = [number * 10 + at if rises else chooses.randrange(600) for at in range(chooses.randint(1, 6))]
        keys = KEYS[: chooses.randint(1, len(KEYS))]
        stored += write(log, [(time, chooses.choice(keys)) for time in times], chooses.choice([0, 0, 2, 4]))
    log.flush()
    return log, stored


@pytest.mark.parametrize("has_index", [False, True], ids=["no index", "index"])
@pytest.mark.parametrize("rises", [False, True], ids=["any times", "rising times"])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_record_of_each_range_is_found(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, seed: int, rises: bool, has_index: bool
) -> None:
    monkeypatch.setattr(key_times, "GROUP_BATCHES", 3)
    chooses = random.Random(seed)
    log, stored = random_log(disk, chooses, rises=rises)
    log.advance_log_start(stored[len(stored) // 5][0])
    for end_offset in (log.log_end_offset, log.log_end_offset - 7):
        ends = ends_of(log, end_offset)
        if not has_index:
            log.keys.forget()
        for timestamp in (0, 1, 120, 300, 301, 555, 599, 640, 10**9):
            expected = first_by_walk(log, stored, timestamp, ends)
            assert done(first_at_least(log, log.keys, timestamp, ends))[0] == expected, timestamp


@pytest.mark.parametrize("rises", [False, True], ids=["any times", "rising times"])
@pytest.mark.parametrize("seed", range(3))
def test_the_first_record_with_the_largest_time_is_found(disk: SimulatedDisk, seed: int, rises: bool) -> None:
    log, stored = random_log(disk, random.Random(seed), rises=rises)
    log.advance_log_start(stored[len(stored) // 5][0])
    for wanted, end in ends_of(log).items():
        mine = [
            (time, -offset)
            for offset, time, key in stored
            if log.log_start_offset <= offset < end and contains([wanted], hash_of(key, offset))
        ]
        expected = {wanted: TimestampOffset(max(mine)[0], -max(mine)[1], 0)} if mine else {}
        assert done(largest(log, log.keys, wanted, end))[0] == expected


def test_a_record_behind_the_end_of_a_range_is_not_found_in_the_batch_that_has_the_end(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    write(log, [(1, b"a"), (9, b"a")])
    assert done(first_at_least(log, log.keys, 5, {A: 2}))[0] == {A: TimestampOffset(9, 1, 0)}
    assert done(first_at_least(log, log.keys, 5, {A: 1}))[0] == {}
    assert done(largest(log, log.keys, A, 1))[0] == {A: TimestampOffset(1, 0, 0)}


def test_records_without_times_have_no_largest_time(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    write(log, [(-1, b"a")])
    assert done(largest(log, log.keys, A, 1))[0] == {}


def test_in_a_log_whose_times_rise_the_largest_time_is_found_at_the_end(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(disk)
    for number in range(200):
        write(log, [(number, b"a" if number % 2 else b"b")])
    log.flush()
    end = end_by_index(log, A, 200)
    examined: list[int] = []

    def noted(stored: memoryview, header: BatchHeader) -> object:
        examined.append(header.base_offset)
        return readable_batch(stored, header)

    monkeypatch.setattr("tailrace.storage.keys.key_times.readable_batch", noted)
    assert done(largest(log, log.keys, A, end))[0] == {A: TimestampOffset(199, 199, 0)}
    assert set(examined) == {199}


def test_a_step_passes_over_a_stretch_without_records_of_the_range(disk: SimulatedDisk) -> None:
    log = open_log(disk, replace(CONFIG, segment_bytes=100_000))
    for number in range(2_000):
        write(log, [(number, b"b")])
    write(log, [(5_000, b"a")])
    end = end_by_index(log, A, 2_001)
    assert end == 2_001
    assert end_by_index(log, NEITHER, 2_001) == 0
    found, steps = done(first_at_least(log, log.keys, 0, {A: end}))
    assert found == {A: TimestampOffset(5_000, 2_000, 0)}
    assert steps < 10


def test_a_step_examines_a_group_of_batches(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_times, "GROUP_BATCHES", 10)
    log = open_log(disk, replace(CONFIG, segment_bytes=1_000_000))
    for number in range(100):
        write(log, [(number, b"b")])
    _, steps = done(first_at_least(log, log.keys, 0, {NEITHER: 100}))
    assert steps == 10


def test_markers_and_batches_that_cannot_be_split_count_for_every_range(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(disk)
    write(log, [(10, b"a")])
    log.append([stored_marker(1, producer_id=9, is_commit=True, timestamp=20)], checked_from=0)
    write(log, [(30, b"b"), (31, b"b"), (32, b"b")])
    log.flush()
    monkeypatch.setattr(batch_slots, "SPLIT_LIMITS", batch_slots.BatchLimits(1_000, 2))
    ends = {A: 5, NEITHER: 5}
    assert done(first_at_least(log, log.keys, 10, ends))[0] == {
        A: TimestampOffset(10, 0, 0),
        NEITHER: TimestampOffset(20, 1, 0),
    }
    assert done(first_at_least(log, log.keys, 31, ends))[0] == dict.fromkeys(ends, TimestampOffset(31, 3, 0))


def test_a_log_that_is_cut_during_a_lookup_has_no_record_there(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    for number in range(40):
        write(log, [(number, b"b")])
    walk = first_at_least(log, log.keys, 0, {A: 40})
    next(walk)
    log.truncate_to(12)
    write(log, [(99, b"a")])
    log.flush()
    log.advance_log_start(5)
    assert done(walk)[0] in ({}, {A: TimestampOffset(99, 12, 0)})


def test_damage_puts_the_log_offline(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    for number in range(5):
        write(log, [(number, b"b")])
    log.flush()
    disk.flip_bit(log.segments.active.file.path, 3 * log.size_bytes // 5 + 70)
    with pytest.raises(StorageError):
        done(first_at_least(log, log.keys, 0, {A: 5}))
    assert log.is_damaged
