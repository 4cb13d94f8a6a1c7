"""The cluster that a test means: its addresses, or an object with its addresses."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias


class HasServers(Protocol):
    """A `tailrace.testing.Cluster`, or anything else with addresses."""

    @property
    def bootstrap_servers(self) -> str:
        """`HOST:PORT[,HOST:PORT...]`."""
        ...


Servers: TypeAlias = str | HasServers
"""`HOST:PORT[,HOST:PORT...]`, or a `tailrace.testing.Cluster`."""


def addresses(servers: Servers) -> str:
    """The addresses of the cluster, `HOST:PORT[,HOST:PORT...]`."""
    return servers if isinstance(servers, str) else servers.bootstrap_servers


Connection: TypeAlias = str | Mapping[str, str]
"""The first argument of a client: addresses, or settings."""


def connection(servers: Servers) -> Connection:
    """The settings of clients of the cluster; without settings its addresses."""
    settings = getattr(servers, "client_settings", None)
    return addresses(servers) if settings is None else dict(settings)
