from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.server.partitions.partition_maps import EMPTY_LOG, Dormant, DormantPartitions
from tailrace.storage import ClosedLog
from tailrace.storage.recovery.closed_logs import ClosedSegment

TOPIC_ID = TopicId(b"1" * 16)


def dormant(log: ClosedLog | None = None, *, leader_epoch: int = 0) -> Dormant:
    state = PartitionState(
        topic_id=TOPIC_ID,
        replicas=(BrokerId(1),),
        in_sync_replicas=(BrokerId(1),),
        leader=BrokerId(1),
        leader_epoch=LeaderEpoch(leader_epoch),
        partition_epoch=0,
    )
    return Dormant(state, TopicConfig(), (log or ClosedLog()).to_line())


def test_a_partition_is_found_until_it_is_taken_out() -> None:
    partitions = DormantPartitions()
    for number in (0, 1):
        partitions.put(TopicPartition("orders", number), dormant())
    partitions.put(TopicPartition("orders", 1), dormant(leader_epoch=7))
    assert len(partitions) == 2
    assert [name for name, _ in partitions] == [("orders", 0), ("orders", 1)]
    taken = partitions.pop("orders", 1)
    assert taken is not None
    assert taken.state.leader_epoch == 7
    assert partitions.find("orders", 1) is None
    assert partitions.pop("orders", 1) is None
    assert partitions.pop("returns", 0) is None
    assert len(partitions) == 1


def test_a_topic_is_known_by_its_id_as_long_as_one_of_its_partitions_sleeps() -> None:
    partitions = DormantPartitions()
    partitions.put(TopicPartition("orders", 0), dormant())
    assert partitions.topic_name(TOPIC_ID) == "orders"
    partitions.pop("orders", 0)
    assert partitions.topic_name(TOPIC_ID) is None


def test_partitions_may_wake_during_an_iteration() -> None:
    partitions = DormantPartitions()
    for number in range(5):
        partitions.put(TopicPartition("orders", number), dormant())
    for topic, number in [name for name, _ in partitions if partitions.pop(*name) is not None]:
        assert partitions.find(topic, number) is None
    assert len(partitions) == 0


def test_only_a_log_of_several_segments_has_old_ones() -> None:
    two = ClosedLog(log_end_offset=9, segments=(ClosedSegment(0, 90), ClosedSegment(5, 80)))
    assert dormant().line == EMPTY_LOG
    assert (dormant().size_bytes, dormant().has_old_segments) == (0, False)
    assert (dormant(two).size_bytes, dormant(two).has_old_segments) == (170, True)


def test_closed_logs_are_returned_with_their_lines() -> None:
    partitions = DormantPartitions()
    partitions.put(TopicPartition("orders", 3), dormant())
    assert partitions.closed() == {"orders": (TOPIC_ID, {3: EMPTY_LOG})}
