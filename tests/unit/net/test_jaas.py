"""Kafka's `sasl.jaas.config`."""

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.jaas import parse_jaas

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.mark.parametrize(
    ("options", "user", "password"),
    [
        ('username="alice" password="secret"', "alice", "secret"),
        ("username=alice password=secret", "alice", "secret"),
        ('password="a b;\\"c\\\\" username="al ice" user_bob="x"', "al ice", 'a b;"c\\'),
        ('\n  username = "alice"\n  password="secret"\n', "alice", "secret"),
    ],
)
def test_a_login_module_names_a_user_and_a_password(options: str, user: str, password: str) -> None:
    found = parse_jaas(f"{SCRAM} required {options};")
    assert (found.username, found.password.reveal()) == (user, password)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "canary",
        f'{SCRAM} username="alice" password="canary";',
        f'{SCRAM} required username="alice" password="canary"',
        f'{SCRAM} required username="alice";',
        f'{SCRAM} required username="" password="canary";',
        f'{SCRAM} required username="alice" password="canary"; another.Module required;',
        f'{SCRAM} required username="alice" password="canary;',
    ],
)
def test_a_text_in_another_form_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(KafkaError) as refused:
        parse_jaas(text)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert "canary" not in str(refused.value)


def test_a_password_does_not_show() -> None:
    assert "canary" not in repr(parse_jaas(f'{SCRAM} required username="alice" password="canary";'))
