"""Kafka's `sasl.jaas.config`: the text that names a login module of Java, a user and a password.

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="secret";

The module's name is not loaded and not checked: `sasl.mechanism` says how the client is authenticated. No message has
the text, since it contains a password.
"""

import re
from typing import Final, NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.secrets import Secret

_HEAD: Final = re.compile(r"\s*([A-Za-z_$][\w$.]*)\s+(required|requisite|sufficient|optional)\b", re.IGNORECASE)
_OPTION: Final = re.compile(r"\s+([A-Za-z_][\w.\-]*)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s\";]+))", re.DOTALL)
_END: Final = re.compile(r"\s*;\s*")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_LONGEST: Final = 64 << 10


class LoginUser(NamedTuple):
    """The user and the password of a login module."""

    username: str
    password: Secret


def parse_jaas(text: str) -> LoginUser:
    """The user and password. The password may be a reference (`net.secrets.Secret`).

    Raises KafkaError INVALID_CONFIG if the text has another form, or lacks a user or a password.
    """
    head = _HEAD.match(text[:_LONGEST])
    if head is None:
        raise _refusal("it does not begin with a login module and `required`")
    options: dict[str, str] = {}
    position = head.end()
    while (option := _OPTION.match(text, position)) is not None:
        name, quoted, plain = option.groups()
        options[name] = plain if quoted is None else _ESCAPE.sub(r"\1", quoted)
        position = option.end()
    if _END.fullmatch(text, position) is None:
        raise _refusal("behind the options of one login module there is no `;`")
    if not options.get("username") or not options.get("password"):
        raise _refusal('it needs username="..." and password="..."')
    return LoginUser(options["username"], Secret(options["password"]))


def _refusal(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"sasl.jaas.config: {fault}")
