"""A client without rights: no request of any API in any version changes anything, or shows anything.

The client sends the same request to a node with topics, groups and transactions and to a node without. If both answers
are the same, the client has learned nothing of the first node.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.declaration import Array, schema_of
from tailrace.protocol.messages import (
    api_versions,
    fetch,
    groups,
    list_offsets,
    log_dirs,
    membership,
    metadata,
    produce,
    security,
    sinks,
    topics,
    transactions,
)
from tailrace.protocol.registry import APIS, Api
from tailrace.protocol.schema import replace
from testkit.coordinators.whole_node import WholeNode, sensible

SECURED: Final = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}
MALLORY: Final = "User:mallory"
REFUSALS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
}

CASES: Final = [
    pytest.param(api, version, id=f"{api.name} v{version}")
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]
OPEN: Final = {
    api_versions.ApiVersionsRequest: "the offset of the last metadata record is the epoch of the features",
    api_versions.SaslHandshakeRequest: "the way to an identity",
    api_versions.SaslAuthenticateRequest: "the way to an identity",
    metadata.DescribeClusterRequest: "any client may know the brokers",
    security.CreateDelegationTokenRequest: "refused for every client",
    security.RenewDelegationTokenRequest: "refused for every client",
    security.ExpireDelegationTokenRequest: "refused for every client",
    security.DescribeDelegationTokenRequest: "refused for every client",
    log_dirs.DescribeLogDirsRequest: "a list without elements, before v3 without an error",
    sinks.DescribeSinksRequest: "a list without elements",
    groups.ListGroupsRequest: "a list without elements",
    transactions.ListTransactionsRequest: "a list without elements",
}
"""Requests whose answer to a client without rights has no error of a refused access."""


@pytest.fixture(scope="module")
def node() -> WholeNode:
    return WholeNode(SECURED)


@pytest.fixture(scope="module")
def empty() -> WholeNode:
    return WholeNode(SECURED, is_empty=True)


def state_of(node: WholeNode) -> object:
    """The metadata, the ends of the logs, and the groups and transactions of a node."""
    ends = {
        partition: (found.log.log_start_offset, found.log.log_end_offset)
        for topic in node.controller.image.topics.values()
        for partition in (TopicPartition(topic.name, number) for number in topic.partitions)
        if (found := node.table.find(*partition)) is not None
    }
    hosts = list(node.broker.coordination.groups.active_hosts())
    overviews = [repr(group) for host in hosts for group in host.machine.reports.overview()]
    sessions = len(list(node.broker.fetch_sessions.cache.sessions()))
    return node.controller.image, ends, overviews, sessions


def codes_in(value: Any) -> set[int]:
    """The error codes anywhere in a response."""
    codes: set[int] = set()
    for field in schema_of(type(value)).fields:
        part = getattr(value, field.name)
        if field.name in ("error_code", "partition_error_code") and part:
            codes.add(part)
        for element in part if isinstance(field.type, Array) and part else (part,):
            if hasattr(element, "__schema__"):
                codes |= codes_in(element)
    return codes


def answer(node: WholeNode, request: Any, version: int) -> tuple[str, Any]:
    """The answer to the client, or the reason of a closed connection."""
    exchange, connection = node.exchange(request, version, principal=MALLORY)
    return (connection.close_reason or "open"), exchange.response if exchange.is_answered else None


WIDE: Final[dict[type, Callable[[Any], Any]]] = {
    metadata.MetadataRequest: lambda asked: replace(asked, topics=None),
    metadata.DescribeTopicPartitionsRequest: lambda asked: replace(asked, topics=(), cursor=None),
    groups.ListGroupsRequest: lambda _: groups.ListGroupsRequest(states_filter=(), types_filter=()),
    transactions.ListTransactionsRequest: lambda asked: replace(
        asked, state_filters=(), producer_id_filters=(), duration_filter=-1, transactional_id_pattern=None
    ),
}
"""Requests for everything."""


@pytest.mark.parametrize(("api", "version"), CASES)
def test_a_client_without_rights_changes_nothing_and_learns_nothing(
    node: WholeNode, empty: WholeNode, api: Api, version: int
) -> None:
    before = state_of(node)
    requests = [sensible(api, node)]
    if api.request in WIDE and (api.request is not metadata.MetadataRequest or version):
        requests.append(WIDE[api.request](requests[0]))
    for request in requests:
        on_empty, on_node = answer(empty, request, version), answer(node, request, version)
        if api.request is api_versions.ApiVersionsRequest:
            on_empty, on_node = (
                (reason, replace(response, finalized_features_epoch=0)) for reason, response in (on_empty, on_node)
            )
        assert on_node == on_empty
        if api.request not in OPEN and request is requests[0]:
            codes = codes_in(on_node[1])
            assert codes <= REFUSALS, [ErrorCode(code) for code in codes]
            assert codes or on_node[0] != "open", on_node
    assert state_of(node) == before


CHANGES: Final = (
    topics.CreateTopicsRequest,
    produce.ProduceRequest,
    membership.LeaveGroupRequest,
)


@pytest.mark.parametrize("request_type", CHANGES)
def test_the_same_requests_of_a_super_user_have_an_effect(request_type: type) -> None:
    node = WholeNode(SECURED)
    before = state_of(node)
    (api,) = [api for api in APIS.values() if api.request is request_type]
    node.exchange(sensible(api, node), api.max_version)
    assert state_of(node) != before


@pytest.mark.parametrize("request_type", [fetch.FetchRequest, list_offsets.ListOffsetsRequest])
def test_the_same_requests_of_a_super_user_are_answered(node: WholeNode, request_type: type) -> None:
    (api,) = [api for api in APIS.values() if api.request is request_type]
    for version in range(api.min_version, api.max_version + 1):
        exchange, _ = node.exchange(sensible(api, node), version)
        assert not codes_in(exchange.response)
