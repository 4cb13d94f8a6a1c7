"""The identity of a connection: what access to resources is decided by."""

from typing import Final, NamedTuple

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a client that has not authenticated itself (Kafka's `KafkaPrincipal.ANONYMOUS`)."""


class ClientIdentity(NamedTuple):
    """The client behind a connection, as far as known to the node."""

    listener_name: str
    """The name of the listener that the client reached."""
    address: str
    """The client's IP address, without a port."""
    principal: str = ANONYMOUS
    """`User:name`."""
    mechanism: str = ""
    """The SASL mechanism or `TLS` by which the principal was authenticated; empty without authentication."""

    @property
    def host(self) -> str:
        """The address in the form of groups and logs: `/127.0.0.1`."""
        return f"/{self.address}"
