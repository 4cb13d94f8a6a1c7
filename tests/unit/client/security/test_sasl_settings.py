"""Settings of SASL of our clients: names, checks, and a password that shows nowhere."""

import pickle
import traceback
from typing import Any

import pytest

from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError

CANARY = "canary"
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="canary";'


def settings(**given: Any) -> ClientSettings:
    return ClientSettings("127.0.0.1:9092", **{"security_protocol": "SASL_PLAINTEXT", **given})


@pytest.mark.parametrize(
    "given",
    [
        {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "alice", "sasl_password": CANARY},
        {"sasl_mechanisms": "scram-sha-512", "sasl_username": "alice", "sasl_password": CANARY},
        {"sasl_mechanism": "SCRAM-SHA-512", "sasl_plain_username": "alice", "sasl_plain_password": CANARY},
        {"sasl_mechanism": "SCRAM-SHA-512", "sasl_jaas_config": JAAS},
    ],
)
def test_a_user_is_given_by_the_names_of_each_client(given: dict[str, str]) -> None:
    made = settings(**given)
    config = made.sasl()
    assert config is not None
    assert (config.mechanism, config.username, config.password.reveal()) == ("SCRAM-SHA-512", "alice", CANARY)
    assert CANARY not in f"{made} {made!r} {config}"
    assert ClientSettings.on(made).sasl() == config


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"security_protocol": "PLAINTEXT", "sasl_password": CANARY}, "sasl.password: this needs security.protocol"),
        ({"security_protocol": "PLAINTEXT", "sasl_plain_password": CANARY}, "sasl.password: this needs"),
        ({"sasl_username": "alice", "sasl_password": CANARY}, "sasl.mechanism: "),
        ({"sasl_mechanism": "GSSAPI", "sasl_username": "alice", "sasl_password": CANARY}, "is not one of PLAIN"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "alice"}, "SASL needs both"),
        ({"sasl_mechanism": "PLAIN", "sasl_password": CANARY}, "SASL needs both"),
        ({"sasl_mechanism": "PLAIN", "sasl_password": 5}, "sasl.password"),
        ({"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_jaas_config": JAAS}, "give either"),
        ({"sasl_mechanism": "PLAIN", "sasl_jaas_config": CANARY}, "sasl.jaas.config"),
        (
            {"sasl_mechanism": "PLAIN", "sasl_password": CANARY, "sasl_plain_password": "another canary"},
            "names of the same setting",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_without_the_password(given: dict[str, Any], part: str) -> None:
    with pytest.raises(KafkaError, match=part) as refused:
        settings(**given)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert CANARY not in "".join(traceback.format_exception_only(refused.value))


def test_a_password_in_plain_text_is_not_pickled_and_a_reference_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_ALICE", CANARY)
    plain = settings(sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=CANARY)
    with pytest.raises(TypeError, match="sasl.password is not pickled; give it as env:NAME or file:PATH"):
        pickle.dumps(plain)
    elsewhere = settings(sasl_mechanism="PLAIN", sasl_username="alice", sasl_password="env:OF_ALICE")
    data = pickle.dumps(elsewhere)
    assert CANARY.encode() not in data
    config = pickle.loads(data).sasl()
    assert config.password.reveal() == CANARY


def test_a_jaas_text_whose_password_stands_elsewhere_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_ALICE", CANARY)
    elsewhere = settings(sasl_mechanism="PLAIN", sasl_jaas_config=JAAS.replace(CANARY, "env:OF_ALICE"))
    config = pickle.loads(pickle.dumps(elsewhere)).sasl()
    assert (config.username, config.password.reveal()) == ("alice", CANARY)
    with pytest.raises(TypeError, match="sasl.jaas.config is not pickled"):
        pickle.dumps(settings(sasl_mechanism="PLAIN", sasl_jaas_config=JAAS))
