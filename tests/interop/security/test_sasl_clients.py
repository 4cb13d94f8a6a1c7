"""Clients of other projects on listeners with SASL_SSL: SCRAM and PLAIN over TLS; Kafka's tools set users and rules."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.admin
import kafka.errors
import pytest
from aiokafka.helpers import create_ssl_context
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from interop import kafkajs
from interop.kafka_tools import command, run
from interop.librdkafka import DEADLINE_S
from tailrace.testing import Cluster
from testkit.nodes.certificates import TeamCertificates

pytestmark = [
    pytest.mark.interop,
    # aiokafka leaves transports with TLS to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

NODES = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="node-secret";'
ALICE, PASSWORD = "alice", "alice-secret with = and ;"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class SaslUser(NamedTuple):
    """A user of a cluster, in the settings of each client."""

    bootstrap: str
    authority: Path
    mechanism: str
    name: str = ALICE
    password: str = PASSWORD

    @property
    def librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.name,
            "sasl.password": self.password,
        }

    @property
    def python(self) -> dict[str, Any]:
        """The settings of kafka-python and aiokafka, but for the authority."""
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.name,
            "sasl_plain_password": self.password,
        }

    def java(self, directory: Path) -> str:
        """A file of settings for Kafka's tools."""
        file = directory / "client.properties"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        file.write_text(
            f"security.protocol=SASL_SSL\nsasl.mechanism={self.mechanism}\n"
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.authority}\n"
            f'sasl.jaas.config={module} required username="{self.name}" password="{self.password}";\n'
        )
        return str(file)


class SecuredCluster(NamedTuple):
    """Three nodes with TLS and SASL, of which Alice is a user by both mechanisms."""

    nodes: Cluster
    authority: Path

    def user(self, mechanism: str, name: str = ALICE, password: str = PASSWORD) -> SaslUser:
        return SaslUser(self.nodes.bootstrap_servers, self.authority, mechanism, name, password)

    def administrator(self, mechanism: str = "SCRAM-SHA-512") -> SaslUser:
        return self.user(mechanism, "node", "node-secret")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    team = TeamCertificates(tmp_path_factory.mktemp("certificates"))
    config = {
        **team.settings(client_auth="none"),
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.jaas.config": NODES,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:node",
        "allow.everyone.if.no.acl.found": "true",
        "connections.max.reauth.ms": "3000",
    }
    with Cluster(brokers=3, config=config) as nodes:
        secured = SecuredCluster(nodes, team.trusted)
        admin = AdminClient(secured.administrator().librdkafka)
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            info = ScramCredentialInfo(mechanism, 8_192)
            wanted = UserScramCredentialUpsertion(ALICE, info, PASSWORD.encode())
            admin.alter_user_scram_credentials([wanted])[ALICE].result(DEADLINE_S)
        yield secured


def confluent_round_trip(user: SaslUser, topic: str) -> str:
    producer = confluent_kafka.Producer(user.librdkafka)
    producer.produce(topic, b"a value")
    assert producer.flush(DEADLINE_S) == 0
    consumer = confluent_kafka.Consumer({**user.librdkafka, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        record = consumer.poll(DEADLINE_S)
        assert record is not None
        return (record.value() or b"").decode()
    finally:
        consumer.close()


def kafka_python_round_trip(user: SaslUser, topic: str) -> str:
    settings = {**user.python, "ssl_cafile": str(user.authority)}
    producer = kafka.KafkaProducer(**settings)
    try:
        producer.send(topic, b"a value").get(DEADLINE_S)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=DEADLINE_S * 1_000
    )
    try:
        return str(next(iter(consumer)).value.decode())
    finally:
        consumer.close()


def aiokafka_round_trip(user: SaslUser, topic: str) -> str:
    settings = {**user.python, "ssl_context": create_ssl_context(cafile=str(user.authority))}

    async def work() -> str:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"a value")
        async with aiokafka.AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest") as consumer:
            record = await asyncio.wait_for(consumer.getone(), DEADLINE_S)
            return str(record.value.decode())

    return asyncio.run(work())


def kcat_round_trip(user: SaslUser, topic: str) -> str:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    settings = {name: value for name, value in user.librdkafka.items() if name != "bootstrap.servers"}
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    base = ["kcat", "-b", user.bootstrap, "-t", topic, *options]
    subprocess.run([*base, "-P"], input=b"a value\n", timeout=DEADLINE_S, check=True)
    read = [*base, "-C", "-o", "beginning", "-c", "1", "-e"]
    done = subprocess.run(read, capture_output=True, encoding="utf-8", timeout=DEADLINE_S, check=True)
    return done.stdout.strip()


ROUND_TRIPS = (confluent_round_trip, kafka_python_round_trip, aiokafka_round_trip)


def test_kcat_writes_and_reads_as_a_user(cluster: SecuredCluster) -> None:
    """By PLAIN: librdkafka before 2.6 repeats its nonce in SCRAM, which Kafka refuses too since CVE-2024-56128."""
    assert kcat_round_trip(cluster.user("PLAIN"), "kcat") == "a value"


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_a_client_writes_and_reads_as_a_user(
    cluster: SecuredCluster, round_trip: Callable[[SaslUser, str], str], mechanism: str
) -> None:
    topic = f"{round_trip.__name__}-{mechanism}"
    assert round_trip(cluster.user(mechanism), topic) == "a value"


@pytest.mark.parametrize("mechanism", ["plain", "scram-sha-256", "scram-sha-512"])
def test_kafkajs_writes_and_reads_as_a_user(cluster: SecuredCluster, mechanism: str) -> None:
    if (why := kafkajs.absent()) is not None:
        pytest.skip(why)

    def said(password: str) -> str:
        program = str(Path(kafkajs.__file__).parent / "js" / "sasl.js")
        words = [cluster.nodes.bootstrap_servers, f"kafkajs-{mechanism}", mechanism, ALICE, password]
        done = subprocess.run(
            ["node", program, *words, str(cluster.authority)],
            capture_output=True,
            encoding="utf-8",
            timeout=DEADLINE_S,
            env=kafkajs.environment(),
            check=True,
        )
        return done.stdout.strip()

    assert said(PASSWORD) == "from kafkajs"
    assert "SASL" in said("wrong")


@pytest.mark.usefixtures("kafka_tools")
def test_kafkas_tools_set_users_and_rules_and_its_console_clients_follow_them(
    cluster: SecuredCluster, tmp_path: Path
) -> None:
    """kafka-configs makes a user and deletes a credential, kafka-acls takes rights away, the console clients notice."""
    (tmp_path / "nodes").mkdir()
    at = ("--bootstrap-server", cluster.nodes.bootstrap_servers)
    as_node = (*at, "--command-config", cluster.administrator().java(tmp_path / "nodes"))
    entity = (*as_node, "--entity-type", "users", "--entity-name", "erin")
    run("kafka-configs", *entity, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=erins = ;]")
    assert "SCRAM-SHA-512=iterations=8192" in run("kafka-configs", *entity, "--describe").out
    rule = (*as_node, "--topic", "console", "--allow-principal", "User:erin")
    run("kafka-acls", *rule, "--add", "--producer")
    assert "principal=User:erin, host=*, operation=WRITE" in run("kafka-acls", *as_node, "--list").out

    erin = cluster.user("SCRAM-SHA-512", "erin", "erins = ;").java(tmp_path)
    to = (*at, "--topic", "console")
    run("kafka-console-producer", *to, "--producer.config", erin, stdin="a value\n")
    read = (*to, "--consumer.config", erin, "--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
    reading = command("kafka-console-consumer", *read)
    refused = subprocess.run(reading, capture_output=True, encoding="utf-8", timeout=2 * DEADLINE_S, check=False)
    assert "a value" not in refused.stdout
    assert "Processed a total of 0 messages" in refused.stderr
    run("kafka-acls", *rule, "--add", "--operation", "READ")
    assert run("kafka-console-consumer", *read).out.strip() == "a value"
    run("kafka-acls", *as_node, "--topic", "console", "--remove", "--force")
    assert "User:erin" not in run("kafka-acls", *as_node, "--list").out
    run("kafka-configs", *entity, "--alter", "--delete-config", "SCRAM-SHA-512")
    assert "erin" not in run("kafka-configs", *as_node, "--describe", "--entity-type", "users").out


def test_administrators_clients_set_and_find_users(cluster: SecuredCluster) -> None:
    nodes = cluster.administrator("SCRAM-SHA-256")
    admin = kafka.KafkaAdminClient(**nodes.python, ssl_cafile=str(nodes.authority))
    try:
        secret = kafka.admin.UserScramCredentialUpsertion("carol", kafka.admin.ScramMechanism.SCRAM_SHA_256, "carols")
        assert admin.alter_user_scram_credentials([secret]) == {"carol": None}
        found = admin.describe_user_scram_credentials(["carol"])
        assert [info["iterations"] for info in found["carol"]["credential_infos"]] == [4_096]
    finally:
        admin.close()
    of_librdkafka = AdminClient(nodes.librdkafka)
    kind = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
    wanted = UserScramCredentialUpsertion("dave", kind, b"daves")
    of_librdkafka.alter_user_scram_credentials([wanted])["dave"].result(DEADLINE_S)
    assert "dave" in of_librdkafka.describe_user_scram_credentials().result(DEADLINE_S)
    topic = "of-carol-and-dave"
    assert kafka_python_round_trip(cluster.user("SCRAM-SHA-256", "carol", "carols"), topic) == "a value"
    assert confluent_round_trip(cluster.user("SCRAM-SHA-512", "dave", "daves"), topic) == "a value"


def test_a_wrong_password_is_refused_by_name(cluster: SecuredCluster) -> None:
    wrong = cluster.user("SCRAM-SHA-256", password="wrong")
    said: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({**wrong.librdkafka, "error_cb": said.append, "log_level": 0})
    producer.produce("never", b"a value")
    producer.flush(3)
    producer.purge()
    assert confluent_kafka.KafkaError._AUTHENTICATION in {error.code() for error in said}
    with pytest.raises(kafka.errors.KafkaError, match="(?i)authentication|credentials|bootstrap"):
        kafka.KafkaAdminClient(**wrong.python, ssl_cafile=str(wrong.authority), request_timeout_ms=4_000)

    async def start() -> None:
        context = create_ssl_context(cafile=str(wrong.authority))
        unwelcome = aiokafka.AIOKafkaProducer(**wrong.python, ssl_context=context)
        try:
            await unwelcome.start()
        finally:
            await unwelcome.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(start())


def test_a_client_authenticates_again_while_it_works(cluster: SecuredCluster) -> None:
    """The sessions of this cluster last for three seconds, and librdkafka 2 authenticates again before their end."""
    producer = confluent_kafka.Producer(cluster.user("SCRAM-SHA-256").librdkafka)
    failed: list[confluent_kafka.KafkaError] = []
    delivered = 0

    def on_delivery(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
        nonlocal delivered
        delivered += 1
        if error is not None:
            failed.append(error)

    while delivered < 300:
        producer.produce("renewed", b"a value", on_delivery=on_delivery)
        producer.poll(0.03)
    assert producer.flush(DEADLINE_S) == 0
    assert not failed
