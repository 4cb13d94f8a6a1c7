"""The controller on a quorum's log: which node decides, when changes are visible, and the end of waiting requests."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulation.quorum.cluster import QuorumCluster, QuorumPlan
from simulation.quorum.node import QuorumNode
from simulation.quorum.plan import BROKERS
from tailrace.metadata.broker_commands import BrokerHeartbeat, BrokerRegistered, RegisterBroker
from tailrace.metadata.commands import (
    AlterPartition,
    ControllerCommand,
    ControllerResponse,
    CreateTopics,
    InSyncChange,
    InSyncReplica,
    ReplicaAssignment,
    TopicCreated,
    TopicRefused,
    TopicsCreated,
    TopicSpec,
)
from tailrace.metadata.controller import ControllerMachine
from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.raft import events
from tailrace.raft.rpc import DescribeQuorumReply, FetchRecords, Response
from tailrace.raft.voters import ReplicaKey
from tailrace.server.quorum.host import LONGEST_WAIT_MS
from testkit.quorum.controller_commands import create_topics

pytestmark = pytest.mark.usefixtures("quiet")

CALM = QuorumPlan(commands_per_s=0, silences_per_s=0, chaos_ms=2000)
Answers = list[ControllerResponse | KafkaError]


@pytest.fixture
def cluster() -> QuorumCluster:
    """Three voters and an observer, with a controller and two brokers."""
    started = QuorumCluster(1, CALM)
    started.run()
    return started


def active(cluster: QuorumCluster) -> QuorumNode:
    found = cluster.leader()
    assert found is not None
    return found


def follower(cluster: QuorumCluster) -> QuorumNode:
    return next(node for node in cluster.nodes.values() if node is not active(cluster))


def create(name: str) -> CreateTopics:
    return create_topics(TopicSpec(name=name))


def submit(node: QuorumNode, command: ControllerCommand) -> Answers:
    answers: Answers = []
    node.controller.submit(command, answers.append)
    return answers


def go_on(cluster: QuorumCluster, milliseconds: int) -> None:
    cluster.world.run(until_ms=cluster.world.now_ms + milliseconds)


def refusal(answers: Answers) -> ErrorCode:
    (answer,) = answers
    assert isinstance(answer, KafkaError), f"not refused: {answer}"
    return answer.code


def test_only_the_active_controller_decides_and_the_others_name_it(cluster: QuorumCluster) -> None:
    other = follower(cluster)
    assert refusal(submit(other, create("orders"))) is ErrorCode.NOT_CONTROLLER
    assert other.controller.leader_id == active(cluster).key.id


def test_the_controllers_answer_waits_for_a_majority_and_all_nodes_see_its_change(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    cluster.network.separate([leader.key.id], cluster.nodes)
    answers = submit(leader, create("orders"))
    go_on(cluster, 100)
    assert answers == []
    assert "orders" not in leader.controller.image.topics
    cluster.network.heal()
    go_on(cluster, 3000)
    (answer,) = answers
    if isinstance(answer, KafkaError):
        pytest.fail(f"the leader was deposed too soon: {answer}")
    assert isinstance(answer, TopicsCreated)
    assert all("orders" in node.controller.image.topics for node in cluster.nodes.values())


def test_a_refusal_waits_for_what_it_was_based_on(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    first, second = submit(leader, create("orders")), submit(leader, create("orders"))
    assert second == []
    go_on(cluster, 200)
    assert isinstance(first[0], TopicsCreated)
    assert isinstance(first[0].results[0], TopicCreated)
    assert isinstance(second[0], TopicsCreated)
    refused = second[0].results[0]
    assert isinstance(refused, TopicRefused)
    assert refused.error.code is ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_loss_of_leadership_refuses_waiting_requests_and_drops_latest(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    cluster.network.separate([leader.key.id], cluster.nodes)
    answers = submit(leader, create("orders"))
    go_on(cluster, 4000)
    assert refusal(answers) is ErrorCode.NOT_CONTROLLER
    assert not leader.controller.is_active
    successor = active(cluster)
    assert successor is not leader
    created = submit(successor, create("orders"))
    go_on(cluster, 200)
    assert isinstance(created[0], TopicsCreated)
    assert isinstance(created[0].results[0], TopicCreated)
    cluster.network.heal()
    go_on(cluster, 3000)
    images = [node.controller.image.topics["orders"].topic_id for node in cluster.nodes.values()]
    assert len(set(images)) == 1


def test_a_failed_append_is_reported_and_another_controller_leads(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    leader.files.fail_at(leader.files.operations + 1, "No space left on device")
    assert refusal(submit(leader, create("orders"))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert leader.host.failure is not None
    assert refusal(submit(leader, create("orders"))) is ErrorCode.NOT_CONTROLLER
    go_on(cluster, 3000)
    successor = active(cluster)
    assert successor is not leader
    assert not leader.host.node.is_leader
    answers = submit(successor, create("orders"))
    go_on(cluster, 200)
    assert isinstance(answers[0], TopicsCreated)
    assert isinstance(answers[0].results[0], TopicCreated)


def test_listeners_get_a_change_before_its_answer_which_does_not_wait_for_their_work(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    heard: list[str] = []
    callbacks: list[Callable[[], None]] = []
    leader.controller.on_image(lambda image, delta: heard.extend(topic.name for topic in delta.created_topics))
    leader.controller.answer_when(callbacks.append)
    leader.controller.when_applied(leader.host.log.end_offset + 1, lambda: heard.append("acted on"))
    leader.controller.submit(create("orders"), lambda _: heard.append("answer"))
    go_on(cluster, 200)
    assert heard == ["orders", "answer"]
    for callback in callbacks:
        callback()
    assert heard == ["orders", "answer", "acted on"]


def test_a_log_that_fails_while_a_change_is_acted_on_is_not_the_end_of_the_replica(cluster: QuorumCluster) -> None:
    node = follower(cluster)

    def fail(_: object, delta: object) -> None:
        raise StorageError("the log of one partition")

    node.controller.on_image(fail)
    calls: list[str] = []
    node.controller.when_applied(active(cluster).host.log.end_offset + 1, lambda: calls.append("acted on"))
    submit(active(cluster), create("orders"))
    go_on(cluster, 1_000)
    assert "orders" in node.controller.image.topics
    assert node.host.failure is None
    assert calls == ["acted on"]


def test_a_failing_callback_does_not_hold_back_the_next(cluster: QuorumCluster) -> None:
    leader = active(cluster)

    def fail(_: object) -> None:
        raise ValueError("cannot take it")

    leader.controller.submit(create("a"), fail)
    answers = submit(leader, create("b"))
    with pytest.raises(ValueError, match="cannot take it"):
        go_on(cluster, 200)
    go_on(cluster, 200)
    assert isinstance(answers[0], TopicsCreated)


def test_a_silent_broker_is_fenced_also_by_a_new_controller_after_a_whole_session(cluster: QuorumCluster) -> None:
    assert not any(broker.fenced for broker in active(cluster).controller.image.brokers.values())
    cluster._silent.update(BROKERS)
    go_on(cluster, 1000)
    leader = active(cluster)
    leader.crash()
    began_ms = cluster.world.now_ms
    assert cluster.world.run(until_ms=began_ms + 5000, stop=lambda: cluster.leader() is not None)
    elected_ms = cluster.world.now_ms
    brokers = active(cluster).controller.image.brokers
    assert not any(broker.fenced for broker in brokers.values())

    def are_fenced() -> bool:
        return all(broker.fenced for broker in active(cluster).controller.image.brokers.values())

    assert cluster.world.run(until_ms=elected_ms + 4000, stop=are_fenced)
    assert cluster.world.now_ms >= elected_ms + 2500


def test_heartbeats_count_from_their_arrival_while_a_long_decision_goes_on(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision on thousands of partitions takes seconds on a busy machine; no broker is fenced for that."""
    leader = active(cluster)
    deciding = ControllerMachine.deciding
    is_over = False

    def slowly(machine: ControllerMachine, command: ControllerCommand, now_ms: int, *, next_offset: int) -> Any:
        while isinstance(command, CreateTopics) and not is_over:
            yield
        return (yield from deciding(machine, command, now_ms, next_offset=next_offset))

    monkeypatch.setattr(ControllerMachine, "deciding", slowly)
    work, clock = leader.controller._active._deciding, leader.clock
    monkeypatch.setattr(work, "_later", lambda task: clock.call_at(clock.monotonic_ms() + 50, task))
    answers = submit(leader, create("orders"))
    go_on(cluster, 6_000)
    assert answers == []
    is_over = True
    go_on(cluster, 1_000)
    assert isinstance(answers[0], TopicsCreated)
    brokers = active(cluster).controller.image.brokers
    assert (active(cluster), [broker.fenced for broker in brokers.values()]) == (leader, [False, False])


def test_a_broker_that_dies_while_it_shuts_down_is_fenced_by_a_new_controller(cluster: QuorumCluster) -> None:
    """The broker is dead, and clients see it in the metadata until a controller fences it."""
    leader = active(cluster)
    broker_id = min(BROKERS)
    epoch = leader.controller.image.brokers[broker_id].broker_epoch
    answers = submit(leader, create_topics(TopicSpec(name="orders", num_partitions=4)))
    go_on(cluster, 200)
    assert isinstance(answers[0], TopicsCreated)
    leaves = BrokerHeartbeat(broker_id=broker_id, broker_epoch=epoch, metadata_offset=0, wants_shutdown=True)
    submit(leader, leaves)
    cluster._silent.add(broker_id)
    go_on(cluster, 200)
    broker = leader.controller.image.brokers[broker_id]
    assert (broker.in_controlled_shutdown, broker.fenced) == (True, False)
    leader.crash()
    began_ms = cluster.world.now_ms
    assert cluster.world.run(until_ms=began_ms + 5000, stop=lambda: cluster.leader() is not None)
    go_on(cluster, 4000)
    assert active(cluster).controller.image.brokers[broker_id].fenced


def test_a_broker_that_is_back_in_sync_leads_again_after_the_check_of_the_balance(cluster: QuorumCluster) -> None:
    leader, (first, second) = active(cluster), BROKERS
    both = ReplicaAssignment(partition=0, broker_ids=(first, second))
    submit(leader, create_topics(TopicSpec(name="orders", assignments=(both,))))
    cluster._silent.add(first)
    go_on(cluster, 4000)
    cluster._silent.clear()
    go_on(cluster, 4000)

    def orders() -> PartitionState:
        return active(cluster).controller.image.topics["orders"].partitions[0]

    state = orders()
    assert (state.leader, state.in_sync_replicas) == (second, (second,))
    brokers = active(cluster).controller.image.brokers
    change = InSyncChange(
        topic_id=state.topic_id,
        partition=0,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        in_sync_replicas=(InSyncReplica(broker_id=second), InSyncReplica(broker_id=first)),
    )
    submit(
        active(cluster), AlterPartition(broker_id=second, broker_epoch=brokers[second].broker_epoch, changes=(change,))
    )
    go_on(cluster, 1000)
    assert orders().leader == second
    until_ms = cluster.world.now_ms + 301_000
    assert cluster.world.run(until_ms=until_ms, stop=lambda: orders().leader == first)
    assert orders().leader_epoch == state.leader_epoch + 1


def test_a_brokers_epoch_is_the_offset_of_its_registration(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    before = leader.host.log.end_offset
    command = RegisterBroker(broker_id=BrokerId(7), incarnation_id=bytes(16), endpoints=())
    answers = submit(leader, command)
    again = submit(leader, replace(command, broker_id=BrokerId(8)))
    go_on(cluster, 200)
    assert answers == [BrokerRegistered(broker_epoch=before)]
    assert again == [BrokerRegistered(broker_epoch=before + 1)]


def test_an_unknown_broker_is_refused_by_its_code(cluster: QuorumCluster) -> None:
    beat = BrokerHeartbeat(broker_id=BrokerId(9), broker_epoch=1, metadata_offset=1)
    answers = submit(active(cluster), beat)
    go_on(cluster, 100)
    assert refusal(answers) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_too_large_a_batch_is_refused_and_changes_nothing(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    before = leader.host.log.end_offset
    many = create_topics(TopicSpec(name="big", num_partitions=90_000))
    answers = submit(leader, many)
    go_on(cluster, 100)
    assert refusal(answers) is ErrorCode.POLICY_VIOLATION
    assert leader.host.log.end_offset == before


def test_a_snapshot_brings_a_restarted_node_to_the_same_image(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    submit(leader, create("orders"))
    go_on(cluster, 200)
    written = []
    leader.host.perform(lambda: written.append(leader.controller.write_snapshot()))
    go_on(cluster, 500)
    assert written == [True]
    assert leader.host.log.snapshots[-1].id.end_offset == leader.controller.applied_end_offset
    image = leader.controller.image
    leader.crash()
    leader.start()
    go_on(cluster, 3000)
    assert leader.controller.image == cluster.laws.image
    assert leader.controller.image.topics.keys() == image.topics.keys()


def test_a_broker_that_shuts_down_hands_over_and_reports_the_end(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    done: list[bool] = []
    began_ms = cluster.world.now_ms
    leader.host.shut_down(lambda: done.append(True))
    assert cluster.world.run(until_ms=began_ms + 1000, stop=lambda: bool(done))
    leader.controller.close()
    assert refusal(submit(leader, create("orders"))) is ErrorCode.NOT_CONTROLLER
    leader.life.is_over = True
    assert cluster.world.run(until_ms=began_ms + 1500, stop=lambda: cluster.leader() is not None)


def test_no_fetch_waits_for_records_longer_than_replicas_do(cluster: QuorumCluster) -> None:
    """A fetch whose client has gone costs memory until its wait is over."""
    host = active(cluster).host
    answers: list[Response] = []
    end = host.log.end_offset
    asked = FetchRecords(
        cluster_id=None,
        replica=ReplicaKey(-1),
        leader_epoch=host.node.epoch,
        fetch_offset=end,
        last_fetched_epoch=host.log.last_epoch,
        max_wait_ms=2**31 - 1,
        high_watermark=end,
    )
    host.receive(asked, answers.append)
    go_on(cluster, 100)
    assert answers == []
    go_on(cluster, LONGEST_WAIT_MS)
    assert [answer.error for answer in answers] == [ErrorCode.NONE]


def test_a_voter_is_removed_and_the_quorum_describes_itself(cluster: QuorumCluster) -> None:
    leader = active(cluster)
    gone = next(voter.key for voter in leader.host.node.voters if voter.key != leader.key)
    outcomes: list[ErrorCode] = []
    leader.host.change_voters(events.RemoveVoter(gone), lambda error, _: outcomes.append(error))
    go_on(cluster, 500)
    assert outcomes == [ErrorCode.NONE]
    described: list[DescribeQuorumReply] = []
    leader.host.describe(described.append)
    go_on(cluster, 10)
    assert gone not in [voter.key for voter in described[0].voters]
    assert gone in [observer.key for observer in described[0].observers]
