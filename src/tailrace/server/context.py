"""One request on its way through the server."""

from typing import Any

from tailrace.protocol.headers import encode_response
from tailrace.server.ports import ServerConnection


class RequestContext:
    """Who asks, in which version, and how to answer.

    A handler either returns its response or keeps the context and calls `respond` once, later.
    """

    __slots__ = ("api_key", "api_version", "client_id", "connection", "correlation_id", "slot")

    def __init__(
        self,
        *,
        connection: ServerConnection,
        slot: int,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
    ) -> None:
        self.connection = connection
        self.slot = slot
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id

    def respond(self, response: Any) -> None:
        """Send the response message, in the version that was asked in."""
        if self.connection.is_open:
            self.connection.answer(self.slot, encode_response(response, self.api_version, self.correlation_id))

    def respond_encoded(self, answer: bytes) -> None:
        """Send a response whose bytes are made already, header included: the hot lane's way."""
        self.connection.answer(self.slot, (answer,))

    def respond_nothing(self) -> None:
        """The request gets no answer (Produce with acks=0), and answers behind it must not wait for one."""
        self.connection.answer(self.slot, None)
