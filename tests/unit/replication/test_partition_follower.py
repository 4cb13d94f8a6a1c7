"""A partition with several replicas, as its follower appends, flushes and cuts it."""

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import ReadLimits
from unit.replication.copy_bench import ORDERS, CopyBench, state


def test_a_follower_forgets_a_leader_epoch_without_records() -> None:
    bench = CopyBench(state(1, 2, leader=2, epoch=3))
    bench.receive(0, b"a", epoch=3)
    bench.take(state(1, 2, epoch=4, partition_epoch=1))
    assert bench.partition.log.epochs.latest_epoch == 4
    bench.take(state(1, 2, leader=2, epoch=5, partition_epoch=2))
    assert bench.partition.log.epochs.latest_epoch == 3
    bench.receive(1, b"of the leader before", epoch=3)


def test_a_followers_append_is_stored_when_it_is_flushed() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    counted: list[int] = []
    bench.receive(0, b"a", b"b")
    bench.partition.following.flush(lambda _: counted.append(bench.partition.log.flushed_offset))
    assert counted == []
    bench.partition.following.take_leader_offsets(high_watermark=2, log_start_offset=0)
    assert bench.marks == (0, 0, 2), "a high watermark is on the disk"
    bench.disk.run()
    bench.partition.following.take_leader_offsets(high_watermark=2, log_start_offset=0)
    assert (counted, bench.marks) == ([2], (2, 2, 2))
    bench.partition.following.flush(lambda _: counted.append(0))
    assert counted == [2, 0], "there is nothing to flush"


def test_under_page_cache_durability_a_followers_append_is_stored_at_once() -> None:
    bench = CopyBench(state(1, 2, leader=2), is_flushed=False)
    bench.receive(0, b"a")
    counted: list[int] = []
    bench.partition.following.flush(lambda _: counted.append(1))
    bench.partition.following.take_leader_offsets(high_watermark=5, log_start_offset=0)
    assert (counted, bench.marks) == ([1], (1, 0, 1))


def test_the_flush_of_a_deleted_follower_fails() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a")
    faults: list[KafkaError | None] = []
    bench.partition.following.flush(faults.append)
    bench.node.table.delete("orders", 0)
    bench.disk.run()
    assert [fault and fault.code for fault in faults] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_the_flush_of_a_follower_whose_log_fails_fails_too() -> None:
    """The follower's next fetch must not acknowledge records that may be lost, nor wait for the disk for ever."""
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a")
    faults: list[KafkaError | None] = []
    bench.partition.following.flush(faults.append)
    bench.files.write_short_at(bench.files.operations + 1, 10)
    bench.files.fail_at(bench.files.operations + 2)  # what was written cannot be cut back
    with pytest.raises(StorageError):
        bench.receive(1, b"b")
    bench.disk.run()
    bench.partition.following.flush(faults.append)
    assert [fault and fault.code for fault in faults] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert bench.marks == (0, 0, 1)


def test_a_follower_refuses_batches_that_do_not_continue_its_log() -> None:
    bench = CopyBench(state(1, 2, leader=2, epoch=3))
    bench.receive(0, b"a", epoch=3)
    bench.receive(0, b"known", epoch=2)  # left out
    for base_offset, epoch in ((2, 3), (1, 2), (1, 4)):
        with pytest.raises(CorruptRecords):
            bench.receive(base_offset, b"x", epoch=epoch)
    assert bench.partition.log.log_end_offset == 1


def test_a_follower_accepts_missing_offsets_when_the_leader_has_sent_them_twice() -> None:
    """The topic was compacted once, and is not any more; or the bytes that say where a batch stands were damaged."""
    bench = CopyBench(state(2, leader=2))
    bench.receive(0, b"a")
    with pytest.raises(CorruptRecords, match="a batch at offset 7, where 1 was expected"):
        bench.receive(7, b"b")
    with pytest.raises(CorruptRecords, match="a batch at offset 5, where 1 was expected"):
        bench.receive(5, b"b")
    assert bench.partition.log.log_end_offset == 1
    bench.receive(5, b"b")
    assert bench.partition.log.log_end_offset == 6
    bench.receive(9, b"c")
    assert bench.partition.log.log_end_offset == 10


def test_a_follower_does_not_accept_missing_offsets_of_one_leader_from_the_next() -> None:
    """The next leader's log may be whole: then a batch that stands elsewhere is damage, as before."""
    bench = CopyBench(state(2, leader=2))
    with pytest.raises(CorruptRecords):
        bench.receive(5, b"a")
    bench.receive(5, b"a")
    bench.receive(9, b"b")
    bench.take(state(2, leader=3, epoch=1, partition_epoch=1))
    with pytest.raises(CorruptRecords, match="a batch at offset 12, where 10"):
        bench.receive(12, b"c")
    bench.take(state(3, leader=2, epoch=2, partition_epoch=2))
    with pytest.raises(CorruptRecords, match="a batch at offset 12, where 10"):
        bench.receive(12, b"c")
    bench.take(state(2, 3, leader=2, epoch=2, partition_epoch=3))
    bench.receive(12, b"c")


def test_the_doubt_of_a_follower_about_missing_offsets_ends_with_a_batch_that_continues_the_log() -> None:
    bench = CopyBench(state(2, leader=2))
    with pytest.raises(CorruptRecords):
        bench.receive(7, b"b")
    bench.receive(0, b"a")
    with pytest.raises(CorruptRecords):
        bench.receive(7, b"b")
    bench.receive(7, b"b")


def test_a_follower_whose_log_starts_within_a_batch_appends_all_of_it() -> None:
    """DeleteRecords has moved the leader's log start there."""
    bench = CopyBench(state(2, leader=2))
    bench.partition.following.restart_at(12)
    bench.receive(10, b"a", b"b", b"c", b"d")
    assert bench.marks == (12, 12, 14)
    bench.flush()
    bench.partition.following.take_leader_offsets(high_watermark=14, log_start_offset=12)
    assert bench.marks == (14, 14, 14)
    assert bench.partition.log.log_start_offset == 12
    assert bench.partition.log.read(ReadLimits(12, 1)).first_offset == 10
    bench.receive(14, b"e")
    with pytest.raises(CorruptRecords):
        bench.receive(14, b"f", b"g")


def test_the_log_start_of_a_follower_follows_the_leaders_and_never_passes_the_high_watermark() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a", b"b", b"c")
    bench.flush()
    bench.partition.following.take_leader_offsets(high_watermark=2, log_start_offset=3)
    assert bench.partition.log.log_start_offset == 2
    bench.partition.following.take_leader_offsets(high_watermark=3, log_start_offset=1)
    assert bench.partition.log.log_start_offset == 2


def test_a_cut_log_of_a_follower_has_its_high_watermark_within() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    for offset in range(4):
        bench.receive(offset, b"a")
    bench.flush()
    bench.partition.following.take_leader_offsets(high_watermark=4, log_start_offset=0)
    bench.partition.following.truncate_to(2)
    assert bench.marks == (2, 2, 2)
    bench.partition.following.restart_at(9)
    assert bench.marks == (9, 9, 9)
    bench.receive(9, b"z")


def test_no_recovery_point_is_above_where_the_log_of_a_follower_is_about_to_be_cut() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    for offset in range(4):
        bench.receive(offset, b"a")
    bench.flush()
    errors: list[KafkaError | None] = []
    bench.node.table.checkpoints.lower_recovery_point(bench.partition, 1, errors.append)
    assert (bench.partition.following.recovery_point, errors) == (1, [])
    bench.node.table.checkpoints.write_recovery_points()
    bench.disk.run()
    assert errors == [None]
    assert bench.node.table.directory.checkpoint("recovery-point-offset-checkpoint").get(ORDERS) == 1
    bench.partition.following.truncate_to(2)
    assert bench.partition.following.recovery_point == 2


def test_the_offset_of_a_pending_truncation_of_a_follower_holds_until_there_is_another_leader() -> None:
    """The in-sync replicas may change meanwhile: a recovery point that rose again would make damage of the cut."""
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a")
    bench.flush()
    bench.node.table.checkpoints.lower_recovery_point(bench.partition, 0, lambda _: None)
    bench.take(state(2, leader=2, partition_epoch=1))
    assert bench.partition.following.recovery_point == 0
    bench.take(state(2, leader=3, epoch=1, partition_epoch=2))
    assert bench.partition.following.recovery_point == 1


def test_a_follower_retires_only_segments_below_the_log_start() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.partition.update_config(TopicConfig(segment_bytes=100, retention_bytes=0, file_delete_delay_ms=0))
    for offset in range(4):
        bench.receive(offset, b"a" * 20)
    bench.flush()
    bench.partition.following.take_leader_offsets(high_watermark=4, log_start_offset=0)
    bench.partition.apply_retention(bench.clock.now_ms())
    assert bench.partition.log.segment_count == 4
    bench.partition.following.take_leader_offsets(high_watermark=4, log_start_offset=2)
    bench.partition.apply_retention(bench.clock.now_ms())
    assert bench.partition.log.segment_count == 2


def test_a_follower_believes_headers_from_where_its_leader_vouches_for_them() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a", b"b")
    log = bench.partition.log
    assert log.times.checked_from > 2, "a leader of an older release says nothing"
    bench.receive(2, b"c", checked_from=3)
    assert log.times.checked_from > 3
    bench.receive(3, b"d", checked_from=3)
    assert log.times.checked_from == 3
    bench.receive(4, b"e", checked_from=0)
    assert log.times.checked_from == 3
    bench.take(state(1, 2, epoch=1))
    bench.produce(b"f")
    assert log.times.checked_from == 3
    bench.take(state(1, 2, leader=2, epoch=2))
    bench.receive(6, b"g", epoch=2)
    assert log.times.checked_from > 6
