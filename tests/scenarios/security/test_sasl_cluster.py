"""Three nodes with TLS and SASL between them, and clients of both: users come and go while clients work."""

import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tailrace import Admin, Consumer, Producer
from tailrace.client.admin.configs import BROKER
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from testkit.nodes.certificates import TeamCertificates

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TeamCertificates:
    return TeamCertificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(certificates: TeamCertificates) -> Iterator[Cluster]:
    config = {
        **certificates.settings(client_auth="none"),
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.jaas.config": f'{MODULE} required username="node" password="node-secret";',
        "default.replication.factor": "3",
    }
    with Cluster(brokers=3, config=config) as nodes:
        yield nodes


def of_user(
    cluster: Cluster, certificates: TeamCertificates, name: str, password: str, mechanism: str
) -> dict[str, str]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificates.trusted),
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def alice(cluster: Cluster, certificates: TeamCertificates) -> None:
    nodes = of_user(cluster, certificates, "node", "node-secret", "SCRAM-SHA-512")
    admin = AdminClient(nodes)
    wanted = UserScramCredentialUpsertion("alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096), b"alices")
    admin.alter_user_scram_credentials([wanted])["alice"].result(60)


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_our_clients_and_librdkafka_work_as_a_user(
    cluster: Cluster, certificates: TeamCertificates, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = of_user(cluster, certificates, "alice", "alices", mechanism)
    monkeypatch.setenv("OF_ALICE", "alices")
    with Producer({**settings, "sasl.password": "env:OF_ALICE"}) as producer:
        producer.send(f"ours-{mechanism}", b"a value").get(timeout=60)
    with Consumer(settings, topics=[f"ours-{mechanism}"], auto_offset_reset="earliest", until="end") as consumer:
        assert [record.value for record in consumer] == [b"a value"]
    of_librdkafka = confluent_kafka.Producer(settings)
    of_librdkafka.produce(f"theirs-{mechanism}", b"a value")
    assert of_librdkafka.flush(60) == 0


@pytest.mark.usefixtures("alice")
def test_a_wrong_password_is_an_error_at_once_and_shows_no_password(
    cluster: Cluster, certificates: TeamCertificates, caplog: pytest.LogCaptureFixture
) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        settings = of_user(cluster, certificates, "alice", "canary", mechanism)
        caplog.set_level(logging.DEBUG)
        admin = Admin(settings)
        with pytest.raises(KafkaError) as refused, admin:
            admin.list_topics()
        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        frames = traceback.TracebackException.from_exception(refused.value, capture_locals=True).stack
        ours = [frame for frame in frames if frame.filename != __file__]
        assert any(frame.locals for frame in ours)
        assert "canary" not in f"{refused.value} {admin!r} {vars(admin)!r} {caplog.text}"
        assert "canary" not in str([frame.locals for frame in ours])


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("config", ["sasl.password=canary", "sasl.password=canary\nsasl.jaas.config=canary"])
def test_a_command_shows_no_password_even_with_its_traceback(
    cluster: Cluster, certificates: TeamCertificates, tmp_path: Path, config: str
) -> None:
    settings = of_user(cluster, certificates, "alice", "", "SCRAM-SHA-256")
    lines = [f"{name}={value}" for name, value in settings.items() if value]
    (tmp_path / "client.properties").write_text("\n".join([*lines, config]))
    command = ["topics", "list", "--bootstrap-server", cluster.bootstrap_servers]
    ended = subprocess.run(
        [sys.executable, "-m", "tailrace", *command, "--command-config", str(tmp_path / "client.properties")],
        env={**os.environ, "TAILRACE_TRACEBACK": "1", "PYTHONASYNCIODEBUG": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "alice" in ended.stderr or "sasl.jaas.config and sasl.username: give either" in ended.stderr
    assert "canary" not in ended.stdout + ended.stderr


def test_a_description_of_a_broker_leaves_secrets_out(cluster: Cluster, certificates: TeamCertificates) -> None:
    settings = of_user(cluster, certificates, "node", "node-secret", "SCRAM-SHA-512")
    with Admin(settings) as admin:
        described = {entry.name: entry for entry in admin.describe_configs(BROKER, "1")}
    assert "secret" not in str(list(described.values()))
    sensitive = {name: entry.value for name, entry in described.items() if entry.is_sensitive}
    assert set(sensitive.values()) == {None}
    assert {"sasl.jaas.config", "ssl.key.password", "ssl.keystore.key"} <= sensitive.keys()


def test_the_log_of_the_nodes_has_no_password(cluster: Cluster) -> None:
    for node in cluster.running_nodes:
        assert "event=node-started" in cluster.log_text(node)
        assert "-secret" not in cluster.log_text(node)
