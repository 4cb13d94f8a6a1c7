"""A partition with several replicas: as its leader sees it, and as a follower."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId, LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import stamp
from tailrace.replication.leadership import AfterAnswer
from tailrace.replication.outcomes import Appended, NotLeader
from tailrace.replication.partition import Partition
from tailrace.replication.replica_progress import FollowerFetch, SessionVisits
from tailrace.replication.watchers import Change
from tailrace.storage import ReadLimits
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of, topic_id_of
from testkit.nodes.ports import EVERY_CHANGE, DeferredDisk, RecordingWatcher

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ORDERS = TopicPartition("orders", 0)


def state(
    *in_sync: int,
    leader: int = 1,
    epoch: int = 0,
    partition_epoch: int = 0,
    replicas: Sequence[int] = (1, 2, 3),
    **options: Any,
) -> PartitionState:
    return replace(
        PartitionState(
            topic_id=topic_id_of("orders"),
            replicas=tuple(map(BrokerId, replicas)),
            in_sync_replicas=tuple(map(BrokerId, in_sync)),
            leader=BrokerId(leader),
            leader_epoch=LeaderEpoch(epoch),
            partition_epoch=partition_epoch,
        ),
        **options,
    )


class CopyBench:
    """Broker 1, with a copy of one partition; its disk flushes when the test says so."""

    def __init__(self, first: PartitionState, *, is_flushed: bool = True, min_in_sync: int = 2) -> None:
        self.disk = DeferredDisk()
        self.clock = ManualClock()
        settings = {"log.durability": "flushed" if is_flushed else "page-cache"}
        self.files = SimulatedDisk()
        self.node = DataPath("/logs", files=self.files, clock=self.clock, disk=self.disk, settings=settings)
        config = TopicConfig(min_insync_replicas=min_in_sync)
        created = self.node.table.create(ORDERS, state=first, config=config)
        assert created is not None
        self.partition: Partition = created
        self.disk.run()
        self.outcomes: list[Appended | KafkaError] = []
        self.reached: list[KafkaError | None] = []

    def take(self, changed: PartitionState, config: TopicConfig | None = None) -> None:
        self.node.table.update(ORDERS, changed, config or self.partition.config)

    def stage(self, *values: bytes, acks: int = -1) -> None:
        self.partition.append_as_leader(
            batch_of(*values), acks=acks, produce_version=9, now_ms=self.clock.now_ms(), on_done=self.outcomes.append
        )

    def produce(self, *values: bytes) -> None:
        self.stage(*values)
        self.node.table.write_staged()
        self.partition.replica.when_high_watermark_reaches(self.partition.log.log_end_offset, self.reached.append)

    def fetch(self, replica: int, offset: int, *, may_join: bool = True) -> bool:
        return self.partition.in_sync.take_fetch(BrokerId(replica), FollowerFetch(offset, 0, -1, may_join))

    def receive(self, base_offset: int, *values: bytes, epoch: int = 0, checked_from: int | None = None) -> None:
        """Append as a follower."""
        batch = bytearray(batch_of(*values))
        stamp(batch, 0, base_offset, epoch)
        self.partition.following.append(batch, checked_from=checked_from)

    @property
    def marks(self) -> tuple[int, int, int]:
        partition = self.partition
        return partition.high_watermark, partition.log.flushed_offset, partition.log.log_end_offset


# As the leader


def test_acks_all_is_answered_when_the_leaders_disk_and_all_in_sync_have_it() -> None:
    bench = CopyBench(state(1, 2, 3))
    bench.produce(b"a", b"b")
    bench.fetch(2, 2)
    bench.fetch(3, 2)
    assert (bench.reached, bench.marks) == ([], (0, 0, 2)), "the leader has not flushed it"
    bench.disk.run()
    assert (bench.reached, bench.marks) == ([None], (2, 2, 2))


def test_the_slowest_in_sync_holds_the_high_watermark() -> None:
    bench = CopyBench(state(1, 2, 3))
    bench.produce(b"a", b"b")
    bench.disk.run()
    bench.fetch(2, 2)
    assert bench.reached == []
    bench.fetch(3, 1)
    assert bench.partition.high_watermark == 1
    bench.fetch(3, 2)
    assert bench.reached == [None]


def test_under_page_cache_durability_written_records_are_committed() -> None:
    bench = CopyBench(state(1, 2), is_flushed=False)
    bench.produce(b"a")
    assert bench.marks == (0, 0, 1)
    bench.fetch(2, 1)
    assert (bench.reached, bench.marks) == ([None], (1, 0, 1))


def test_below_min_insync_replicas_nothing_is_appended_and_nothing_committed() -> None:
    bench = CopyBench(state(1, 2, 3))
    bench.produce(b"a")
    bench.disk.run()
    bench.take(state(1, partition_epoch=1))
    assert (bench.reached, bench.partition.high_watermark) == ([], 0)
    with pytest.raises(KafkaError) as refusal:
        bench.stage(b"b")
    assert refusal.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    bench.stage(b"b", acks=1)
    bench.fetch(2, 1)
    bench.take(state(1, 2, partition_epoch=2))
    assert (bench.reached, bench.partition.high_watermark) == ([None], 1)


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (1, 2, state(1, partition_epoch=1)),  # broker 2 stays eligible: nothing may be committed without it
        (2, 1, state(2, leader=2, epoch=1, partition_epoch=1)),  # broker 2 leads, which was eligible
    ],
)
def test_settings_and_a_state_that_change_at_once_commit_nothing_between(
    before: int, after: int, changed: PartitionState
) -> None:
    bench = CopyBench(state(1, 2, replicas=(1, 2)) if before == 1 else state(1, replicas=(1, 2)), min_in_sync=before)
    bench.stage(b"a", acks=1)
    bench.node.table.write_staged()
    bench.disk.run()
    assert bench.partition.high_watermark == 0
    config = TopicConfig(min_insync_replicas=after)
    bench.take(replace(changed, replicas=(ONE, TWO)), config)
    bench.node.table.update_configs({"orders": config})
    assert bench.partition.high_watermark == 0
    assert bench.partition.config is config


def test_an_isr_that_shrinks_lets_the_high_watermark_pass() -> None:
    bench = CopyBench(state(1, 2, 3))
    bench.produce(b"a")
    bench.disk.run()
    bench.fetch(2, 1)
    assert bench.reached == []
    bench.take(state(1, 2, partition_epoch=1))
    assert bench.reached == [None]


def test_an_older_state_of_the_same_epoch_changes_nothing() -> None:
    bench = CopyBench(state(1, 2, partition_epoch=4))
    bench.take(state(1, 2, 3, partition_epoch=3))
    assert bench.partition.state == state(1, 2, partition_epoch=4)


def test_a_proposal_is_made_once_and_its_answer_taken() -> None:
    bench = CopyBench(state(1, 2))
    assert bench.partition.in_sync.propose() is None
    assert bench.fetch(3, 0)
    proposal = bench.partition.in_sync.propose()
    assert proposal is not None
    assert bench.partition.in_sync.propose() is None
    assert bench.partition.in_sync.is_proposed(proposal)
    assert bench.partition.in_sync.on_response(proposal, state(1, 2, 3, partition_epoch=1)) is AfterAnswer.NOTHING
    assert bench.partition.state == state(1, 2, 3, partition_epoch=1)
    assert not bench.partition.in_sync.is_proposed(proposal)


def test_a_smaller_isr_is_in_force_when_it_comes_with_the_image() -> None:
    """The image may bring a higher min.insync.replicas first, by which the controller has decided."""
    bench = CopyBench(state(1, 2, replicas=(1, 2)), min_in_sync=1)
    bench.produce(b"a")
    bench.disk.run()
    bench.clock.advance(100_000)
    proposal = bench.partition.in_sync.propose()
    assert proposal is not None
    alone = state(1, partition_epoch=1, replicas=(1, 2))
    assert bench.partition.in_sync.on_response(proposal, alone) is AfterAnswer.NOTHING
    assert (bench.reached, bench.partition.high_watermark) == ([], 0)
    bench.take(alone, TopicConfig(min_insync_replicas=2))
    assert (bench.reached, bench.partition.high_watermark) == ([], 0)
    assert not bench.partition.in_sync.is_proposed(proposal)


def test_an_answer_after_the_leadership_has_gone_changes_nothing() -> None:
    bench = CopyBench(state(1, 2))
    bench.fetch(3, 0)
    proposal = bench.partition.in_sync.propose()
    assert proposal is not None
    bench.take(state(1, 2, leader=2, epoch=1, partition_epoch=1))
    assert bench.partition.in_sync.on_response(proposal, state(1, 2, 3, partition_epoch=1)) is AfterAnswer.NOTHING
    assert not bench.partition.is_leader


def test_a_dead_broker_that_is_not_in_sync_is_not_waited_for() -> None:
    bench = CopyBench(state(1, 2))
    bench.fetch(3, 0)
    bench.produce(b"a")
    bench.disk.run()
    bench.fetch(2, 1)
    assert bench.reached == [], "broker 3 is about to join"
    bench.partition.in_sync.exclude([THREE])
    assert bench.reached == [None]


def test_a_partition_with_one_replica_has_no_followers() -> None:
    bench = CopyBench(state(1, replicas=(1,)))
    assert bench.partition.in_sync.leadership is None
    with pytest.raises(KafkaError) as refusal:
        bench.fetch(2, 0)
    assert refusal.value.code is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert bench.partition.in_sync.propose() is None


def test_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark() -> None:
    bench = CopyBench(state(1, 2))
    bench.produce(b"a")
    for_replica = bench.partition.read_for_replica(ReadLimits(0, 1000))
    assert for_replica.size_bytes > 0, "flushed or not: both disks may be busy at once"
    assert (for_replica.high_watermark, for_replica.reaches_end) == (0, True)
    assert bench.partition.read(ReadLimits(0, 1000)).size_bytes == 0


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


def test_the_followers_that_serve_an_offset_are_none_if_the_leaders_log_is_offline() -> None:
    bench = CopyBench(state(1, 2))
    bench.produce(b"a")
    bench.disk.run()
    bench.fetch(2, 1)
    bench.partition.in_sync.acknowledge_high_watermark(TWO, 1)
    assert [replica for replica, _ in bench.partition.in_sync.serving(0)] == [TWO]
    bench.partition.log.condemn("a scrub has found a wrong checksum")
    assert bench.partition.in_sync.serving(0) == []


def test_a_partition_that_is_led_alone_has_no_follower_that_serves() -> None:
    bench = CopyBench(state(1, replicas=(1,)), min_in_sync=1)
    bench.produce(b"a")
    bench.disk.run()
    assert bench.partition.in_sync.serving(0) == []
    assert not bench.partition.in_sync.knows_high_watermark(TWO)


def test_a_watcher_of_a_follower_is_notified_of_appends_and_truncations() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    heard: list[tuple[Partition, int]] = []
    bench.partition.watch(RecordingWatcher(heard), EVERY_CHANGE)
    bench.receive(0, b"a", b"b")
    bench.partition.following.flush(lambda _: None)
    bench.disk.run()
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


def test_only_a_known_follower_of_a_leader_rests() -> None:
    bench = CopyBench(state(1, 2))
    visits = SessionVisits(broker_epoch=-1, may_join=True)
    bench.fetch(2, 0)
    assert bench.partition.in_sync.rest(BrokerId(2), visits)
    assert not bench.partition.in_sync.rest(BrokerId(9), visits)
    bench.produce(b"a")
    assert not bench.partition.in_sync.rest(BrokerId(2), visits)
    bench.partition.in_sync.end_rest(BrokerId(9), visits)
    bench.take(state(1, 2, leader=2, epoch=1))
    assert not bench.partition.in_sync.rest(BrokerId(2), visits)


# Changes of role


def test_a_leader_that_resigns_answers_all_waiting_and_staged_requests() -> None:
    bench = CopyBench(state(1, 2))
    bench.produce(b"a")
    bench.stage(b"b")
    bench.take(state(1, 2, leader=2, epoch=1, partition_epoch=1))
    (waiting,) = bench.reached
    staged = bench.outcomes[-1]
    assert isinstance(waiting, NotLeader)
    assert isinstance(staged, NotLeader)
    assert (staged.leader, staged.leader_epoch) == (2, 1)
    bench.node.table.write_staged()
    assert bench.partition.log.log_end_offset == 1, "staged batches are not written"


def test_batches_staged_in_one_epoch_are_not_written_in_the_next() -> None:
    bench = CopyBench(state(1, 2))
    bench.stage(b"a")
    bench.take(state(1, 2, epoch=2, partition_epoch=1))
    bench.node.table.write_staged()
    (staged,) = bench.outcomes
    assert isinstance(staged, NotLeader)
    bench.produce(b"b")
    assert bench.partition.log.log_end_offset == 1
    assert bench.partition.log.epochs.latest_epoch == 2


def test_an_epoch_without_records_is_forgotten_by_followers() -> None:
    bench = CopyBench(state(1, 2, leader=2, epoch=3))
    bench.receive(0, b"a", epoch=3)
    bench.take(state(1, 2, epoch=4, partition_epoch=1))
    assert bench.partition.log.epochs.latest_epoch == 4
    bench.take(state(1, 2, leader=2, epoch=5, partition_epoch=2))
    assert bench.partition.log.epochs.latest_epoch == 3
    bench.receive(1, b"of the leader before", epoch=3)


def test_a_new_leader_waits_for_its_followers_before_it_commits() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a", b"b")
    bench.disk.run()
    bench.take(state(1, 2, epoch=1, partition_epoch=1))
    bench.disk.run()
    assert bench.marks == (0, 2, 2)
    bench.fetch(2, 2)
    assert bench.marks == (2, 2, 2)


# As a follower


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
    files = bench.node.files
    assert isinstance(files, SimulatedDisk)
    files.write_short_at(files.operations + 1, 10)
    files.fail_at(files.operations + 2)  # what was written cannot be cut back
    with pytest.raises(StorageError):
        bench.receive(1, b"b")
    bench.disk.run()
    bench.partition.following.flush(faults.append)
    assert [fault and fault.code for fault in faults] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert bench.marks == (0, 0, 1)


def test_a_follower_refuses_batches_that_do_not_continue_its_log() -> None:
    bench = CopyBench(state(1, 2, leader=2, epoch=3))
    bench.receive(0, b"a", epoch=3)
    for base_offset, epoch in ((0, 2), (2, 3), (1, 2), (1, 4)):
        if (base_offset, epoch) == (0, 2):
            bench.receive(base_offset, b"known", epoch=epoch)  # left out
            continue
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


def test_missing_offsets_of_one_leader_are_not_accepted_from_the_next() -> None:
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


def test_a_doubt_ends_with_the_next_batch_that_continues_the_log() -> None:
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
    bench.partition.following.flush(lambda _: None)
    bench.disk.run()
    bench.partition.following.take_leader_offsets(high_watermark=14, log_start_offset=12)
    assert bench.marks == (14, 14, 14)
    assert bench.partition.log.log_start_offset == 12
    assert bench.partition.log.read(ReadLimits(12, 1)).first_offset == 10
    bench.receive(14, b"e")
    with pytest.raises(CorruptRecords):
        bench.receive(14, b"f", b"g")


def test_the_log_start_follows_the_leaders_and_never_passes_the_high_watermark() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a", b"b", b"c")
    bench.partition.following.flush(lambda _: None)
    bench.disk.run()
    bench.partition.following.take_leader_offsets(high_watermark=2, log_start_offset=3)
    assert bench.partition.log.log_start_offset == 2
    bench.partition.following.take_leader_offsets(high_watermark=3, log_start_offset=1)
    assert bench.partition.log.log_start_offset == 2


def test_a_cut_log_has_its_high_watermark_within() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    for offset in range(4):
        bench.receive(offset, b"a")
    bench.partition.following.flush(lambda _: None)
    bench.disk.run()
    bench.partition.following.take_leader_offsets(high_watermark=4, log_start_offset=0)
    bench.partition.following.truncate_to(2)
    assert bench.marks == (2, 2, 2)
    bench.partition.following.restart_at(9)
    assert bench.marks == (9, 9, 9)
    bench.receive(9, b"z")


def test_no_recovery_point_is_above_where_a_log_is_about_to_be_cut() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    for offset in range(4):
        bench.receive(offset, b"a")
    bench.partition.following.flush(lambda _: None)
    bench.disk.run()
    errors: list[KafkaError | None] = []
    bench.node.table.checkpoints.lower_recovery_point(bench.partition, 1, errors.append)
    assert (bench.partition.following.recovery_point, errors) == (1, [])
    bench.node.table.checkpoints.write_recovery_points()
    bench.disk.run()
    assert errors == [None]
    assert bench.node.table.directory.checkpoint("recovery-point-offset-checkpoint").get(ORDERS) == 1
    bench.partition.following.truncate_to(2)
    assert bench.partition.following.recovery_point == 2


def test_the_offset_of_a_pending_truncation_holds_until_there_is_another_leader() -> None:
    """The in-sync replicas may change meanwhile: a recovery point that rose again would make damage of the cut."""
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a")
    bench.partition.following.flush(lambda _: None)
    bench.disk.run()
    bench.node.table.checkpoints.lower_recovery_point(bench.partition, 0, lambda _: None)
    bench.take(state(2, leader=2, partition_epoch=1))
    assert bench.partition.following.recovery_point == 0
    bench.take(state(2, leader=3, epoch=1, partition_epoch=2))
    assert bench.partition.following.recovery_point == 1


def test_only_what_lies_below_the_log_start_is_retired_on_a_follower() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.partition.update_config(TopicConfig(segment_bytes=100, retention_bytes=0, file_delete_delay_ms=0))
    for offset in range(4):
        bench.receive(offset, b"a" * 20)
    bench.partition.following.flush(lambda _: None)
    bench.disk.run()
    bench.partition.following.take_leader_offsets(high_watermark=4, log_start_offset=0)
    bench.partition.apply_retention(bench.clock.now_ms())
    assert bench.partition.log.segment_count == 4
    bench.partition.following.take_leader_offsets(high_watermark=4, log_start_offset=2)
    bench.partition.apply_retention(bench.clock.now_ms())
    assert bench.partition.log.segment_count == 2


def test_a_follower_below_the_high_watermark_is_sent_no_bytes_with_a_wrong_checksum() -> None:
    """The follower would refuse the bytes and ask for ever: only the leader can find the damage of its own copy."""
    bench = CopyBench(state(1, 2))
    bench.produce(b"first")
    bench.produce(b"second")
    bench.disk.run()
    bench.fetch(2, 2)
    assert bench.partition.high_watermark == 2
    path = f"/logs/orders-0/{0:020d}.log"
    bench.files.flip_bit(path, bench.files.size_of(path) - 2, 3)
    with pytest.raises(StorageError, match="checksum"):
        bench.partition.read_for_replica(ReadLimits(0, 1000))
    assert bench.partition.log.is_damaged


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
