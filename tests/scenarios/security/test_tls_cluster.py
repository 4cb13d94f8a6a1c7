"""Three nodes whose listeners all have TLS: clients, a killed leader, renewed certificates."""

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace import Admin, Consumer, KafkaError, Producer
from tailrace.testing import Cluster
from testkit.nodes.certificates import TeamCertificates
from testkit.programs.waiting import wait_until


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> TeamCertificates:
    return TeamCertificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(team: TeamCertificates) -> Iterator[Cluster]:
    settings = {**team.settings(), "default.replication.factor": "3", "min.insync.replicas": "2"}
    with Cluster(brokers=3, config=settings) as nodes:
        yield nodes


@pytest.fixture
def alice(team: TeamCertificates) -> dict[str, Any]:
    return {
        "security_protocol": "SSL",
        "ssl_truststore_location": str(team.trusted),
        "ssl_keystore_location": str(team.client("alice")),
    }


def _read(cluster: Cluster, topic: str, client: dict[str, Any]) -> list[bytes | None]:
    with Consumer(
        cluster.bootstrap_servers, topics=[topic], auto_offset_reset="earliest", until="end", **client
    ) as consumer:
        return sorted((record.value for record in consumer), key=lambda value: int(value or b"0"))


def test_records_survive_the_death_of_a_leader(cluster: Cluster, alice: dict[str, Any]) -> None:
    with Admin(cluster.bootstrap_servers, **alice) as admin:
        admin.create_topics({"kept": 1})
        with Producer(cluster.bootstrap_servers, **alice) as producer:
            for number in range(200):
                producer.send("kept", b"%d" % number, partition=0)
            producer.flush()
            leader = admin.describe_topics(["kept"])[0].partitions[0].leader
            cluster.kill(leader)
            for number in range(200, 400):
                producer.send("kept", b"%d" % number, partition=0)
    assert _read(cluster, "kept", alice) == [b"%d" % number for number in range(400)]
    cluster.start(leader)


def test_certificates_are_renewed_under_load_with_no_failed_request(
    cluster: Cluster, team: TeamCertificates, alice: dict[str, Any]
) -> None:
    """Old connections keep their certificates; each new connection gets the new certificate."""
    with Admin(cluster.bootstrap_servers, **alice) as admin:
        admin.create_topics({"renewed": 3})
    with Producer(cluster.bootstrap_servers, **alice) as producer:
        written = [producer.send("renewed", b"%d" % number) for number in range(300)]
        team.renew_node()
        written += [producer.send("renewed", b"%d" % number) for number in range(300, 600)]
        wait_until(lambda: _has_renewed(cluster, alice), "each node takes the new certificate")
        written += [producer.send("renewed", b"%d" % number) for number in range(600, 900)]
    assert len([future.result(0) for future in written]) == 900
    assert len(_read(cluster, "renewed", alice)) == 900


def _has_renewed(cluster: Cluster, client: dict[str, Any]) -> bool:
    """Connect to each node, and say whether each has renewed its certificate."""
    for address in cluster.bootstrap_servers.split(","):
        with Admin(address, **client) as admin:
            admin.describe_topics()
    return all("event=certificates-renewed" in cluster.log_text(node) for node in cluster.node_ids)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, "security.protocol"),
        ({"security_protocol": "SSL"}, "the server's certificate is not accepted"),
        ({"security_protocol": "SSL", "ssl_truststore_location": "TRUSTED"}, "ssl.keystore.location"),
    ],
)
def test_a_client_without_what_the_listener_asks_for_learns_the_setting(
    cluster: Cluster, team: TeamCertificates, settings: dict[str, Any], text: str
) -> None:
    given: dict[str, Any] = {
        name: str(team.trusted) if value == "TRUSTED" else value for name, value in settings.items()
    }
    with (
        pytest.raises(KafkaError, match=text),
        Admin(cluster.bootstrap_servers, bootstrap_timeout_ms=1_000, default_api_timeout_ms=1_000, **given) as admin,
    ):
        admin.describe_topics()
