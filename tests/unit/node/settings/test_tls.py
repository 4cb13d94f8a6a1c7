"""The settings of TLS of nodes: of all listeners, of one listener, in the environment, and what is refused."""

from pathlib import Path

import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.security.security_protocol import SecurityProtocol
from tailrace.node.settings.config import NodeConfig, load_config
from testkit.nodes.certificates import TeamCertificates


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> TeamCertificates:
    return TeamCertificates(tmp_path_factory.mktemp("certificates"))


def _tls(team: TeamCertificates, **others: str) -> dict[str, str]:
    return {"ssl.keystore.location": str(team.node), "ssl.truststore.location": str(team.trusted), **others}


def test_the_protocol_of_a_listener_is_stated_or_that_of_its_name(team: TeamCertificates) -> None:
    config = NodeConfig(
        _tls(team)
        | {
            "listeners": "SSL://127.0.0.1:0,INTERNAL://127.0.0.1:0,OPEN://127.0.0.1:0",
            "listener.security.protocol.map": "internal:ssl",
        }
    )
    protocols = {each.name: config.addresses.protocol_of(each.name) for each in config.addresses.listeners}
    assert protocols == {
        "SSL": SecurityProtocol.SSL,
        "INTERNAL": SecurityProtocol.SSL,
        "OPEN": SecurityProtocol.PLAINTEXT,
    }
    assert config.tls_contexts("OPEN", is_server=True) is None
    assert config.tls_contexts("SSL", is_server=True) is not None


def test_a_setting_of_one_listener_wins_for_this_listener_alone(team: TeamCertificates) -> None:
    config = NodeConfig(
        _tls(team, **{"listeners": "SSL://127.0.0.1:0,INTERNAL://127.0.0.1:0", "ssl.client.auth": "required"})
        | {"listener.security.protocol.map": "INTERNAL:SSL", "listener.name.internal.ssl.client.auth": "none"}
    )
    assert config.value_of("SSL", "ssl.client.auth") == "required"
    assert config.value_of("INTERNAL", "ssl.client.auth") == "none"
    assert "listener.name.internal.ssl.client.auth" in {entry.setting.name for entry in config.entries()}


def test_the_environment_has_settings_of_a_listener(team: TeamCertificates) -> None:
    config = load_config(
        file=None,
        environment={
            "TAILRACE_LISTENERS": "SSL://127.0.0.1:0",
            "TAILRACE_SSL_KEYSTORE_LOCATION": str(team.node),
            "TAILRACE_LISTENER_NAME_SSL_SSL_TRUSTSTORE_LOCATION": str(team.trusted),
            "TAILRACE_LISTENER_NAME_SSL_SSL_CLIENT_AUTH": "required",
        },
        flags={},
    )
    assert config.value_of("SSL", "ssl.client.auth") == "required"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"listeners": "SSL://127.0.0.1:0"}, "ssl.keystore.location: a listener with TLS needs"),
        ({"listeners": "A://127.0.0.1:0", "listener.security.protocol.map": "A:TLS"}, "one of PLAINTEXT, SSL"),
        ({"ssl.keystore.location": "node.pem"}, "no listener has TLS, and the node would look protected"),
        ({"listener.name.nosuch.ssl.client.auth": "required"}, "there is no listener NOSUCH"),
        ({"listener.name.plaintext.ssl.client.aut": "required"}, "in Kafka this protects a listener"),
        ({"ssl.keystore.password": "x"}, "ssl.key.password is the password of the key"),
        ({"ssl.keystore.type": "JKS"}, "must be one of PEM"),
        ({"ssl.client.auth": "yes"}, "must be one of none, requested, required"),
        ({"ssl.engine.factory.class": "a.B"}, "in Kafka this protects a listener"),
        ({"listeners": "SASL_SSL://127.0.0.1:0"}, "sasl.jaas.config: "),
        ({"listeners": "SSL://0.0.0.0:0", "ssl.keystore.location": "x"}, "--insecure"),
    ],
)
def test_a_listener_that_would_be_less_safe_than_it_looks_is_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        NodeConfig(settings)
    assert text in refusal.value.detail


def test_a_wrong_rule_is_refused_at_the_start(team: TeamCertificates) -> None:
    with pytest.raises(KafkaError, match=r"ssl\.principal\.mapping\.rules"):
        NodeConfig(_tls(team, **{"listeners": "SSL://127.0.0.1:0", "ssl.principal.mapping.rules": "CN=x"}))


def test_a_text_in_the_settings_takes_the_place_of_a_file(team: TeamCertificates) -> None:
    keystore = Path(team.node).read_text()
    key, certificate = keystore.split("-----BEGIN CERTIFICATE-----")
    inline = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----" + certificate,
        "ssl.keystore.key": key,
    }
    config = NodeConfig(inline)
    assert config.tls_contexts("SSL", is_server=True) is not None
    (shown,) = [each.setting.format(each.value) for each in config.entries() if each.setting.name == "ssl.keystore.key"]
    assert shown is None
    for wrong in ("ssl.keystore.key", "ssl.keystore.certificate.chain"):
        with pytest.raises(KafkaError, match=r"ssl\.keystore"):
            NodeConfig({name: value for name, value in inline.items() if name != wrong})
    with pytest.raises(KafkaError, match="give either"):
        NodeConfig(inline | {"ssl.keystore.location": str(team.node)})
