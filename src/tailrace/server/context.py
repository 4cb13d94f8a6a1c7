"""One request on its way through the server."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from tailrace.protocol.headers import encode_response, encode_response_in_steps
from tailrace.server.ports import Buffer, ServerConnection
from tailrace.server.response_errors import ResponseErrors
from tailrace.server.slices import LongRequests, Steps, Stepwise

_logger = logging.getLogger("tailrace.server")

LONGEST_REQUESTED_BY: Final = 300
"""Characters of `RequestContext.requested_by` as `repr` has it, with its quotes and escapes."""
_LONGEST_ESCAPE: Final = len("\\U0010ffff")

_failed: Final[set[tuple[int, int]]] = set()
"""API key and version of responses that could not be encoded: each is logged once, however often it is requested."""


class _AnsweredConnection:
    """The connection of a request that is over: a late answer is dropped."""

    is_open = False
    peer_host = ""
    listener_name = ""
    principal = ""

    def awaits_answer(self, slot: int) -> bool:
        return False

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        pass

    def suspend(self) -> None:
        pass

    def go_on(self) -> None:
        pass

    def close(self, reason: str) -> None:
        pass

    def on_close(self, callback: Callable[[], None]) -> None:
        pass


_ANSWERED: Final = _AnsweredConnection()


class RequestContext:
    """The connection and version of a request, and the way to answer it.

    A handler either returns its response or keeps the context and calls `respond` once, later.
    """

    __slots__ = ("api_key", "api_version", "client_id", "connection", "correlation_id", "errors", "long", "slot")

    def __init__(
        self,
        connection: ServerConnection,
        slot: int,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        errors: ResponseErrors,
        long: LongRequests | None = None,
    ) -> None:
        """`errors` counts the error codes of the answer. `long` carries out what takes more than a step; None: it is
        carried out at once."""
        self.connection: ServerConnection = connection
        self.slot = slot
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.errors = errors
        self.long = long

    @property
    def requested_by(self) -> str:
        """The client's address and the name that it gives itself, for a line of the log (`%r`).

        At most LONGEST_REQUESTED_BY characters there: a client id may have 32,767 bytes.
        """
        return _cut(f"{self.connection.peer_host.lstrip('/')} {self.client_id or ''}".rstrip())

    def respond(self, response: Any) -> None:
        """Send the response message, in the version of the request.

        A response that has no form on the wire is a fault of its handler. It is logged, and costs this connection:
        a late answer comes in a turn of other requests, to which an exception would do harm.
        """
        try:
            self.send(response)
        except AssertionError:
            raise
        except Exception as fault:  # noqa: BLE001 - see above
            self._close_after(fault)

    def _close_after(self, fault: Exception) -> None:
        if (self.api_key, self.api_version) not in _failed:
            _failed.add((self.api_key, self.api_version))
            _logger.error("event=answer-failed api=%d version=%d", self.api_key, self.api_version, exc_info=fault)
        self.connection.close(f"API {self.api_key} v{self.api_version}: the answer has no form")

    def send(self, response: Any) -> None:
        """As `respond`, but raises KafkaError if the response cannot be encoded."""
        if self.connection.is_open:
            self.errors.count(self.api_key, response)
            self.connection.answer(self.slot, encode_response(response, self.api_version, self.correlation_id))

    def respond_in_steps(self, response: Stepwise[Any]) -> None:
        """As `respond`, for a response that is made in steps: the first one now, the others in later turns."""
        try:
            next(response)
        except StopIteration as over:
            if over.value is not None:
                self.respond(over.value)
        except AssertionError:
            raise
        except Exception as fault:  # noqa: BLE001 - as in `respond`
            self._close_after(fault)
        else:
            self.go_on_with(self._responded(response))

    def _responded(self, steps: Stepwise[Any]) -> Steps:
        try:
            response = yield from steps
            if response is not None:
                yield from self.sent_in_steps(response)
        except AssertionError:
            raise
        except Exception as fault:  # noqa: BLE001 - as in `respond`
            self._close_after(fault)

    def sent_in_steps(self, response: Any) -> Steps:
        """As `send`, in steps."""
        connection = self.connection
        if connection.is_open:
            yield from self.errors.counted_in_steps(self.api_key, response)
            chunks = yield from encode_response_in_steps(response, self.api_version, self.correlation_id)
            connection.answer(self.slot, chunks)

    def go_on_with(self, steps: Steps, *, is_large: bool = False) -> None:
        """Carry out the rest of this request."""
        if self.long is not None:
            self.long.begin(self.connection, steps, is_large=is_large)
        else:
            for _ in steps:
                pass

    def respond_encoded(self, answer: bytes) -> None:
        """Send an encoded response, header included: for the hot lane."""
        self.connection.answer(self.slot, (answer,))

    def respond_in_chunks(self, chunks: Sequence[Buffer]) -> None:
        """Send an encoded response, header included."""
        self.connection.answer(self.slot, chunks)

    def respond_nothing(self) -> None:
        """End the request without an answer (Produce with acks=0): later answers must not wait for one."""
        self.connection.answer(self.slot, None)

    def settle(self) -> None:
        """End the request. Later answers of its callbacks have no effect."""
        self.connection = _ANSWERED


def _cut(text: str) -> str:
    if len(text) <= LONGEST_REQUESTED_BY and len(repr(text)) <= LONGEST_REQUESTED_BY:
        return text
    text = text[:LONGEST_REQUESTED_BY]
    while (excess := len(repr(f"{text}...")) - LONGEST_REQUESTED_BY) > 0:
        text = text[: -max(excess // _LONGEST_ESCAPE, 1)]  # never more than necessary
    return f"{text}..."
