"""A log on the simulated disk: how it begins, appends, rolls, fails and closes."""

import pytest

from tailrace.model.errors import KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import Log, ReadLimits
from tailrace.storage.producers.snapshot_format import parse_snapshot
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch
from unit.storage.small_logs import DIRECTORY, NOW, SMALL, fields, fill, names, offsets, open_log


def test_a_new_log_is_empty() -> None:
    log = open_log(SimulatedDisk())
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset, log.size_bytes) == (0, 0, 0, 0)
    assert fields(log.read(ReadLimits(0, 100))) == ([], 0, 0, 0, 0)
    assert log.offset_for_timestamp(0) is None
    assert log.max_timestamp_offset() is None


def test_a_log_may_begin_anywhere() -> None:
    log = Log.open(DIRECTORY, files=SimulatedDisk(), config=SMALL, now_ms=NOW, log_start_offset=700)
    assert (log.log_start_offset, log.log_end_offset) == (700, 700)


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


def test_an_append_to_a_log_may_cross_several_segments(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    log.append([stored_batch(offset, producer_id=3, base_sequence=offset) for offset in range(30)])
    assert log.segment_count == 3
    assert log.log_end_offset == 30
    assert log.producers.check(stored_batch(0, producer_id=3, base_sequence=30).header) is None


def test_an_append_of_many_batches_to_a_log_is_one_write(disk: SimulatedDisk) -> None:
    log = open_log(disk, TopicConfig())
    before = disk.operations
    log.append([stored_batch(offset) for offset in range(2000)])
    assert disk.operations == before + 1


def test_a_log_refuses_a_batch_that_does_not_continue_it() -> None:
    log = open_log(SimulatedDisk())
    with pytest.raises(AssertionError, match="batch at offset 1 appended at 0"):
        log.append([stored_batch(1)])


def test_a_clean_close_of_a_log_writes_all_caches_and_an_idle_log_writes_nothing_again(disk: SimulatedDisk) -> None:
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


def test_the_log_start_never_moves_back_and_never_past_the_end() -> None:
    log = open_log(SimulatedDisk())
    fill(log, 10)
    log.advance_log_start(5)
    log.advance_log_start(3)
    assert log.log_start_offset == 5
    with pytest.raises(KafkaError, match="it ends at 10"):
        log.advance_log_start(11)


def test_a_disk_failure_at_any_operation_of_an_append_across_rolls_leaves_the_log_as_it_was() -> None:
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


def test_a_cut_back_of_an_append_that_fails_puts_the_log_offline(disk: SimulatedDisk) -> None:
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


def test_a_log_on_a_full_disk_refuses_appends_and_takes_them_again_when_there_is_space(disk: SimulatedDisk) -> None:
    log = open_log(disk)
    fill(log, 3)
    disk.free_space = 50
    for _ in range(3):
        with pytest.raises(StorageError, match="disk may be full|No space left"):
            log.append([stored_batch(3)])
    assert offsets(log.read(ReadLimits(0, 1000)).records) == [0, 1, 2]
    disk.free_space = 10**6
    log.append([stored_batch(3)])


def test_an_append_to_a_log_that_fails_leaves_no_torn_snapshot_of_producers() -> None:
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
