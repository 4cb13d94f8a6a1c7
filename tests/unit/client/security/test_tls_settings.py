"""The settings of TLS of clients: names of other clients, contradictions, secrets."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

from tailrace.client.settings import ClientSettings
from tailrace.model.errors import KafkaError
from testkit.nodes.certificates import TeamCertificates

SERVERS = "127.0.0.1:9092"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"security_protocol": "TLS"}, "security.protocol 'TLS'; say PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
        ({"ssl_cafile": "ca.pem"}, "ssl.truststore.location: this needs security.protocol SSL"),
        ({"ssl_endpoint_identification_algorithm": ""}, "this needs security.protocol SSL"),
        ({"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": "x"}, "say 'https', or ''"),
        ({"security_protocol": "SSL", "ssl_enabled_protocols": "TLSv1.1"}, "'TLSv1.1'; say TLSv1.2 or TLSv1.3"),
        ({"security_protocol": "SSL", "ssl_keyfile": "k.pem"}, "ssl.certificate.location must have the certificate"),
        ({"security_protocol": "SSL", "ssl_certificate_pem": "x"}, "ssl.keystore.key must have the key"),
        (
            {"security_protocol": "SSL", "ssl_keystore_location": "a", "ssl_certificate_location": "b"},
            "give either",
        ),
        ({"security_protocol": "SSL", "ssl_ca_pem": "x", "ssl_cafile": "ca.pem"}, "give either"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        ClientSettings(SERVERS, **given)
    assert text in refusal.value.detail


def test_names_of_other_clients_stand_for_the_same_settings() -> None:
    settings = ClientSettings(
        SERVERS, security_protocol="ssl", ssl_cafile="ca", ssl_certfile="c", ssl_keyfile="k", ssl_password="p"
    )
    assert (settings.security_protocol, settings.ssl_truststore_location) == ("SSL", "ca")
    assert (settings.ssl_certificate_location, settings.ssl_key_location) == ("c", "k")
    assert settings.ssl_key_password == "p"


def test_a_file_that_is_missing_is_named_with_its_setting() -> None:
    settings = ClientSettings(SERVERS, security_protocol="SSL", ssl_ca_location="/no/ca.pem")
    with pytest.raises(KafkaError, match="ssl.truststore.location=/no/ca.pem: No such file"):
        settings.tls_contexts()
    assert ClientSettings(SERVERS).tls_contexts() is None


def test_no_text_shows_a_key_or_a_password() -> None:
    settings = ClientSettings(
        SERVERS, security_protocol="SSL", ssl_certificate_pem="x", ssl_key_pem="canary-k", ssl_key_password="canary-p"
    )
    assert "canary" not in f"{settings} {settings!r}"
    assert copy.deepcopy(settings) == copy.copy(settings) == settings
    with pytest.raises(TypeError, match="ssl.keystore.key is not pickled; give it as env:NAME or file:PATH") as unsent:
        pickle.dumps(settings)
    assert "canary" not in str(unsent.value)
    with pytest.raises(KafkaError) as refusal:
        ClientSettings(SERVERS, security_protocol="SSL", ssl_key_password=b"canary")  # type: ignore[arg-type]
    assert "canary" not in str(refusal.value)


def test_a_key_and_its_password_may_stand_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, certificate = TeamCertificates(tmp_path).key_and_certificate("alice")
    monkeypatch.setenv("OF_THE_KEY", "canary")
    settings = ClientSettings(
        SERVERS,
        security_protocol="SSL",
        ssl_certificate_pem=certificate.read_text(),
        ssl_key_pem=f"file:{key}",
        ssl_key_password="env:OF_THE_KEY",
    )
    sent = pickle.dumps(settings)
    assert key.read_bytes()[30:90] not in sent
    contexts = pickle.loads(sent).tls_contexts()
    assert contexts is not None
    assert contexts.config.key_password == "canary"
    assert contexts.current(0.0).get_ca_certs() is not None
    assert "canary" not in repr(contexts.config)
    monkeypatch.delenv("OF_THE_KEY")
    with pytest.raises(KafkaError, match="the environment variable OF_THE_KEY of a secret is not set"):
        settings.tls_contexts()
