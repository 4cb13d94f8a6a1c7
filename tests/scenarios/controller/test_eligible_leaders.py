"""Leaders and eligible leader replicas while brokers come and go, by the controller (KIP-966)."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from scenarios.controller.leadership_cluster import (
    BROKER_1,
    FIRST_DIRECTORY,
    MIN_IN_SYNC,
    ORDERS,
    SECOND_DIRECTORY,
    THIRD_DIRECTORY,
    TOPIC_ORDERS,
    UNCLEAN_ELECTION,
    LeadershipCluster,
    code,
    ids,
    led,
)
from tailrace.metadata.commands import ConfigChange, ReplicaAssignment, ResourceChanges, TopicSpec
from tailrace.metadata.image import ALL_BROKERS, EMPTY_IMAGE, ConfigResource, ResourceType
from tailrace.metadata.records.kinds import decode_record, encode_record
from tailrace.metadata.records.topics import ConfigRecord, created_partition, partition_record
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import records_of
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER
from tailrace.model.partitions import PartitionState
from testkit.quorum.controller_commands import alter_configs, create_topics


def test_above_min_in_sync_a_fenced_replica_is_no_eligible_leader(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3, min_in_sync=2)
    cluster.fence(1)
    assert led(cluster.state) == (2, (2, 3), ())


def test_below_min_in_sync_a_fenced_replica_is_an_eligible_leader(cluster: LeadershipCluster) -> None:
    """The high watermark stands still there, so a leaving replica has everything below it."""
    cluster.create(1, 2, 3, min_in_sync=2)
    cluster.fence(1)
    cluster.fence(2)
    assert led(cluster.state) == (3, (3,), (2,))
    cluster.fence(3)
    assert led(cluster.state) == (NO_LEADER, (), (2, 3))
    cluster.start(1)
    assert led(cluster.state) == (NO_LEADER, (), (2, 3)), "broker 1 may lack records"
    cluster.start(2)
    assert led(cluster.state) == (2, (2,), (3,))
    assert not cluster.state.is_recovering
    assert isinstance(cluster.propose(2, 2, 1), PartitionState)
    assert led(cluster.state) == (2, (2, 1), ()), "with enough in sync, no other replica is eligible"


def test_a_replica_is_no_eligible_leader_after_an_unclean_restart(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, min_in_sync=2)
    cluster.fence(1)
    cluster.fence(2)
    assert led(cluster.state) == (NO_LEADER, (), (1, 2))
    cluster.start(1, clean=False)
    assert led(cluster.state) == (NO_LEADER, (), (2,))
    cluster.start(2)
    assert led(cluster.state) == (2, (2,), ())


def test_a_broker_without_a_directory_that_it_had_is_no_eligible_leader_whatever_it_claims() -> None:
    cluster = LeadershipCluster(brokers=0)
    for number in (1, 2):
        cluster.start(number, directories=(FIRST_DIRECTORY, SECOND_DIRECTORY))
    cluster.create(1, 2, min_in_sync=2)
    cluster.fence(2)
    cluster.fence(1)
    assert led(cluster.state) == (NO_LEADER, (), (1, 2))
    cluster.start(2, directories=(FIRST_DIRECTORY, THIRD_DIRECTORY))
    assert led(cluster.state) == (NO_LEADER, (), (1,)), "broker 2 has another disk: the records may be gone"
    cluster.start(1, directories=(THIRD_DIRECTORY, SECOND_DIRECTORY, FIRST_DIRECTORY))
    assert led(cluster.state) == (1, (1,), ()), "one directory more takes nothing away"


def test_a_broker_that_registers_its_first_directories_stays_an_eligible_leader(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, min_in_sync=2)
    cluster.fence(2)
    cluster.fence(1)
    cluster.start(2, directories=(FIRST_DIRECTORY,))
    assert led(cluster.state) == (2, (2,), (1,))


def test_without_a_complete_replica_the_last_known_leader_recovers(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, min_in_sync=2)
    cluster.fence(1)
    cluster.fence(2)
    cluster.start(1, clean=False)
    cluster.start(2, clean=False)
    assert cluster.state.leader == 2, "it led last"
    assert cluster.state.is_recovering
    assert code(cluster.propose(2, 2, 1, is_recovering=True)) is ErrorCode.INVALID_REQUEST
    assert isinstance(cluster.propose(2, 2), PartitionState)
    assert not cluster.state.is_recovering
    assert code(cluster.propose(2, 2, is_recovering=True)) is ErrorCode.INVALID_REQUEST


def test_the_epoch_of_the_last_unclean_election_is_known_for_good(cluster: LeadershipCluster) -> None:
    """A follower may be away for longer than the partition is recovering, and for longer than the log goes back."""
    cluster.create(1, 2, min_in_sync=2)
    cluster.restart(2)
    cluster.propose(1, 1, 2)
    assert cluster.state.unclean_epoch == -1
    cluster.fence(1)
    cluster.fence(2)
    cluster.start(1, clean=False)
    assert cluster.state.unclean_epoch == -1, "no replica is elected yet"
    cluster.start(2, clean=False)
    unclean_epoch = cluster.state.leader_epoch
    assert (cluster.state.leader, cluster.state.unclean_epoch) == (2, unclean_epoch)
    cluster.propose(2, 2)
    cluster.propose(2, 2, 1)
    cluster.fence(2)
    assert (cluster.state.leader, cluster.state.unclean_epoch) == (1, unclean_epoch), "that election was clean"
    assert cluster.state.leader_epoch > unclean_epoch
    snapshot = [decode_record(encode_record(record)) for record in records_of(cluster.machine.image)]
    assert apply_all(EMPTY_IMAGE, snapshot)[0].partition(*ORDERS) == cluster.state


def test_an_unclean_election_that_only_a_snapshot_of_kafka_tells_of_is_known_while_the_leader_recovers(
    cluster: LeadershipCluster,
) -> None:
    cluster.create(1, 2, unclean=True)
    cluster.propose(1, 1)
    cluster.fence(1)
    untold = created_partition(cluster.state.topic_id, partition_record(0, replace(cluster.state, unclean_epoch=-1)))
    assert untold.unclean_epoch == untold.leader_epoch == cluster.state.unclean_epoch


@pytest.mark.parametrize("clean", [True, False])
def test_the_only_replica_leads_again_after_kill_9(cluster: LeadershipCluster, clean: bool) -> None:
    cluster.create(1)
    cluster.restart(1, clean=clean)
    assert led(cluster.state) == (1, (1,), ())
    assert cluster.state.is_recovering is not clean


def test_with_unclean_elections_any_replica_that_lives_leads(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, unclean=True)
    cluster.propose(1, 1)
    cluster.fence(1)
    assert led(cluster.state) == (2, (2,), ())
    assert cluster.state.is_recovering


def test_min_insync_replicas_of_the_cluster_decides_on_eligible_leaders_of_a_topic_without_its_own(
    cluster: LeadershipCluster,
) -> None:
    change = ConfigChange(name="min.insync.replicas", value="3")
    cluster.do(alter_configs(ResourceChanges(resource=ALL_BROKERS, changes=(change,))))
    assignment = ReplicaAssignment(partition=0, broker_ids=ids(1, 2, 3))
    cluster.do(create_topics(TopicSpec(name="orders", assignments=(assignment,))))
    cluster.fence(3)
    assert led(cluster.state) == (1, (1, 2), (3,))
    own = ConfigResource(ResourceType.TOPIC, "orders")
    change = ConfigChange(name="min.insync.replicas", value="1")
    cluster.do(alter_configs(ResourceChanges(resource=own, changes=(change,))))
    cluster.fence(2)
    assert led(cluster.state) == (1, (1,), ())


@pytest.mark.parametrize(
    ("name", "value", "of"),
    [(MIN_IN_SYNC, "1", TOPIC_ORDERS), (MIN_IN_SYNC, None, TOPIC_ORDERS), (MIN_IN_SYNC, "1", ALL_BROKERS)],
)
def test_when_the_high_watermark_may_move_again_a_replica_out_of_sync_is_no_eligible_leader(
    cluster: LeadershipCluster, name: str, value: str | None, of: ConfigResource
) -> None:
    """Or it would be elected, without the records that the leader has committed alone."""
    cluster.create(1, 2, 3, min_in_sync=2)
    if of is ALL_BROKERS:
        cluster.set(MIN_IN_SYNC, "2", ALL_BROKERS)
        cluster.set(MIN_IN_SYNC, None)
    cluster.fence(3)
    cluster.fence(2)
    assert led(cluster.state) == (1, (1,), (2,))
    epoch = cluster.state.partition_epoch
    assert cluster.set(name, value, of) is None
    assert led(cluster.state) == (1, (1,), ())
    assert cluster.state.partition_epoch == epoch + 1
    cluster.start(2)
    cluster.fence(1)
    assert led(cluster.state) == (NO_LEADER, (), (1,))


def test_an_eligible_leader_stays_eligible_while_the_high_watermark_stands_still(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3, min_in_sync=3)
    cluster.fence(3)
    cluster.fence(2)
    assert led(cluster.state) == (1, (1,), (2, 3))
    cluster.set(MIN_IN_SYNC, "2")
    assert led(cluster.state) == (1, (1,), (2, 3))
    cluster.fence(1)
    cluster.set(MIN_IN_SYNC, "1")
    assert led(cluster.state) == (NO_LEADER, (), (1, 2, 3)), "without a leader nothing is committed"
    cluster.start(3)
    assert led(cluster.state) == (3, (3,), ())


def test_settings_that_are_only_validated_change_no_partition(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, min_in_sync=2)
    cluster.fence(2)
    change = ConfigChange(name=MIN_IN_SYNC, value="1")
    resources = (ResourceChanges(resource=TOPIC_ORDERS, changes=(change,)),)
    cluster.do(alter_configs(*resources, validate_only=True))
    assert led(cluster.state) == (1, (1,), (2,))


@pytest.mark.parametrize("of", [TOPIC_ORDERS, ALL_BROKERS])
def test_a_leaderless_partition_gets_a_leader_once_unclean_elections_are_allowed(
    cluster: LeadershipCluster, of: ConfigResource
) -> None:
    cluster.create(1, 2)
    cluster.set(UNCLEAN_ELECTION, None)
    cluster.propose(1, 1)
    cluster.fence(1)
    assert led(cluster.state) == (NO_LEADER, (), (1,))
    assert cluster.set(UNCLEAN_ELECTION, " TRUE ", of) is None
    assert led(cluster.state) == (2, (2,), ())
    assert cluster.state.is_recovering


def test_unclean_elections_are_allowed_in_any_spelling(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2)
    cluster.set(UNCLEAN_ELECTION, "True")
    cluster.propose(1, 1)
    cluster.fence(1)
    assert led(cluster.state) == (2, (2,), ())


def test_min_insync_replicas_cannot_be_set_for_a_single_broker(cluster: LeadershipCluster) -> None:
    """The broker would commit what an eligible leader does not have."""
    assert cluster.set(MIN_IN_SYNC, "1", BROKER_1) is ErrorCode.INVALID_CONFIG
    assert cluster.machine.image.overrides(BROKER_1) == {}


def test_an_illegal_setting_of_one_broker_can_be_deleted(cluster: LeadershipCluster) -> None:
    resource, value = ResourceType.BROKER, "1"
    record = ConfigRecord(resource_type=resource, resource_name="1", name=MIN_IN_SYNC, value=value)
    cluster.machine.apply(record)  # of a release that let it pass
    assert cluster.set("log.retention.ms", "5", BROKER_1) is None
    assert cluster.set(MIN_IN_SYNC, None, BROKER_1) is None
    assert cluster.machine.image.overrides(BROKER_1) == {"log.retention.ms": "5"}


def test_each_change_of_a_partition_raises_its_epoch_and_a_new_leader_the_leader_epoch(
    cluster: LeadershipCluster,
) -> None:
    cluster.create(1, 2, 3)
    epochs = []
    steps: tuple[Callable[[], object], ...]
    steps = (lambda: cluster.fence(3), lambda: cluster.fence(1), lambda: cluster.restart(1))
    for step in steps:
        step()
        epochs.append((cluster.state.leader_epoch, cluster.state.partition_epoch))
    assert epochs == [(0, 1), (1, 2), (1, 2)]
