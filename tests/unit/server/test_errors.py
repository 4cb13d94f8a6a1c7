"""Errors in the responses of every API."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.declaration import Array, schema_of
from tailrace.protocol.headers import decode_response, encode_response
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tailrace.protocol.registry import APIS, Api
from tailrace.server.errors import error_response
from tailrace.server.response_errors import error_codes
from testkit.records.strategies import messages

FIRST_LOG_DIRS_WITH_ERROR = 3
ERROR = KafkaError(ErrorCode.NOT_CONTROLLER, "ask broker 3")


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@given(data=st.data())
@settings(max_examples=examples(4))
def test_every_request_has_an_error_response_in_its_version(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.integers(api.min_version, api.max_version))
    request = data.draw(messages(api.request, version))
    response = error_response(request, version, ERROR)
    encoded = b"".join(encode_response(response, version, 77))
    correlation_id, decoded = decode_response(api.response, version, encoded)
    assert correlation_id == 77
    assert type(decoded) is api.response


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@given(data=st.data())
@settings(max_examples=examples(4))
def test_no_response_keeps_the_error_to_itself(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.integers(api.min_version, api.max_version))
    request = data.draw(messages(api.request, version))
    codes = error_codes(decoded(api, version, error_response(request, version, ERROR)))
    assert set(codes) <= {ErrorCode.NOT_CONTROLLER}
    if not codes and (api.name, version < FIRST_LOG_DIRS_WITH_ERROR) != ("DescribeLogDirs", True):
        assert not asks_for_something(request)


def asks_for_something(value: Any) -> bool:
    """Whether there is an element that has no elements itself: partitions, mostly."""
    if not hasattr(value, "__schema__"):
        return True
    arrays = [getattr(value, field.name) or () for field in schema_of(type(value)).fields if type(field.type) is Array]
    return not arrays or any(asks_for_something(element) for array in arrays for element in array)


def decoded(api: Api, version: int, response: object) -> object:
    return decode_response(api.response, version, b"".join(encode_response(response, version, 77)))[1]


def test_each_partition_of_a_produce_request_gets_the_error() -> None:
    partitions = tuple(PartitionProduceData(index=index) for index in (4, 7))
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=(TopicProduceData(name="t", partition_data=partitions),))
    (topic,) = error_response(request, 9, ERROR).responses
    assert [(each.index, each.error_code, each.error_message) for each in topic.partition_responses] == [
        (4, ErrorCode.NOT_CONTROLLER, "ask broker 3"),
        (7, ErrorCode.NOT_CONTROLLER, "ask broker 3"),
    ]


def test_a_fetch_has_its_error_at_the_top_where_there_is_one() -> None:
    partition = FetchPartition(partition=4, fetch_offset=0, partition_max_bytes=1)
    request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic="t", partitions=(partition,)),))
    assert error_response(request, 7, ERROR).error_code == ErrorCode.NOT_CONTROLLER
    (topic,) = error_response(request, 6, ERROR).responses
    assert [(each.partition_index, each.error_code) for each in topic.partitions] == [(4, ErrorCode.NOT_CONTROLLER)]


def test_an_unexpected_fault_tells_the_client_nothing_of_itself() -> None:
    partitions = (PartitionProduceData(index=0),)
    request = ProduceRequest(acks=-1, timeout_ms=1, topic_data=(TopicProduceData(name="t", partition_data=partitions),))
    fault = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "at line 7 of secret.py")
    (topic,) = error_response(request, 9, fault).responses
    assert topic.partition_responses[0].error_message is None
