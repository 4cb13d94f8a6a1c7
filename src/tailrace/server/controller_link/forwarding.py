"""Requests that only the active controller can carry out: here if this node is active, otherwise forwarded (KIP-590).

A whole request is sent in an envelope, on behalf of its client, and its answer comes back in the same way. The answer
is sent to the client when this node has applied, and acted on, the records behind the answer, so that the client's next
request to this node sees the change. While the controller moves, the request is tried again until its time is over: its
own timeout, from 1 to 30 s, or 30 s without a timeout. At that time the client gets the controller's answer or, without
an answer, REQUEST_TIMED_OUT, as in Kafka; the request may have been carried out.

A request that is sent again in the same leader epoch is carried out once (`envelopes`). If another controller has
become active meanwhile, the change may already be made: then the answer is TOPIC_ALREADY_EXISTS or a similar error.
"""

import logging
from collections.abc import Callable
from types import GeneratorType
from typing import Any, Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.registry import APIS, ForwardingKind
from tailrace.server.admin.config_changes import OwnBrokerConfigs
from tailrace.server.context import RequestContext
from tailrace.server.controller_link.controller_requests import (
    APPLIED_MEANWHILE,
    ControllerRequests,
    OnOutcome,
    Outcome,
)
from tailrace.server.controller_link.envelopes import Client, Envelopes, Sealed, has_moved
from tailrace.server.dispatch import Handler, HandlerTable
from tailrace.server.errors import error_response
from tailrace.server.ports import ServerConnection
from tailrace.server.slices import Stepwise, elements_of

SHORTEST_MS: Final = 1_000
"""The shortest time for a request: a client with a shorter timeout wants the change, but does not want to wait until
the change is visible everywhere."""
LONGEST_MS: Final = 30_000
MAX_FORWARDED: Final = 1_000
"""The most requests of one node that may wait for the active controller. Further requests are refused, since the wait
has no known end."""

_logger = logging.getLogger("tailrace.server")

_FEW: Final = 64
"""The most names of a request whose answer is sent in one step."""

_logged: Final[set[tuple[int, type[Exception]]]] = set()


def _log_once(api_key: int, fault: Exception) -> None:
    """Log a fault once: a client may repeat the request a million times."""
    if (api_key, type(fault)) not in _logged:
        _logged.add((api_key, type(fault)))
        _logger.error("event=forwarding-failed api=%d (reported once)", api_key, exc_info=fault)


def _step_before(response: Any) -> Stepwise[Any]:
    """A generator of the response that yields once before it returns, so that the bytes of the response are made in
    steps too."""
    yield
    return response


class _Forwarded:
    """A client's request on its way to the active controller."""

    oldest_version = 0

    def __init__(
        self, handler: Handler, request: Any, context: RequestContext, sealed: Sealed, on_over: Callable[[], None]
    ) -> None:
        self.context = context
        self.is_question = APIS[context.api_key].forwarding is ForwardingKind.QUESTION
        self._handler = handler
        self._request = request
        self._sealed = sealed
        self._on_over = on_over
        self.is_long = len(elements_of(request)) > _FEW
        """Whether the request has many names or settings: then its connection takes no other request before the
        answer."""

    def carry_out_here(self, on_outcome: OnOutcome) -> None:
        def on_response_here(response: Any) -> None:
            moved = has_moved(response)
            on_outcome(None if moved else Outcome(APPLIED_MEANWHILE, lambda: self._respond(response)))

        passed_on = self.context.intercepted(on_response_here)
        try:
            response = self._handler.handle(self._request, passed_on)
            if type(response) is GeneratorType:
                passed_on.respond_in_steps(self._or_refusal(response))
                return
        except KafkaError as refusal:
            response = self._refusal(refusal)
        except AssertionError:
            raise
        except Exception as fault:  # noqa: BLE001 - perhaps in the turn of another request, which must not suffer
            _log_once(self.context.api_key, fault)
            response = self._refusal(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        if response is not None:
            on_response_here(response)

    def _or_refusal(self, steps: Stepwise[Any]) -> Stepwise[Any]:
        try:
            return (yield from steps)
        except KafkaError as refusal:
            return self._refusal(refusal)

    def message(self, leader_epoch: int) -> Any:
        return self._sealed.envelope(leader_epoch)

    def outcome(self, answer: Any) -> Outcome | None:
        if answer.error_code == ErrorCode.NOT_CONTROLLER:
            return None
        try:
            response = self._sealed.answer(answer)
        except KafkaError as fault:
            if fault.code is not ErrorCode.REQUEST_TIMED_OUT:
                _log_once(self.context.api_key, fault)
            response = self._refusal(KafkaError(fault.code))
        return Outcome(max(0, answer.metadata_end_offset), lambda: self._respond(response))

    def fail(self, error: KafkaError) -> None:
        self._respond(self._refusal(error))

    def _refusal(self, error: KafkaError) -> Any:
        return error_response(self._request, self.context.api_version, error)

    def _respond(self, response: Any) -> None:
        self._on_over()
        if self.is_long:
            self.context.respond_in_steps(_step_before(response))
        else:
            self.context.respond(response)


class Forwarding:
    """The requests of this node's clients that wait for the active controller."""

    def __init__(self, *, requests: ControllerRequests, envelopes: Envelopes, node_id: int) -> None:
        self._requests = requests
        self._envelopes = envelopes
        self._node_id = node_id
        self._by_connection: dict[ServerConnection, dict[_Forwarded, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def handlers(self, handlers: HandlerTable) -> HandlerTable:
        """The given handlers of a broker; a handler of `FORWARDED_APIS` is replaced by a handler that forwards requests
        to the active controller."""
        return {api: self._passed_on(api.forwarding, handler) for api, handler in handlers.items()}

    def _passed_on(self, forwarding: ForwardingKind, handler: Handler) -> Handler:
        if forwarding is ForwardingKind.NEVER:
            return handler
        passing_on = ForwardingHandler(self, handler)
        changes_broker = forwarding is ForwardingKind.CHANGE_OF_BROKER
        return OwnBrokerConfigs(passing_on, node_id=self._node_id) if changes_broker else passing_on

    def forward(self, handler: Handler, request: Any, context: RequestContext) -> None:
        """Pass a request to the active controller; `handler` carries the request out if this node is active. Raises
        KafkaError REQUEST_TIMED_OUT at once if too many requests wait."""
        if self._count >= MAX_FORWARDED:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"{self._count} requests wait for the active controller; try again later"
            )
        connection = context.connection
        client = Client(context.client_id, context.correlation_id, context.identity)
        sealed = self._envelopes.seal(request, context.api_version, client)
        forwarded = _Forwarded(handler, request, context, sealed, lambda: self._over(connection, forwarded))
        waiting = self._by_connection.get(connection)
        if waiting is None:
            # A callback for each connection as long as it lives, not for each request.
            waiting = self._by_connection[connection] = {}
            connection.on_close(lambda: self._closed(connection))
        waiting[forwarded] = None
        self._count += 1
        if forwarded.is_long:
            connection.suspend()
        self._requests.run(forwarded, _timeout_ms(request))

    def _over(self, connection: ServerConnection, forwarded: _Forwarded) -> None:
        waiting = self._by_connection.get(connection, {})
        if forwarded in waiting:
            del waiting[forwarded]
            self._count -= 1
            if forwarded.is_long:
                connection.go_on()

    def _closed(self, connection: ServerConnection) -> None:
        for forwarded in self._by_connection.pop(connection, {}):
            self._count -= 1
            self._requests.forget(forwarded)


class ForwardingHandler:
    """Forwards the requests of one API to the active controller."""

    def __init__(self, forwarding: Forwarding, handler: Handler) -> None:
        """`handler` carries the requests out if the active controller is on this node."""
        self._forwarding = forwarding
        self._handler = handler

    def handle(self, request: Any, context: RequestContext) -> None:
        self._forwarding.forward(self._handler, request, context)


def _timeout_ms(request: Any) -> int:
    """The client's timeout, within the limits; `LONGEST_MS` for a timeout that is not positive."""
    wanted: int = getattr(request, "timeout_ms", LONGEST_MS)
    return min(max(wanted, SHORTEST_MS), LONGEST_MS) if wanted > 0 else LONGEST_MS
