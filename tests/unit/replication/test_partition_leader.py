"""A partition with several replicas, as its leader sees it."""

from dataclasses import replace

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.leadership import AfterAnswer
from tailrace.replication.outcomes import NotLeader
from tailrace.replication.replica_progress import SessionVisits
from tailrace.storage import ReadLimits
from unit.replication.copy_bench import ONE, THREE, TWO, CopyBench, state


def test_acks_all_is_answered_when_the_leaders_disk_and_all_in_sync_have_it() -> None:
    bench = CopyBench(state(1, 2, 3))
    bench.produce(b"a", b"b")
    bench.fetch(2, 2)
    bench.fetch(3, 2)
    assert (bench.reached, bench.marks) == ([], (0, 0, 2)), "the leader has not flushed it"
    bench.disk.run()
    assert (bench.reached, bench.marks) == ([None], (2, 2, 2))


def test_the_slowest_in_sync_replica_holds_the_high_watermark() -> None:
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


def test_a_partition_below_min_insync_replicas_appends_nothing_and_commits_nothing() -> None:
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
def test_settings_and_a_state_of_a_partition_that_change_at_once_commit_nothing_between(
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


def test_an_older_partition_state_of_the_same_epoch_changes_nothing() -> None:
    bench = CopyBench(state(1, 2, partition_epoch=4))
    bench.take(state(1, 2, 3, partition_epoch=3))
    assert bench.partition.state == state(1, 2, partition_epoch=4)


def test_a_leader_makes_an_isr_proposal_once_and_takes_its_answer() -> None:
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


def test_an_answer_to_an_isr_proposal_after_the_leadership_has_gone_changes_nothing() -> None:
    bench = CopyBench(state(1, 2))
    bench.fetch(3, 0)
    proposal = bench.partition.in_sync.propose()
    assert proposal is not None
    bench.take(state(1, 2, leader=2, epoch=1, partition_epoch=1))
    assert bench.partition.in_sync.on_response(proposal, state(1, 2, 3, partition_epoch=1)) is AfterAnswer.NOTHING
    assert not bench.partition.is_leader


def test_a_leader_does_not_wait_for_a_dead_broker_that_is_not_in_sync() -> None:
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


def test_a_partition_does_not_write_batches_staged_in_one_leader_epoch_in_the_next() -> None:
    bench = CopyBench(state(1, 2))
    bench.stage(b"a")
    bench.take(state(1, 2, epoch=2, partition_epoch=1))
    bench.node.table.write_staged()
    (staged,) = bench.outcomes
    assert isinstance(staged, NotLeader)
    bench.produce(b"b")
    assert bench.partition.log.log_end_offset == 1
    assert bench.partition.log.epochs.latest_epoch == 2


def test_a_new_leader_waits_for_its_followers_before_it_commits() -> None:
    bench = CopyBench(state(1, 2, leader=2))
    bench.receive(0, b"a", b"b")
    bench.disk.run()
    bench.take(state(1, 2, epoch=1, partition_epoch=1))
    bench.disk.run()
    assert bench.marks == (0, 2, 2)
    bench.fetch(2, 2)
    assert bench.marks == (2, 2, 2)


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
