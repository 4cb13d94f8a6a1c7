"""Settings of SASL: the user of the nodes, mechanisms, and starts that are refused."""

from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.security.security_protocol import SecurityProtocol
from tailrace.node.settings.config import NodeConfig

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="node" password="canary";'
GUARDED = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "log.dirs": "/data"}


def config(**settings: str) -> NodeConfig:
    return NodeConfig({**GUARDED, **{name.replace("_", "."): text for name, text in settings.items()}})


def refusal(**settings: str) -> str:
    with pytest.raises(KafkaError) as refused:
        config(**settings)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert "canary" not in f"{refused.value} {refused.value!r}"
    return refused.value.detail


def test_the_user_of_the_nodes_authenticates_the_node() -> None:
    sasl = config(sasl_jaas_config=JAAS, connections_max_reauth_ms="5000").sasl
    assert sasl.of_brokers is not None
    assert (sasl.of_brokers.username, sasl.of_brokers.password.reveal()) == ("node", "canary")
    assert sasl.of_brokers.mechanism == "SCRAM-SHA-512"
    assert (sasl.of_controllers, sasl.limits.max_reauth_ms) == (None, 5_000)
    assert "canary" not in repr(sasl)


def test_the_text_of_the_user_may_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes.jaas").write_text(JAAS + "\n")
    (tmp_path / "nodes.jaas").chmod(0o600)
    monkeypatch.setenv("OF_NODES", JAAS)
    monkeypatch.setenv("PASSWORD_OF_NODES", "canary")
    for text in (f"file:{tmp_path / 'nodes.jaas'}", "env:OF_NODES", JAAS.replace("canary", "env:PASSWORD_OF_NODES")):
        user = config(sasl_jaas_config=text).sasl.user
        assert user is not None
        assert user.password.reveal() == "canary"


def test_a_node_without_its_user_does_not_start() -> None:
    assert refusal().startswith("sasl.jaas.config: nodes authenticate to each other by SASL")
    assert "NO_SUCH_TEXT" in refusal(sasl_jaas_config="env:NO_SUCH_TEXT")
    assert "NO_SUCH_PASSWORD" in refusal(sasl_jaas_config=JAAS.replace("canary", "env:NO_SUCH_PASSWORD"))
    assert "username" in refusal(sasl_jaas_config="a.Module required password=canary;")


def test_plain_needs_tls_or_the_word_of_the_operator() -> None:
    assert "PLAIN would send passwords" in refusal(sasl_jaas_config=JAAS, sasl_enabled_mechanisms="PLAIN")
    accepted = {"sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-512", "listener_insecure_allow": "true"}
    assert config(sasl_jaas_config=JAAS, **accepted).sasl.mechanisms == ("PLAIN", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    ("setting", "text", "part"),
    [
        ("sasl_enabled_mechanisms", "GSSAPI", "must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ("sasl_enabled_mechanisms", "", "no mechanism"),
        ("sasl_mechanism_inter_broker_protocol", "GSSAPI", "must be one of"),
        ("sasl_enabled_mechanisms", "SCRAM-SHA-256", "sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512"),
        ("listener_security_protocol_map", "SASL_PLAINTEXT:PLAIN", "say NAME:PROTOCOL"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(setting: str, text: str, part: str) -> None:
    assert part in refusal(sasl_jaas_config=JAAS, **{setting: text})


def test_listeners_have_the_protocol_of_the_map_or_of_their_name() -> None:
    addresses = config(sasl_jaas_config=JAAS, listener_security_protocol_map="clients:sasl_plaintext,A:SSL").addresses
    protocols = [addresses.protocol_of(name) for name in ("CLIENTS", "A", "SASL_PLAINTEXT", "B")]
    sasl, plain = SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.PLAINTEXT
    assert protocols == [sasl, SecurityProtocol.SSL, sasl, plain]


def test_the_text_of_the_user_is_never_shown() -> None:
    entry = config(sasl_jaas_config=JAAS).entry("sasl.jaas.config")
    assert entry.setting.sensitive
    assert entry.setting.format(entry.value) is None


def test_a_second_password_is_of_the_same_user() -> None:
    second = JAAS.replace("canary", "canary-next")
    sasl = config(sasl_jaas_config=JAAS, sasl_jaas_config_second=second).sasl
    assert sasl.second_password is not None
    assert sasl.second_password.reveal() == "canary-next"
    assert "canary" not in repr(sasl)
    assert "the user must be that" in refusal(
        sasl_jaas_config=JAAS, sasl_jaas_config_second=second.replace('"node"', '"other"')
    )
    assert refusal(sasl_jaas_config=JAAS, sasl_jaas_config_second="x").startswith("sasl.jaas.config.second: ")
