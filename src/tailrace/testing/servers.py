"""The cluster that a test means: its addresses, or an object with its addresses."""

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
