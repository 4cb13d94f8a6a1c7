"""One request on its way through the server."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from tailrace.protocol.headers import encode_response
from tailrace.server.ports import Buffer, ServerConnection


class _Settled:
    """Stands in for the connection of a request that is over: whatever comes late goes nowhere."""

    is_open = False
    peer_host = ""
    listener_name = ""
    principal = ""

    def awaits_answer(self, slot: int) -> bool:
        return False

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        pass

    def close(self, reason: str) -> None:
        pass

    def on_close(self, callback: Callable[[], None]) -> None:
        pass


_SETTLED: Final = _Settled()


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
        self.connection: ServerConnection = connection
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

    def settle(self) -> None:
        """The request is over. What it has left behind may still try to answer, and is not heard."""
        self.connection = _SETTLED
