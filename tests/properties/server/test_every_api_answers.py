"""Every API in every served version answers any request that is Kafka's language, with a code that Kafka has for it.

The dispatcher has the handlers of a whole node. A request is answered in its version, at the latest when all time is
over; -1 (UNKNOWN_SERVER_ERROR), a closed connection and a logged fault are faults of ours. Three ways to ask:
1. a sensible request with one field at an extreme, for every field, and every array empty, null or twice as long;
2. arrays with as many elements as a request may have;
3. anything that a message can hold, request after request on one connection.
"""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import MODEL_RUNS, examples
from tailrace.model.errors import ErrorCode
from tailrace.protocol.declaration import Array, Field, RecordBytes, Text, schema_of
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.registry import APIS, CLIENT_APIS, CONTROLLER_APIS, Api, api_of
from testkit.coordinators.whole_node import WholeNode, sensible
from testkit.nodes.data_path import Exchange, batch_of
from testkit.nodes.ports import RecordingConnection
from testkit.records.strategies import LONGEST_STRING, crowds, messages, neighbours

PRODUCE = 0

CASES = [
    pytest.param(api, version, id=f"{api.name} v{version}")
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
]
NEWEST = [pytest.param(api, api.max_version, id=api.name) for api in APIS.values()]


def ask(node: WholeNode, request: Any, version: int, *, client_id: str | None = "test") -> None:
    """Send the request on a connection of its own, wait for the end of all time, and check what came back."""
    exchange, connection = node.exchange(request, version, client_id=client_id)
    check_answer(request, exchange, connection)
    connection.hang_up()


def check_answer(request: Any, exchange: Exchange, connection: RecordingConnection) -> None:
    if isinstance(request, ProduceRequest) and request.acks == 0:
        assert exchange.is_answered or "produce with acks=0 failed" in str(connection.close_reason)
        return
    assert connection.is_open, connection.close_reason
    assert exchange.is_answered, "no answer"
    assert ErrorCode.UNKNOWN_SERVER_ERROR not in set(error_codes(exchange.response))


def error_codes(value: Any) -> Iterator[int]:
    """Every error code in a response."""
    for field in schema_of(type(value)).fields:
        part = getattr(value, field.name)
        if field.name == "error_code":
            yield part
        for each in part if isinstance(field.type, Array) and part else (part,):
            if hasattr(each, "__schema__"):
                yield from error_codes(each)


@pytest.fixture(autouse=True)
def _no_handler_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    failures = [record for record in caplog.get_records("call") if record.levelno >= logging.ERROR]
    assert not failures, [logging.Formatter().format(record) for record in failures]


def test_each_kind_of_listener_serves_the_apis_that_are_for_it() -> None:
    node = WholeNode()
    own = {api_of(ApiVersionsRequest)}
    assert node.broker.handlers.keys() | own == set(CLIENT_APIS.values())
    assert node.apis.handlers.keys() | own == set(CONTROLLER_APIS.values())


# 1. A sensible request, and all that is one step away from it


@pytest.mark.parametrize(("api", "version"), CASES)
def test_one_field_at_an_extreme_is_answered(api: Api, version: int) -> None:
    node = WholeNode()
    ask(node, sensible(api, node), version)
    for request in neighbours(sensible(api, node), version, version >= api.flexible_from):
        ask(node, request, version)
    for client_id in (None, "", "\0é\n", LONGEST_STRING):
        ask(node, sensible(api, node), version, client_id=client_id)
    node.check_alive()


# 2. As many elements as a request may have


@pytest.mark.parametrize(("api", "version"), NEWEST)
def test_an_array_of_very_many_elements_is_answered(api: Api, version: int) -> None:
    node = WholeNode()
    for request in crowds(sensible(api, node), version, version >= api.flexible_from):
        ask(node, request, version)
    node.check_alive()


# 3. Anything


NAMES = st.sampled_from(["orders", "empty", "group", "consumer", "range", "1", "", "a/b", "x" * 300])
SMALL = ("partition", "partition_index", "index", "fetch_offset", "acks", "isolation_level", "resource_type")
COUNTS = ("num_partitions", "replication_factor")


def likely(field: Field) -> st.SearchStrategy[Any] | None:
    """Values that get further than the first check."""
    if isinstance(field.type, Text):
        return NAMES
    if field.name in SMALL:
        return st.integers(-2, 4)
    if field.name in COUNTS:
        return st.integers(-2, 3)
    if isinstance(field.type, RecordBytes):
        return st.just(batch_of(b"value")) | st.binary(max_size=70)
    return None


LONGEST = 8 if MODEL_RUNS else 5
"""The most requests that one node gets; `make soak` tries longer lists than `make test`."""


@pytest.mark.parametrize(("api", "version"), CASES)
def test_anything_is_answered(api: Api, version: int) -> None:
    @settings(max_examples=examples(2), database=None)
    @given(st.lists(messages(api.request, version, likely), min_size=3, max_size=LONGEST))
    def check(requests: list[Any]) -> None:
        node = WholeNode()
        for request in requests:
            ask(node, request, version)
        node.check_alive()

    check()
