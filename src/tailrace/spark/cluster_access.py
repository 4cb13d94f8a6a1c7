"""The way to the cluster of a read or write: addresses, and security by the options of Spark's Kafka connector.

1. No option is a secret: Spark keeps options in plans, texts of SQL and event logs, and sends them to executors
   (decision 0116). In place of a secret an option has a reference, `env:NAME` or `file:PATH`.
2. `credentials` is a reference to lines of settings, as in a file of Kafka's client settings, perhaps with secrets.
3. A reference travels. Each process follows the reference when it makes a client: on the driver, and in tasks.

Spark imports this module to look up the name of the source, so settings of clients, which load asyncio, are imported
at their use.
"""

import logging
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.given_options import CREDENTIALS, KAFKA, REFERENCES, SECURITY, SERVERS, GivenOptions, fault

if TYPE_CHECKING:
    from tailrace.client.settings import ClientSettings

_log = logging.getLogger(__name__)

_TYPES: Final = ("ssl.keystore.type", "ssl.truststore.type")
_WAY_OUT: Final = (
    "Spark keeps options in plans, texts of SQL and event logs. Give env:NAME or file:PATH, which the driver and each "
    f"executor follow, or all settings of security by {CREDENTIALS}=file:PATH"
)
_JAAS_WAY_OUT: Final = f'{_WAY_OUT}. In the text itself password="env:NAME" does the same'


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """Addresses, and security with references in place of secrets: a value that is pickled and shown."""

    servers: str
    security: tuple[tuple[str, str], ...] = ()
    """Settings by Kafka's names, sorted."""
    credentials: str | None = None
    """The reference to further settings."""

    def settings(self) -> "ClientSettings":
        """The settings of all clients of the read or write, in this process and now.

        Raises KafkaError INVALID_REQUEST that names the option, never with a secret.
        """
        from tailrace.client.setting_fields import keywords_of
        from tailrace.client.settings import ClientSettings

        settings = dict(self.security)
        if self.credentials is not None:
            further = _followed(self.credentials)
            if twice := sorted(settings.keys() & further.keys()):
                raise fault(KAFKA + twice[0], f"the settings of {CREDENTIALS}={self.credentials} have it too")
            settings |= further
        given: dict[str, Any] = keywords_of({name: settings[name] for name in settings.keys() - set(_TYPES)})
        try:
            return ClientSettings(self.servers, **given)
        except KafkaError as wrong:
            begin = f"option {KAFKA}" if wrong.detail.startswith(SECURITY) else ""
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{begin}{wrong.detail}") from None


def parse_access(given: GivenOptions) -> ClusterAccess:
    """The access that the options name. Each address has a port, as Kafka's own client demands.

    Raises KafkaError INVALID_REQUEST that names the option and the way out, never with a secret.
    """
    from tailrace.net.connection import parse_addresses

    servers = given.required(SERVERS, 'for example "127.0.0.1:9092"')
    try:
        parse_addresses(servers, default_port=None)
    except KafkaError as wrong:
        raise fault(SERVERS, wrong.detail) from None
    security = given.security()
    _check(security, prefix=f"option {KAFKA}")
    _refuse_secrets(security)
    credentials = given.text(CREDENTIALS)
    if credentials is not None and not credentials.startswith(REFERENCES):
        example = "security.protocol=SASL_SSL"
        raise fault(CREDENTIALS, f"must be file:PATH or env:NAME, the place of lines such as {example}")
    access = ClusterAccess(servers=servers, security=tuple(sorted(security.items())), credentials=credentials)
    access.settings()
    return access


def _check(security: Mapping[str, str], *, prefix: str) -> None:
    """Refuse settings that clients do not have: a connection would be less safe than the settings say."""
    from tailrace.client.hints.absent_names import unknown_settings
    from tailrace.client.security.sasl_settings import SaslSettings
    from tailrace.model.settings import attribute_name

    known = {setting.name for setting in fields(SaslSettings)}
    for name, value in sorted(security.items()):
        why = ""
        if name in _TYPES:
            if value.upper() != "PEM":
                why = "must be PEM; `openssl pkcs12 -in store.p12 -nodes -out store.pem` converts a store"
        elif attribute_name(name) not in known:
            why = unknown_settings("Tailrace", [attribute_name(name)], SaslSettings)
        if why:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{prefix}{name}: {why}")


def _refuse_secrets(security: Mapping[str, str]) -> None:
    from tailrace.client.security.sasl_settings import SaslSettings
    from tailrace.model.settings import attribute_name

    known = {setting.name: setting for setting in fields(SaslSettings)}
    for name, value in security.items():
        setting = known.get(attribute_name(name))
        field = known.get(setting.metadata.get("alias_of", setting.name)) if setting is not None else None
        if field is None or not field.metadata.get("is_secret") or SaslSettings.is_elsewhere(field.name, value):
            continue
        way_out = _JAAS_WAY_OUT if field.name == "sasl_jaas_config" else _WAY_OUT
        raise fault(KAFKA + name, f"a secret in an option would show, since {way_out}")


_said: set[str] = set()
"""The references of which this process has said which settings are not used."""


def _followed(reference: str) -> dict[str, str]:
    """The security settings at the place. Raises KafkaError INVALID_REQUEST that names the place."""
    from tailrace.net.secrets import Secret
    from tailrace.node.settings.properties import parse_properties

    try:
        settings = parse_properties(Secret(reference).reveal())
    except KafkaError as wrong:
        raise fault(CREDENTIALS, f"{wrong.detail}, on {platform.node()}") from None
    except ValueError:
        raise fault(CREDENTIALS, f"{reference} has no lines of settings, on {platform.node()}") from None
    security = {name: value for name, value in settings.items() if name.startswith(SECURITY)}
    _check(security, prefix=f"{CREDENTIALS}={reference}: ")
    if not security:
        raise fault(CREDENTIALS, f"{reference} has no line such as security.protocol=SASL_SSL")
    _say_unused(reference, settings.keys() - security.keys())
    return security


def _say_unused(reference: str, names: Iterable[str]) -> None:
    unused = sorted(names)
    if unused and reference not in _said:
        _said.add(reference)
        _log.warning("option %s: only settings of security are used of %s", CREDENTIALS, reference)
