"""The record that makes one state of a partition of another, and the epochs that it raises."""

from dataclasses import replace

import pytest

from tailrace.metadata.deciding.state_changes import change_record
from tailrace.metadata.records.topics import changed_partition
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState

ONE, TWO, THREE = (BrokerId(number) for number in (1, 2, 3))
STATE = PartitionState(
    topic_id=TopicId(bytes(15) + b"\1"),
    replicas=(ONE, TWO),
    in_sync_replicas=(ONE, TWO),
    leader=ONE,
    leader_epoch=LeaderEpoch(4),
    partition_epoch=7,
)


@pytest.mark.parametrize(
    ("after", "leader_epoch"),
    [
        pytest.param(replace(STATE, replicas=(ONE,), in_sync_replicas=(ONE,)), 5, id="a replica leaves"),
        pytest.param(replace(STATE, replicas=(ONE, THREE), in_sync_replicas=(ONE,)), 5, id="one is replaced"),
        pytest.param(replace(STATE, replicas=(TWO, ONE, THREE)), 4, id="one is added, and the order changes"),
        pytest.param(replace(STATE, in_sync_replicas=(ONE,)), 4, id="the in-sync replicas shrink"),
    ],
)
def test_the_leader_epoch_rises_when_a_replica_leaves(after: PartitionState, leader_epoch: int) -> None:
    """A fetch of the replica that left is refused until it knows of that: it may be assigned again meanwhile."""
    changed = changed_partition(STATE, change_record(0, STATE, after))
    assert changed == replace(after, leader_epoch=LeaderEpoch(leader_epoch), partition_epoch=8)
