"""SaslHandshake (17) and SaslAuthenticate (36) on a listener without authentication.

Kafka answers ILLEGAL_SASL_STATE (34) there: a client that is set up to authenticate finds out at once, and does
not believe that its password was checked.
"""

from typing import NoReturn

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.messages.sasl import SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.server.context import RequestContext


class NoSaslHandler:
    """Refuses both."""

    def handle(self, request: SaslHandshakeRequest | SaslAuthenticateRequest, context: RequestContext) -> NoReturn:
        raise KafkaError(
            ErrorCode.ILLEGAL_SASL_STATE,
            f"listener {context.connection.listener_name} has no SASL; connect with security.protocol=PLAINTEXT",
        )
