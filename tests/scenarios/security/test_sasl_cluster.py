"""Three nodes with TLS and SASL between them, and clients of both: users come and go while clients work."""

from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from tailrace import Admin, Consumer, Producer
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
    cluster: Cluster, certificates: TeamCertificates
) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        settings = of_user(cluster, certificates, "alice", "canary", mechanism)
        with pytest.raises(KafkaError) as refused, Admin(settings) as admin:
            admin.list_topics()
        assert refused.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
        assert "canary" not in str(refused.value)


def test_the_log_of_the_nodes_has_no_password(cluster: Cluster) -> None:
    for node in cluster.running_nodes:
        assert "event=node-started" in cluster.log_text(node)
        assert "-secret" not in cluster.log_text(node)
