"""The guard of a handler: refused elements of several arrays of one request."""

from typing import Any

from tailrace.model.access import Operation, SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from tailrace.protocol.registry import api_of
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.guard import GuardedHandler
from tailrace.server.response_errors import ResponseErrors
from testkit.nodes.ports import RecordingConnection


class AuthorizerOfNames:
    """Permits everything on the topics of these names."""

    version: object = None
    asks_addresses = False

    def __init__(self, *names: str) -> None:
        self._names = names

    def permits(self, identity: object, operation: Operation, resource: SecuredResource) -> bool:
        return resource.name in self._names

    def explain(self, identity: object, operation: Operation, resource: SecuredResource) -> str:
        return ""

    def permits_any(self, identity: object, operation: Operation, kind: SecuredType) -> bool:
        return bool(self._names)


class RequestKeeper:
    """Keeps the request, and answers nothing for it."""

    def __init__(self) -> None:
        self.requests: list[DeleteTopicsRequest] = []

    def handle(self, request: DeleteTopicsRequest, context: RequestContext) -> DeleteTopicsResponse:
        self.requests.append(request)
        return DeleteTopicsResponse(responses=())


def outcome(steps: Any) -> Any:
    """The result of work in steps."""
    while True:
        try:
            next(steps)
        except StopIteration as over:
            return over.value


def test_elements_of_two_arrays_with_the_same_error_are_refused_each() -> None:
    """No request on the wire fills both arrays; the guard must not rely on that."""
    handler = RequestKeeper()
    guard = GuardedHandler(api_of(DeleteTopicsRequest), handler, None)
    services = RequestServices(ResponseErrors(), None, AuthorizerOfNames("mine"))
    context = RequestContext(RecordingConnection(), 0, 20, 6, 7, "test", services)
    states = tuple(DeleteTopicState(name=name) for name in ("mine", "first"))
    request = DeleteTopicsRequest(topics=states, topic_names=("second",), timeout_ms=0)
    response = outcome(guard.handle(request, context))
    found = {result.name: result.error_code for result in response.responses}
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found == {"first": refused, "second": refused}
    (passed_on,) = handler.requests
    assert ([state.name for state in passed_on.topics], passed_on.topic_names) == (["mine"], ())
