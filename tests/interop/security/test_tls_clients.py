"""Clients of other projects over TLS, each with a certificate of its own; and the same clients without."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context

from interop.java_client import PATIENTLY
from interop.kafka_tools import run
from interop.librdkafka import DEADLINE_S
from tailrace import Consumer
from tailrace.testing import Cluster
from testkit.nodes.certificates import TeamCertificates

VALUES = [b"one", b"two", b"three"]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> TeamCertificates:
    return TeamCertificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def node(team: TeamCertificates) -> Iterator[Cluster]:
    with Cluster(config=team.settings()) as cluster:
        yield cluster


def _read_by_ours(node: Cluster, team: TeamCertificates, topic: str) -> list[bytes | None]:
    settings: dict[str, Any] = {
        "ssl_cafile": str(team.trusted),
        "ssl_keystore_location": str(team.client("reader")),
        "security_protocol": "SSL",
    }
    with Consumer(
        node.bootstrap_servers, topics=[topic], auto_offset_reset="earliest", until="end", **settings
    ) as consumer:
        return [record.value for record in consumer]


def test_kafka_python(node: Cluster, team: TeamCertificates) -> None:
    key, certificate = team.key_and_certificate("kafka-python")
    settings: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_cafile": str(team.trusted),
        "ssl_certfile": str(certificate),
        "ssl_keyfile": str(key),
    }
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send("kafka-python", value).get(DEADLINE_S)
    producer.close()
    consumer = kafka.KafkaConsumer("kafka-python", group_id="g", auto_offset_reset="earliest", **settings)
    assert [next(consumer).value for _ in VALUES] == VALUES
    consumer.close()
    assert _read_by_ours(node, team, "kafka-python") == VALUES


def test_aiokafka(node: Cluster, team: TeamCertificates) -> None:
    key, certificate = team.key_and_certificate("aiokafka")
    context = create_ssl_context(cafile=str(team.trusted), certfile=str(certificate), keyfile=str(key))
    settings: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": context,
    }

    async def write_and_read() -> list[bytes | None]:
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait("aiokafka", value)
        async with AIOKafkaConsumer("aiokafka", group_id="a", auto_offset_reset="earliest", **settings) as consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(write_and_read(), DEADLINE_S)) == VALUES


def _kcat(node: Cluster, *options: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    command = ["kcat", "-b", node.bootstrap_servers, "-X", "security.protocol=SSL", *options]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=DEADLINE_S, check=False)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed: apt-get install kcat")
def test_librdkafka(node: Cluster, team: TeamCertificates) -> None:
    key, certificate = team.key_and_certificate("kcat")
    own = ("-X", f"ssl.certificate.location={certificate}", "-X", f"ssl.key.location={key}")
    trusted = ("-X", f"ssl.ca.location={team.trusted}")
    assert _kcat(node, *trusted, *own, "-P", "-t", "kcat", stdin=b"\n".join(VALUES)).returncode == 0
    read = _kcat(node, *trusted, *own, "-C", "-t", "kcat", "-o", "beginning", "-e", "-u")
    assert read.stdout.splitlines() == VALUES
    refused = _kcat(node, *trusted, "-L", "-m", "2")
    assert refused.returncode != 0
    assert b"ssl" in refused.stderr.lower()


@pytest.mark.usefixtures("kafka_tools")
def test_java(node: Cluster, team: TeamCertificates, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\nssl.keystore.type=PEM\n"
        f"ssl.truststore.location={team.trusted}\nssl.keystore.location={team.client('java')}\n"
    )
    where = ("--bootstrap-server", node.bootstrap_servers)
    run("kafka-topics", *where, "--command-config", str(properties), "--create", "--topic", "java")
    lines = "".join(f"{value.decode()}\n" for value in VALUES)
    writing = (*where, "--topic", "java", "--producer.config", str(properties), *PATIENTLY)
    run("kafka-console-producer", *writing, stdin=lines)
    reading = (*where, "--topic", "java", "--consumer.config", str(properties))
    printed = run("kafka-console-consumer", *reading, "--from-beginning", "--max-messages", "3")
    assert printed.out == lines
