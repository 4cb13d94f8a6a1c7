"""The way from a frame to the handler of its API, and from the outcome to an answer.

The answers to a bad request (decisions 0045, 0046):
1. malformed bytes, an unknown API or version: the connection is closed (KIP-511: only ApiVersions of an unknown
   version gets an answer, so that the client can try a lower version);
2. a KafkaError: the error response of that API;
3. any other exception: UNKNOWN_SERVER_ERROR. The traceback goes to the log, once per place;
4. a failed assertion is a broken invariant: no later answer can be trusted, and the process stops. A failed assertion
   in the decoder of requests only closes the connection, and the traceback goes to the log: no state has changed yet,
   and otherwise a client could stop one node after the other with the same bytes.

A request of many elements is decoded, carried out and answered in slices (decision 0077): a handler returns the
generator of its response.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from struct import Struct
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.protocol.headers import API_VERSIONS, encode_response
from tailrace.protocol.registry import APIS, Api, api_of
from tailrace.protocol.request_headers import decode_client_id
from tailrace.protocol.schema import decode_from, decode_in_steps
from tailrace.server.api_versions import NOTHING_FINALIZED, ApiVersionsHandler, FinalizedFeatures
from tailrace.server.audit import DeniedAccesses
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.errors import error_response
from tailrace.server.ports import ServerConnection
from tailrace.server.quotas.meter import QuotaMeter
from tailrace.server.response_errors import ResponseErrors
from tailrace.server.slices import LongRequests, Steps, Stepwise, elements_of, released

_logger = logging.getLogger("tailrace.server")

_PREFIX = Struct(">hhi")
"""API key, version, correlation id: the same in every header version."""

_MAX_KNOWN_FAULTS = 1_000
_FEW = 1_000
"""Elements of a request that are decoded in one step: about a millisecond."""


class Handler(Protocol):
    """Carries out the requests of one API."""

    def handle(self, request: Any, context: RequestContext) -> Any:
        """The response; None if `context.respond` is called later, or if the request gets no answer. May raise
        KafkaError.

        For work that grows with the names in a request, the handler returns a generator whose result is the response:
        its first step is done at once, and further steps in slices.
        """
        ...


@runtime_checkable
class HotHandler(Protocol):
    """A handler that can take a request without decoding, if the request is like an earlier request of its
    connection."""

    def take_frame(
        self, connection: ServerConnection, slot: int, frame: memoryview, version: int, correlation_id: int
    ) -> bool:
        """Carry out the request; returns False if the frame has to be decoded. No client can cause an exception
        here."""
        ...

    def learn(self, frame: memoryview, request: Any, context: RequestContext) -> None:
        """Remember the form of a request that had to be decoded, for later frames."""
        ...


HandlerTable = Mapping[Api, Handler]


def by_api(handlers: Mapping[type[Any], Handler]) -> HandlerTable:
    """The table of these handlers, by the class of their requests."""
    return {api_of(request): handler for request, handler in handlers.items()}


class RequestCount(NamedTuple):
    """The number of requests of one version of an API."""

    api: Api
    version: int
    requests: int


class _Route:
    """A row of the dispatch table."""

    __slots__ = (
        "api",
        "counts",
        "few_elements",
        "flexible_from",
        "handle",
        "hot",
        "max_elements",
        "max_version",
        "min_version",
        "request_type",
    )

    def __init__(self, api: Api, handler: Handler) -> None:
        self.api = api
        self.handle = handler.handle
        self.hot: HotHandler | None = handler if isinstance(handler, HotHandler) else None
        self.request_type = api.request
        self.max_elements = api.max_elements
        self.few_elements = min(_FEW, api.max_elements)
        self.flexible_from = api.flexible_from
        self.min_version = api.min_version
        self.max_version = api.max_version
        self.counts = [0] * (api.max_version + 1)
        """The number of requests, by version."""


def _timed(route: _Route, request: Any, context: RequestContext) -> Any:
    """Carry out the request; the time counts for the quotas of its client."""
    try:
        return route.handle(request, context)
    finally:
        context.handled()


class Dispatcher:
    """Answers frames."""

    def __init__(
        self,
        handlers: HandlerTable,
        *,
        on_broken_invariant: Callable[[BaseException], None],
        finalized: Callable[[], FinalizedFeatures] = lambda: NOTHING_FINALIZED,
        long: LongRequests | None = None,
        authorizer: Authorizer = PERMIT_ALL,
        denied: DeniedAccesses | None = None,
    ) -> None:
        """`finalized`: the feature levels of the cluster, for clients. `long` carries out requests of many elements;
        None: such requests are carried out at once. `authorizer` decides on the access of requests; `denied` takes
        note of denied accesses."""
        own = APIS[API_VERSIONS]
        self._api_versions = ApiVersionsHandler({*handlers, own}, finalized)
        everything: HandlerTable = {**handlers, own: self._api_versions}
        by_key = sorted(everything.items(), key=lambda row: row[0].key)
        self._routes = {api.key: _Route(api, handler) for api, handler in by_key}
        self._on_broken_invariant = on_broken_invariant
        self._known_faults: set[tuple[str, str, int]] = set()
        self.errors = ResponseErrors()
        """Error codes of the answers; read by the metrics, like the two counts below."""
        self._services = RequestServices(self.errors, long, authorizer, denied or DeniedAccesses())
        self.meter: QuotaMeter | None = None
        """The quotas of clients; None while no client has a quota."""
        self.unsupported = 0
        """The number of requests of an API or a version that this node does not serve."""
        self.malformed = 0
        """The number of requests that could not be decoded."""

    def request_counts(self) -> Iterator[RequestCount]:
        """The number of requests, by API and version, without zeros."""
        for route in self._routes.values():
            for version, count in enumerate(route.counts):
                if count:
                    yield RequestCount(route.api, version, count)

    def on_frame(self, connection: ServerConnection, slot: int, frame: memoryview) -> None:
        """Carry out one request. Never raises."""
        api_key, api_version, correlation_id = _PREFIX.unpack_from(frame)
        route = self._routes.get(api_key)
        if route is None or not route.min_version <= api_version <= route.max_version:
            self._refuse(connection, slot, api_key, api_version, correlation_id)
            return
        route.counts[api_version] += 1
        meter = self.meter
        hot = route.hot if meter is None else None
        if hot is not None:
            try:
                if hot.take_frame(connection, slot, frame, api_version, correlation_id):
                    return
            except Exception as fault:  # noqa: BLE001 - nothing was decoded, so no answer can be made
                self._close_after_fault(connection, route.api, api_version, fault)
                return
        try:
            client_id, position = decode_client_id(frame, is_flexible=api_version >= route.flexible_from)
            # Bytes behind the request are ignored, as in Kafka: librdkafka 2.16 sends three bytes too many in Metadata
            # v13 for all topics.
            request, _ = decode_from(route.request_type, api_version, frame, position, max_elements=route.few_elements)
        except Exception as fault:  # noqa: BLE001 - also a failed assertion of the decoder costs this connection alone
            if len(frame) < _FEW or not isinstance(fault, MalformedMessage):
                self._close_unread(connection, route.api, api_version, fault)
                return
            request = None
        new_context = RequestContext if meter is None else meter.contexts(len(frame))
        context = new_context(connection, slot, api_key, api_version, correlation_id, client_id, self._services)
        if request is None:  # the request has many elements, or is malformed
            steps = self._decoded_in_steps(route, context, frame, position)
            del frame  # as below
            context.go_on_with(steps, is_large=True)
            return
        try:
            if hot is not None:
                hot.learn(frame, request, context)
            # A kept exception has this call in its traceback, and so would keep the receive buffer, too.
            del frame
            response = route.handle(request, context) if meter is None else _timed(route, request, context)
            if type(response) is GeneratorType:
                response = self._first_step(route.api, request, context, response)
        except KafkaError as refusal:
            self._answer_refusal(request, context, refusal)
        except AssertionError as broken:
            self._on_broken_invariant(broken)
        except Exception as fault:  # noqa: BLE001 - a fault of one handler costs one request, not the node
            self._answer_fault(route.api, request, context, fault)
        else:
            if response is not None:
                self._respond(route.api, request, context, response)

    def _first_step(self, api: Api, request: Any, context: RequestContext, steps: Stepwise[Any]) -> Any:
        """The response, if the first step makes it; else None, and further steps follow in slices."""
        try:
            next(steps)
        except StopIteration as over:
            return over.value
        context.go_on_with(self._carried_out(api, request, context, lambda: steps))
        return None

    def _decoded_in_steps(self, route: _Route, context: RequestContext, frame: memoryview, position: int) -> Steps:
        api, version = route.api, context.api_version
        try:
            request, _ = yield from decode_in_steps(
                api.request, version, frame, position, max_elements=route.max_elements
            )
        except Exception as fault:  # noqa: BLE001 - as in `on_frame`
            self._close_unread(context.connection, api, version, fault)
            return
        del frame
        yield from self._carried_out(api, request, context, partial(route.handle, request, context))
        elements = elements_of(request)
        del request
        yield from released(elements)

    def _carried_out(self, api: Api, request: Any, context: RequestContext, handle: Callable[[], Any]) -> Steps:
        """A request of many elements, carried out in steps and answered."""
        try:
            response = handle()
            if type(response) is GeneratorType:
                response = yield from response
            if response is not None:
                yield from context.sent_in_steps(response)
                elements = elements_of(response)
                del response
                yield from released(elements)
        except KafkaError as refusal:
            self._answer_refusal(request, context, refusal)
        except AssertionError as broken:
            self._on_broken_invariant(broken)
        except Exception as fault:  # noqa: BLE001 - a fault of one handler costs one request, not the node
            self._answer_fault(api, request, context, fault)

    def _refuse(
        self, connection: ServerConnection, slot: int, api_key: int, api_version: int, correlation_id: int
    ) -> None:
        self.unsupported += 1
        if api_key == API_VERSIONS:
            answer = self._api_versions.unsupported_version()
            connection.answer(slot, encode_response(answer, 0, correlation_id))
            return
        name = APIS[api_key].name if api_key in APIS else f"API {api_key}"
        connection.close(f"{name} v{api_version} is not served here")

    def _close_after_fault(self, connection: ServerConnection, api: Api, version: int, fault: Exception) -> None:
        if isinstance(fault, AssertionError):
            self._on_broken_invariant(fault)
            return
        self._log_once(api, fault)
        connection.close(f"{api.name} v{version} failed")

    def _close_unread(self, connection: ServerConnection, api: Api, version: int, fault: Exception) -> None:
        if isinstance(fault, MalformedMessage):
            self.malformed += 1
            connection.close(f"malformed {api.name} v{version}: {fault.detail}")
            return
        self._log_once(api, fault)
        connection.close(f"{api.name} v{version} could not be read")

    def _respond(self, api: Api, request: Any, context: RequestContext, response: Any) -> None:
        try:
            context.send(response)
        except AssertionError as broken:
            self._on_broken_invariant(broken)
        except Exception as fault:  # noqa: BLE001 - a response that has no form on the wire is a fault of its handler
            self._answer_fault(api, request, context, fault)

    def _answer_refusal(self, request: Any, context: RequestContext, refusal: KafkaError) -> None:
        """Answer with the error response of the API; a fault closes the connection."""
        if not context.connection.awaits_answer(context.slot):
            return
        try:
            context.refuse(request, refusal)
        except AssertionError as broken:
            self._on_broken_invariant(broken)

    def _answer_fault(self, api: Api, request: Any, context: RequestContext, fault: Exception) -> None:
        self._log_once(api, fault)
        self._answer_error(api, request, context, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR))
        context.settle()

    def _answer_error(self, api: Api, request: Any, context: RequestContext, error: KafkaError) -> None:
        """Answer with the error response of the API, after a fault; if the error response cannot be made, close the
        connection."""
        if not context.connection.awaits_answer(context.slot):
            return
        try:
            context.send(error_response(request, context.api_version, error))
        except AssertionError as broken:
            self._on_broken_invariant(broken)
        except Exception as fault:  # noqa: BLE001 - after any fault the client must not wait for ever
            self._log_once(api, fault)
            context.connection.close(f"{api.name} v{context.api_version} failed: {error.code.name}")

    def _log_once(self, api: Api, fault: Exception) -> None:
        """Log the traceback, unless this fault was logged before: a client may repeat it a million times."""
        trace = fault.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = (trace.tb_frame.f_code.co_filename, trace.tb_lineno) if trace is not None else ("", 0)
        known = (type(fault).__name__, *place)
        if known in self._known_faults or len(self._known_faults) >= _MAX_KNOWN_FAULTS:
            return
        self._known_faults.add(known)
        _logger.error("event=handler-failed api=%s (reported once per place)", api.name, exc_info=fault)
