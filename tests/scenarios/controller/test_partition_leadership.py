"""Leaders and in-sync replicas while brokers come and go, replicas move, leaders propose: KIP-455, 460, 497, 631, 966.

Each scenario is a cluster of three brokers at metadata.version 26, driven by commands alone.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tailrace.metadata.broker_commands import (
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    FeatureUpdate,
    FenceBroker,
    FenceSilentBroker,
    FinalizeMetadataVersion,
    RegisterBroker,
    RegisterController,
    UnregisterBroker,
    UpdateFeatures,
)
from tailrace.metadata.commands import (
    AlterPartition,
    AlterReassignments,
    ConfigChange,
    ConfigOperation,
    ConfigsAltered,
    ControllerCommand,
    ElectLeaders,
    InSyncChange,
    InSyncReplica,
    LeadersElected,
    PartitionsAltered,
    Reassignment,
    ReassignmentsAltered,
    ReplicaAssignment,
    ResourceChanges,
    TopicSpec,
)
from tailrace.metadata.image import ALL_BROKERS, EMPTY_IMAGE, ConfigResource, ResourceType, SupportedFeature
from tailrace.metadata.records.kinds import decode_record, encode_record
from tailrace.metadata.records.topics import ConfigRecord, created_partition, partition_record
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import records_of
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import ElectionType, PartitionState, TopicPartition
from testkit.quorum.controller_commands import alter_configs, create_topics
from testkit.quorum.controllers import controller_machine

SESSION_MS = 1000
ORDERS = TopicPartition("orders", 0)
TOPIC_ORDERS = ConfigResource(ResourceType.TOPIC, "orders")
BROKER_1 = ConfigResource(ResourceType.BROKER, "1")
MIN_IN_SYNC = "min.insync.replicas"
UNCLEAN_ELECTION = "unclean.leader.election.enable"
FIRST_DIRECTORY, SECOND_DIRECTORY, THIRD_DIRECTORY = (bytes([number]) * 16 for number in (1, 2, 3))


class LeadershipCluster:
    """A controller, and the time that goes by for the controller."""

    def __init__(self, brokers: int = 3) -> None:
        self.machine = controller_machine(broker_session_timeout_ms=SESSION_MS)
        self.now_ms = 0
        self.offset = 0
        self.others_append = 0
        """The number of control records between the next decision and its records."""
        self.incarnations = count(1)
        self.do(FinalizeMetadataVersion())
        for number in range(1, brokers + 1):
            self.start(number)

    def do(self, command: ControllerCommand) -> Any:
        decision = self.machine.decide(command, self.now_ms, next_offset=self.offset)
        if self.others_append:
            self.offset += self.others_append
            self.others_append = 0
            decision = self.machine.at_offset(decision, self.offset)
        self.machine.apply_all(decision.records)
        self.offset += len(decision.records)
        return decision.response

    def epoch(self, number: int) -> int:
        return self.machine.image.brokers[BrokerId(number)].broker_epoch

    def register(self, number: int, *, clean: bool = True, directories: tuple[bytes, ...] = ()) -> int:
        known = self.machine.image.brokers.get(BrokerId(number))
        command = RegisterBroker(
            broker_id=BrokerId(number),
            incarnation_id=next(self.incarnations).to_bytes(16, "big"),
            endpoints=(),
            log_directories=directories,
            previous_broker_epoch=known.broker_epoch if clean and known else -1,
        )
        response = self.do(command)
        assert isinstance(response, BrokerRegistered)
        return response.broker_epoch

    def start(self, number: int, *, clean: bool = True, directories: tuple[bytes, ...] = ()) -> None:
        self.register(number, clean=clean, directories=directories)
        assert not self.beat(number).is_fenced

    def beat(self, number: int, *, applied: int | None = None, **wishes: Any) -> BrokerStanding:
        offset = self.offset if applied is None else applied
        command = BrokerHeartbeat(
            broker_id=BrokerId(number), broker_epoch=self.epoch(number), metadata_offset=offset, **wishes
        )
        response = self.do(command)
        assert isinstance(response, BrokerStanding)
        return response

    def fence(self, number: int) -> None:
        self.do(FenceBroker(broker_id=BrokerId(number), broker_epoch=self.epoch(number)))

    def restart(self, number: int, *, clean: bool = True) -> None:
        self.fence(number)
        self.start(number, clean=clean)

    def create(self, *replicas: int, min_in_sync: int = 1, unclean: bool = False, partitions: int = 1) -> None:
        assignments = tuple(
            ReplicaAssignment(partition=number, broker_ids=ids(*replicas)) for number in range(partitions)
        )
        settings = {"min.insync.replicas": str(min_in_sync), "unclean.leader.election.enable": str(unclean).lower()}
        topic = TopicSpec(name="orders", assignments=assignments, configs=tuple(settings.items()))
        self.do(create_topics(topic))

    def set(self, name: str, value: str | None, of: ConfigResource = TOPIC_ORDERS) -> ErrorCode | None:
        """Give a setting, or take it back with None."""
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        change = ConfigChange(name=name, operation=operation, value=value)
        response = self.do(alter_configs(ResourceChanges(resource=of, changes=(change,))))
        assert isinstance(response, ConfigsAltered)
        (error,) = response.errors
        return None if error is None else error.code

    @property
    def state(self) -> PartitionState:
        state = self.machine.image.partition(*ORDERS)
        assert state is not None
        return state

    def propose(self, leader: int, *in_sync: int, **differences: Any) -> PartitionState | KafkaError:
        epochs = differences.pop("broker_epochs", {})
        proposed: dict[str, Any] = {
            "topic_id": self.state.topic_id,
            "partition": 0,
            "leader_epoch": self.state.leader_epoch,
            "partition_epoch": self.state.partition_epoch,
            "in_sync_replicas": tuple(
                InSyncReplica(broker_id=BrokerId(number), broker_epoch=epochs.get(number, -1)) for number in in_sync
            ),
        }
        response = self.do(
            AlterPartition(
                broker_id=BrokerId(leader),
                broker_epoch=self.epoch(leader),
                changes=(InSyncChange(**(proposed | differences)),),
            )
        )
        assert isinstance(response, PartitionsAltered)
        return response.outcomes[0].result

    def elect(
        self, kind: ElectionType, *partitions: TopicPartition, desired: int | None = None
    ) -> dict[TopicPartition, ErrorCode | None]:
        """`desired`: this replica is to lead all the partitions."""
        leaders = {} if desired is None else dict.fromkeys(partitions, BrokerId(desired))
        response = self.do(ElectLeaders(type=kind, partitions=partitions or None, desired_leaders=leaders))
        assert isinstance(response, LeadersElected)
        return {o.topic_partition: o.error.code if o.error else None for o in response.outcomes}

    def move(self, *replicas: int, cancel: bool = False, **options: bool) -> ErrorCode | None:
        wanted = Reassignment(topic_partition=ORDERS, replicas=None if cancel else ids(*replicas))
        response = self.do(AlterReassignments(reassignments=(wanted,), **options))
        assert isinstance(response, ReassignmentsAltered)
        error = response.outcomes[0].error
        return error.code if error else None


@pytest.fixture
def cluster() -> LeadershipCluster:
    return LeadershipCluster()


def ids(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(BrokerId(number) for number in numbers)


def led(state: PartitionState) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, in-sync replicas, eligible leaders."""
    return state.leader, state.in_sync_replicas, state.eligible_leader_replicas


def code(result: PartitionState | KafkaError) -> ErrorCode:
    assert isinstance(result, KafkaError)
    assert result.detail
    return result.code


# KIP-631: registration, heartbeats, fencing


def test_a_broker_is_unfenced_when_it_has_applied_its_own_registration() -> None:
    cluster = LeadershipCluster(brokers=0)
    epoch = cluster.register(1)
    behind = cluster.beat(1, applied=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    caught_up = cluster.beat(1, applied=epoch)
    assert (caught_up.is_caught_up, caught_up.is_fenced) == (True, False)


def test_a_broker_that_wishes_to_be_fenced_is_and_stays_so(cluster: LeadershipCluster) -> None:
    assert cluster.beat(1, wants_fence=True).is_fenced
    assert cluster.beat(1, wants_fence=True).is_fenced
    assert not cluster.beat(1).is_fenced


def test_a_heartbeat_of_an_earlier_process_is_refused(cluster: LeadershipCluster) -> None:
    old = cluster.epoch(1)
    cluster.restart(1)
    with pytest.raises(KafkaError) as refusal:
        cluster.do(BrokerHeartbeat(broker_id=BrokerId(1), broker_epoch=old, metadata_offset=0))
    assert refusal.value.code is ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(KafkaError) as refusal:
        cluster.do(BrokerHeartbeat(broker_id=BrokerId(9), broker_epoch=old, metadata_offset=0))
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_silent_brokers_are_fenced_one_at_a_time_and_once(cluster: LeadershipCluster) -> None:
    cluster.now_ms = SESSION_MS - 1
    cluster.beat(3)
    cluster.do(FenceSilentBroker())
    assert not any(broker.fenced for broker in cluster.machine.image.brokers.values())
    cluster.now_ms = SESSION_MS
    assert cluster.machine.heartbeats.silent(cluster.now_ms) == [1, 2]
    for _ in range(3):
        cluster.do(FenceSilentBroker())
    assert {b.broker_id: b.fenced for b in cluster.machine.image.brokers.values()} == {1: True, 2: True, 3: False}
    assert cluster.machine.heartbeats.next_deadline_ms == 2 * SESSION_MS - 1


def test_a_new_controller_gives_every_broker_a_whole_session(cluster: LeadershipCluster) -> None:
    cluster.now_ms = 5 * SESSION_MS
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    cluster.do(FenceSilentBroker())
    assert not any(broker.fenced for broker in cluster.machine.image.brokers.values())
    assert cluster.machine.heartbeats.next_deadline_ms == 6 * SESSION_MS


def test_a_second_process_of_a_living_broker_is_refused_until_the_first_is_silent(cluster: LeadershipCluster) -> None:
    with pytest.raises(KafkaError) as refusal:
        cluster.register(1)
    assert refusal.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.machine.heartbeats.shorten(BrokerId(1), cluster.now_ms, 400)  # its connection was reset
    cluster.now_ms = 400
    cluster.start(1)


def test_with_a_new_controller_only_its_own_next_start_replaces_a_broker_without_a_heartbeat_yet(
    cluster: LeadershipCluster,
) -> None:
    """A client that registers over a live broker while the controller changes would fence it, and keep its id."""
    cluster.fence(1)
    cluster.start(1, directories=(b"its own.........",))
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    for directories in ((), (b"of a stranger...",)):
        with pytest.raises(KafkaError) as refusal:
            cluster.register(1, directories=directories)
        assert refusal.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.start(1, directories=(b"its own.........",))  # after a kill of all nodes: at once
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    cluster.now_ms += SESSION_MS
    cluster.start(1, directories=(b"of a new disk...",))


def test_a_release_that_does_not_know_the_finalized_version_is_refused(cluster: LeadershipCluster) -> None:
    old = (SupportedFeature("metadata.version", 20, 25),)
    for command in (
        RegisterBroker(broker_id=BrokerId(7), incarnation_id=bytes(16), endpoints=(), features=old),
        RegisterController(controller_id=BrokerId(7), incarnation_id=bytes(16), endpoints=(), features=old),
    ):
        with pytest.raises(KafkaError) as refusal:
            cluster.do(command)
        assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "knows 20 to 25" in refusal.value.detail


# controlled shutdown


def test_a_broker_may_go_when_it_leads_nothing_and_the_others_know(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    asked = cluster.beat(1, wants_shutdown=True)
    assert not asked.should_shut_down
    assert led(cluster.state) == (2, (2, 3), ())
    moved_at = cluster.offset - 1
    cluster.beat(2, applied=moved_at)
    cluster.beat(3, applied=moved_at - 1)
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "broker 3 does not know yet"
    cluster.beat(3, applied=moved_at)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down
    assert cluster.machine.image.brokers[BrokerId(1)].fenced
    assert cluster.beat(1, wants_shutdown=True).should_shut_down, "asked again, the answer is the same"


def test_a_broker_shuts_down_when_the_other_brokers_know_the_last_handover(cluster: LeadershipCluster) -> None:
    """A control record that is appended while a decision is prepared moves the decision's records."""
    cluster.create(1, 2, 3)
    cluster.others_append = 2
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down
    moved_at = cluster.offset - 1
    cluster.beat(2, applied=moved_at)
    cluster.beat(3, applied=moved_at - 1)
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "broker 3 does not know yet"
    cluster.beat(3, applied=moved_at)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down


def test_a_broker_that_leads_nothing_goes_at_once(cluster: LeadershipCluster) -> None:
    assert cluster.beat(2, wants_shutdown=True).should_shut_down


def test_a_new_controller_lets_a_broker_go_that_asked_its_predecessor(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    cluster.beat(1, wants_shutdown=True)
    cluster.machine.heartbeats.restart(cluster.machine.image.brokers, cluster.now_ms)
    assert not cluster.beat(1, wants_shutdown=True).should_shut_down, "no broker has reported the offset it has applied"
    cluster.beat(2)
    cluster.beat(3)
    assert cluster.beat(1, wants_shutdown=True).should_shut_down


# KIP-966: eligible leaders


def test_above_min_in_sync_a_leaving_replica_is_not_eligible(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3, min_in_sync=2)
    cluster.fence(1)
    assert led(cluster.state) == (2, (2, 3), ())


def test_below_min_in_sync_a_leaving_replica_is_eligible(cluster: LeadershipCluster) -> None:
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


def test_an_unclean_restart_is_not_eligible_any_more(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, min_in_sync=2)
    cluster.fence(1)
    cluster.fence(2)
    assert led(cluster.state) == (NO_LEADER, (), (1, 2))
    cluster.start(1, clean=False)
    assert led(cluster.state) == (NO_LEADER, (), (2,))
    cluster.start(2)
    assert led(cluster.state) == (2, (2,), ())


def test_a_broker_without_a_directory_that_it_had_is_not_eligible_whatever_it_claims() -> None:
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


def test_a_brokers_directories_hold_if_none_were_registered_before(cluster: LeadershipCluster) -> None:
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


def test_the_clusters_default_of_min_in_sync_counts_where_the_topic_says_nothing(cluster: LeadershipCluster) -> None:
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
def test_when_the_high_watermark_may_move_again_a_replica_out_of_sync_is_not_eligible(
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


def test_an_eligible_replica_stays_so_while_the_high_watermark_stands_still(cluster: LeadershipCluster) -> None:
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


def test_settings_that_are_only_tried_change_no_partition(cluster: LeadershipCluster) -> None:
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


def test_one_broker_alone_cannot_ask_for_fewer_replicas_in_sync(cluster: LeadershipCluster) -> None:
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


def test_every_change_raises_the_partition_epoch_and_a_new_leader_the_leader_epoch(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    epochs = []
    steps: tuple[Callable[[], object], ...]
    steps = (lambda: cluster.fence(3), lambda: cluster.fence(1), lambda: cluster.restart(1))
    for step in steps:
        step()
        epochs.append((cluster.state.leader_epoch, cluster.state.partition_epoch))
    assert epochs == [(0, 1), (1, 2), (1, 2)]


def test_a_broker_that_is_unregistered_leaves_every_partition(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, min_in_sync=2)
    with pytest.raises(KafkaError) as refusal:
        cluster.do(UnregisterBroker(broker_id=BrokerId(1)))
    assert refusal.value.code is ErrorCode.INVALID_REQUEST  # it serves
    cluster.fence(1)
    assert led(cluster.state) == (2, (2,), (1,))
    cluster.do(UnregisterBroker(broker_id=BrokerId(1)))
    assert led(cluster.state) == (2, (2,), ())
    assert BrokerId(1) not in cluster.machine.image.brokers
    with pytest.raises(KafkaError) as refusal:
        cluster.do(UnregisterBroker(broker_id=BrokerId(1)))
    assert refusal.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


# KIP-497: AlterPartition


def test_a_leader_shrinks_and_expands_the_in_sync_replicas(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    assert isinstance(cluster.propose(1, 1, 3), PartitionState)
    assert led(cluster.state) == (1, (1, 3), ())
    assert isinstance(cluster.propose(1, 1, 3, 2, broker_epochs={2: cluster.epoch(2)}), PartitionState)
    assert cluster.state.partition_epoch == 2


def test_a_proposal_of_the_present_state_ends_all_others_of_its_partition_epoch(cluster: LeadershipCluster) -> None:
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


def test_a_member_that_has_been_registered_again_is_ineligible(cluster: LeadershipCluster) -> None:
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
def test_a_proposal_that_cannot_be(
    cluster: LeadershipCluster, in_sync: tuple[int, ...], differences: dict[str, Any], expected: ErrorCode
) -> None:
    """From partition epoch 1 on, with broker 2 fenced."""
    cluster.create(1, 2, 3)
    cluster.fence(2)
    before = cluster.offset
    assert code(cluster.propose(1, *in_sync, **differences)) is expected
    assert cluster.offset == before


def test_only_the_leader_proposes(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    assert code(cluster.propose(2, 2)) is ErrorCode.INVALID_REQUEST


# KIP-460: ElectLeaders


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


# KIP-455: reassignment


def test_replicas_move_when_the_new_ones_are_in_sync(cluster: LeadershipCluster) -> None:
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


def test_a_move_without_new_replicas_is_done_at_once(cluster: LeadershipCluster) -> None:
    cluster.create(1, 2, 3)
    assert cluster.move(2, 1, 3) is None
    assert (cluster.state.replicas, cluster.state.leader) == ((2, 1, 3), 1)
    assert cluster.move(2, 3) is None
    assert (cluster.state.replicas, cluster.state.leader) == ((2, 3), 2)
    before = cluster.offset
    assert cluster.move(2, 3) is None
    assert cluster.offset == before


def test_a_move_can_be_called_off_or_changed(cluster: LeadershipCluster) -> None:
    cluster.create(1)
    assert cluster.move(cancel=True) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    cluster.move(2)
    cluster.move(3)
    assert (cluster.state.replicas, cluster.state.adding_replicas) == ((3, 2, 1), (3,))
    cluster.move(cancel=True)
    assert 1 in cluster.state.replicas
    assert (cluster.state.adding_replicas, cluster.state.removing_replicas) == ((), ())
    assert led(cluster.state) == (1, (1,), ())


def test_a_move_is_not_called_off_that_would_drop_the_only_complete_replica() -> None:
    cluster = LeadershipCluster(brokers=4)
    cluster.create(1, min_in_sync=3)
    cluster.move(2, 3, 4)
    cluster.propose(1, 1, 2)
    cluster.restart(1, clean=False)
    cluster.fence(2)
    assert led(cluster.state) == (NO_LEADER, (), (2,))
    assert cluster.move(cancel=True) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert led(cluster.state) == (NO_LEADER, (), (2,))


def test_more_elections_than_one_batch_takes_are_each_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_move_that_cannot_be(cluster: LeadershipCluster) -> None:
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


# KIP-584: features


def update(level: int, feature: str = "metadata.version", **options: bool) -> UpdateFeatures:
    return UpdateFeatures(
        updates=(FeatureUpdate(feature=feature, level=level, allows_downgrade=options.get("downgrade", False)),),
        validate_only=options.get("validate_only", False),
    )


def test_the_version_is_raised_when_all_nodes_support_it(cluster: LeadershipCluster) -> None:
    """A rolling upgrade: the log was begun by the release before."""
    cluster.do(update(26, downgrade=True))
    old = (SupportedFeature("metadata.version", 20, 26), SupportedFeature("transaction.version", 0, 2))
    cluster.do(RegisterBroker(broker_id=BrokerId(4), incarnation_id=bytes(16), endpoints=(), features=old))
    with pytest.raises(KafkaError) as refusal:
        cluster.do(update(27))
    assert refusal.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 4 knows 20 to 26; start it with a release that knows it, or unregister it" in refusal.value.detail
    cluster.do(UnregisterBroker(broker_id=BrokerId(4)))
    cluster.do(update(27, validate_only=True))
    assert cluster.machine.image.metadata_version == 26
    cluster.do(update(27))
    assert cluster.machine.image.metadata_version == 27


def test_a_controller_that_does_not_know_a_level_cannot_be_unregistered(cluster: LeadershipCluster) -> None:
    cluster.do(update(26, downgrade=True))
    old = (SupportedFeature("metadata.version", 20, 26), SupportedFeature("transaction.version", 0, 2))
    command = RegisterController(controller_id=BrokerId(7), incarnation_id=bytes(16), endpoints=(), features=old)
    cluster.do(command)
    with pytest.raises(KafkaError) as refusal:
        cluster.do(update(27))
    assert "controller 7 knows 20 to 26; start it with a release that knows it first" in refusal.value.detail


@pytest.mark.parametrize("refused", [update(28), update(0), update(25), update(1, "kraft.version"), update(-3)])
def test_a_level_that_cannot_be(cluster: LeadershipCluster, refused: UpdateFeatures) -> None:
    with pytest.raises(KafkaError) as refusal:
        cluster.do(refused)
    assert refusal.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert refusal.value.detail
