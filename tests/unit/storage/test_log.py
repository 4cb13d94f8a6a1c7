"""A log on the simulated disk: appending, reading, rolling, failing, truncating, retiring."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import iter_batches, read_header, seal
from tailrace.storage import AppendBatch, Duplicate, Log, OsFiles, ReadLimits, ReadResult
from tailrace.storage.producers.snapshot_format import parse_snapshot
from tailrace.storage.retention import Reason
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch

DIRECTORY = "/data/orders-0"
SMALL = TopicConfig(segment_bytes=1000, index_interval_bytes=200, retention_ms=-1)
NOW = FIRST_TIMESTAMP_MS


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


def open_log(disk: SimulatedDisk, config: TopicConfig = SMALL, *, recovery_point: int = 0, clean: bool = False) -> Log:
    return Log.open(DIRECTORY, files=disk, config=config, now_ms=NOW, recovery_point=recovery_point, clean=clean)


def durable_disk(seed: int = 0) -> SimulatedDisk:
    """A disk whose directory of logs survives a power cut."""
    disk = SimulatedDisk(seed)
    disk.make_dirs("/data")
    disk.sync_dir("/")
    return disk


def fill(log: Log, batches: int, count: int = 1) -> list[AppendBatch]:
    made = []
    for _ in range(batches):
        made.append(stored_batch(log.log_end_offset, count))
        log.append(made[-1:])
    return made


def offsets(chunks: Iterable[bytes | bytearray | memoryview]) -> list[int]:
    return [header.base_offset for chunk in chunks for _, header in iter_batches(chunk)]


def names(disk: SimulatedDisk, suffix: str) -> list[int]:
    return [int(name[:20]) for name in disk.list_dir(DIRECTORY) if name.endswith(suffix)]


def fields(result: ReadResult) -> tuple[object, ...]:
    """The fields of a result."""
    return result.records, result.size_bytes, result.first_offset, result.next_offset, result.end_position


def test_a_new_log_is_empty() -> None:
    log = open_log(SimulatedDisk())
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.size_bytes) == (0, 0, 0, 0)
    assert fields(log.read(ReadLimits(0, 100))) == ([], 0, 0, 0, 0)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_a_log_may_begin_anywhere() -> None:
    log = Log.open(DIRECTORY, files=SimulatedDisk(), config=SMALL, now_ms=NOW, log_start_offset=700)
    assert (log.log_start_offset, log.log_end_offset) == (700, 700)


def test_batches_come_back_byte_for_byte_from_the_one_that_holds_the_offset() -> None:
    log = open_log(SimulatedDisk())
    made = fill(log, 30, count=3)
    for offset in range(90):
        result = log.read(ReadLimits(offset, 1))
        batch = made[offset // 3]
        assert b"".join(result.records) == batch.buffer
        assert (result.first_offset, result.next_offset) == (batch.header.base_offset, batch.header.end_offset)
        assert result.size_bytes == len(batch.buffer)


def test_a_read_takes_whole_batches_up_to_its_limits() -> None:
    log = open_log(SimulatedDisk(), TopicConfig(index_interval_bytes=200))
    size = len(fill(log, 50)[0].buffer)
    assert offsets(log.read(ReadLimits(10, 3 * size)).records) == [10, 11, 12]
    assert offsets(log.read(ReadLimits(10, 4 * size - 1)).records) == [10, 11, 12]
    assert offsets(log.read(ReadLimits(10, 10**6), 14).records) == [10, 11, 12, 13]
    assert offsets(log.read(ReadLimits(10, 10**6)).records) == list(range(10, 50))
    assert log.read(ReadLimits(50, 10**6)).records == []
    assert log.read(ReadLimits(20, 10**6), 20).records == []


def test_the_first_batch_is_given_even_if_it_is_too_large_unless_that_is_not_wanted() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 3)
    for max_bytes in (0, 1, 30, 61, 80):
        assert offsets(log.read(ReadLimits(1, max_bytes)).records) == [1]
        end_position = log.read(ReadLimits(1, 1)).end_position
        result = log.read(ReadLimits(1, max_bytes, min_one_message=False))
        assert fields(result) == ([], 0, 1, 1, end_position // 2)


def test_a_batch_that_crosses_the_end_offset_is_not_given() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 2, count=4)
    assert log.read(ReadLimits(5, 1000), 6).records == []
    assert offsets(log.read(ReadLimits(1, 1000), 6).records) == [0]


@pytest.mark.parametrize("offset", [-1, 4, 11])
def test_an_offset_outside_the_log_is_out_of_range(offset: int) -> None:
    log = open_log(SimulatedDisk())
    fill(log, 10)
    log.advance_log_start(5)
    with pytest.raises(KafkaError) as caught:
        log.read(ReadLimits(offset, 100))
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_bytes_of_a_read_belong_to_the_reader(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 20)
    held = log.read(ReadLimits(0, 400))
    before = [bytes(chunk) for chunk in held.records]
    log.truncate_to(1)
    log.append([stored_batch(1, text="other")])
    assert [bytes(chunk) for chunk in held.records] == before


def test_a_segment_rolls_at_its_size(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    size = len(fill(log, 40)[0].buffer)
    per_segment = SMALL.segment_bytes // size
    assert names(disk, ".log") == list(range(0, 40, per_segment))
    assert names(disk, ".snapshot") == names(disk, ".log")[1:]
    assert names(disk, ".index") == names(disk, ".timeindex") == names(disk, ".log")[:-1]


def test_a_segment_rolls_by_the_time_of_its_records(disk: SimulatedDisk) -> None:
    log = open_log(disk, TopicConfig(segment_ms=100))
    for offset, late in enumerate((0, 100, 50, 101, 150, 202)):
        log.append([stored_batch(offset, first_timestamp=NOW + late)])
    assert names(disk, ".log") == [0, 3, 5]


def test_a_segment_rolls_when_its_index_is_full(disk: SimulatedDisk) -> None:
    log = open_log(disk, TopicConfig(index_interval_bytes=0, segment_index_bytes=12 * 4))
    fill(log, 9)
    assert names(disk, ".log") == [0, 4, 8]


def test_a_segment_rolls_before_offsets_outgrow_its_index(disk: SimulatedDisk) -> None:
    log = open_log(disk, TopicConfig(cleanup_policy=("compact",)))
    log.append([stored_batch(base, first_timestamp=NOW) for base in (0, 2**31 - 1, 2**31, 2**40)])
    assert names(disk, ".log") == [0, 2**31, 2**40]
    assert [log.read(ReadLimits(offset, 1)).first_offset for offset in (0, 1, 2**31, 2**31 + 1)] == [
        0,
        2**31 - 1,
        2**31,
        2**40,
    ]


def test_one_append_may_cross_several_segments(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.append([stored_batch(offset, producer_id=3, base_sequence=offset) for offset in range(30)])
    assert log.segment_count == 3
    assert log.log_end_offset == 30
    assert log.producers.check(stored_batch(0, producer_id=3, base_sequence=30).header) is None


def test_many_batches_in_one_append_are_one_write(disk: SimulatedDisk) -> None:
    log = open_log(disk, TopicConfig())
    before = disk.operations
    log.append([stored_batch(offset) for offset in range(2000)])
    assert disk.operations == before + 1


@pytest.mark.parametrize("taken", [0, 1, 100, 250])
def test_a_short_write_leaves_the_log_as_it_was(disk: SimulatedDisk, taken: int) -> None:
    log = open_log(disk)
    fill(log, 3)
    more = [stored_batch(3 + n, producer_id=1, base_sequence=n, leader_epoch=7) for n in range(3)]
    for batch in more:
        log.producers.stage(batch.header)
    if taken:
        disk.write_short_at(disk.operations + 1, taken)
    else:
        disk.fail_at(disk.operations + 1)
    with pytest.raises(StorageError):
        log.append(more)
    assert_unharmed(disk, log, 3)
    log.append(more)
    assert log.log_end_offset == 6


def assert_unharmed(disk: SimulatedDisk, log: Log, end_offset: int) -> None:
    """Nothing of a failed append is left, in memory or on the disk."""
    assert not log.is_offline
    assert log.log_end_offset == end_offset
    assert log.epochs.latest_epoch == 0
    assert not log.producers.has_staged
    assert 1 not in log.producers.producers
    assert log.size_bytes == sum(
        disk.size_of(f"{DIRECTORY}/{name}") for name in disk.list_dir(DIRECTORY) if name.endswith(".log")
    )
    assert all(offset <= end_offset for offset in names(disk, ".snapshot"))
    found = open_log(disk)
    assert found.log_end_offset == end_offset
    assert not found.recovery.bytes_cut


def test_a_failure_at_any_operation_of_an_append_across_rolls_leaves_the_log_as_it_was() -> None:
    more = [stored_batch(3 + n, producer_id=1, base_sequence=n, leader_epoch=7) for n in range(25)]
    reached = 0
    for number in range(1, 100):
        for short in (False, True):
            disk = SimulatedDisk()
            log = open_log(disk)
            fill(log, 3)
            first = disk.operations
            if short:
                disk.write_short_at(first + number, 5)
            else:
                disk.fail_at(first + number)
            try:
                log.append(more)
            except StorageError:
                reached += 1
                failed = disk.history[first + number - 1]
                if " sync directory " in failed or (" sync " in failed and failed.endswith((".log", "index"))):
                    assert log.is_offline, "a failed flush must not be tried again"
                    continue
                assert_unharmed(disk, log, 3)
                log.append(more)
            assert log.log_end_offset == 28
            assert offsets(log.read(ReadLimits(27, 1)).records) == [27]
    assert reached > 20


def test_a_cut_back_that_fails_puts_the_log_offline(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    disk.write_short_at(disk.operations + 1, 10)
    disk.fail_at(disk.operations + 2)
    with pytest.raises(StorageError):
        log.append([stored_batch(3)])
    assert log.is_offline
    with pytest.raises(StorageError, match="orders-0 is offline: a failed append could not be cut back"):
        log.append([stored_batch(3)])
    assert open_log(disk, recovery_point=3).log_end_offset == 3


def test_a_full_disk_refuses_appends_and_takes_them_again_when_there_is_space(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    disk.free_space = 50
    for _ in range(3):
        with pytest.raises(StorageError, match="disk may be full|No space left"):
            log.append([stored_batch(3)])
    assert offsets(log.read(ReadLimits(0, 1000)).records) == [0, 1, 2]
    disk.free_space = 10**6
    log.append([stored_batch(3)])


def test_batches_must_continue_the_log() -> None:
    log = open_log(SimulatedDisk())
    with pytest.raises(AssertionError, match="batch at offset 1 appended at 0"):
        log.append([stored_batch(1)])


def test_a_flush_covers_what_was_appended_when_it_began(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    ticket = log.flushes.begin()
    fill(log, 2)
    ticket.sync()
    log.flushes.finish(ticket)
    assert log.flushed_offset == 3
    assert log.flushes.has_work
    log.flush()
    assert log.flushed_offset == 5
    assert not log.flushes.has_work
    before = disk.operations
    log.flush()
    assert disk.operations == before


def test_a_flush_that_was_overtaken_by_a_truncation_does_not_count() -> None:
    disk = durable_disk()
    log = open_log(disk)
    fill(log, 20)
    ticket = log.flushes.begin()
    log.truncate_to(4)
    fill(log, 30)
    ticket.sync()
    log.flushes.finish(ticket)
    assert log.flushed_offset <= 4
    log.flush()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=34).log_end_offset == 34


def test_an_append_that_fails_leaves_no_torn_snapshot_of_producers() -> None:
    failed = 0
    for number in range(1, 12):
        disk = SimulatedDisk()
        log = open_log(disk)
        log.append([stored_batch(0, producer_id=1, value_bytes=900)])
        disk.write_short_at(disk.operations + number, 5)
        try:
            log.append([stored_batch(n, producer_id=1, base_sequence=n, value_bytes=900) for n in range(1, 4)])
        except StorageError:
            failed += 1
            for offset in names(disk, ".snapshot"):
                parse_snapshot(disk.read_bytes(f"{DIRECTORY}/{offset:020d}.snapshot"))
    assert failed > 2


def test_a_failed_flush_puts_the_log_offline(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 2)
    disk.fail_at(disk.operations + 1)
    with pytest.raises(StorageError):
        log.flush()
    with pytest.raises(StorageError, match="a flush failed"):
        log.append([stored_batch(2)])
    assert log.flushed_offset == 0


def test_without_is_durable_the_next_flush_covers_all_segments() -> None:
    disk = durable_disk(3)
    log = Log.open(DIRECTORY, files=disk, config=SMALL, now_ms=NOW, is_durable=False)
    fill(log, 30)
    assert not [line for line in disk.history if " sync " in line and line.endswith(".log")]
    log.flush()
    disk.power_cut()
    disk.reboot()
    assert open_log(disk, recovery_point=30).log_end_offset == 30


@pytest.mark.parametrize("offset", [0, 1, 7, 8, 9, 19, 24, 39])
def test_truncation_cuts_to_the_start_of_the_batch_that_holds_the_offset(disk: SimulatedDisk, offset: int) -> None:
    log = open_log(disk)
    made = fill(log, 20, count=2)
    log.flush()
    log.truncate_to(offset)
    end = offset // 2 * 2
    assert (log.log_end_offset, log.flushed_offset) == (end, end)
    assert all(name <= end for name in (*names(disk, ".log"), *names(disk, ".snapshot")))
    log.append([stored_batch(end, 2, text="new")])
    found = [header.base_offset for each in range(0, end + 2, 2) for _, header in iter_batches(read_one(log, each))]
    assert found == list(range(0, end + 2, 2))
    assert read_one(log, end) != made[end // 2].buffer
    again = open_log(disk)
    assert again.log_end_offset == end + 2
    assert not again.recovery.bytes_cut


def read_one(log: Log, offset: int) -> bytes:
    return b"".join(log.read(ReadLimits(offset, 1)).records)


def test_truncation_takes_producers_and_epochs_back() -> None:
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


def test_a_full_truncation_starts_somewhere_else(disk: SimulatedDisk) -> None:
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


def test_a_log_that_cannot_begin_within_a_batch_is_as_it_was_or_offline() -> None:
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


def test_retention_by_size_renames_first_and_removes_later(disk: SimulatedDisk) -> None:
    config = TopicConfig(segment_bytes=1000, retention_bytes=2000, retention_ms=-1, file_delete_delay_ms=100)
    log = open_log(disk, config)
    fill(log, 40)
    bases = names(disk, ".log")
    held = log.read(ReadLimits(0, 500))
    retired = log.retention.apply(NOW, 40)
    assert [segment.base_offset for segment in retired] == bases[: len(retired)]
    assert {segment.reason for segment in retired} == {Reason.SIZE}
    assert log.log_start_offset == bases[len(retired)] == log.epochs.entries[0].start_offset
    assert names(disk, ".log") == bases[len(retired) :]
    assert names(disk, ".log.deleted") == bases[: len(retired)]
    assert offsets(held.records)[0] == 0
    assert log.size_bytes == sum(disk.size_of(f"{DIRECTORY}/{base:020d}.log") for base in names(disk, ".log"))
    log.retention.apply(NOW + 99, 40)
    assert names(disk, ".log.deleted")
    log.retention.apply(NOW + 100, 40)
    assert not [name for name in disk.list_dir(DIRECTORY) if name.endswith(".deleted")]
    assert names(disk, ".snapshot")[0] == log.log_start_offset


def test_old_segments_go_on_a_full_disk_although_there_is_no_space_to_follow_the_active_one(
    disk: SimulatedDisk,
) -> None:
    config = TopicConfig(segment_bytes=1000, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    log = open_log(disk, config)
    fill(log, 40)
    bases = names(disk, ".log")
    disk.free_space = 0
    retired = log.retention.apply(NOW, 40, frees_all=True)
    assert [segment.base_offset for segment in retired] == bases[:-1]
    log.retention.remove_retired(None)
    with pytest.raises(StorageError, match="No space left"):
        log.retention.apply(NOW, 40, frees_all=True)
    disk.free_space = 1_000
    assert [segment.base_offset for segment in log.retention.apply(NOW, 40, frees_all=True)] == bases[-1:]
    assert log.log_start_offset == log.log_end_offset == 40
    assert not log.is_offline


@pytest.mark.parametrize("is_cut_short", [False, True])
def test_the_one_segment_of_a_log_goes_on_a_disk_without_space_for_its_indexes(is_cut_short: bool) -> None:
    disk = durable_disk()
    config = TopicConfig(index_interval_bytes=1, retention_bytes=0, retention_ms=-1, file_delete_delay_ms=0)
    log = open_log(disk, config)
    fill(log, 40)
    log.flush()
    disk.free_space = 60  # the entries of 40 batches take 800 bytes
    retired = log.retention.apply(NOW, 40, frees_all=True)
    assert [segment.base_offset for segment in retired] == [0]
    if is_cut_short:
        disk.power_cut()
        disk.reboot()
        log = open_log(disk, config)
    else:
        log.retention.remove_retired(None)
    assert log.log_start_offset == log.log_end_offset == 40
    assert log.size_bytes == 0
    assert names(disk, ".log") == [40]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_under_way", [False, True], ids=["before the flush", "during the flush"])
def test_the_state_of_producers_survives_the_segments_that_they_wrote_to(seed: int, is_under_way: bool) -> None:
    """Data before the new segment is flushed and may go; the files of the roll are not flushed yet."""
    disk = durable_disk(seed)
    log = open_log(disk, replace(SMALL, retention_bytes=0))
    while log.segment_count == 1:
        log.flush()
        log.append([last := stored_batch(log.log_end_offset, producer_id=7, base_sequence=log.log_end_offset)])
    flushed = log.flushed_offset
    if is_under_way:
        log.flushes.begin()
    assert log.retention.apply(NOW, flushed)
    disk.power_cut()
    disk.reboot()
    again = open_log(disk, recovery_point=flushed)
    assert again.log_start_offset == flushed
    assert 7 in again.producers.producers
    retry = again.producers.check(stored_batch(flushed - 1, producer_id=7, base_sequence=flushed - 1).header)
    assert retry == Duplicate(flushed - 1, flushed - 1, FIRST_TIMESTAMP_MS + flushed - 1)
    assert last.header.base_offset == flushed


def test_retention_by_time_and_by_log_start_leave_the_active_segment(disk: SimulatedDisk) -> None:
    log = open_log(disk, TopicConfig(segment_bytes=1000, retention_ms=1000))
    fill(log, 40)
    assert log.retention.apply(NOW + 1000, 40) == []
    log.advance_log_start(20)
    assert {segment.reason for segment in log.retention.apply(NOW, 40)} == {Reason.START_OFFSET}
    assert log.log_start_offset == 20
    assert log.retention.apply(NOW + 10**6, 10) == []
    assert {segment.reason for segment in log.retention.apply(NOW + 10**6, 40)} == {Reason.TIME}
    assert log.segment_count == 1
    assert offsets(log.read(ReadLimits(39, 1)).records) == [39]


def test_the_log_start_never_moves_back_and_never_past_the_end() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 10)
    log.advance_log_start(5)
    log.advance_log_start(3)
    assert log.log_start_offset == 5
    with pytest.raises(KafkaError, match="it ends at 10"):
        log.advance_log_start(11)


def test_offsets_are_found_by_timestamp_inside_batches() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 20, count=5)
    for offset in range(100):
        assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + offset) == (FIRST_TIMESTAMP_MS + offset, offset, 0)
    assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 100) is None
    assert log.offset_for_timestamp(0) == (FIRST_TIMESTAMP_MS, 0, 0)
    log.advance_log_start(33)
    assert log.offset_for_timestamp(0) == (FIRST_TIMESTAMP_MS + 33, 33, 0)


def test_the_largest_timestamp_may_lie_anywhere() -> None:
    log = open_log(SimulatedDisk())
    for offset in range(30):
        late = 10_000 if offset in (11, 17) else 0
        log.append([stored_batch(offset, first_timestamp=NOW + offset + late)])
    assert log.max_timestamp_offset() == (NOW + 10_017, 17, 0)
    assert log.offset_for_timestamp(NOW + 9000) == (NOW + 10_011, 11, 0)


def test_an_unreadable_batch_does_not_end_the_search_for_a_time() -> None:
    """Only its checksum is right: its sender is believed about what it holds."""
    log = open_log(SimulatedDisk())
    unreadable = bytearray(stored_batch(1).buffer)
    unreadable[61:] = b"\xff" * (len(unreadable) - 61)
    seal(unreadable)
    log.append([stored_batch(0), AppendBatch(bytes(unreadable), read_header(unreadable)), stored_batch(2)])
    assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 1) == (FIRST_TIMESTAMP_MS + 2, 2, 0)


def test_a_damaged_batch_ends_the_search_for_a_time(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    size = len(fill(log, 3)[0].buffer)
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 2 * size - 1)
    with pytest.raises(StorageError, match="checksum"):
        log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 1)
    assert log.is_offline


def test_the_largest_readable_timestamp_is_found_without_reading_every_segment(
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


def test_compressed_batches_are_looked_into() -> None:
    log = open_log(SimulatedDisk())
    log.append([stored_batch(0, 50, codec=4), stored_batch(50, 50, codec=1)])
    assert log.offset_for_timestamp(FIRST_TIMESTAMP_MS + 77) == (FIRST_TIMESTAMP_MS + 77, 77, 0)


def test_a_clean_close_writes_all_caches_and_an_idle_log_writes_nothing_again(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.append([stored_batch(0, producer_id=1)])
    log.close()
    assert names(disk, ".index") == names(disk, ".timeindex") == [0]
    assert names(disk, ".snapshot") == [1]
    with pytest.raises(StorageError, match="it was closed"):
        log.append([stored_batch(1)])
    log.close()
    again = open_log(disk, clean=True)
    before = disk.operations
    again.close()
    assert disk.operations == before


def test_a_damaged_batch_under_a_reader_is_reported_with_file_and_position(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    size = len(fill(log, 5)[0].buffer)
    disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", 2 * size + 8, 7)
    with pytest.raises(StorageError, match=rf"{0:020d}\.log at position {2 * size}"):
        log.read(ReadLimits(2, 1000))
    with pytest.raises(StorageError, match="offline"):
        log.check_online()


@pytest.mark.parametrize("max_bytes", [1, 300, 10**6])
@pytest.mark.parametrize("is_hinted", [False, True])
def test_no_flipped_bit_outside_the_checksum_is_ever_served(is_hinted: bool, max_bytes: int) -> None:
    """Base offset, length, leader epoch and magic: a reader gets what was written, or the error of a damaged log."""
    for bit in range(8 * 17):
        for batch in (0, 3, 7):
            disk = SimulatedDisk()
            log = open_log(disk)
            written = []
            for number in range(8):
                stored = stored_batch(log.log_end_offset, 1 + number % 3, leader_epoch=number // 4)
                log.append([stored])
                written.append(bytes(stored.buffer))
            log.close()
            log = open_log(disk, clean=True)
            if is_hinted:
                offset = 0
                while offset < log.log_end_offset:
                    offset = log.read(ReadLimits(offset, max_bytes)).next_offset
            position = sum(map(len, written[:batch]))
            disk.flip_bit(f"{DIRECTORY}/{0:020d}.log", position + bit // 8, bit % 8)
            for offset in range(log.log_end_offset):
                try:
                    served = b"".join(map(bytes, log.read(ReadLimits(offset, max_bytes)).records))
                except StorageError:
                    continue
                assert served in b"".join(written), f"bit {bit} of batch {batch} is served from offset {offset}"
            assert log.is_offline


def test_a_wrong_index_misleads_no_reader(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 40)
    log.close()
    for base in names(disk, ".index"):
        path = f"{DIRECTORY}/{base:020d}.index"
        for position in range(7, disk.size_of(path), 8):
            disk.flip_bit(path, position, 3)
    again = open_log(disk, clean=True)
    assert again.log_end_offset == 40
    for offset in range(40):
        assert offsets(again.read(ReadLimits(offset, 1)).records) == [offset]
        assert offsets(again.read(ReadLimits(offset, 10**6)).records)[0] == offset


def test_a_small_answer_does_not_hold_the_large_memory_that_was_read(tmp_path: Path) -> None:
    log = Log.open(str(tmp_path / "orders-0"), files=OsFiles(), config=TopicConfig(), now_ms=NOW)
    for value_bytes in (20_000, 900_000):
        log.append([stored_batch(log.log_end_offset, value_bytes=value_bytes)])
    (records,) = log.read(ReadLimits(0, 900_000)).records
    assert offsets([records]) == [0]
    assert not isinstance(records, memoryview) or memoryview(records.obj).nbytes < 100_000
