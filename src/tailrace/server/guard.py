"""The check of a request's accesses before its handler (decision 0111).

A handler of a node with an authorizer is wrapped by `guarded`. A refused access of the whole request is the answer of
the request. Refused elements are taken out of the request; their errors are put into the answer of the handler. Some
answers are narrowed: objects that the client may not describe are left out. A few handlers check accesses themselves,
because no part of the request or of the answer can be taken out (`CHECKED_BY_HANDLER`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from types import GeneratorType
from typing import Any, Final, NamedTuple

from tailrace.model.access import CLUSTER, Operation, SecuredResource, SecuredType
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.protocol.access import Access, Accesses, on_fetched_groups, topic_resource
from tailrace.protocol.declaration import Array
from tailrace.protocol.messages import (
    consumer_groups,
    fetch,
    groups,
    list_offsets,
    metadata,
    offsets,
    produce,
    security,
    sinks,
    topics,
    transactions,
)
from tailrace.protocol.registry import Api
from tailrace.protocol.schema import replace, schema_of
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Handler, HandlerTable
from tailrace.server.errors import error_response_in_steps, refused_elements_in_steps
from tailrace.server.slices import STEP, Stepwise

CHECKED_BY_HANDLER: Final[Collection[type[Any]]] = frozenset(
    (
        produce.ProduceRequest,
        fetch.FetchRequest,
        metadata.MetadataRequest,
        metadata.DescribeTopicPartitionsRequest,
        sinks.DescribeSinksRequest,
        # A node has no tokens: the answers to these requests tell nothing.
        security.CreateDelegationTokenRequest,
        security.DescribeDelegationTokenRequest,
    )
)
"""The requests whose handlers ask for each access themselves."""

DESCRIBE: Final = Operation.DESCRIBE


def guarded(handlers: HandlerTable, *, accesses: Mapping[type[Any], Accesses] | None = None) -> HandlerTable:
    """The handlers, each behind the check of its accesses. `accesses`: requests with other accesses than those of their
    row in the table of APIs."""
    others = accesses or {}
    return {
        api: handler
        if (api.request in CHECKED_BY_HANDLER and api.request not in others) or not (api.access or api.request in _OWN)
        else GuardedHandler(api, handler, others.get(api.request))
        for api, handler in handlers.items()
    }


class _Own(NamedTuple):
    """The differences of an API from the check by its row."""

    accesses: Accesses | None = None
    """The accesses in place of those of the row."""
    permits_all: Callable[[RequestContext], bool] = lambda _: False
    """Whether the client has a right that stands for the accesses to all elements."""
    check: Callable[[Any, RequestContext], None] = lambda *_: None
    """A check of the whole request. Raises KafkaError."""
    all_or_none: bool = False
    """Whether a refused element keeps the other elements from being carried out (OPERATION_NOT_ATTEMPTED)."""
    narrow: Callable[[Any, Any, RequestContext], Stepwise[Any]] | None = None
    """Makes the answer for the client of the request and the handler's answer."""


class _RefusedElements(NamedTuple):
    """Refused elements of a request: a request of them alone, and their error."""

    code: ErrorCode
    request: Any


class GuardedHandler:
    """A handler behind the check of the accesses of its requests."""

    def __init__(self, api: Api, handler: Handler, accesses: Accesses | None) -> None:
        """`accesses`: the accesses of the requests; None: those of the API's row."""
        self._handler = handler
        self._own = _OWN.get(api.request, _Own()) if accesses is None else _Own()
        self._accesses = accesses or (api.access if self._own.accesses is None else self._own.accesses)
        self._arrays = tuple(field.name for field in schema_of(api.response).fields if isinstance(field.type, Array))
        self._has_elements = any(access.array for access in self._accesses)

    def handle(self, request: Any, context: RequestContext) -> Any:
        for access in self._accesses:
            if not (access.array and getattr(request, access.array)):
                for resource in access.resources_of(request):
                    context.check(access.operation, resource)
        self._own.check(request, context)
        if not self._has_elements and self._own.narrow is None:
            return self._handler.handle(request, context)
        return self._in_steps(request, context)

    def _in_steps(self, request: Any, context: RequestContext) -> Stepwise[Any]:
        rest = request
        refusals: list[_RefusedElements] = []
        if not self._own.permits_all(context):
            for access in self._accesses:
                if access.array and getattr(request, access.array):
                    rest, refused = yield from self._split(access, rest, context)
                    refusals += refused
        is_empty = not any(getattr(rest, access.array) for access in self._accesses if access.array)
        if refusals and (is_empty or self._own.all_or_none):
            if not is_empty:
                refusals.append(_RefusedElements(ErrorCode.OPERATION_NOT_ATTEMPTED, rest))
            return (yield from self._refused(refusals, context, None))

        def finished(response: Any) -> Stepwise[Any]:
            if self._own.narrow is not None:
                response = yield from self._own.narrow(request, response, context)
            return (yield from self._refused(refusals, context, response))

        if not refusals and self._own.narrow is None:
            passed_on = context
        else:
            passed_on = context.intercepted(lambda response: context.respond_in_steps(finished(response)))
        try:
            response = self._handler.handle(rest, passed_on)
            if type(response) is GeneratorType:
                response = yield from response
        except KafkaError as refusal:
            if passed_on is context:
                raise
            response = yield from error_response_in_steps(rest, context.api_version, refusal)
        if response is None or passed_on is context:
            return response
        return (yield from finished(response))

    def _split(
        self, access: Access, request: Any, context: RequestContext
    ) -> Stepwise[tuple[Any, list["_RefusedElements"]]]:
        """The request without the elements that are refused, and the refusals of these elements."""
        permitted: list[Any] = []
        refused: dict[ErrorCode, list[Any]] = {}
        assert access.of_element is not None
        for number, element in enumerate(getattr(request, access.array), 1):
            if not number % STEP:
                yield
            resource = access.of_element(request, element)
            if context.permits(access.operation, resource):
                permitted.append(element)
            else:
                refused.setdefault(context.refusal_of(resource).code, []).append(element)
        empty = {other.array: () for other in self._accesses if other.array}
        refusals = [
            _RefusedElements(code, replace(request, **{**empty, access.array: tuple(elements)}))
            for code, elements in refused.items()
        ]
        return (replace(request, **{access.array: tuple(permitted)}) if refused else request), refusals

    def _refused(self, refusals: Iterable["_RefusedElements"], context: RequestContext, response: Any) -> Stepwise[Any]:
        """The response with the errors of refused elements behind the others."""
        for code, request in refusals:
            text = "" if code is ErrorCode.OPERATION_NOT_ATTEMPTED else "Authorization failed."
            refused = yield from refused_elements_in_steps(request, context.api_version, KafkaError(code, text))
            if response is None:
                response = refused
                continue
            more = {name: elements for name in self._arrays if (elements := getattr(refused, name))}
            response = replace(response, **{name: (*getattr(response, name), *more[name]) for name in more})
        return response


# Rules of single APIs


def _described(kind: SecuredType, array: str, name_of: Callable[[Any], str]) -> Callable[..., Stepwise[Any]]:
    """Leaves the elements of an answer out that the client may not describe."""

    def narrow(request: Any, response: Any, context: RequestContext) -> Stepwise[Any]:
        if kind is SecuredType.GROUP and context.authorize(DESCRIBE, CLUSTER):
            return response
        shown: list[Any] = []
        for number, element in enumerate(getattr(response, array), 1):
            if not number % STEP:
                yield
            if context.authorize(DESCRIBE, SecuredResource(kind, name_of(element))):
                shown.append(element)
        return replace(response, **{array: tuple(shown)})

    return narrow


def _check_producer(request: transactions.InitProducerIdRequest, context: RequestContext) -> None:
    """Idempotent writes need IDEMPOTENT_WRITE on the cluster, or WRITE on any topic (KIP-679)."""
    if request.transactional_id is not None:
        context.check(Operation.WRITE, SecuredResource(SecuredType.TRANSACTIONAL_ID, request.transactional_id))
    elif not context.services.authorizer.permits_any(context.identity, Operation.WRITE, SecuredType.TOPIC):
        context.check(Operation.IDEMPOTENT_WRITE, CLUSTER)


def _narrow_transactions(_: Any, response: Any, context: RequestContext) -> Stepwise[Any]:
    """Topics of a transaction are shown to clients that may describe the topics."""
    states: list[Any] = []
    for state in response.transaction_states:
        yield
        shown = tuple(topic for topic in state.topics if context.authorize(DESCRIBE, topic_resource(topic.topic)))
        states.append(state if len(shown) == len(state.topics) else replace(state, topics=shown))
    return replace(response, transaction_states=tuple(states))


def _narrow_created(_: Any, response: Any, context: RequestContext) -> Stepwise[Any]:
    """The settings of a new topic are shown to clients that may describe settings of the topic (KIP-525)."""
    results: list[Any] = []
    for number, result in enumerate(response.topics, 1):
        if not number % STEP:
            yield
        if not result.error_code and not context.authorize(Operation.DESCRIBE_CONFIGS, topic_resource(result.name)):
            without_settings = replace(
                result,
                topic_config_error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                num_partitions=-1,
                replication_factor=-1,
                configs=None,
            )
            results.append(without_settings)
        else:
            results.append(result)
    return replace(response, topics=tuple(results))


def _narrow_offsets(request: Any, response: Any, context: RequestContext) -> Stepwise[Any]:
    """Offsets are shown of topics that the client may describe. A request for all topics gets no others; topics that
    a request names get an error."""
    listed = {group.group_id for group in request.groups if group.topics is None}
    groups: list[Any] = []
    for group in response.groups:
        shown = yield from _shown_offsets(group.topics, context, is_named=group.group_id not in listed)
        groups.append(replace(group, topics=shown))
    shown = yield from _shown_offsets(response.topics, context, is_named=request.topics is not None)
    return replace(response, topics=shown, groups=tuple(groups))


def _shown_offsets(found: Any, context: RequestContext, *, is_named: bool) -> Stepwise[tuple[Any, ...]]:
    shown: list[Any] = []
    for topic in found:
        yield
        topic_id = getattr(topic, "topic_id", ZERO_TOPIC_ID)
        by_id = context.api_version >= _FIRST_OFFSET_FETCH_BY_ID
        resource = SecuredResource(SecuredType.TOPIC, "", topic_id) if by_id else topic_resource(topic.name)
        if context.permits(DESCRIBE, resource) if is_named else context.authorize(DESCRIBE, resource):
            shown.append(topic)
        elif is_named:
            code = context.refusal_of(resource).code
            partitions = tuple(
                type(partition)(
                    partition_index=partition.partition_index,
                    committed_offset=-1,
                    committed_leader_epoch=-1,
                    error_code=code,
                )
                for partition in topic.partitions
            )
            shown.append(replace(topic, partitions=partitions))
    return tuple(shown)


_FIRST_OFFSET_FETCH_BY_ID: Final = 10


def _narrow_consumer_groups(_: Any, response: Any, context: RequestContext) -> Stepwise[Any]:
    """A group with a topic that the client may not describe is shown without its members, and with an error."""
    shown: list[Any] = []
    for group in response.groups:
        yield
        names = {
            topic.topic_name
            for member in group.members
            for assignment in (member.assignment, member.target_assignment)
            for topic in assignment.topic_partitions
        }
        names.update(topic.name for details in group.details for topic in details.topics)
        if not all(context.authorize(DESCRIBE, topic_resource(name)) for name in names):
            without_members = replace(
                group,
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                error_message="The group has described topic(s) that the client is not authorized to describe.",
                members=(),
                details=(),
            )
            shown.append(without_members)
        else:
            shown.append(group)
    return replace(response, groups=tuple(shown))


def _narrow_assignment(_: Any, response: Any, context: RequestContext) -> Stepwise[Any]:
    """A member that subscribes by a regular expression gets no topics that the member's client may not describe."""
    yield
    if response.assignment is None:
        return response
    assigned = response.assignment.topic_partitions
    shown = tuple(
        topic
        for topic in assigned
        if context.authorize(DESCRIBE, SecuredResource(SecuredType.TOPIC, "", topic.topic_id))
    )
    if len(shown) == len(assigned):
        return response
    return replace(response, assignment=replace(response.assignment, topic_partitions=shown))


_OWN: Final[Mapping[type[Any], _Own]] = {
    topics.CreateTopicsRequest: _Own(
        permits_all=lambda context: context.authorize(Operation.CREATE, CLUSTER), narrow=_narrow_created
    ),
    list_offsets.OffsetForLeaderEpochRequest: _Own(
        permits_all=lambda context: context.authorize(Operation.CLUSTER_ACTION, CLUSTER)
    ),
    offsets.OffsetFetchRequest: _Own(accesses=on_fetched_groups(), narrow=_narrow_offsets),
    groups.ListGroupsRequest: _Own(
        accesses=(), narrow=_described(SecuredType.GROUP, "groups", lambda group: group.group_id)
    ),
    consumer_groups.ConsumerGroupDescribeRequest: _Own(narrow=_narrow_consumer_groups),
    consumer_groups.ConsumerGroupHeartbeatRequest: _Own(narrow=_narrow_assignment),
    transactions.InitProducerIdRequest: _Own(accesses=(), check=_check_producer),
    transactions.AddPartitionsToTxnRequest: _Own(all_or_none=True),
    transactions.DescribeTransactionsRequest: _Own(narrow=_narrow_transactions),
    transactions.ListTransactionsRequest: _Own(
        narrow=_described(SecuredType.TRANSACTIONAL_ID, "transaction_states", lambda listed: listed.transactional_id)
    ),
}
