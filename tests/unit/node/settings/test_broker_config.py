"""A node's own settings that hold for the whole cluster."""

import logging

import pytest

from tailrace.metadata.image import ALL_BROKERS, EMPTY_IMAGE, ClusterImage
from tailrace.node.settings.broker_config import founding_settings, log_overruled_settings
from tailrace.node.settings.config import NodeConfig

TOLD = {"min.insync.replicas": "02", "unclean.leader.election.enable": "TRUE", "num.partitions": "3"}


def test_a_new_log_has_the_settings_that_decide_on_leaders() -> None:
    assert founding_settings(NodeConfig({})) == {"min.insync.replicas": "1"}
    assert founding_settings(NodeConfig(TOLD)) == {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}


@pytest.mark.parametrize(
    ("agreed", "named"),
    [
        ({"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}, []),
        ({"min.insync.replicas": "3", "unclean.leader.election.enable": "true"}, ["min.insync.replicas=2"]),
        ({}, ["min.insync.replicas=2", "unclean.leader.election.enable=true"]),
    ],
)
def test_a_setting_that_differs_from_the_clusters_is_logged_with_the_way_out(
    agreed: dict[str, str], named: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        log_overruled_settings(NodeConfig(TOLD), ClusterImage(configs={ALL_BROKERS: agreed}))
    assert [record.getMessage().rstrip("'").split()[-1] for record in caplog.records] == named


def test_a_setting_that_is_absent_or_the_default_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log_overruled_settings(NodeConfig({}), ClusterImage(configs={ALL_BROKERS: {"min.insync.replicas": "3"}}))
        log_overruled_settings(NodeConfig({"min.insync.replicas": "1"}), EMPTY_IMAGE)
    assert not caplog.records
