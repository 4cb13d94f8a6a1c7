"""Proposals of leaders, elections and reassignments of partitions at the controller (KIP-455, 460, 497)."""

from dataclasses import replace
from typing import Any

import pytest

from scenarios.controller.leadership_cluster import ORDERS, LeadershipCluster, code, ids, led
from tailrace.metadata.commands import AlterPartition, AlterReassignments, InSyncChange, InSyncReplica, Reassignment
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import ElectionType, PartitionState, TopicPartition


def test_a_leader_shrinks_and_expands_the_in_sync_replicas(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    assert isinstance(cluster.propose(1, 1, 3), PartitionState)
    assert led(cluster.state) == (1, (1, 3), ())
    assert isinstance(cluster.propose(1, 1, 3, 2, broker_epochs={2: cluster.epoch(2)}), PartitionState)
    assert cluster.state.partition_epoch == 2


def test_a_proposal_of_the_present_in_sync_replicas_ends_other_proposals_of_the_partition_epoch(
    cluster: LeadershipCluster,
) -> None:
    """A leader whose proposal was refused makes sure that no late copy of it is carried out."""
    cluster.create(1, 2, 3)
    cluster.fence(2)
    before = cluster.state
    assert code(cluster.propose(1, 1, 3, 2)) is ErrorCode.INELIGIBLE_REPLICA
    answer = cluster.propose(1, 1, 3)
    assert answer == cluster.state == replace(before, partition_epoch=before.partition_epoch + 1)
    cluster.start(2)
    late = cluster.propose(1, 1, 3, 2, partition_epoch=before.partition_epoch)
    assert code(late) is ErrorCode.INVALID_UPDATE_VERSION


def test_a_replica_whose_broker_was_registered_again_is_ineligible_to_be_in_sync(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    epoch = cluster.epoch(2)
    cluster.restart(2)
    assert code(cluster.propose(1, 1, 3, 2, broker_epochs={2: epoch})) is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.parametrize(
    ("in_sync", "differences", "expected"),
    [
        ((1,), {"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ((1,), {"partition": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((1,), {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((1,), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((1,), {"partition_epoch": 0}, ErrorCode.INVALID_UPDATE_VERSION),
        ((1, 9), {}, ErrorCode.INVALID_REQUEST),
        ((1, 2, 2), {}, ErrorCode.INVALID_REQUEST),
        ((2, 3), {}, ErrorCode.INVALID_REQUEST),
        ((1, 2), {}, ErrorCode.INELIGIBLE_REPLICA),
        ((1, 3), {"broker_epochs": {3: 1}}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_an_impossible_proposal_of_in_sync_replicas_is_refused(
    cluster: LeadershipCluster, in_sync: tuple[int, ...], differences: dict[str, Any], expected: ErrorCode
) -> None:
    """From partition epoch 1 on, with broker 2 fenced."""
    cluster.create(1, 2, 3)
    cluster.fence(2)
    before = cluster.offset
    assert code(cluster.propose(1, *in_sync, **differences)) is expected
    assert cluster.offset == before


def test_only_the_leader_proposes_in_sync_replicas(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    assert code(cluster.propose(2, 2)) is ErrorCode.INVALID_REQUEST


def test_the_preferred_leader_is_elected_if_it_is_in_sync(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    kind = ElectionType.PREFERRED
    assert cluster.elect(kind, ORDERS) == {ORDERS: ErrorCode.ELECTION_NOT_NEEDED}
    cluster.restart(1)
    assert cluster.elect(kind, ORDERS) == {ORDERS: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
    cluster.propose(2, 2, 1)
    assert cluster.elect(kind) == {ORDERS: None}
    assert cluster.state.leader == 1
    assert cluster.elect(kind) == {}, "asked for all, only what is changed is answered"
    gone = TopicPartition("orders", 7)
    assert cluster.elect(kind, gone) == {gone: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_an_unclean_election_is_for_partitions_without_a_leader(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    kind = ElectionType.UNCLEAN
    assert cluster.elect(kind, ORDERS) == {ORDERS: ErrorCode.ELECTION_NOT_NEEDED}
    cluster.propose(1, 1)
    cluster.fence(1)
    cluster.fence(2)
    assert cluster.elect(kind, ORDERS) == {ORDERS: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE}
    cluster.start(2)
    assert cluster.state.leader == NO_LEADER
    assert cluster.elect(kind, ORDERS) == {ORDERS: None}
    assert led(cluster.state) == (2, (2,), ())
    assert cluster.state.is_recovering
    assert cluster.state.unclean_epoch == cluster.state.leader_epoch


def test_a_reassignment_ends_when_the_new_replicas_are_in_sync(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    assert cluster.move(3, 2) is None
    assert cluster.state.replicas == (3, 2, 1)
    assert (cluster.state.adding_replicas, cluster.state.removing_replicas) == ((3,), (1,))
    assert led(cluster.state) == (1, (1, 2), ())
    assert code(cluster.propose(1, 1, 2, 3)) is ErrorCode.NEW_LEADER_ELECTED
    assert cluster.state.replicas == (3, 2)
    assert (cluster.state.adding_replicas, cluster.state.removing_replicas) == ((), ())
    assert set(cluster.state.in_sync_replicas) == {2, 3}
    assert cluster.state.leader == 3


def test_a_reassignment_without_new_replicas_is_done_at_once(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    assert cluster.move(2, 1, 3) is None
    assert (cluster.state.replicas, cluster.state.leader) == ((2, 1, 3), 1)
    assert cluster.move(2, 3) is None
    assert (cluster.state.replicas, cluster.state.leader) == ((2, 3), 2)
    before = cluster.offset
    assert cluster.move(2, 3) is None
    assert cluster.offset == before


def test_a_reassignment_can_be_cancelled_or_changed(cluster: LeadershipCluster) -> None:
    cluster.create(1)
    assert cluster.move(cancel=True) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    cluster.move(2)
    cluster.move(3)
    assert (cluster.state.replicas, cluster.state.adding_replicas) == ((3, 2, 1), (3,))
    cluster.move(cancel=True)
    assert 1 in cluster.state.replicas
    assert (cluster.state.adding_replicas, cluster.state.removing_replicas) == ((), ())
    assert led(cluster.state) == (1, (1,), ())


def test_a_reassignment_is_not_cancelled_that_would_drop_the_only_complete_replica() -> None:
    cluster = LeadershipCluster(brokers=4)
    cluster.create(1, min_in_sync=3)
    cluster.move(2, 3, 4)
    cluster.propose(1, 1, 2)
    cluster.restart(1, clean=False)
    cluster.fence(2)
    assert led(cluster.state) == (NO_LEADER, (), (2,))
    assert cluster.move(cancel=True) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert led(cluster.state) == (NO_LEADER, (), (2,))


def test_elections_beyond_the_limit_of_a_request_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.metadata.deciding.elections.MAX_PARTITIONS_PER_REQUEST", 2)
    cluster = LeadershipCluster()
    cluster.create(1, 2, partitions=3)
    cluster.restart(1)
    for number in (2, 1, 0):
        cluster.propose(2, 2, 1, partition=number)
    wanted = [TopicPartition("orders", number) for number in range(3)]
    results = cluster.elect(ElectionType.PREFERRED, *wanted)
    assert list(results.values()) == [None, None, ErrorCode.POLICY_VIOLATION]
    assert cluster.elect(ElectionType.PREFERRED) == {wanted[2]: None}


def test_an_impossible_reassignment_is_refused(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    assert cluster.move(1, 1) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.move() is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.move(1, 9) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert cluster.move(1, allows_replication_factor_change=False) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert cluster.move(1, 3, allows_replication_factor_change=False) is None


def test_a_partition_that_is_named_twice_is_not_changed_twice(cluster: LeadershipCluster) -> None:
    """Both changes would be made on the state before either."""
    cluster.create(1, 2)
    cluster.restart(1)
    cluster.propose(2, 2, 1)
    assert cluster.elect(ElectionType.PREFERRED, ORDERS, ORDERS) == {ORDERS: None}
    assert cluster.state.leader_epoch == 2
    wanted = Reassignment(topic_partition=ORDERS, replicas=ids(3))
    moved = cluster.do(AlterReassignments(reassignments=(wanted, wanted)))
    assert [o.error.code for o in moved.outcomes] == [ErrorCode.INVALID_REQUEST] * 2
    change = InSyncChange(
        topic_id=cluster.state.topic_id,
        partition=0,
        leader_epoch=cluster.state.leader_epoch,
        partition_epoch=cluster.state.partition_epoch,
        in_sync_replicas=(InSyncReplica(broker_id=BrokerId(1)),),
    )
    proposed = AlterPartition(broker_id=BrokerId(1), broker_epoch=cluster.epoch(1), changes=(change, change))
    assert [code(o.result) for o in cluster.do(proposed).outcomes] == [ErrorCode.INVALID_REQUEST] * 2
