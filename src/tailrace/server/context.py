"""A request on its way through the server."""

import logging
from collections.abc import Callable, Sequence
from types import GeneratorType
from typing import Any, ClassVar, Final, NamedTuple

from tailrace.model.access import Operation, SecuredResource, SecuredType
from tailrace.model.acls.bindings import OPERATIONS_OF
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.protocol.headers import encode_response, encode_response_in_steps
from tailrace.server.audit import DeniedAccesses
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.errors import error_response_in_steps
from tailrace.server.ports import Buffer, ServerConnection
from tailrace.server.response_errors import ResponseErrors
from tailrace.server.slices import LongRequests, Steps, Stepwise

_logger = logging.getLogger("tailrace.server")

LONGEST_REQUESTED_BY: Final = 300
"""The most characters of `RequestContext.requested_by`, in the form of `repr`, with quotes and escapes."""
_LONGEST_ESCAPE: Final = len("\\U0010ffff")
_EVERY_OPERATION: Final = {kind: sum(1 << operation for operation in OPERATIONS_OF[kind]) for kind in SecuredType}
_REFUSALS: Final = {
    SecuredType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    SecuredType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    SecuredType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    SecuredType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error of a refused operation, by the type of the resource. Operations on users are about tokens, which a node
does not have."""

_failed: Final[set[tuple[int, int]]] = set()
"""The API keys and versions of responses that could not be encoded: each pair is logged once."""


class _AnsweredConnection:
    """Takes the place of the connection when a request is over: a late answer is dropped."""

    is_open = False
    identity = ClientIdentity(listener_name="", address="")

    def awaits_answer(self, slot: int) -> bool:
        return False

    def answer(self, slot: int, chunks: Sequence[Buffer] | None) -> None:
        pass

    def suspend(self) -> None:
        pass

    def go_on(self) -> None:
        pass

    def throttle(self, throttle_ms: int) -> None:
        pass

    def close(self, reason: str) -> None:
        pass

    def on_close(self, callback: Callable[[], None]) -> None:
        pass


_ANSWERED: Final = _AnsweredConnection()
_NO_AUDIT: Final = DeniedAccesses()


class RequestServices(NamedTuple):
    """The parts that all requests of a dispatcher share."""

    errors: ResponseErrors
    """Counts the error codes of answers."""
    long: LongRequests | None = None
    """Carries out work that has more than a step; None: long work is carried out at once."""
    authorizer: Authorizer = PERMIT_ALL
    denied: DeniedAccesses = _NO_AUDIT
    """Takes note of denied accesses."""


class RequestContext:
    """The connection and version of a request, and the way to answer.

    A handler either returns its response or keeps the context and calls `respond` once, later.
    """

    __slots__ = (
        "api_key",
        "api_version",
        "client_id",
        "connection",
        "correlation_id",
        "identity",
        "services",
        "slot",
    )

    is_metered: ClassVar[bool] = False
    """Whether the client may have quotas (`server.quotas.metered_context`)."""

    def __init__(
        self,
        connection: ServerConnection,
        slot: int,
        api_key: int,
        api_version: int,
        correlation_id: int,
        client_id: str | None,
        services: RequestServices,
    ) -> None:
        self.connection: ServerConnection = connection
        self.identity = connection.identity
        """The client. A later authentication of the connection does not change this identity."""
        self.slot = slot
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.services = services

    def handled(self) -> None:
        """Note that the handler has returned; the answer may come later."""

    def exempt(self) -> None:
        """Note that the request does not count for the quotas of its client: a follower has sent the request."""

    @property
    def fetch_allowance(self) -> int | None:
        """The bytes of records that a fetch may have by the quota of its client: 0 if the quota is used up; None
        without a quota."""
        return None

    def throttled(self, response: Any) -> Any:
        """The response with the throttle time of its client. The request is counted, and the client's connection is
        throttled; a second call does nothing."""
        return response

    def authorize(self, operation: Operation, resource: SecuredResource) -> bool:
        """Whether the client may perform the operation on the resource; `protocol.access` lists the accesses of each
        request."""
        return self.services.authorizer.permits(self.identity, operation, resource)

    def permits(self, operation: Operation, resource: SecuredResource) -> bool:
        """The same as `authorize`, for a request that is refused without the access: a denial is counted and goes to
        the audit log."""
        services = self.services
        if services.authorizer.permits(self.identity, operation, resource):
            return True
        services.denied.note(self, operation, resource, services.authorizer)
        return False

    @property
    def has_authorizer(self) -> bool:
        """Whether there is anything to ask `authorize`: a hot path asks nothing on a node without security."""
        return self.services.authorizer is not PERMIT_ALL

    def check(self, operation: Operation, resource: SecuredResource) -> None:
        """Raises the error of a client that may not perform the operation on the resource (`refusal_of`)."""
        if not self.permits(operation, resource):
            raise self.refusal_of(resource)

    def refusal_of(self, resource: SecuredResource) -> KafkaError:
        """The error of a resource on which the client may not perform an operation.

        A client that may not describe a topic gets the error of an id that no topic has: it must not learn which ids
        exist.
        """
        is_by_id = resource.type is SecuredType.TOPIC and not resource.name and resource.topic_id != ZERO_TOPIC_ID
        if is_by_id and not self.authorize(Operation.DESCRIBE, resource):
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        return KafkaError(_REFUSALS[resource.type], "Authorization failed.")

    def operations_on(self, resource: SecuredResource) -> int:
        """The operations that the client may perform on a resource, as bits (KIP-430)."""
        operations = OPERATIONS_OF[resource.type]
        if not self.has_authorizer:
            return _EVERY_OPERATION[resource.type]
        return sum(1 << operation for operation in operations if self.authorize(operation, resource))

    def intercepted(self, take: Callable[[Any], None]) -> "RequestContext":
        """A context for another handler: `take` gets the handler's response, which the client does not get."""
        return _InterceptedContext(self, take)

    @property
    def requested_by(self) -> str:
        """The client's address and the name that it gives itself, for a line of the log (`%r`).

        At most LONGEST_REQUESTED_BY characters there: a client id may have 32,767 bytes.
        """
        return _cut(f"{self.identity.address} {self.client_id or ''}".rstrip())

    def respond(self, response: Any) -> None:
        """Send the response message, in the version of the request.

        If a response cannot be encoded, its handler has a fault. The fault is logged, and the connection is closed. The
        fault is not raised: `respond` may run in a turn of other requests, which an exception would harm.
        """
        try:
            self.send(response)
        except AssertionError:
            raise
        except Exception as fault:  # noqa: BLE001 - see above
            self._close_after(fault)

    def refuse(self, request: Any, error: KafkaError) -> None:
        """Send the error response of the request's API."""
        self.respond_in_steps(error_response_in_steps(request, self.api_version, error))

    def answering(self, request: Any, response_of: Callable[[Any], Any]) -> Callable[[Any], None]:
        """A callback for the outcome of a command. If the outcome is a KafkaError, the callback refuses the request.
        For any other outcome it sends the response that `response_of` makes, perhaps in steps."""

        def answer(outcome: Any) -> None:
            if isinstance(outcome, KafkaError):
                self.refuse(request, outcome)
                return
            response = response_of(outcome)
            if type(response) is GeneratorType:
                self.respond_in_steps(response)
            else:
                self.respond(response)

        return answer

    def _close_after(self, fault: Exception) -> None:
        if (self.api_key, self.api_version) not in _failed:
            _failed.add((self.api_key, self.api_version))
            _logger.error("event=answer-failed api=%d version=%d", self.api_key, self.api_version, exc_info=fault)
        self.connection.close(f"API {self.api_key} v{self.api_version}: the answer has no form")

    def send(self, response: Any) -> None:
        """Send the response like `respond`, but raise KafkaError if the response cannot be encoded."""
        if self.connection.is_open:
            self.services.errors.count(self.api_key, response)
            self.connection.answer(self.slot, encode_response(response, self.api_version, self.correlation_id))

    def respond_in_steps(self, response: Stepwise[Any]) -> None:
        """Do the work of `respond` for a response that is made in steps: the first step now, further steps in later
        turns."""
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
        """Do the work of `send` in steps."""
        connection = self.connection
        if connection.is_open:
            yield from self.services.errors.counted_in_steps(self.api_key, response)
            chunks = yield from encode_response_in_steps(response, self.api_version, self.correlation_id)
            connection.answer(self.slot, chunks)

    def go_on_with(self, steps: Steps, *, is_large: bool = False) -> None:
        """Carry out the rest of this request."""
        long = self.services.long
        if long is not None:
            long.begin(self.connection, steps, is_large=is_large)
        else:
            for _ in steps:
                pass

    def respond_nothing(self) -> None:
        """End the request without an answer (Produce with acks=0): later answers must not wait for an answer of this
        request."""
        self.connection.answer(self.slot, None)

    def settle(self) -> None:
        """End the request. Later answers of its callbacks have no effect."""
        self.connection = _ANSWERED


class _InterceptedContext(RequestContext):
    """A request that a handler passes on to another handler of the same node."""

    __slots__ = ("_passed_on", "_take")

    def __init__(self, passed_on: RequestContext, take: Callable[[Any], None]) -> None:
        super().__init__(
            passed_on.connection,
            passed_on.slot,
            passed_on.api_key,
            passed_on.api_version,
            passed_on.correlation_id,
            passed_on.client_id,
            passed_on.services,
        )
        self.identity = passed_on.identity
        self._passed_on = passed_on
        self._take = take

    def respond(self, response: Any) -> None:
        self._take(response)

    def respond_in_steps(self, response: Stepwise[Any]) -> None:
        self._passed_on.respond_in_steps(self._taken(response))

    def _taken(self, response: Stepwise[Any]) -> Stepwise[None]:
        answer = yield from response
        if answer is not None:
            self._take(answer)


def _cut(text: str) -> str:
    if len(text) <= LONGEST_REQUESTED_BY and len(repr(text)) <= LONGEST_REQUESTED_BY:
        return text
    text = text[:LONGEST_REQUESTED_BY]
    while (excess := len(repr(f"{text}...")) - LONGEST_REQUESTED_BY) > 0:
        text = text[: -max(excess // _LONGEST_ESCAPE, 1)]  # removes no more characters than necessary
    return f"{text}..."
