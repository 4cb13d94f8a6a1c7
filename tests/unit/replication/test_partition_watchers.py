"""The changes that the watchers of a partition are notified of."""

from tailrace.model.ids import BrokerId
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from testkit.nodes.ports import EVERY_CHANGE, RecordingWatcher
from unit.replication.copy_bench import TWO, CopyBench, state


def test_a_watcher_of_a_follower_is_notified_of_the_log_end_and_of_the_high_watermark() -> None:
    bench = CopyBench(state(1, 2))
    heard: list[tuple[Partition, int]] = []
    watcher = RecordingWatcher(heard)
    bench.partition.watch(watcher, Change.LOG_END | Change.HIGH_WATERMARK)
    bench.produce(b"a")
    assert heard == [(bench.partition, Change.LOG_END)]
    bench.disk.run()
    bench.fetch(2, 1)
    assert heard[1:] == [(bench.partition, Change.HIGH_WATERMARK)]
    bench.partition.unwatch(watcher)
    bench.produce(b"b")
    assert len(heard) == 2


def test_a_watcher_is_notified_when_a_consumer_may_be_sent_to_other_replicas() -> None:
    bench = CopyBench(state(1, 2), min_in_sync=1)
    bench.produce(b"a")
    bench.disk.run()
    changes: list[tuple[Partition, int]] = []
    bench.partition.watch(RecordingWatcher(changes), Change.CANDIDATES)
    bench.fetch(2, 1)
    assert [kinds for _, kinds in changes] == [Change.CANDIDATES]
    in_sync = bench.partition.in_sync
    in_sync.acknowledge_high_watermark(TWO, 1)
    in_sync.acknowledge_high_watermark(TWO, 1)
    in_sync.acknowledge_high_watermark(BrokerId(9), 1)
    assert len(changes) == 2, "the second is no news, and broker 9 no replica"
    assert [replica for replica, _ in in_sync.serving(1)] == [TWO]
    bench.take(state(1, partition_epoch=1))
    assert len(changes) == 3
    assert in_sync.serving(1) == []


def test_a_watcher_of_a_follower_is_notified_of_appends_and_truncations() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    heard: list[tuple[Partition, int]] = []
    bench.partition.watch(RecordingWatcher(heard), EVERY_CHANGE)
    bench.receive(0, b"a", b"b")
    bench.flush()
    bench.partition.following.take_leader_offsets(high_watermark=1, log_start_offset=1)
    bench.partition.following.recovery_bound = 0
    bench.partition.following.truncate_to(1)
    bench.partition.following.restart_at(9)
    moved = Change.HIGH_WATERMARK | Change.LAST_STABLE_OFFSET
    cut = moved | Change.LOG_END
    assert [kinds for _, kinds in heard] == [
        Change.LOG_END,
        moved,
        Change.LOG_START,
        cut,
        cut | Change.LOG_START,
    ]


def test_a_watcher_is_notified_of_replicas_that_have_to_be_heard_again() -> None:
    bench = CopyBench(state(1, 2))
    heard: list[tuple[Partition, int]] = []
    bench.partition.watch(RecordingWatcher(heard), Change.IN_SYNC)
    bench.take(state(1, 2, partition_epoch=1))
    assert heard == [], "the same replicas"
    bench.take(state(1, partition_epoch=2))
    bench.take(state(1, partition_epoch=3, replicas=(1, 2)))
    bench.partition.in_sync.exclude([BrokerId(2)])
    assert [(partition, kinds & Change.IN_SYNC) for partition, kinds in heard] == [
        (bench.partition, Change.IN_SYNC)
    ] * 3
