"""A broker's commands to the active controller, which is on another node."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from simulation.quorum.broker_cluster import BrokerCluster, BrokerPlan
from simulation.quorum.broker_node import BrokerNode
from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    BrokerHeartbeat,
    BrokerRegistered,
    BrokerStanding,
    CarriedOut,
    FenceBroker,
    ProducerIdBlock,
    RegisterBroker,
    RegisterController,
    UnfenceBroker,
)
from tailrace.metadata.commands import (
    AlterPartition,
    ControllerCommand,
    ControllerResponse,
    InSyncChange,
    InSyncReplica,
    PartitionsAltered,
    TopicCreated,
    TopicReference,
    TopicRefused,
    TopicsCreated,
    TopicSpec,
)
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import PartitionState
from tailrace.server.controller_link.channel import HEARTBEAT_TIMEOUT_MS, REQUEST_TIMEOUT_MS
from tailrace.server.transactions.producer_ids import ProducerIdPool
from testkit.quorum.controller_commands import create_topics, delete_topics

pytestmark = pytest.mark.usefixtures("quiet")

Answers = list[ControllerResponse | KafkaError]


class ChannelBench:
    """Three voters and an observer, each a broker; `node` is a broker that follows."""

    def __init__(self) -> None:
        self.cluster = BrokerCluster(1, BrokerPlan(requests_per_s=0, chaos_ms=2_000))
        self.cluster.run()
        self.node = next(node for node in self.cluster.nodes.values() if not node.controller.is_active)

    @property
    def leader(self) -> BrokerNode:
        leader = self.cluster.leader()
        assert leader is not None
        return leader

    @property
    def broker_id(self) -> BrokerId:
        return BrokerId(self.node.key.id)

    @property
    def broker_epoch(self) -> int:
        return self.node.session.broker_epoch

    def go_on(self, milliseconds: int) -> None:
        self.cluster.world.run(until_ms=self.cluster.world.now_ms + milliseconds)

    def submit(self, command: ControllerCommand) -> Answers:
        answers: Answers = []
        self.node.do(lambda: self.node.link.channel.submit(command, answers.append))
        return answers

    def answer(self, command: ControllerCommand) -> ControllerResponse | KafkaError:
        answers = self.submit(command)
        assert answers == [], "answered by itself"
        self.go_on(1_000)  # a follower that fetches in an old version learns late of commits
        (answer,) = answers
        return answer

    def create(self, name: str) -> TopicCreated:
        topic = TopicSpec(name=name, num_partitions=1, replication_factor=4)
        answer = self.answer(create_topics(topic))
        assert isinstance(answer, TopicsCreated)
        (created,) = answer.results
        assert isinstance(created, TopicCreated)
        return created

    def made(self, name: str) -> tuple[str, TopicId, PartitionState]:
        """A new topic of this name, and how its partition stands."""
        topic_id = self.create(name).topic_id
        state = self.leader.controller.image.partition(name, 0)
        assert state is not None
        return name, topic_id, state


@pytest.fixture
def nodes() -> ChannelBench:
    return ChannelBench()


def test_topics_are_created_and_known_here_when_the_answer_comes(nodes: ChannelBench) -> None:
    seen: list[bool] = []
    command = create_topics(TopicSpec(name="orders", configs=(("retention.ms", "1"),)))
    image = nodes.node.controller
    nodes.node.do(
        lambda: nodes.node.link.channel.submit(command, lambda _: seen.append("orders" in image.image.topics))
    )
    nodes.go_on(1_000)
    assert seen == [True]
    again = nodes.answer(command)
    assert isinstance(again, TopicsCreated)
    (refused,) = again.results
    assert isinstance(refused, TopicRefused)
    assert refused.error.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_brokers_and_controllers_are_registered_and_heard(nodes: ChannelBench) -> None:
    broker = RegisterBroker(
        broker_id=BrokerId(50), incarnation_id=b"a broker process", endpoints=(), log_directories=(b"a log directory.",)
    )
    refused = nodes.answer(broker)
    assert isinstance(refused, KafkaError)  # it listens nowhere
    assert refused.code is ErrorCode.INVALID_REGISTRATION
    own = nodes.node.controller.image.brokers[nodes.broker_id]
    again = RegisterBroker(
        broker_id=nodes.broker_id,
        incarnation_id=own.incarnation_id,
        endpoints=own.endpoints,
        log_directories=own.log_directories,
        directory_secret=nodes.node.directory_secret,
    )
    assert nodes.answer(again) == BrokerRegistered(broker_epoch=own.broker_epoch)
    heartbeat = BrokerHeartbeat(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch, metadata_offset=1_000)
    assert nodes.answer(heartbeat) == BrokerStanding(is_caught_up=True, is_fenced=False, should_shut_down=False)
    unfence = UnfenceBroker(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch)
    assert nodes.answer(unfence) == BrokerRegistered(broker_epoch=nodes.broker_epoch)
    controller = RegisterController(controller_id=BrokerId(9), incarnation_id=b"a controller....", endpoints=())
    assert nodes.answer(controller) == CarriedOut()
    refused = nodes.answer(replace(controller, controller_id=BrokerId(10), features=()))
    assert isinstance(refused, KafkaError)
    assert refused.code is ErrorCode.UNSUPPORTED_VERSION
    assert "controller 10 knows nothing of it" in refused.detail
    stale = nodes.answer(BrokerHeartbeat(broker_id=nodes.broker_id, broker_epoch=0, metadata_offset=0))
    assert isinstance(stale, KafkaError)
    assert stale.code is ErrorCode.STALE_BROKER_EPOCH


def test_a_leader_proposes_replicas_and_has_the_state_when_the_answer_comes(nodes: ChannelBench) -> None:
    topics = (nodes.made(f"orders-{number}") for number in range(20))
    name, topic_id, state = next(entry for entry in topics if nodes.cluster.nodes[entry[2].leader] is not nodes.leader)
    nodes.node = nodes.cluster.nodes[state.leader]

    def propose(*in_sync: int, epoch: int) -> PartitionState | KafkaError:
        change = InSyncChange(
            topic_id=topic_id,
            partition=0,
            leader_epoch=0,
            partition_epoch=epoch,
            in_sync_replicas=tuple(InSyncReplica(broker_id=BrokerId(broker_id)) for broker_id in in_sync),
        )
        command = AlterPartition(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch, changes=(change,))
        answer = nodes.answer(command)
        assert isinstance(answer, PartitionsAltered)
        return answer.outcomes[0].result

    altered = propose(state.leader, state.replicas[1], epoch=state.partition_epoch)
    assert altered == nodes.node.controller.image.partition(name, 0)
    assert isinstance(altered, PartitionState)
    assert altered.in_sync_replicas == (state.leader, state.replicas[1])
    again = propose(state.leader, state.replicas[1], epoch=state.partition_epoch)
    assert isinstance(again, KafkaError)
    assert again.code is ErrorCode.INVALID_UPDATE_VERSION


def test_a_change_of_replicas_does_not_wait_for_the_directories_of_the_controller(nodes: ChannelBench) -> None:
    topics = (nodes.made(f"orders-{number}") for number in range(20))
    _, topic_id, state = next(entry for entry in topics if nodes.cluster.nodes[entry[2].leader] is not nodes.leader)
    nodes.leader.controller.answer_when(lambda _: None)
    nodes.node = nodes.cluster.nodes[state.leader]
    change = InSyncChange(
        topic_id=topic_id,
        partition=0,
        leader_epoch=0,
        partition_epoch=state.partition_epoch,
        in_sync_replicas=(InSyncReplica(broker_id=state.leader),),
    )
    command = AlterPartition(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch, changes=(change,))
    answer = nodes.answer(command)
    assert isinstance(answer, PartitionsAltered)
    altered = answer.outcomes[0].result
    assert isinstance(altered, PartitionState)
    assert altered.in_sync_replicas == (state.leader,)


def test_of_the_controllers_own_brokers_requests_only_topics_wait_for_its_directories(nodes: ChannelBench) -> None:
    nodes.node = nodes.leader
    waiting: list[Callable[[], None]] = []
    nodes.leader.controller.answer_when(waiting.append)
    ids = AllocateProducerIds(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch)
    assert isinstance(nodes.answer(ids), ProducerIdBlock)
    waiting.clear()
    created = nodes.submit(create_topics(TopicSpec(name="orders")))
    nodes.go_on(1_000)
    assert "orders" in nodes.leader.controller.image.topics
    assert created == []
    for callback in waiting:
        callback()
    assert isinstance(created[0], TopicsCreated)


def test_producer_ids_come_in_blocks_and_waiting_callers_share_a_request(nodes: ChannelBench) -> None:
    command = AllocateProducerIds(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch)
    block = nodes.answer(command)
    assert isinstance(block, ProducerIdBlock)
    pool = ProducerIdPool(controller=nodes.node.link.channel, broker_id=nodes.broker_id)
    ids: list[object] = []
    for _ in range(block.size):
        nodes.node.do(lambda: pool.allocate(ids.append))
    assert len(nodes.node.link.requests) <= 2  # the block, and perhaps a heartbeat
    nodes.go_on(1_000)
    # The next block is there before this block is used up.
    for _ in range(block.size):
        nodes.node.do(lambda: pool.allocate(ids.append))
    assert ids == list(range(block.first + block.size, block.first + 3 * block.size))


def test_a_command_survives_the_death_of_the_controller(nodes: ChannelBench) -> None:
    nodes.leader.crash()
    answers = nodes.submit(create_topics(TopicSpec(name="orders")))
    nodes.go_on(6_000)
    (answer,) = answers
    assert isinstance(answer, TopicsCreated)
    assert "orders" in nodes.leader.controller.image.topics


def test_without_a_controller_a_command_ends_after_its_time(nodes: ChannelBench) -> None:
    nodes.cluster.network.separate([nodes.node.key.id], nodes.cluster.nodes)
    slow = nodes.submit(AllocateProducerIds(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch))
    quick = nodes.submit(BrokerHeartbeat(broker_id=nodes.broker_id, broker_epoch=1, metadata_offset=0))
    nodes.go_on(HEARTBEAT_TIMEOUT_MS)
    assert [answer.code for answer in quick if isinstance(answer, KafkaError)] == [ErrorCode.REQUEST_TIMED_OUT]
    assert slow == []
    nodes.go_on(REQUEST_TIMEOUT_MS - HEARTBEAT_TIMEOUT_MS)
    assert [answer.code for answer in slow if isinstance(answer, KafkaError)] == [ErrorCode.REQUEST_TIMED_OUT]


def test_commands_of_administrators_are_not_sent_by_the_channel(nodes: ChannelBench) -> None:
    for command in (
        delete_topics(TopicReference(name="orders")),
        FenceBroker(broker_id=nodes.broker_id, broker_epoch=nodes.broker_epoch),
    ):
        answers = nodes.submit(command)
        assert [answer.code for answer in answers if isinstance(answer, KafkaError)] == [ErrorCode.NOT_CONTROLLER]
