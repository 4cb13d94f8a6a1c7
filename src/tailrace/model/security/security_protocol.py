"""The security protocols of listeners (Kafka's `SecurityProtocol`)."""

from enum import IntEnum


class SecurityProtocol(IntEnum):
    """The protection of the connections of a listener. The values are the numbers in records and on the wire."""

    PLAINTEXT = 0
    SSL = 1
    """TLS, under Kafka's old name; clients may be authenticated by certificates."""
    SASL_PLAINTEXT = 2
    SASL_SSL = 3

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        """Whether clients authenticate themselves by SASL."""
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


NAMES = tuple(protocol.name for protocol in SecurityProtocol)
"""The names, as settings have them."""
