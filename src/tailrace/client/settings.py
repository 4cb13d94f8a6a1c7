"""Settings of clients: a frozen value for each kind of client, checked by its constructor; here the settings of all.

1. The constructor of a client takes the keywords of its settings class, or a mapping of Kafka's dotted names
   (`construction.made_of`). The parts of a client get the value.
2. `ClientSettings` is the part that all clients share: addresses, the client's name, waits, retries, encryption
   and authentication (`security`). `Router` needs nothing else. `on` takes them over for another kind of client.
3. `reader_settings` has the settings of the clients that read, `writer_settings` the settings of a producer.
4. `setting_fields` has the rules for names, kinds and ranges. A number is at least 0 unless its field says otherwise.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Self

from tailrace.client.security.sasl_settings import SaslSettings
from tailrace.client.setting_fields import INT64, checked, invalid, number, resolve_aliases
from tailrace.net.connection import parse_addresses


@dataclass(frozen=True)
class ClientSettings(SaslSettings):
    """The settings that every client has. An administrator's client has no other settings."""

    bootstrap_servers: str | Sequence[str] | Mapping[str, object]
    """The addresses of some brokers: `host:port`, more in a list or behind commas. A constructor of a client also takes
    a mapping of all settings here, by Kafka's dotted names."""
    _: KW_ONLY
    client_id: str = "tailrace-admin"
    """The name of the client in requests, as groups and logs of brokers show it."""
    request_timeout_ms: int = 30_000
    """The longest wait for the answer to one request; a request without an answer is tried again."""
    default_api_timeout_ms: int = 60_000
    """The longest time of a whole call, with its retries."""
    retry_backoff_ms: int = 100
    """The wait before the first retry of a request; each further wait is twice as long."""
    retry_backoff_max_ms: int = 1_000
    """The longest wait before a retry."""
    metadata_max_age_ms: int = number(300_000, most=INT64)
    """The age at which the client asks for topics, leaders and brokers again. A consumer that reads from the replica in
    its rack also asks the leader again after this time."""
    socket_connection_setup_timeout_ms: int = 10_000
    """The longest wait for a new connection."""
    bootstrap_timeout_ms: int = 10_000
    """The longest wait for the first answer of the cluster: after that, its address is probably wrong."""

    def __post_init__(self) -> None:
        """Check every field. Raises KafkaError, mostly INVALID_CONFIG."""
        resolve_aliases(self)
        for setting in fields(self):
            value = getattr(self, setting.name)
            if (kept := checked(setting, value)) is not value:
                object.__setattr__(self, setting.name, kept)
        object.__setattr__(self, "bootstrap_servers", _addresses(self.bootstrap_servers))
        parse_addresses(self.servers)
        self.check_tls()
        self.check_sasl()

    @property
    def servers(self) -> str:
        """The addresses of `bootstrap_servers`, with commas between."""
        return str(self.bootstrap_servers)

    @classmethod
    def on(cls, client: "ClientSettings", **others: Any) -> Self:
        """Settings of this class for the cluster of another client, with its waits; the name is that of this class."""
        shared = {setting.name: getattr(client, setting.name) for setting in fields(ClientSettings)}
        del shared["client_id"]
        return cls(**(shared | others))


def _addresses(given: object) -> str:
    """The addresses as a text. Raises KafkaError INVALID_CONFIG."""
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        raise invalid("bootstrap.servers is a mapping; only the constructor of a client takes its settings so")
    if isinstance(given, Iterable) and not isinstance(given, bytes):
        addresses = list(given)
        if all(isinstance(address, str) for address in addresses):
            return ",".join(addresses)
    raise invalid(f"bootstrap.servers {given!r}; say 'host:port', or a list of such texts")
