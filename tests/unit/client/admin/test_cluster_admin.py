"""Brokers, the quorum, features, elections and moves, asked for by our client of a cluster of two."""

import pytest

from tailrace.client.admin.cluster import UpgradeType
from tailrace.client.admin.quorum import QuorumDescription, QuorumReplicaState
from tailrace.client.blocking import Admin
from tailrace.metadata.commands import AlterPartition, InSyncChange, InSyncReplica, ReplicaAssignment, TopicSpec
from tailrace.metadata.feature_levels import METADATA_VERSION, OLDEST_METADATA_VERSION
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import ElectionType, TopicPartition
from testkit.nodes.admin_path import DIRECTORY_ID
from testkit.nodes.admin_server import AdminServer
from testkit.nodes.data_path import BROKER
from testkit.quorum.controller_commands import create_topics

OTHER = BrokerId(BROKER + 1)
ORDERS = TopicPartition("orders", 0)


def create(server: AdminServer, *replicas: BrokerId) -> None:
    """The topic `orders` with one partition on these brokers."""
    assignment = ReplicaAssignment(partition=0, broker_ids=replicas)
    server.submit(create_topics(TopicSpec(name="orders", assignments=(assignment,))))


def take_into_sync(server: AdminServer, broker_id: BrokerId) -> None:
    """The leader of `orders` finds that this replica has all there is."""
    image = server.node.controller.image
    state = image.partition(*ORDERS)
    assert state is not None
    change = InSyncChange(
        topic_id=state.topic_id,
        partition=0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        in_sync_replicas=tuple(InSyncReplica(broker_id=each) for each in (*state.in_sync_replicas, broker_id)),
    )
    leader = image.brokers[state.leader]
    server.submit(
        AlterPartition(
            broker_id=leader.broker_id,
            broker_epoch=leader.broker_epoch,
            changes=(change,),
            secret=server.node.secret,
        )
    )


def test_fenced_brokers_are_listed_and_can_be_unregistered(server: AdminServer, admin: Admin) -> None:
    server.register(OTHER)
    listed = [(each.node_id, each.is_fenced, each.is_controller) for each in admin.list_brokers()]
    assert listed == [(BROKER, False, True), (OTHER, True, False)]
    with pytest.raises(KafkaError) as caught:
        admin.unregister_broker(BROKER)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    admin.unregister_broker(OTHER)
    assert [each.node_id for each in admin.list_brokers()] == [BROKER]
    with pytest.raises(KafkaError) as caught:
        admin.unregister_broker(OTHER)
    assert caught.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_quorum_is_described(server: AdminServer, admin: Admin) -> None:
    described = admin.describe_quorum()
    (voter,) = described.voters
    assert (described.leader_id, described.observers) == (BROKER, ())
    assert (voter.replica_id, voter.directory_id, described.lag(voter)) == (BROKER, DIRECTORY_ID, 0)
    assert voter.log_end_offset == described.high_watermark == server.node.log.end_offset
    (endpoint,) = described.endpoints[BrokerId(BROKER)]
    assert f"{endpoint.host}:{endpoint.port}" == server.bootstrap_servers


def replica(replica_id: int, log_end_offset: int) -> QuorumReplicaState:
    return QuorumReplicaState(
        replica_id=BrokerId(replica_id),
        directory_id=bytes(16),
        log_end_offset=log_end_offset,
        last_fetch_timestamp=-1,
        last_caught_up_timestamp=-1,
    )


@pytest.mark.parametrize(("leader_end", "follower_end", "lag"), [(9, 7, 2), (-1, 7, None), (9, -1, None)])
def test_a_lag_is_a_number_only_where_both_ends_are_known(leader_end: int, follower_end: int, lag: int | None) -> None:
    leader, follower = replica(1, leader_end), replica(2, follower_end)
    described = QuorumDescription(
        leader_id=BrokerId(1), leader_epoch=1, high_watermark=7, voters=(leader, follower), observers=(), endpoints={}
    )
    assert described.lag(follower) == lag


def test_features_are_described_and_changed(admin: Admin) -> None:
    name = "metadata.version"
    before = admin.describe_features()
    assert before.supported[name] == (OLDEST_METADATA_VERSION, METADATA_VERSION)
    assert before.finalized == {name: METADATA_VERSION, "transaction.version": 2}
    wanted = {name: OLDEST_METADATA_VERSION}
    with pytest.raises(KafkaError) as caught:
        admin.update_features(wanted)
    assert caught.value.code is ErrorCode.INVALID_UPDATE_VERSION
    admin.update_features(wanted, upgrade_type=UpgradeType.SAFE_DOWNGRADE, validate_only=True)
    assert admin.describe_features() == before
    admin.update_features(wanted, upgrade_type=UpgradeType.SAFE_DOWNGRADE)
    after = admin.describe_features()
    assert after.finalized == {**before.finalized, **wanted}
    assert after.epoch > before.epoch >= 0


def test_the_preferred_replica_leads_once_it_is_in_sync(server: AdminServer, admin: Admin) -> None:
    server.register(OTHER)
    create(server, OTHER, BrokerId(BROKER))
    (fault,) = admin.elect_leaders([ORDERS]).values()
    assert fault is not None
    assert fault.code is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    server.start(OTHER)
    take_into_sync(server, OTHER)
    assert admin.elect_leaders() == {ORDERS: None}
    (topic,) = admin.describe_topics(["orders"])
    assert topic.partitions[0].leader == OTHER
    (fault,) = admin.elect_leaders([ORDERS]).values()
    assert fault is not None
    assert fault.code is ErrorCode.ELECTION_NOT_NEEDED
    (fault,) = admin.elect_leaders([ORDERS], election_type=ElectionType.UNCLEAN).values()
    assert fault is not None
    assert fault.code is ErrorCode.ELECTION_NOT_NEEDED


def test_a_partition_moves_when_the_new_replica_has_caught_up(server: AdminServer, admin: Admin) -> None:
    server.start(OTHER)
    create(server, BrokerId(BROKER))
    assert admin.list_partition_reassignments() == {}
    admin.alter_partition_reassignments({ORDERS: [OTHER]})
    (move,) = admin.list_partition_reassignments([ORDERS]).values()
    assert (move.replicas, move.adding_replicas, move.removing_replicas) == ((OTHER, BROKER), (OTHER,), (BROKER,))
    take_into_sync(server, OTHER)
    assert admin.list_partition_reassignments() == {}
    (topic,) = admin.describe_topics(["orders"])
    assert topic.partitions[0].replicas == (OTHER,)


def test_a_reassignment_is_cancelled(server: AdminServer, admin: Admin) -> None:
    server.start(OTHER)
    create(server, BrokerId(BROKER))
    admin.alter_partition_reassignments({ORDERS: [OTHER]})
    admin.alter_partition_reassignments({ORDERS: None})
    assert admin.list_partition_reassignments() == {}
    with pytest.raises(KafkaError) as caught:
        admin.alter_partition_reassignments({ORDERS: None})
    assert caught.value.code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    with pytest.raises(KafkaError) as caught:
        admin.alter_partition_reassignments({ORDERS: [BROKER, OTHER]}, allows_replication_factor_change=False)
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
