"""A node with an audit log: its lines about denials, administration and authentication, and its metrics."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tailrace import Admin, NewTopic, Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.audit.chain import audit_files, verify
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
NODE_SECRET, ALICE_SECRET, WRONG_SECRET = "node-secret-71", "alice-secret-72", "wrong-secret-73"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node") / "audit"


@pytest.fixture(scope="module")
def cluster(directory: Path) -> Iterator[Cluster]:
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.jaas.config": f'{MODULE} required username="node" password="{NODE_SECRET}";',
        "authorizer.class.name": "StandardAuthorizer",
        "super.users": "User:node",
        "audit.log.enable": "true",
        "audit.log.dir": str(directory),
        "metrics.listener": "127.0.0.1:0",
    }
    with Cluster(brokers=1, config=config) as nodes:
        yield nodes


def of_user(cluster: Cluster, name: str, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": cluster.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": password,
    }


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in audit_files(directory) for line in path.read_bytes().splitlines()]


def found(directory: Path, **wanted: object) -> dict[str, Any]:
    """The first line with these fields, when it is there."""
    matches: Callable[[dict[str, Any]], bool] = lambda line: wanted.items() <= line.items()  # noqa: E731
    wait_until(lambda: any(map(matches, lines(directory))))
    return next(filter(matches, lines(directory)))


def test_denials_administration_and_authentication_have_lines_without_secrets(
    cluster: Cluster, directory: Path
) -> None:
    with Admin(of_user(cluster, "node", NODE_SECRET)) as admin:
        admin.create_topics([NewTopic("orders", partitions=1)])
        admin.set_password("alice", ALICE_SECRET, mechanism="SCRAM-SHA-256", iterations=4_096)
        admin.alter_configs(2, "orders", {"retention.ms": "123456"})
    with pytest.raises(KafkaError) as wrong, Admin(of_user(cluster, "alice", WRONG_SECRET)) as admin:
        admin.list_topics()
    assert wrong.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
    with Producer(of_user(cluster, "alice", ALICE_SECRET)) as producer, pytest.raises(KafkaError):
        producer.send("orders", b"tea").get(timeout=30)

    denied = found(directory, event="denied", principal="User:alice", resource="orders")
    assert denied["reason"] == "the resource has no rules, and the default for such resources decides"
    assert (denied["resource_type"], denied["listener"], denied["address"]) == ("TOPIC", "PLAINTEXT", "127.0.0.1")
    created = found(directory, event="administration", request="CreateTopics")
    assert (created["principal"], created["subjects"], created["errors"]) == ("User:node", ["topic orders"], {})
    users = found(directory, event="administration", request="AlterUserScramCredentials")
    assert users["subjects"] == ["user alice: set mechanism 1"]
    settings = found(directory, event="administration", request="IncrementalAlterConfigs")
    assert settings["subjects"] == ["settings of type 2 orders: retention.ms"]
    failed = found(directory, event="authentication", outcome="failed")
    assert "of user 'alice' by SCRAM-SHA-256 failed" in failed["reason"]
    found(directory, event="authentication", outcome="succeeded", principal="User:alice")

    text = b"".join(path.read_bytes() for path in audit_files(directory))
    for secret in (NODE_SECRET, ALICE_SECRET, WRONG_SECRET, "123456"):
        assert secret.encode() not in text
    verdict = verify(directory)
    assert (verdict.fault, verdict.first) == (None, 1)
