"""Spark on a cluster with SASL_SSL: reads and writes of all kinds as a user by SCRAM, and a search for the password."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace import Admin
from tailrace.testing import Cluster
from testkit.nodes.certificates import TeamCertificates

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.spark, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).with_name("secured_program.py")
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
CANARY = "canary-7f3a"
"""The begin of each secret."""
PASSWORD, WRONG, INLINE = f"{CANARY}-right", f"{CANARY}-wrong", f"{CANARY}-inline"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> TeamCertificates:
    return TeamCertificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(certificates: TeamCertificates) -> Iterator[Cluster]:
    config = {
        **certificates.settings(client_auth="none"),
        "listener.security.protocol.map": "PLAINTEXT:SASL_SSL,CONTROLLER:SASL_SSL",
        "sasl.jaas.config": f'{MODULE} required username="node" password="{CANARY}-node";',
    }
    nodes = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.location": str(certificates.trusted),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "node",
        "sasl.password": f"{CANARY}-node",
    }
    with Cluster(config=config) as cluster:
        with Admin({"bootstrap.servers": cluster.bootstrap_servers, **nodes}) as admin:
            admin.set_password("alice", PASSWORD)
            admin.create_topics({"written": 1, "copied": 1})
        yield cluster


def in_options(certificates: TeamCertificates, password: str) -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": str(certificates.trusted),
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{MODULE} required username="alice" password="{password}";',
    }


def in_credentials(certificates: TeamCertificates, file: Path) -> dict[str, str]:
    file.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.location={certificates.trusted}\n"
        f"sasl.mechanism=SCRAM-SHA-512\nsasl.username=alice\nsasl.password={PASSWORD}\n"
    )
    return {"credentials": f"file:{file}"}


@pytest.mark.parametrize("kind", ["classic"])
def test_spark_reads_and_writes_as_a_user_and_shows_no_password_anywhere(
    kind: str, cluster: Cluster, certificates: TeamCertificates, tmp_path: Path
) -> None:
    secrets = tmp_path / "secrets"
    shown = tmp_path / "shown"
    for directory in (secrets, shown / "events", shown / "local"):
        directory.mkdir(parents=True)
    (secrets / "wrong").write_text(WRONG)
    options = {
        "options": in_credentials(certificates, secrets / "alice.properties")
        if kind == "connect"
        else in_options(certificates, "env:OF_ALICE"),
        "wrong": in_options(certificates, f"file:{secrets / 'wrong'}"),
    }
    for name, given in options.items():
        (shown / f"{name}.json").write_text(json.dumps(given))
    (secrets / "inline.json").write_text(json.dumps(in_options(certificates, INLINE)))
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(shown), str(secrets), cluster.bootstrap_servers, kind],
        env={
            **os.environ,
            "OF_ALICE": PASSWORD,
            "PYTHONPATH": os.pathsep.join(map(str, PROGRAM.parents[2:4])),
            "SPARK_LOCAL_DIRS": str(shown / "local"),
            "SPARK_TESTING": "1",  # a free port for the server of Connect
        },
        capture_output=True,
        text=True,
        timeout=350,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-10_000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    three = ["milk", "sugar", "tea"]
    assert (found["written"], found["copied"], found["of_sql"]) == (three, three, 3)
    assert "SASL_AUTHENTICATION_FAILED" in found["wrong"]
    assert "does not accept user 'alice'" in found["wrong"]
    if kind == "classic":
        assert "option kafka.sasl.jaas.config: a secret in an option would show" in found["inline"]
        assert "env:NAME or file:PATH" in found["inline"]
    assert CANARY not in ended.stdout
    assert CANARY not in ended.stderr
    files = [file for file in shown.rglob("*") if file.is_file()]
    parts = {file.relative_to(shown).parts[0] for file in files}
    assert {"events", "checkpoint"} <= parts
    with_secret = [file for file in files if CANARY.encode() in file.read_bytes()]
    assert with_secret == []
    marks = (b"alice.properties", bytes(certificates.trusted))
    events = [file.read_bytes() for file in files if "events" in file.relative_to(shown).parts]
    assert any(mark in event for event in events for mark in marks), "the search would find an option in an event log"
