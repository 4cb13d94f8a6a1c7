"""Clients of other projects on listeners with SASL: SCRAM and PLAIN without TLS; users are made by Kafka's tool."""

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
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from interop import kafkajs
from interop.kafka_tools import run
from interop.librdkafka import DEADLINE_S
from tailrace.testing import Cluster

pytestmark = pytest.mark.interop

NODES = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="node-secret";'
ALICE, PASSWORD = "alice", "alice-secret with = and ;"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")


class SaslUser(NamedTuple):
    """A user of a cluster, in the settings of each client."""

    bootstrap: str
    mechanism: str
    name: str = ALICE
    password: str = PASSWORD

    @property
    def librdkafka(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.name,
            "sasl.password": self.password,
        }

    @property
    def python(self) -> dict[str, Any]:
        """The settings of kafka-python and aiokafka."""
        return {
            "bootstrap_servers": self.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.name,
            "sasl_plain_password": self.password,
        }

    def java(self, directory: Path) -> str:
        """A file of settings for Kafka's tools."""
        file = directory / "client.properties"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        file.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={self.mechanism}\n"
            f'sasl.jaas.config={module} required username="{self.name}" password="{self.password}";\n'
        )
        return str(file)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.jaas.config": NODES,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.insecure.allow": "true",  # PLAIN without TLS
        "connections.max.reauth.ms": "3000",
    }
    with Cluster(brokers=3, config=config) as nodes:
        yield nodes


@pytest.fixture(scope="module")
def users(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, kafka_tools: None) -> str:
    """The addresses of a cluster on which Alice has both credentials."""
    nodes = SaslUser(cluster.bootstrap_servers, "SCRAM-SHA-512", "node", "node-secret")
    file = nodes.java(tmp_path_factory.mktemp("nodes"))
    to = ("--bootstrap-server", nodes.bootstrap, "--command-config", file)
    entity = ("--entity-type", "users", "--entity-name", ALICE)
    for mechanism in MECHANISMS:
        wanted = f"{mechanism}=[iterations=8192,password={PASSWORD}]"
        run("kafka-configs", *to, "--alter", *entity, "--add-config", wanted)
    shown = run("kafka-configs", *to, "--describe", *entity).out
    assert all(f"{mechanism}=iterations=8192" in shown for mechanism in MECHANISMS), shown
    run(
        "kafka-configs",
        *to,
        "--alter",
        "--entity-type",
        "users",
        "--entity-name",
        "gone",
        "--add-config",
        "SCRAM-SHA-256=[password=gone]",
    )
    run(
        "kafka-configs",
        *to,
        "--alter",
        "--entity-type",
        "users",
        "--entity-name",
        "gone",
        "--delete-config",
        "SCRAM-SHA-256",
    )
    assert "gone" not in run("kafka-configs", *to, "--describe", "--entity-type", "users").out
    return nodes.bootstrap


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
    producer = kafka.KafkaProducer(**user.python)
    try:
        producer.send(topic, b"a value").get(DEADLINE_S)
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **user.python, auto_offset_reset="earliest", consumer_timeout_ms=DEADLINE_S * 1_000
    )
    try:
        return str(next(iter(consumer)).value.decode())
    finally:
        consumer.close()


def aiokafka_round_trip(user: SaslUser, topic: str) -> str:
    async def work() -> str:
        async with aiokafka.AIOKafkaProducer(**user.python) as producer:
            await producer.send_and_wait(topic, b"a value")
        async with aiokafka.AIOKafkaConsumer(topic, **user.python, auto_offset_reset="earliest") as consumer:
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


def test_kcat_writes_and_reads_as_a_user(users: str) -> None:
    """By PLAIN: librdkafka before 2.6 repeats its nonce in SCRAM, which Kafka refuses too since CVE-2024-56128."""
    assert kcat_round_trip(SaslUser(users, "PLAIN"), "kcat") == "a value"


@pytest.mark.parametrize("mechanism", ["PLAIN", *MECHANISMS])
@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_a_client_writes_and_reads_as_a_user(
    users: str, round_trip: Callable[[SaslUser, str], str], mechanism: str
) -> None:
    topic = f"{round_trip.__name__}-{mechanism}"
    assert round_trip(SaslUser(users, mechanism), topic) == "a value"


@pytest.mark.parametrize("mechanism", ["plain", "scram-sha-256", "scram-sha-512"])
def test_kafkajs_writes_and_reads_as_a_user(users: str, mechanism: str) -> None:
    if (why := kafkajs.absent()) is not None:
        pytest.skip(why)

    def said(password: str) -> str:
        program = str(Path(kafkajs.__file__).parent / "js" / "sasl.js")
        done = subprocess.run(
            ["node", program, users, f"kafkajs-{mechanism}", mechanism, ALICE, password],
            capture_output=True,
            encoding="utf-8",
            timeout=DEADLINE_S,
            env=kafkajs.environment(),
            check=True,
        )
        return done.stdout.strip()

    assert said(PASSWORD) == "from kafkajs"
    assert "SASL" in said("wrong")


def test_the_console_clients_of_kafka_write_and_read_as_a_user(users: str, tmp_path: Path) -> None:
    file = SaslUser(users, "SCRAM-SHA-512").java(tmp_path)
    to = ("--bootstrap-server", users, "--topic", "console")
    run("kafka-console-producer", *to, "--producer.config", file, stdin="a value\n")
    some = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
    read = run("kafka-console-consumer", *to, "--consumer.config", file, *some)
    assert read.out.strip() == "a value"


def test_administrators_clients_set_and_find_users(cluster: Cluster) -> None:
    nodes = SaslUser(cluster.bootstrap_servers, "SCRAM-SHA-256", "node", "node-secret")
    admin = kafka.KafkaAdminClient(**nodes.python)
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
    topic = "of carol and dave".replace(" ", "-")
    assert kafka_python_round_trip(SaslUser(nodes.bootstrap, "SCRAM-SHA-256", "carol", "carols"), topic) == "a value"
    assert confluent_round_trip(SaslUser(nodes.bootstrap, "SCRAM-SHA-512", "dave", "daves"), topic) == "a value"


def test_a_wrong_password_is_refused_by_name(users: str) -> None:
    wrong = SaslUser(users, "SCRAM-SHA-256", password="wrong")
    said: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer({**wrong.librdkafka, "error_cb": said.append, "log_level": 0})
    producer.produce("never", b"a value")
    producer.flush(3)
    producer.purge()
    assert confluent_kafka.KafkaError._AUTHENTICATION in {error.code() for error in said}
    with pytest.raises(kafka.errors.KafkaError, match="(?i)authentication|credentials|bootstrap"):
        kafka.KafkaAdminClient(**wrong.python, request_timeout_ms=4_000)

    async def start() -> None:
        unwelcome = aiokafka.AIOKafkaProducer(**wrong.python)
        try:
            await unwelcome.start()
        finally:
            await unwelcome.stop()

    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(start())


def test_a_client_authenticates_again_while_it_works(users: str) -> None:
    """The sessions of this cluster last for three seconds, and librdkafka 2 authenticates again before their end."""
    producer = confluent_kafka.Producer(SaslUser(users, "SCRAM-SHA-256").librdkafka)
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
