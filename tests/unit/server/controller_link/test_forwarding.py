"""Requests of administrators: carried out where the active controller is, answered where the client asks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from simulation.quorum.broker_cluster import BrokerCluster, BrokerPlan
from simulation.quorum.broker_node import BrokerNode
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.registrations import UnregisterBrokerRequest
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from tailrace.server.controller_link.envelopes import EnvelopeSender
from tailrace.server.controller_link.forwarding import MAX_FORWARDED, SHORTEST_MS
from testkit.nodes.ports import RecordingConnection

pytestmark = pytest.mark.usefixtures("quiet")

CALM = BrokerPlan(requests_per_s=0, chaos_ms=2_000)
CREATE_VERSION = 7


class ForwardingBench:
    """Three voters and an observer, each a broker, with a controller."""

    def __init__(self) -> None:
        self.cluster = BrokerCluster(1, CALM)
        self.cluster.run()

    @property
    def leader(self) -> BrokerNode:
        leader = self.cluster.leader()
        assert leader is not None
        return leader

    @property
    def other(self) -> BrokerNode:
        return next(node for node in self.cluster.nodes.values() if node is not self.leader)

    def go_on(self, milliseconds: int) -> None:
        self.cluster.world.run(until_ms=self.cluster.world.now_ms + milliseconds)

    def is_answered_after(self, node: BrokerNode, request: CreateTopicsRequest, ms: int, code: ErrorCode) -> None:
        """The creation is answered with this code after so many milliseconds, and not before."""
        answers: list[Any] = []
        node.ask(request, CREATE_VERSION, answers.append)
        self.go_on(ms - 1)
        assert answers == []
        self.go_on(1)
        assert [topic.error_code for topic in answers[0].topics] == [code]

    def answer(self, node: BrokerNode, request: Any, version: int) -> Any:
        answers: list[Any] = []
        node.ask(request, version, answers.append)
        self.go_on(1_000)
        (answer,) = answers
        return answer


@pytest.fixture
def nodes() -> ForwardingBench:
    return ForwardingBench()


def create(name: str, *, timeout_ms: int = 30_000) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
    return CreateTopicsRequest(topics=(topic,), timeout_ms=timeout_ms)


def alter(*resources: tuple[int, str, str, str]) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(
        resources=tuple(
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=(IncrementallyAlterableConfig(name=setting, config_operation=0, value=value),),
            )
            for kind, name, setting, value in resources
        ),
        validate_only=False,
    )


def test_any_node_forwards_any_request_and_sees_its_effect_when_it_answers(nodes: ForwardingBench) -> None:
    for node in nodes.cluster.nodes.values():
        name = f"from-{node.key.id}"
        seen: list[bool] = []
        note = partial(_note, seen, node, name)
        node.ask(create(name), CREATE_VERSION, note)
        nodes.go_on(1_000)
        assert seen == [True]


def _note(seen: list[bool], node: BrokerNode, name: str, _: Any) -> None:
    seen.append(name in node.controller.image.topics)


def test_a_refusal_of_the_controller_comes_back_as_it_is(nodes: ForwardingBench) -> None:
    nodes.answer(nodes.other, create("orders"), CREATE_VERSION)
    (result,) = nodes.answer(nodes.other, create("orders"), CREATE_VERSION).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert "orders" in result.error_message


def test_the_check_of_a_forwarded_unregistration_is_the_controllers(nodes: ForwardingBench) -> None:
    answer = nodes.answer(nodes.other, UnregisterBrokerRequest(broker_id=nodes.leader.key.id), 0)
    assert (answer.error_code, "stop it first" in answer.error_message) == (ErrorCode.INVALID_REQUEST, True)


def test_a_forwarded_request_waits_for_the_next_controller(nodes: ForwardingBench) -> None:
    receiver = nodes.other
    nodes.leader.crash()
    answers: list[Any] = []
    receiver.ask(create("orders"), CREATE_VERSION, answers.append)
    nodes.go_on(200)
    assert answers == []
    nodes.go_on(6_000)
    assert [topic.error_code for topic in answers[0].topics] == [ErrorCode.NONE]


def test_without_a_controller_a_forwarded_request_ends_with_its_own_time(nodes: ForwardingBench) -> None:
    nodes.cluster.network.separate([nodes.other.key.id], nodes.cluster.nodes)
    receiver = nodes.other
    nodes.is_answered_after(receiver, create("orders", timeout_ms=1_500), 1_500, ErrorCode.REQUEST_TIMED_OUT)
    assert len(receiver.link.forwarding) == 0


def test_a_forgotten_forwarded_request_has_run_out_of_time(
    nodes: ForwardingBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EnvelopeSender, "has_forgotten", lambda *_: True)
    (result,) = nodes.answer(nodes.other, create("orders"), CREATE_VERSION).topics
    assert result.error_code == ErrorCode.REQUEST_TIMED_OUT


def test_a_shorter_timeout_of_a_forwarded_request_counts_as_a_second(nodes: ForwardingBench) -> None:
    nodes.cluster.network.separate([nodes.other.key.id], nodes.cluster.nodes)
    nodes.is_answered_after(nodes.other, create("orders", timeout_ms=1), SHORTEST_MS, ErrorCode.REQUEST_TIMED_OUT)


def is_busy(node: BrokerNode) -> list[Callable[[], None]]:
    """From now on a node acts on no change. Returns the callbacks that wait until it has."""
    waiting: list[Callable[[], None]] = []
    node.controller.answer_when(waiting.append)
    return waiting


def test_the_controllers_own_node_answers_when_it_has_acted_on_the_change(nodes: ForwardingBench) -> None:
    waiting = is_busy(nodes.leader)
    answers: list[Any] = []
    nodes.leader.ask(create("orders"), CREATE_VERSION, answers.append)
    nodes.go_on(1_000)
    assert "orders" in nodes.leader.controller.image.topics
    assert answers == []
    for callback in waiting:
        callback()
    assert [topic.error_code for topic in answers[0].topics] == [ErrorCode.NONE]


@pytest.mark.parametrize("is_asked_at_the_controller", [True, False])
def test_a_committed_decision_is_answered_at_the_deadline_even_if_it_is_not_acted_on(
    nodes: ForwardingBench, *, is_asked_at_the_controller: bool
) -> None:
    receiver = nodes.leader if is_asked_at_the_controller else nodes.other
    is_busy(receiver)
    nodes.is_answered_after(receiver, create("orders", timeout_ms=1_500), 1_500, ErrorCode.NONE)


def test_a_refusal_of_the_controllers_own_node_waits_for_no_directories(nodes: ForwardingBench) -> None:
    nodes.answer(nodes.leader, create("orders"), CREATE_VERSION)
    is_busy(nodes.leader)
    (result,) = nodes.answer(nodes.leader, create("orders"), CREATE_VERSION).topics
    assert result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_another_nodes_client_does_not_wait_for_the_directories_of_the_controller(nodes: ForwardingBench) -> None:
    is_busy(nodes.leader)
    (result,) = nodes.answer(nodes.other, create("orders"), CREATE_VERSION).topics
    assert result.error_code == ErrorCode.NONE


def test_a_forwarded_request_without_a_timeout_waits_as_long_as_a_nodes_own(nodes: ForwardingBench) -> None:
    nodes.cluster.network.separate([nodes.other.key.id], nodes.cluster.nodes)
    nodes.is_answered_after(nodes.other, create("orders", timeout_ms=0), 30_000, ErrorCode.REQUEST_TIMED_OUT)


def test_a_client_that_has_gone_is_forgotten(nodes: ForwardingBench) -> None:
    receiver = nodes.other
    nodes.cluster.network.separate([receiver.key.id], nodes.cluster.nodes)
    connection = receiver.ask(create("orders"), CREATE_VERSION, lambda _: None)
    assert (len(receiver.link.forwarding), len(receiver.link.requests)) == (1, 1)
    before = len(receiver.link.requests)
    connection.hang_up()
    assert len(receiver.link.forwarding) == 0
    assert len(receiver.link.requests) == before - 1


def test_the_number_of_waiting_forwarded_requests_is_bounded(nodes: ForwardingBench) -> None:
    receiver = nodes.other
    nodes.cluster.network.separate([receiver.key.id], nodes.cluster.nodes)
    answers: list[Any] = []
    connections: list[RecordingConnection] = [
        receiver.ask(create("orders"), CREATE_VERSION, answers.append) for _ in range(MAX_FORWARDED)
    ]
    assert answers == []
    receiver.ask(create("orders"), CREATE_VERSION, answers.append)
    assert [topic.error_code for topic in answers[0].topics] == [ErrorCode.REQUEST_TIMED_OUT]
    connections[0].hang_up()
    receiver.ask(create("orders"), CREATE_VERSION, answers.append)
    assert len(answers) == 1


@pytest.mark.parametrize("settings", [1, 100])
def test_a_connection_with_a_request_of_many_settings_takes_no_other(nodes: ForwardingBench, settings: int) -> None:
    receiver = nodes.other
    nodes.cluster.network.separate([receiver.key.id], nodes.cluster.nodes)
    change = IncrementallyAlterableConfig(name="retention.ms", config_operation=0, value="1000")
    topic = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(change,) * settings)
    request = IncrementalAlterConfigsRequest(resources=(topic,), validate_only=False)
    connection: RecordingConnection = receiver.ask(request, 1, [].append)
    assert connection.is_suspended == (settings > 64)


def test_a_broker_is_asked_for_its_own_settings_and_the_rest_is_passed_on(nodes: ForwardingBench) -> None:
    receiver = nodes.other
    nodes.answer(receiver, create("orders"), CREATE_VERSION)
    own, another = str(receiver.key.id), str(nodes.leader.key.id)
    request = alter(
        (4, another, "log.retention.ms", "1000"),
        (2, "orders", "retention.ms", "2000"),
        (4, own, "no.such.setting", "3000"),
        (4, "", "no.such.setting", "4000"),
    )
    answer = nodes.answer(receiver, request, 1)
    assert [result.resource_name for result in answer.responses] == [another, "orders", own, ""]
    assert [result.error_code for result in answer.responses] == [
        ErrorCode.INVALID_REQUEST,
        0,
        *[ErrorCode.INVALID_REQUEST] * 2,
    ]
    assert ["ask broker" in (result.error_message or "") for result in answer.responses] == [True, False, False, False]
    configs = nodes.leader.controller.image.configs
    assert {name: dict(values) for (_, name), values in configs.items()} == {"orders": {"retention.ms": "2000"}}


def test_a_request_for_another_brokers_settings_alone_is_not_forwarded(nodes: ForwardingBench) -> None:
    answers: list[Any] = []
    request = alter((4, str(nodes.leader.key.id), "log.retention.ms", "1000"))
    nodes.other.ask(request, 1, answers.append)
    assert [result.error_code for result in answers[0].responses] == [ErrorCode.INVALID_REQUEST]
