"""File descriptors are shared out before they are short, and topics are refused before the node suffers."""

import logging

import pytest

from tailrace.metadata.commands import TopicSpec
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.descriptors import CarefulController, plan_descriptors, plan_node_descriptors
from tailrace.node.settings.config import NodeConfig
from tailrace.server.ports import Controller
from testkit.nodes.ports import DeferredController
from testkit.quorum.controller_commands import create_topics, delete_topics


def test_connections_and_files_fit_into_the_limit_together() -> None:
    for limit in (128, 1_024, 4_096, 20_000, 1_000_000):
        plan = plan_descriptors(limit, max_connections=2_000)
        assert plan.connections + plan.files < limit
        assert plan.files >= 16
        assert plan.connections >= 16


def test_every_listener_has_its_share() -> None:
    for limit in (128, 1_024, 20_000):
        plan = plan_descriptors(limit, max_connections=2_000, listeners=3)
        assert 3 * plan.connections + plan.files < limit
        assert plan.connections >= 13
    two = {"listeners": "A://127.0.0.1:0,B://127.0.0.1:0"}
    assert plan_node_descriptors(NodeConfig(two), 1_024).connections == 244


def test_few_descriptors_are_logged_with_the_way_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert plan_descriptors(1_024, max_connections=2_000).connections == 488
    assert "ulimit -n 4048" in caplog.text


def test_too_few_descriptors_refuse_the_start() -> None:
    with pytest.raises(KafkaError, match="ulimit -n") as refusal:
        plan_descriptors(64, max_connections=2_000)
    assert refusal.value.code is ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(("open_now", "reclaimable", "is_refused"), [(79, 0, False), (80, 0, True), (95, 20, False)])
def test_topics_are_refused_near_the_limit_and_nothing_else_is(
    open_now: int, reclaimable: int, is_refused: bool
) -> None:
    behind = DeferredController()
    controller: Controller = CarefulController(
        behind, limit=100, reclaimable=lambda: reclaimable, count_open=lambda: open_now
    )
    outcomes: list[object] = []
    create, delete = create_topics(TopicSpec(name="orders")), delete_topics()
    controller.submit(create, outcomes.append)
    controller.submit(delete, outcomes.append)
    assert behind.commands == ([delete] if is_refused else [create, delete])
    for outcome in outcomes:
        assert isinstance(outcome, KafkaError)
        assert outcome.code is ErrorCode.POLICY_VIOLATION
        assert "ulimit -n" in outcome.detail
    assert len(outcomes) == is_refused
