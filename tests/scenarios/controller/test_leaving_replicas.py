"""Replicas that leave at their broker's request, with lost records or a full disk, and their partitions."""

from typing import Any

import pytest

from scenarios.controller.leadership_cluster import ORDERS, LeadershipCluster, code, ids, led
from tailrace.metadata.commands import AlterPartition, InSyncChange, InSyncReplica, LeaveReason, PartitionsAltered
from tailrace.metadata.records.topics import created_partition, partition_record
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import ElectionType, PartitionState

LOST, STALLED = LeaveReason.LOST, LeaveReason.STALLED


def leave(
    cluster: LeadershipCluster, number: int, leaving: LeaveReason, **differences: Any
) -> PartitionState | KafkaError:
    state = cluster.state
    broker_epoch = differences.pop("broker_epoch", cluster.epoch(number))
    change: dict[str, Any] = {
        "topic_id": state.topic_id,
        "partition": 0,
        "leader_epoch": state.leader_epoch,
        "partition_epoch": state.partition_epoch,
        "in_sync_replicas": (),
        "leaving": leaving,
    }
    response = cluster.do(
        AlterPartition(
            broker_id=BrokerId(number),
            broker_epoch=broker_epoch,
            changes=(InSyncChange(**(change | differences)),),
        )
    )
    assert isinstance(response, PartitionsAltered)
    return response.outcomes[0].result


@pytest.mark.parametrize("leaving", LeaveReason)
def test_a_follower_that_leaves_is_out_of_sync_and_the_leader_stays(
    cluster: LeadershipCluster, leaving: LeaveReason
) -> None:
    cluster.create(1, 2, 3)
    result = leave(cluster, 2, leaving)
    assert isinstance(result, PartitionState)
    assert led(result) == led(cluster.state) == (1, (1, 3), ())
    assert result == cluster.state
    assert (cluster.state.leader_epoch, cluster.state.partition_epoch) == (int(leaving is LOST), 1)


def test_the_fetches_of_a_replica_before_its_loss_count_no_more(cluster: LeadershipCluster) -> None:
    """A replica out of sync may be about to join, by a fetch that left before the loss: the leader's epoch ends."""
    cluster.create(1, 2, 3)
    cluster.propose(1, 1, 3)
    assert isinstance(leave(cluster, 2, STALLED), PartitionState)
    assert cluster.state.leader_epoch == 0
    result = leave(cluster, 2, LOST)
    assert result == cluster.state
    assert (led(cluster.state), cluster.state.leader_epoch, cluster.state.unclean_epoch) == ((1, (1, 3), ()), 1, -1)
    old = cluster.propose(1, 1, 3, 2, leader_epoch=0)
    assert code(old) is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize("leaving", LeaveReason)
def test_when_a_leader_leaves_the_next_in_sync_replica_leads(cluster: LeadershipCluster, leaving: LeaveReason) -> None:
    cluster.create(1, 2, 3)
    leave(cluster, 1, leaving)
    assert led(cluster.state) == (2, (2, 3), ())
    assert (cluster.state.leader_epoch, cluster.state.partition_epoch) == (1, 1)


def test_a_replica_that_has_left_already_is_answered_without_a_record(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    leave(cluster, 2, STALLED)
    before = cluster.offset
    assert isinstance(leave(cluster, 2, STALLED), PartitionState)
    assert cluster.offset == before


def test_a_stalled_replica_is_an_eligible_leader_while_the_high_watermark_stands_still(
    cluster: LeadershipCluster,
) -> None:
    cluster.create(1, 2, 3, min_in_sync=2)
    cluster.fence(3)
    leave(cluster, 1, STALLED)
    assert led(cluster.state) == (2, (2,), (1,))


def test_a_replica_with_lost_records_is_no_eligible_leader(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3, min_in_sync=2)
    cluster.fence(3)
    leave(cluster, 1, LOST)
    assert led(cluster.state) == (2, (2,), ())
    cluster.fence(2)
    cluster.restart(1)
    assert led(cluster.state) == (NO_LEADER, (), (2,)), "the partition waits for the replica that is complete"
    cluster.restart(2)
    assert led(cluster.state) == (2, (2,), ())


def test_an_eligible_leader_that_finds_a_loss_is_eligible_no_more(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3, min_in_sync=3)
    cluster.fence(3)
    cluster.fence(2)
    assert led(cluster.state) == (1, (1,), (2, 3))
    cluster.start(3)
    leave(cluster, 3, LOST)
    assert led(cluster.state) == (1, (1,), (2,))


def test_when_the_last_in_sync_replica_is_lost_an_eligible_replica_leads(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3, min_in_sync=3)
    cluster.restart(3)
    cluster.restart(2)
    assert led(cluster.state) == (1, (1,), (2, 3))
    leave(cluster, 1, LOST)
    assert led(cluster.state) == (2, (2,), (3,))


def test_a_damaged_replica_that_was_alone_in_sync_gives_way_to_replicas_that_return(cluster: LeadershipCluster) -> None:
    """The three brokers were killed, and the damaged broker comes first: it says so before it is unfenced."""
    cluster.create(1, 2, 3, min_in_sync=2)
    for number in (3, 2, 1):
        cluster.fence(number)
    assert led(cluster.state) == (NO_LEADER, (), (1, 2))
    assert cluster.state.last_known_leaders == ids(1)
    cluster.register(1)
    leave(cluster, 1, LOST)
    assert cluster.state.last_known_leaders == ()
    assert not cluster.beat(1).is_fenced
    assert led(cluster.state) == (NO_LEADER, (), (2,))
    cluster.start(3)
    assert led(cluster.state) == (NO_LEADER, (), (2,)), "what was committed without it, it may lack"
    cluster.start(2)
    assert led(cluster.state) == (2, (2,), ())


@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)])
def test_the_last_lost_copy_leads_only_if_an_administrator_chooses_it(
    cluster: LeadershipCluster, replicas: tuple[int, ...]
) -> None:
    cluster.create(*replicas)
    for other in replicas[1:]:
        cluster.propose(1, *(number for number in cluster.state.in_sync_replicas if number != other))
    leave(cluster, 1, LOST)
    assert led(cluster.state) == (NO_LEADER, (), ())
    assert cluster.state.last_known_leaders == ()
    cluster.restart(1)
    assert cluster.state.leader == NO_LEADER
    assert cluster.elect(ElectionType.UNCLEAN) == {("orders", 0): None}
    assert led(cluster.state) == (1, (1,), ())
    assert cluster.state.is_recovering


def test_the_last_replica_in_sync_stays_though_it_is_stalled(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    cluster.fence(2)
    before = cluster.offset
    assert code(leave(cluster, 1, STALLED)) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    assert led(cluster.state) == (1, (1,), ())
    assert cluster.offset == before


def test_a_stalled_replica_leaves_only_dead_replicas_in_sync(cluster: LeadershipCluster) -> None:
    """Two replicas are in sync, and the broker of the second is being registered anew: alone it could not lead now."""
    cluster.create(1, 2, min_in_sync=2)
    cluster.fence(2)
    assert led(cluster.state) == (1, (1,), (2,))
    assert code(leave(cluster, 1, STALLED)) is ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    cluster.start(2)
    leave(cluster, 1, STALLED)
    assert led(cluster.state) == (2, (2,), (1,)), "the eligible replica lives, and has all that was committed"


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ({"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ({"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"in_sync_replicas": (InSyncReplica(broker_id=BrokerId(1)),)}, ErrorCode.INVALID_REQUEST),
        ({"is_recovering": True}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_an_impossible_leave_of_a_replica_is_refused(
    cluster: LeadershipCluster, differences: dict[str, Any], expected: ErrorCode
) -> None:
    """From partition epoch 1 on."""
    cluster.create(1, 2, 3)
    cluster.propose(1, 1, 2)
    before = cluster.offset
    for leaving in LeaveReason:
        assert code(leave(cluster, 2, leaving, **differences)) is expected
    assert cluster.offset == before


def test_only_a_replica_leaves_and_only_in_its_present_registration(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    assert code(leave(cluster, 3, LOST)) is ErrorCode.INVALID_REQUEST
    old_epoch = cluster.epoch(2)
    cluster.restart(2)
    cluster.propose(1, 1, 2)
    with pytest.raises(KafkaError) as refusal:
        leave(cluster, 2, LOST, broker_epoch=old_epoch)
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
    assert led(cluster.state) == (1, (1, 2), ())


def lose_all(cluster: LeadershipCluster) -> None:
    for number in (1, 2, 3):
        leave(cluster, number, LOST)
    assert led(cluster.state) == (NO_LEADER, (), ())


def test_an_administrator_names_the_replica_that_leads_with_the_records_it_has(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    lose_all(cluster)
    epoch = cluster.state.leader_epoch
    assert cluster.elect(ElectionType.UNCLEAN, ORDERS, desired=2) == {ORDERS: None}
    state = cluster.state
    assert led(state) == (2, (2,), ())
    assert (state.is_recovering, state.accepts_loss) == (True, True)
    assert state.leader_epoch == state.unclean_epoch == epoch + 1
    leave(cluster, 3, LOST)
    assert (cluster.state.leader_epoch, cluster.state.accepts_loss) == (epoch + 2, True), "the same leader still"
    kept = created_partition(state.topic_id, partition_record(0, cluster.state))
    assert kept == cluster.state, "a snapshot has it too"
    cluster.propose(2, 2)
    assert (cluster.state.is_recovering, cluster.state.accepts_loss) == (False, False), "it has recovered: no more cuts"


def test_accepted_loss_ends_with_the_leader_that_was_named(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    lose_all(cluster)
    cluster.elect(ElectionType.UNCLEAN, ORDERS, desired=2)
    cluster.fence(2)
    assert (cluster.state.leader, cluster.state.accepts_loss) == (NO_LEADER, False)
    cluster.start(2)
    assert (cluster.state.leader, cluster.state.is_recovering, cluster.state.accepts_loss) == (2, True, False)


def test_an_unclean_election_without_a_desired_leader_accepts_no_loss(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    lose_all(cluster)
    assert cluster.elect(ElectionType.UNCLEAN, ORDERS) == {ORDERS: None}
    assert (cluster.state.is_recovering, cluster.state.accepts_loss) == (True, False)


def test_an_impossible_desired_leader_is_refused(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    unclean, preferred = ElectionType.UNCLEAN, ElectionType.PREFERRED
    assert cluster.elect(unclean, ORDERS, desired=2) == {ORDERS: ErrorCode.ELECTION_NOT_NEEDED}
    leave(cluster, 2, LOST)
    leave(cluster, 1, LOST)
    cluster.fence(2)
    before = cluster.offset
    assert cluster.elect(unclean, ORDERS, desired=2) == {ORDERS: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    assert cluster.elect(unclean, ORDERS, desired=3) == {ORDERS: ErrorCode.INVALID_REQUEST}
    assert cluster.elect(preferred, ORDERS, desired=1) == {ORDERS: ErrorCode.INVALID_REQUEST}
    assert cluster.offset == before
