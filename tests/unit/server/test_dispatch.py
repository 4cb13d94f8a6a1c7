"""From frames to answers: versions, errors, and the cost of a bad request."""

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.headers import decode_response, encode_request
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.membership import HeartbeatRequest, HeartbeatResponse, LeaveGroupRequest, MemberIdentity
from tailrace.protocol.messages.offsets import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from tailrace.protocol.messages.topics import DeleteTopicsRequest
from tailrace.protocol.messages.transactions import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from tailrace.protocol.registry import APIS
from tailrace.server import dispatch
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Dispatcher, by_api
from testkit.nodes.ports import RecordingConnection, ScriptedHandler

HEARTBEAT = 12
API_VERSIONS = 18
LEAVE_GROUP = 13

Handle = Callable[[Any, RequestContext], Any]


class DispatchBench:
    """A dispatcher that serves Heartbeat, and one connection to it."""

    def __init__(self, handle: Handle = lambda request, context: HeartbeatResponse()) -> None:
        self.broken: list[BaseException] = []
        self.connection = RecordingConnection()
        self.dispatcher = Dispatcher({APIS[HEARTBEAT]: ScriptedHandler(handle)}, on_broken_invariant=self.broken.append)

    def send(self, frame: bytes) -> bytes | None:
        """The answer to a frame in slot 0, or None if there is none yet."""
        self.dispatcher.on_frame(self.connection, 0, memoryview(frame))
        return self.connection.answers.get(0)


@pytest.mark.parametrize("topics", [1, 5_000])
def test_a_fetch_may_have_200_000_partitions_and_their_topics_beside(topics: int) -> None:
    connection = RecordingConnection()
    handler = ScriptedHandler(lambda request, context: FetchResponse(responses=()))
    dispatcher = Dispatcher(by_api({FetchRequest: handler}), on_broken_invariant=lambda fault: None)
    partitions = tuple(
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1) for index in range(200_000 // topics)
    )
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=(FetchTopic(topic_id=bytes(16), partitions=partitions),) * topics
    )
    dispatcher.on_frame(connection, 0, memoryview(b"".join(encode_request(request, 13, 1, None))))
    (fetch,) = handler.requests
    assert sum(len(topic.partitions) for topic in fetch.topics) == 200_000
    assert connection.is_open


def deletions(names: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topic_names=("t",) * names, timeout_ms=0)


def searches(groups: int) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(key_type=0, coordinator_keys=("g",) * groups)


def departures(members: int) -> LeaveGroupRequest:
    return LeaveGroupRequest(group_id="g", members=(MemberIdentity(member_id="m"),) * members)


def offset_deletions(elements: int) -> OffsetDeleteRequest:
    partitions = (OffsetDeleteRequestPartition(partition_index=0),) * (elements - 1)
    return OffsetDeleteRequest(group_id="g", topics=(OffsetDeleteRequestTopic(name="t", partitions=partitions),))


def markers(elements: int) -> WriteTxnMarkersRequest:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=(0,) * (elements - 2))
    marker = WritableTxnMarker(
        producer_id=1, producer_epoch=0, transaction_result=True, topics=(topic,), coordinator_epoch=0
    )
    return WriteTxnMarkersRequest(markers=(marker,))


@pytest.mark.parametrize(("elements", "is_served"), [(20_000, True), (20_001, False)])
@pytest.mark.parametrize(
    ("version", "request_of"), [(1, deletions), (4, searches), (5, departures), (0, offset_deletions), (1, markers)]
)
def test_the_dispatcher_takes_fewer_costly_elements_of_a_request(
    version: int, request_of: Callable[[int], Any], elements: int, is_served: bool
) -> None:
    handler, connection = ScriptedHandler(), RecordingConnection()
    request = request_of(elements)
    handlers = by_api({type(request): handler})
    dispatcher = Dispatcher(handlers, on_broken_invariant=lambda fault: None)
    frame = b"".join(encode_request(request, version, 1, None))
    dispatcher.on_frame(connection, 0, memoryview(frame))
    assert (len(handler.requests), connection.is_open) == (is_served, is_served)


HEARTBEAT_REQUEST = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def heartbeat(version: int = 4) -> bytes:
    return b"".join(encode_request(HEARTBEAT_REQUEST, version, 9, "client"))


def error_of(answer: bytes | None, version: int = 4) -> int:
    assert answer is not None
    correlation_id, response = decode_response(HeartbeatResponse, version, answer)
    assert correlation_id == 9
    return response.error_code


@pytest.mark.parametrize("version", range(5))
def test_the_dispatcher_answers_a_request_in_its_version(version: int) -> None:
    server = DispatchBench(lambda request, context: HeartbeatResponse(error_code=request.generation_id))
    assert error_of(server.send(heartbeat(version)), version) == 1


def test_a_handler_may_answer_later() -> None:
    parked: list[RequestContext] = []
    server = DispatchBench(lambda request, context: parked.append(context))
    assert server.send(heartbeat()) is None
    parked[0].respond(HeartbeatResponse(error_code=27))
    assert error_of(server.connection.answers[0]) == 27


def test_a_kafka_error_becomes_the_error_response_of_the_api() -> None:
    def refuse(request: Any, context: RequestContext) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "who?")

    server = DispatchBench(refuse)
    assert error_of(server.send(heartbeat())) == ErrorCode.UNKNOWN_MEMBER_ID
    assert server.connection.is_open


def test_an_unexpected_exception_is_logged_once_and_answered_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    def fail(request: Any, context: RequestContext) -> None:
        raise ZeroDivisionError("secret")

    server = DispatchBench(fail)
    for _ in range(3):
        server.connection.answers.clear()
        answer = server.send(heartbeat())
        assert error_of(answer) == ErrorCode.UNKNOWN_SERVER_ERROR
        assert answer is not None
        assert b"secret" not in answer
    assert caplog.text.count("ZeroDivisionError: secret") == 1
    assert server.connection.is_open
    assert not server.broken


def test_a_response_that_cannot_be_encoded_is_an_unexpected_exception() -> None:
    server = DispatchBench(lambda request, context: HeartbeatResponse(error_code=1 << 40))
    assert error_of(server.send(heartbeat())) == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_late_response_that_cannot_be_encoded_closes_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    """The answer may be given while other requests are answered: when a turn's batches are written, by a timer."""
    parked: list[RequestContext] = []
    server = DispatchBench(lambda request, context: parked.append(context))
    server.send(heartbeat())
    for _ in range(3):
        parked[0].respond(HeartbeatResponse(error_code=1 << 40))
    assert not server.connection.is_open
    assert not server.connection.answers
    assert caplog.text.count("event=answer-failed") <= 1


def test_a_failed_assertion_stops_the_process_and_is_not_answered() -> None:
    def break_it(request: Any, context: RequestContext) -> None:
        raise AssertionError("two leaders")

    server = DispatchBench(break_it)
    assert server.send(heartbeat()) is None
    assert [str(fault) for fault in server.broken] == ["two leaders"]


def test_a_failed_assertion_in_the_answer_to_an_error_stops_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: Any, context: RequestContext) -> None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)

    def break_it(*_: object) -> None:
        raise AssertionError("two answers")

    server = DispatchBench(refuse)
    monkeypatch.setattr(server.connection, "answer", break_it)
    assert server.send(heartbeat()) is None
    assert [str(fault) for fault in server.broken] == ["two answers"]
    assert server.connection.is_open


def test_a_failed_assertion_of_the_decoder_costs_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client could stop one node after the other otherwise, with the same bytes; no state has changed yet."""

    def break_it(*_: object, **__: object) -> None:
        raise AssertionError("a length that no reader expected")

    monkeypatch.setattr(dispatch, "decode_from", break_it)
    server = DispatchBench()
    assert server.send(heartbeat()) is None
    assert not server.connection.is_open
    assert server.broken == []


def test_late_answers_of_a_failed_handler_are_dropped() -> None:
    """A Produce that fails at its third partition has staged two, and their outcomes come later."""
    left_behind: list[RequestContext] = []

    def park_and_fail(request: Any, context: RequestContext) -> None:
        left_behind.append(context)
        raise ZeroDivisionError

    server = DispatchBench(park_and_fail)
    assert error_of(server.send(heartbeat())) == ErrorCode.UNKNOWN_SERVER_ERROR
    server.connection.answers.clear()
    left_behind[0].respond(HeartbeatResponse())
    left_behind[0].respond_nothing()
    left_behind[0].connection.close("acks=0")
    assert not server.connection.answers
    assert server.connection.is_open


def test_a_handler_that_fails_after_its_answer_does_not_answer_twice() -> None:
    def answer_and_fail(request: Any, context: RequestContext) -> None:
        context.respond(HeartbeatResponse(error_code=27))
        raise ZeroDivisionError

    server = DispatchBench(answer_and_fail)
    assert error_of(server.send(heartbeat())) == 27


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(struct.pack(">hhih", HEARTBEAT, 5, 9, -1), id="version too high"),
        pytest.param(struct.pack(">hhih", HEARTBEAT, -1, 9, -1), id="version negative"),
        pytest.param(struct.pack(">hhih", LEAVE_GROUP, 0, 9, -1), id="API without a handler"),
        pytest.param(struct.pack(">hhih", 9_999, 0, 9, -1), id="API unknown"),
        pytest.param(struct.pack(">hhih", -1, 0, 9, -1), id="API negative"),
        pytest.param(heartbeat()[:-3], id="cut"),
        pytest.param(struct.pack(">hhih", HEARTBEAT, 0, 9, 500), id="client id too long"),
        pytest.param(struct.pack(">hhih", HEARTBEAT, 0, 9, 1) + b"\xff" + bytes(10), id="client id not UTF-8"),
    ],
)
def test_malformed_requests_close_the_connection(frame: bytes) -> None:
    server = DispatchBench()
    assert server.send(frame) is None
    assert not server.connection.is_open


def test_bytes_behind_a_request_are_left_alone() -> None:
    """As Kafka does: librdkafka 2.16 sends three too many with Metadata v13."""
    assert error_of(DispatchBench().send(heartbeat() + b"xyz")) == ErrorCode.NONE


@given(st.binary(min_size=8, max_size=300))
def test_no_bytes_raise_in_the_dispatcher_and_none_go_unnoticed(frame: bytes) -> None:
    server = DispatchBench()
    answer = server.send(frame)
    assert answer is not None or not server.connection.is_open
    assert not server.broken


@given(st.binary(max_size=60), st.sampled_from(sorted({HEARTBEAT, API_VERSIONS})), st.integers(0, 4))
def test_no_body_behind_a_good_header_raises_in_the_dispatcher(body: bytes, api_key: int, version: int) -> None:
    server = DispatchBench()
    server.send(struct.pack(">hhih", api_key, version, 9, -1) + body)
    assert not server.broken


def ask_versions(server: DispatchBench, version: int) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    answer = server.send(b"".join(encode_request(request, version, 9, "client")))
    assert answer is not None
    return decode_response(ApiVersionsResponse, version, answer)[1]


@pytest.mark.parametrize("version", range(5))
def test_only_what_has_a_handler_is_announced(version: int) -> None:
    response = ask_versions(DispatchBench(), version)
    assert response.error_code == ErrorCode.NONE
    assert {key.api_key for key in response.api_keys} == {HEARTBEAT, API_VERSIONS}


@pytest.mark.parametrize("version", [5, 99, 32_767, -1])
def test_an_unknown_version_of_api_versions_gets_error_35_in_version_0(version: int) -> None:
    """KIP-511: the answer is in version 0 and has the versions of ApiVersions; as in Kafka, not of other APIs."""
    server = DispatchBench()
    # A header of a version that does not exist yet: only its first eight bytes can be relied on.
    answer = server.send(struct.pack(">hhi", API_VERSIONS, version, 9) + b"\x00\x03abc\x00\x05tail\x02x\x00")
    assert answer is not None
    assert struct.unpack_from(">ih", answer) == (9, 35), "response header v0: no tag section"
    _, response = decode_response(ApiVersionsResponse, 0, answer)
    table = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert table == {API_VERSIONS: (0, 4)}
    assert server.connection.is_open


@pytest.mark.parametrize("name", ["", "-x", "x-", "a b", "a\n", "é", "x" * 300])
def test_the_name_of_the_client_software_must_be_a_word(name: str) -> None:
    server = DispatchBench()
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1.0")
    answer = server.send(b"".join(encode_request(request, 3, 9, "client")))
    assert answer is not None
    assert decode_response(ApiVersionsResponse, 3, answer)[1].error_code == ErrorCode.INVALID_REQUEST


def test_produce_is_announced_from_version_0_and_refused_below_3() -> None:
    """librdkafka turns compression off otherwise (KAFKA-18659)."""
    assert APIS[0].advertised_min == 0
    connection = RecordingConnection()
    dispatcher = Dispatcher(
        {APIS[0]: ScriptedHandler(lambda request, context: None)},
        on_broken_invariant=lambda error: pytest.fail(str(error)),
    )
    dispatcher.on_frame(connection, 0, memoryview(struct.pack(">hhih", 0, 2, 9, -1)))
    assert not connection.is_open


def test_requests_are_counted_by_api_and_version() -> None:
    server = DispatchBench()
    server.send(heartbeat())
    server.connection.answers.clear()
    ask_versions(server, 3)
    counts = {(api.key, version): count for api, version, count in server.dispatcher.request_counts()}
    assert counts == {(HEARTBEAT, 4): 1, (API_VERSIONS, 3): 1}
