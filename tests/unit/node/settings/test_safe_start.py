"""Starts that would let strangers in are refused: listeners that others can reach, files that others can read."""

import os
from itertools import product
from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.settings.config import NodeConfig, load_config
from testkit.nodes.certificates import TeamCertificates

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="canary";'
LISTENERS = ("CLIENTS", "BROKERS", "CONTROLLER")
PROTOCOLS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL none", "SSL requested", "SSL required")
SAFE = {"SASL_SSL", "SSL required"}
AUTHORIZER = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:node"}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> TeamCertificates:
    return TeamCertificates(tmp_path_factory.mktemp("certificates"))


def settings(team: TeamCertificates, hosts: dict[str, str], protocols: dict[str, str]) -> dict[str, str]:
    """A broker and controller with three listeners. A protocol is its name, with ssl.client.auth behind SSL."""
    given = {
        "listeners": ",".join(
            f"{name}://{hosts.get(name, '127.0.0.1')}:1909{LISTENERS.index(name)}" for name in LISTENERS
        ),
        "listener.security.protocol.map": ",".join(f"{name}:{protocols[name].split()[0]}" for name in LISTENERS),
        "inter.broker.listener.name": "BROKERS",
        "controller.listener.names": "CONTROLLER",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@127.0.0.1:19092",
        "node.id": "1",
        "sasl.jaas.config": JAAS,
    }
    if any(protocol.endswith("SSL") or " " in protocol for protocol in protocols.values()):
        given |= {"ssl.keystore.location": str(team.node), "ssl.truststore.location": str(team.trusted)}
        for name, protocol in protocols.items():
            if " " in protocol:
                given[f"listener.name.{name.lower()}.ssl.client.auth"] = protocol.split()[1]
    return given


def fault_of(given: dict[str, str]) -> str:
    """The refusal of these settings; empty: the node starts."""
    try:
        NodeConfig(given)
    except KafkaError as refused:
        assert refused.code is ErrorCode.INVALID_CONFIG
        assert "canary" not in f"{refused} {refused!r}"
        return refused.detail
    return ""


@pytest.mark.parametrize(("listener", "protocol"), [*product(LISTENERS, PROTOCOLS)])
@pytest.mark.parametrize("host", ["192.168.1.5", "node.example", "127.1"])
def test_a_listener_for_other_machines_needs_encryption_authentication_and_an_authorizer(
    team: TeamCertificates, listener: str, protocol: str, host: str
) -> None:
    protocols = dict.fromkeys(LISTENERS, "SASL_SSL") | {listener: protocol}
    given = settings(team, {listener: host}, protocols)
    for authorizer in ({}, AUTHORIZER):
        detail = fault_of(given | authorizer)
        is_safe = protocol in SAFE and bool(authorizer)
        assert (detail == "") == is_safe, detail
        assert fault_of(given | authorizer | {"listener.insecure.allow": "true"}) == ""
        if not is_safe:
            assert detail.startswith(f"listeners={listener}://{host}:1909")
            assert ("nothing encrypts" in detail) == (protocol in ("PLAINTEXT", "SASL_PLAINTEXT"))
            assert ("lets every client in" in detail) == (protocol in ("PLAINTEXT", "SSL none", "SSL requested"))
            assert ("authorizer.class.name=StandardAuthorizer" in detail) == (not authorizer)
            for way_out in ("docs/security.md", "listen on 127.0.0.1", "--insecure"):
                assert way_out in detail


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_listener_on_a_loopback_address_needs_nothing_more(team: TeamCertificates, protocol: str) -> None:
    assert fault_of(settings(team, {}, dict.fromkeys(LISTENERS, protocol))) == ""


def test_a_secured_wildcard_still_needs_an_address_for_clients(team: TeamCertificates) -> None:
    given = settings(team, {"CLIENTS": "0.0.0.0"}, dict.fromkeys(LISTENERS, "SASL_SSL")) | AUTHORIZER
    assert "add advertised.listeners=CLIENTS://HOST:19090" in fault_of(given)
    assert fault_of(given | {"advertised.listeners": "CLIENTS://db.example:9092"}) == ""


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o620, 0o602])
def test_a_key_that_others_can_read_stops_the_start(team: TeamCertificates, tmp_path: Path, mode: int) -> None:
    key = tmp_path / "node.pem"
    key.write_bytes(team.node.read_bytes())
    given = {"listeners": "SSL://127.0.0.1:0", "listener.name.ssl.ssl.keystore.location": str(key)}
    key.chmod(0o600)
    assert fault_of(given) == ""
    key.chmod(mode)
    detail = fault_of(given)
    assert detail.startswith("listener.name.ssl.ssl.keystore.location: other users can read the secret in")
    assert f"mode {mode:04o}" in detail
    assert f"chmod 600 {key}" in detail


def test_a_file_of_root_may_be_read_by_a_group_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jaas = tmp_path / "nodes.jaas"
    jaas.write_text(JAAS)
    jaas.chmod(0o640)
    given = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.jaas.config": f"file:{jaas}"}
    assert (fault_of(given) == "") == (os.geteuid() == 0)
    jaas.chmod(0o600)
    assert fault_of(given) == ""
    monkeypatch.setattr(os, "geteuid", lambda: jaas.stat().st_uid + 4_711)
    assert ("belongs to user" in fault_of(given)) == (jaas.stat().st_uid != 0)


def test_the_file_of_the_nodes_user_and_of_its_password_are_for_the_node_alone(tmp_path: Path) -> None:
    password, jaas = tmp_path / "password", tmp_path / "nodes.jaas"
    password.write_text("canary")
    jaas.write_text(JAAS.replace("canary", f"file:{password}"))
    for file in (password, jaas):
        file.chmod(0o600)
    given = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.jaas.config": f"file:{jaas}"}
    assert fault_of(given) == ""
    for file in (password, jaas):
        file.chmod(0o644)
        assert f"chmod 600 {file}" in fault_of(given)
        file.chmod(0o600)


@pytest.mark.parametrize(
    ("line", "is_secret"),
    [
        (f"sasl.jaas.config={JAAS}", True),
        (f"sasl.jaas.config={JAAS.replace('canary', 'env:OF_NODES')}", False),
        ("sasl.jaas.config=env:OF_NODES", False),
        ("ssl.key.password=canary", True),
        ("listener.name.ssl.ssl.key.password=canary", True),
        ("num.partitions=3", False),
    ],
)
def test_a_file_of_settings_with_a_secret_is_for_the_node_alone(tmp_path: Path, line: str, is_secret: bool) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"{line}\n")
    file.chmod(0o644)
    detail = ""
    try:
        load_config(file=file, environment={}, flags={})
    except KafkaError as refused:
        detail = refused.detail
    assert ("other users can read the secret" in detail) == is_secret
    assert "canary" not in detail
    file.chmod(0o600)
    try:
        load_config(file=file, environment={}, flags={})
    except KafkaError as refused:
        assert "other users" not in refused.detail
