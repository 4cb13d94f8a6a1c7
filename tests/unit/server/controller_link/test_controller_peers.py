"""Requests of brokers and controllers to the active controller: every version, and Kafka's error codes."""

from typing import Any

import pytest

from simulation.quorum.broker_cluster import BrokerCluster, BrokerPlan
from simulation.quorum.broker_node import BrokerNode
from simulation.quorum.node import CLUSTER_ID
from tailrace.metadata.broker_commands import OWN_FEATURES
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import TopicId
from tailrace.model.partitions import PartitionState
from tailrace.model.proofs import NO_SECRET, id_of_secret
from tailrace.protocol.messages.log_dirs import (
    AssignedDirectory,
    AssignedPartition,
    AssignedTopic,
    AssignReplicasToDirsRequest,
)
from tailrace.protocol.messages.registrations import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    ControllerRegistrationRequest,
    RegisteredFeature,
    RegisteredListener,
)
from tailrace.protocol.messages.replicas import (
    AlteredPartition,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionTopic,
    InSyncBroker,
)
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tailrace.protocol.messages.transactions import AllocateProducerIdsRequest
from tailrace.protocol.schema import replace

pytestmark = pytest.mark.usefixtures("quiet")

FEATURES = tuple(
    RegisteredFeature(name=name, min_supported_version=first, max_supported_version=last)
    for name, first, last in OWN_FEATURES
)
LISTENER = RegisteredListener(name="PLAINTEXT", host="127.0.0.1", port=9092, security_protocol=0)
REGISTRATION = BrokerRegistrationRequest(
    broker_id=50,
    cluster_id=CLUSTER_ID,
    incarnation_id=b"a broker process",
    listeners=(LISTENER,),
    features=FEATURES,
    rack="a",
    log_dirs=(b"a log directory.",),
)
DIRECTORY = b"a log directory."


class ControllerPeersBench:
    """A node that is the active controller and a broker, with one topic."""

    def __init__(self) -> None:
        self.cluster = BrokerCluster(1, BrokerPlan(voters=1, observers=0, requests_per_s=0, chaos_ms=2_000))
        self.cluster.run()
        topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1, assignments=(), configs=())
        created: list[Any] = []
        self.node.ask(CreateTopicsRequest(topics=(topic,)), 7, created.append)
        self.go_on()
        self.topic_id = TopicId(created[0].topics[0].topic_id)

    @property
    def node(self) -> BrokerNode:
        return self.cluster.nodes[1]

    @property
    def broker_epoch(self) -> int:
        return self.node.session.broker_epoch

    @property
    def state(self) -> PartitionState:
        state = self.node.controller.image.partition("orders", 0)
        assert state is not None
        return state

    def go_on(self, milliseconds: int = 300) -> None:
        self.cluster.world.run(until_ms=self.cluster.world.now_ms + milliseconds)

    def ask(self, request: Any, version: int) -> Any:
        answers: list[Any] = []
        self.node.ask_controller(request, version, answers.append)
        self.go_on()
        (answer,) = answers
        return answer

    def register(self, version: int = 4, **changes: Any) -> Any:
        return self.ask(replace(REGISTRATION, **changes), version)


@pytest.fixture
def controller() -> ControllerPeersBench:
    return ControllerPeersBench()


# BrokerRegistration (62)


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_broker_registration_says_the_epoch(controller: ControllerPeersBench, version: int) -> None:
    answer = controller.register(version)
    assert answer.error_code == ErrorCode.NONE
    broker = controller.node.controller.image.brokers[50]  # type: ignore[index]
    assert (broker.broker_epoch, broker.rack, broker.fenced) == (answer.broker_epoch, "a", True)
    assert broker.log_directories == ((DIRECTORY,) if version >= 2 else ())


def test_the_controller_registers_the_same_broker_process_once(controller: ControllerPeersBench) -> None:
    first, second = controller.register(), controller.register()
    assert first == second


def test_another_process_with_the_id_of_a_live_one_is_refused_until_its_session_ends(
    controller: ControllerPeersBench,
) -> None:
    epoch = controller.register().broker_epoch
    end_offset = controller.node.controller.applied_end_offset
    beat = BrokerHeartbeatRequest(
        broker_id=50, broker_epoch=epoch, current_metadata_offset=end_offset, want_fence=False, want_shut_down=False
    )
    assert not controller.ask(beat, 1).is_fenced
    other = b"another process."
    assert controller.register(incarnation_id=other).error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    controller.go_on(2_600)
    later = controller.register(incarnation_id=other)
    assert (later.error_code, later.broker_epoch > epoch) == (ErrorCode.NONE, True)
    assert controller.ask(beat, 1).error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"cluster_id": "another-cluster"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"broker_id": -1}, ErrorCode.INVALID_REGISTRATION),
        ({"listeners": ()}, ErrorCode.INVALID_REGISTRATION),
        ({"listeners": (LISTENER, LISTENER)}, ErrorCode.INVALID_REGISTRATION),
        ({"listeners": (LISTENER,) * 101}, ErrorCode.INVALID_REGISTRATION),
        ({"features": FEATURES[:1] * 101}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": ()}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": (DIRECTORY, DIRECTORY)}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": (bytes(16),)}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": (bytes(15) + b"\x63",)}, ErrorCode.INVALID_REGISTRATION),
        ({"features": ()}, ErrorCode.UNSUPPORTED_VERSION),
        (
            {"features": (replace(FEATURES[0], min_supported_version=900, max_supported_version=901),)},
            ErrorCode.UNSUPPORTED_VERSION,
        ),
    ],
)
def test_a_registration_that_cannot_hold_is_refused(
    controller: ControllerPeersBench, changes: dict[str, Any], code: ErrorCode
) -> None:
    assert controller.register(**changes).error_code == code
    assert 50 not in controller.node.controller.image.brokers


# BrokerHeartbeat (63)


@pytest.mark.parametrize("version", [0, 1])
def test_a_broker_serves_when_it_has_read_its_registration(controller: ControllerPeersBench, version: int) -> None:
    epoch = controller.register().broker_epoch

    def beat(offset: int, **wants: bool) -> tuple[bool, bool, bool]:
        asked: dict[str, Any] = {"want_fence": False, "want_shut_down": False} | wants
        request = BrokerHeartbeatRequest(broker_id=50, broker_epoch=epoch, current_metadata_offset=offset, **asked)
        answer = controller.ask(request, version)
        assert answer.error_code == ErrorCode.NONE
        return answer.is_caught_up, answer.is_fenced, answer.should_shut_down

    assert beat(epoch - 1) == (False, True, False)
    assert beat(epoch, want_fence=True) == (True, True, False)
    assert beat(epoch) == (True, False, False)
    assert beat(epoch, want_shut_down=True) == (True, True, True)  # it leads nothing
    assert beat(epoch, want_shut_down=True) == (True, True, True)  # the answer was lost
    assert beat(epoch) == (True, True, False)  # said before, and late: it does not come back by that


def test_a_heartbeat_of_an_unknown_broker_or_registration_is_refused(controller: ControllerPeersBench) -> None:
    beat = BrokerHeartbeatRequest(
        broker_id=50, broker_epoch=1, current_metadata_offset=0, want_fence=False, want_shut_down=False
    )
    assert controller.ask(beat, 1).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    own = replace(beat, broker_id=1, broker_epoch=controller.broker_epoch - 1)
    assert controller.ask(own, 1).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_a_broker_whose_connection_is_closed_is_missed_sooner(controller: ControllerPeersBench) -> None:
    epoch = controller.register().broker_epoch
    beat = BrokerHeartbeatRequest(
        broker_id=50, broker_epoch=epoch, current_metadata_offset=epoch, want_fence=False, want_shut_down=False
    )
    connection = controller.node.ask_controller(beat, 1, lambda _: None)
    controller.go_on(100)
    connection.hang_up()
    controller.go_on(900)
    brokers = controller.node.controller.image.brokers
    assert not brokers[50].fenced  # type: ignore[index]
    controller.go_on(300)
    assert controller.node.controller.image.brokers[50].fenced  # type: ignore[index]


# AllocateProducerIds (67)


def test_blocks_of_producer_ids_do_not_overlap_and_go_to_registered_brokers(controller: ControllerPeersBench) -> None:
    request = AllocateProducerIdsRequest(
        broker_id=1, broker_epoch=controller.broker_epoch, secret=controller.node.secret
    )
    first, second = controller.ask(request, 0), controller.ask(request, 0)
    assert second.producer_id_start == first.producer_id_start + first.producer_id_len
    assert controller.ask(replace(request, broker_id=9), 0).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert controller.ask(replace(request, broker_epoch=0), 0).error_code == ErrorCode.STALE_BROKER_EPOCH


# ControllerRegistration (70)


def test_a_controller_is_taken_down(controller: ControllerPeersBench) -> None:
    request = ControllerRegistrationRequest(
        controller_id=70,
        incarnation_id=b"a controller....",
        zk_migration_ready=False,
        listeners=(LISTENER,),
        features=FEATURES,
    )
    assert controller.ask(request, 0).error_code == ErrorCode.NONE
    assert 70 in controller.node.controller.image.controllers
    assert controller.ask(replace(request, controller_id=-1), 0).error_code == ErrorCode.INVALID_REGISTRATION
    unknown = replace(request, controller_id=71, features=())
    assert controller.ask(unknown, 0).error_code == ErrorCode.UNSUPPORTED_VERSION


# AlterPartition (56)


class ProposingLeader:
    """The broker that leads the one partition, as it proposes in-sync replicas."""

    def __init__(self, controller: ControllerPeersBench) -> None:
        self.controller = controller

    def propose(self, version: int = 3, *, broker_epoch: int | None = None, in_sync: int = 1, **changes: Any) -> Any:
        state = self.controller.state
        proposal = AlterPartitionData(
            partition_index=0,
            leader_epoch=state.leader_epoch,
            new_isr=(in_sync,),
            new_isr_with_epochs=(InSyncBroker(broker_id=in_sync, broker_epoch=-1),),
            partition_epoch=state.partition_epoch,
        )
        topic = AlterPartitionTopic(topic_id=self.controller.topic_id, partitions=(replace(proposal, **changes),))
        epoch = self.controller.broker_epoch if broker_epoch is None else broker_epoch
        request = AlterPartitionRequest(
            broker_id=1,
            broker_epoch=epoch,
            topics=(topic,),
            wants_end_offset=version == 3,
            secret=self.controller.node.secret,
        )
        return self.controller.ask(request, version)

    def outcome(self, **changes: Any) -> AlteredPartition:
        answer = self.propose(**changes)
        assert answer.error_code == ErrorCode.NONE
        partition: AlteredPartition = answer.topics[0].partitions[0]
        return partition


@pytest.mark.parametrize("version", [2, 3])
def test_a_leader_receives_the_state_of_its_partition(controller: ControllerPeersBench, version: int) -> None:
    answer = ProposingLeader(controller).propose(version)
    (partition,) = answer.topics[0].partitions
    state = controller.state
    assert (partition.error_code, partition.leader_id, partition.isr) == (0, 1, (1,))
    assert (partition.leader_epoch, partition.partition_epoch) == (state.leader_epoch, state.partition_epoch)
    expected = controller.node.controller.applied_end_offset if version == 3 else -1
    assert answer.metadata_end_offset == expected


def test_forbidden_proposals_of_a_leader_have_kafkas_codes(controller: ControllerPeersBench) -> None:
    leader, state = ProposingLeader(controller), controller.state
    for changes, code in (
        ({"partition_index": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"leader_epoch": state.leader_epoch - 1}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": state.leader_epoch + 1}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": state.partition_epoch - 1}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_epoch": state.partition_epoch + 1}, ErrorCode.NOT_CONTROLLER),
        ({"in_sync": 2}, ErrorCode.INVALID_REQUEST),
        ({"leader_recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ({"new_isr_with_epochs": (InSyncBroker(broker_id=1, broker_epoch=0),)}, ErrorCode.INELIGIBLE_REPLICA),
    ):
        assert leader.outcome(**changes).error_code == code, changes
    assert leader.propose(broker_epoch=0).error_code == ErrorCode.STALE_BROKER_EPOCH


# AssignReplicasToDirs (73)


def test_a_replica_is_where_its_broker_says(controller: ControllerPeersBench) -> None:
    def topic(topic_id: TopicId) -> AssignedTopic:
        return AssignedTopic(topic_id=topic_id, partitions=(AssignedPartition(partition_index=0),))

    unknown = TopicId(b"no topic has it.")
    request = AssignReplicasToDirsRequest(
        broker_id=1,
        broker_epoch=controller.broker_epoch,
        secret=controller.node.secret,
        directories=(AssignedDirectory(id=DIRECTORY, topics=(topic(unknown), topic(controller.topic_id))),),
    )
    answer = controller.ask(request, 0)
    codes = [topic.partitions[0].error_code for topic in answer.directories[0].topics]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.NONE]
    assert [topic.topic_id for topic in answer.directories[0].topics] == [unknown, controller.topic_id]
    assert controller.state.directories == (DIRECTORY,)
    assert controller.ask(replace(request, broker_epoch=0), 0).error_code == ErrorCode.STALE_BROKER_EPOCH


# Every request


GUESSES = (NO_SECRET, b"a guess of 16 by", b"\xff" * 16)


@pytest.mark.parametrize("secret", GUESSES, ids=repr)
def test_a_client_that_knows_the_epoch_of_a_broker_does_not_speak_for_it(
    controller: ControllerPeersBench, secret: bytes
) -> None:
    """The epoch and the incarnation id are in the metadata log, which any client reads at this listener."""
    partition, end_offset = controller.state, controller.node.controller.applied_end_offset
    incarnation_id = controller.node.controller.image.brokers[1].incarnation_id  # type: ignore[index]
    sender: dict[str, Any] = {"broker_id": 1, "broker_epoch": controller.broker_epoch, "secret": secret}
    beat = BrokerHeartbeatRequest(**sender, current_metadata_offset=0, want_fence=True, want_shut_down=True)
    proposal = AlterPartitionData(
        partition_index=0,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        new_isr=(),
        new_isr_with_epochs=(),
        leaving=1,
    )
    topic = AlterPartitionTopic(topic_id=controller.topic_id, partitions=(proposal,))
    for request, version in (
        (replace(REGISTRATION, broker_id=1, incarnation_id=incarnation_id, secret=secret), 4),
        (beat, 1),
        (replace(beat, want_shut_down=False), 0),
        (AllocateProducerIdsRequest(**sender), 0),
        (AlterPartitionRequest(**sender, topics=(topic,)), 3),
        (AssignReplicasToDirsRequest(**sender, directories=()), 0),
    ):
        assert controller.ask(request, version).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED, request
    assert controller.node.controller.applied_end_offset == end_offset, "nothing is written"
    assert not controller.node.controller.image.brokers[1].fenced  # type: ignore[index]


def test_a_client_does_not_end_the_session_of_a_broker_with_its_own_connection(
    controller: ControllerPeersBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker beside the controller has no connection that would say that it is still there."""
    beat = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=controller.broker_epoch,
        current_metadata_offset=0,
        want_fence=False,
        want_shut_down=False,
    )
    connection = controller.node.ask_controller(beat, 1, lambda _: None)
    gone: list[int] = []
    monkeypatch.setattr(controller.node.controller, "broker_gone", gone.append)
    connection.hang_up()
    assert gone == []


def test_a_client_does_not_register_an_incarnation_that_is_not_its_own(controller: ControllerPeersBench) -> None:
    secret = b"of the process 1"
    theirs = replace(REGISTRATION, incarnation_id=id_of_secret(secret))
    assert controller.ask(theirs, 4).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert 50 not in controller.node.controller.image.brokers
    assert controller.ask(replace(theirs, secret=secret), 4).error_code == ErrorCode.NONE
    registered = ControllerRegistrationRequest(
        controller_id=70,
        incarnation_id=id_of_secret(secret),
        zk_migration_ready=False,
        listeners=(LISTENER,),
        features=FEATURES,
    )
    assert controller.ask(registered, 0).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert controller.ask(replace(registered, secret=secret), 0).error_code == ErrorCode.NONE


def test_a_node_that_follows_says_so() -> None:
    cluster = BrokerCluster(2, BrokerPlan(requests_per_s=0, chaos_ms=2_000))
    cluster.run()
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    requests = (
        (REGISTRATION, 4),
        (BrokerHeartbeatRequest(broker_id=1, current_metadata_offset=0, want_fence=False, want_shut_down=False), 1),
        (AllocateProducerIdsRequest(broker_id=1), 0),
        (AlterPartitionRequest(broker_id=1, topics=()), 3),
        (AssignReplicasToDirsRequest(broker_id=1, directories=()), 0),
    )
    for request, version in requests:
        answers: list[Any] = []
        follower.ask_controller(request, version, answers.append)
        assert [answer.error_code for answer in answers] == [ErrorCode.NOT_CONTROLLER], type(request)
