"""The class that takes the place of testcontainers' KafkaContainer."""

from pathlib import Path
from typing import Any

import pytest

from tailrace import Admin, Producer
from tailrace.testing import ClusterError, KafkaContainer


def test_the_calls_of_a_project_of_testcontainers_work_unchanged(tmp_path: Path) -> None:
    (tmp_path / "kafka.env").write_text("# comment\nKAFKA_NUM_PARTITIONS='5'\n\n")
    container = (
        KafkaContainer("confluentinc/cp-kafka:7.6.0", port=9093, env={"KAFKA_LOG_RETENTION_MS": "7000000"})
        .with_kraft()
        .with_cluster_id("MkU3OEVBNTcwNTJENDM2Qg")
        .with_name("kafka-of-orders")
        .with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "true")
        .with_envs(KAFKA_HEAP_OPTS="-Xmx1g", KAFKA_LISTENERS="PLAINTEXT://0.0.0.0:9093", CLUSTER_ID="x")
        .with_env_file(tmp_path / "kafka.env")
        .with_exposed_ports(9093, 9092)
        .with_kwargs(mem_limit="1g")
    )
    with container as kafka:
        server = kafka.get_bootstrap_server()
        assert server == f"{kafka.get_container_host_ip()}:{kafka.get_exposed_port(9093)}"
        with Producer(server) as producer:
            producer.send_and_wait("made-by-first-use", b"tea")
        with Admin(server) as admin:
            assert len(admin.describe_topics(["made-by-first-use"])[0].partitions) == 5
        assert b"event=node-started" in b"".join(kafka.get_logs())
        assert kafka.cluster.read_all("made-by-first-use")[0].value == b"tea"


def test_it_is_started_and_stopped_by_calls() -> None:
    kafka = KafkaContainer()
    with pytest.raises(ClusterError, match="the container was not started: say `with KafkaContainer"):
        kafka.get_bootstrap_server()
    assert kafka.start() is kafka
    first = kafka.get_bootstrap_server()
    assert kafka.start().get_bootstrap_server() == first
    kafka.stop(force=True)
    kafka.stop()
    with pytest.raises(ClusterError, match="not started"):
        kafka.get_bootstrap_server()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("with_network", "containers of a Docker network cannot reach it"),
        ("with_bind_ports", "the node takes a free port, which get_bootstrap_server"),
        ("with_volume_mapping", r"Cluster\(directory=...\) keeps its data"),
        ("exec", "is a process of this machine"),
        ("get_wrapped_container", "the attribute `cluster` has kill"),
        ("get_wrapped_container", r"wait_for_logs\(\) can go, since start\(\) has waited until the node answers"),
        ("get_schema_registry_address", "a node has no schema registry"),
        ("with_kraftt", "did you mean 'with_kraft'"),
    ],
)
def test_a_call_that_makes_no_sense_without_docker_is_refused_with_the_way_out(name: str, why: str) -> None:
    with pytest.raises(AttributeError, match=f"no '?{name}'?.*{why}"):
        getattr(KafkaContainer(), name)


@pytest.mark.parametrize("arguments", [{"network": "net"}, {"volumes": []}, {"no_such": 1}])
def test_an_argument_that_makes_no_sense_without_docker_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match=next(iter(arguments))):
        KafkaContainer(**arguments)


def test_a_variable_that_is_no_setting_of_a_node_is_named() -> None:
    with pytest.raises(ClusterError, match="num.partition"):
        KafkaContainer().with_env("KAFKA_NUM_PARTITION", "3").start()
