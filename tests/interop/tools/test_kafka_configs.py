"""Apache Kafka's own `kafka-configs` changes settings of a node and shows where each comes from."""

from uuid import uuid4

import pytest

from interop.kafka_tools import run
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("kafka_tools")]


def kafka_configs(cluster: Cluster, *options: str) -> str:
    """The output of the tool."""
    return run("kafka-configs", "--bootstrap-server", cluster.bootstrap_servers, *options).out


def test_a_topics_settings_are_changed_and_shown_with_their_sources(tailrace_cluster: Cluster) -> None:
    name = f"configs-{uuid4()}"
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({name: 1})
    entity = ("--entity-type", "topics", "--entity-name", name)
    settings = "retention.ms=5000,cleanup.policy=[compact,delete]"
    assert "Completed" in kafka_configs(tailrace_cluster, "--alter", *entity, "--add-config", settings)
    assert "Completed" in kafka_configs(tailrace_cluster, "--alter", *entity, "--delete-config", "cleanup.policy")
    shown = kafka_configs(tailrace_cluster, "--describe", *entity)
    assert "retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000, " in shown
    assert "DEFAULT_CONFIG:log.retention.hours=168}" in shown
    assert "cleanup.policy" not in shown


@pytest.mark.parametrize(
    ("kind", "setting", "value"),
    [("groups", "consumer.session.timeout.ms", "50000"), ("client-metrics", "interval.ms", "60000")],
)
def test_settings_of_groups_and_client_metrics_are_changed_and_shown(
    tailrace_cluster: Cluster, kind: str, setting: str, value: str
) -> None:
    entity = ("--entity-type", kind, "--entity-name", f"configs-{uuid4()}")
    assert "Completed" in kafka_configs(tailrace_cluster, "--alter", *entity, "--add-config", f"{setting}={value}")
    assert f"{setting}={value}" in kafka_configs(tailrace_cluster, "--describe", *entity)
    kafka_configs(tailrace_cluster, "--alter", *entity, "--delete-config", setting)
    assert f"{setting}={value}" not in kafka_configs(tailrace_cluster, "--describe", *entity)


def test_a_brokers_settings_are_changed_and_shown_with_their_sources(tailrace_cluster: Cluster) -> None:
    broker, default = (
        ("--entity-type", "brokers", "--entity-name", "1"),
        ("--entity-type", "brokers", "--entity-default"),
    )
    kafka_configs(tailrace_cluster, "--alter", *default, "--add-config", "log.index.interval.bytes=5000")
    kafka_configs(tailrace_cluster, "--alter", *broker, "--add-config", "log.index.interval.bytes=6000")
    shown = kafka_configs(tailrace_cluster, "--describe", *broker)
    assert (
        "synonyms={DYNAMIC_BROKER_CONFIG:log.index.interval.bytes=6000, "
        "DYNAMIC_DEFAULT_BROKER_CONFIG:log.index.interval.bytes=5000, DEFAULT_CONFIG:log.index.interval.bytes=4096}"
    ) in shown
    for entity in (broker, default):
        kafka_configs(tailrace_cluster, "--alter", *entity, "--delete-config", "log.index.interval.bytes")
        assert "log.index.interval.bytes" not in kafka_configs(tailrace_cluster, "--describe", *entity)
