"""Deciding, applying and loading in the smallest steps, with everything else going on between the steps."""

import logging
from collections.abc import Iterator

import pytest

from budgets import blocks
from simulation.quorum.cluster import QuorumCluster, QuorumPlan
from simulation.quorum.node import SLICE_PARTITIONS, QuorumNode
from tailrace.metadata import derive
from tailrace.metadata.broker_commands import BrokerRegistered, FenceBroker, RegisterBroker
from tailrace.metadata.commands import ControllerResponse, TopicsCreated, TopicSpec
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.raft import events
from tailrace.raft.voters import ReplicaKey
from testkit.quorum.controller_commands import create_topics

CALM = QuorumPlan(commands_per_s=0, silences_per_s=0, chaos_ms=2000)
NEW = BrokerId(900)
Answers = list[ControllerResponse | KafkaError]


@pytest.fixture(autouse=True)
def smallest_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(derive, "SLICE", 1)
    monkeypatch.setattr(derive, "_RUN", 2)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seeds", blocks(8, first=700))
def test_every_law_holds_after_every_event(seeds: range) -> None:
    for seed in seeds:
        cluster = QuorumCluster(seed, QuorumPlan.of(seed))
        try:
            cluster.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}; {cluster.describe()}") from error


@pytest.fixture
def leader() -> tuple[QuorumCluster, QuorumNode]:
    """A quorum at rest with a topic of 40 partitions, and its active controller."""
    cluster = QuorumCluster(1, CALM)
    cluster.run()
    found = cluster.leader()
    assert found is not None
    found.controller.submit(
        create_topics(TopicSpec(name="orders", num_partitions=40, replication_factor=1)), lambda _: None
    )
    cluster.world.run(until_ms=cluster.world.now_ms + 300)
    assert "orders" in found.controller.image.topics
    return cluster, found


def fence(node: QuorumNode) -> Answers:
    broker = node.controller.image.alive_brokers()[0]
    answers: Answers = []
    node.controller.submit(FenceBroker(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch), answers.append)
    return answers


def test_a_command_waits_for_the_one_that_is_being_decided(leader: tuple[QuorumCluster, QuorumNode]) -> None:
    cluster, node = leader
    before = node.host.log.end_offset
    fenced = fence(node)
    order: Answers = []
    node.controller.submit(create_topics(TopicSpec(name="later")), order.append)
    assert node.host.log.end_offset == before, "nothing can be decided before the fencing is"
    cluster.world.run(until_ms=cluster.world.now_ms + 1_000)
    assert isinstance(fenced[0], BrokerRegistered)
    assert isinstance(order[0], TopicsCreated)


def test_a_controller_that_loses_the_lead_during_a_decision_refuses_all_waiting(
    leader: tuple[QuorumCluster, QuorumNode],
) -> None:
    cluster, node = leader
    fenced = fence(node)
    order: Answers = []
    node.controller.submit(create_topics(TopicSpec(name="later")), order.append)
    node.host.shut_down(lambda: None)
    cluster.world.run(until_ms=cluster.world.now_ms + 1_000)
    for answer in fenced + order:
        assert isinstance(answer, KafkaError)
        assert answer.code is ErrorCode.NOT_CONTROLLER
    assert len(fenced) == len(order) == 1
    assert all("later" not in running.controller.image.topics for running in cluster.nodes.values())


def test_a_registration_has_the_epoch_of_where_it_stands_whatever_came_between(
    leader: tuple[QuorumCluster, QuorumNode],
) -> None:
    cluster, node = leader
    answers: Answers = []
    offset = node.host.log.end_offset
    node.controller.submit(
        RegisterBroker(broker_id=NEW, incarnation_id=b"some new process", endpoints=()), answers.append
    )
    assert node.host.log.end_offset == offset, "it is still being decided"
    removed = next(key for key in node.host.node.voters.keys if key != node.key)
    node.host.change_voters(events.RemoveVoter(ReplicaKey(removed.id, removed.directory_id)), lambda *_: None)
    cluster.world.run(until_ms=cluster.world.now_ms + 500)
    (answer,) = answers
    assert isinstance(answer, BrokerRegistered), answer
    assert answer.broker_epoch == offset + 1, "behind the record of the voters"
    assert node.controller.image.brokers[NEW].broker_epoch == offset + 1


def test_a_wait_for_an_offset_ends_after_the_last_portion(
    leader: tuple[QuorumCluster, QuorumNode],
) -> None:
    cluster, node = leader
    other = next(running for running in cluster.nodes.values() if running is not node)
    heard: dict[int, int] = {}
    roles: dict[int, int] = {}
    for listener in (node, other):

        def listen(image: ClusterImage, delta: ImageDelta, key: int = listener.key.id) -> None:
            assert len(delta.changed_partitions) <= SLICE_PARTITIONS
            heard[key] = heard.get(key, 0) + len(delta.changed_partitions)

        def tell(key: int = listener.key.id) -> None:
            roles[key] = heard[key]

        listener.controller.on_image(listen)
        listener.controller.when_applied(node.host.log.end_offset + 1, tell)
    image = node.controller.image
    led = image.leader_counts[image.alive_brokers()[0].broker_id]
    assert led > SLICE_PARTITIONS
    fenced = fence(node)
    cluster.world.run(until_ms=cluster.world.now_ms + 1_000)
    assert isinstance(fenced[0], BrokerRegistered)
    assert roles == {node.key.id: led, other.key.id: led}
