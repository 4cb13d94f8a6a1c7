"""Requests of many names: decoded, carried out and answered in slices."""

from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.steps import result_of
from tailrace.protocol.headers import decode_response, encode_request, encode_response
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from tailrace.server.context import RequestContext
from tailrace.server.dispatch import Dispatcher, by_api
from tailrace.server.ports import ServerConnection
from tailrace.server.slices import MOST_LARGE, STEP, LongRequests, Slices, Steps, Stepwise, elements_of, mapped_in, once
from testkit.nodes.clocks import BusyClock
from testkit.nodes.ports import RecordingConnection

VERSION = 7
FEW, MANY, LARGE = STEP - 2, 900, 3_000
"""Partitions of requests that take one step, several, and several for their decoding too."""


class LongBench:
    """A dispatcher that serves ListOffsets, with a millisecond for each partition."""

    def __init__(self, *, refusal: Exception | None = None) -> None:
        self.clock = BusyClock()
        self.long = LongRequests(Slices(self.clock))
        self.broken: list[BaseException] = []
        self.looked_up = 0
        self.refusal = refusal
        self.dispatcher = Dispatcher(
            by_api({ListOffsetsRequest: self}), on_broken_invariant=self.broken.append, long=self.long
        )

    def handle(self, request: ListOffsetsRequest, context: RequestContext) -> Stepwise[ListOffsetsResponse]:
        topics = yield from mapped_in(
            request.topics,
            lambda topic: topic.partitions,
            self._answer,
            lambda topic, partitions: ListOffsetsTopicResponse(name=topic.name, partitions=partitions),
        )
        if self.refusal is not None:
            raise self.refusal
        return ListOffsetsResponse(topics=topics)

    def _answer(self, topic: ListOffsetsTopic, partition: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        self.clock.spend(1)
        self.looked_up += 1
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if partition.partition_index % 2 else ErrorCode.NONE
        return ListOffsetsPartitionResponse(partition_index=partition.partition_index, error_code=code)

    def send(self, partitions: int, *, connection: RecordingConnection | None = None) -> RecordingConnection:
        """A request in slot 0 of the connection, which is a new one unless given."""
        connection = connection or RecordingConnection()
        frame = b"".join(encode_request(request_for(partitions), VERSION, 9, "client"))
        self.dispatcher.on_frame(connection, 0, memoryview(frame))
        return connection

    def turns(self) -> Iterator[int]:
        """The partitions that were looked up in each further turn, until nothing is left to do."""
        while self.clock.calls_pending:
            before = self.looked_up
            self.clock.advance(0)
            yield self.looked_up - before


def request_for(partitions: int) -> ListOffsetsRequest:
    half = partitions // 2
    return ListOffsetsRequest(
        replica_id=-1, topics=(topic_of("a", range(half)), topic_of("b", range(half, partitions)))
    )


def topic_of(name: str, numbers: range) -> ListOffsetsTopic:
    return ListOffsetsTopic(
        name=name, partitions=tuple(ListOffsetsPartition(partition_index=number, timestamp=-1) for number in numbers)
    )


def answer_for(partitions: int) -> bytes:
    response = result_of(LongBench().handle(request_for(partitions), None))  # type: ignore[arg-type]
    return b"".join(encode_response(response, VERSION, 9))


def test_a_request_of_few_names_is_answered_at_once() -> None:
    bench = LongBench()
    connection = bench.send(FEW)
    assert connection.answers == {0: answer_for(FEW)}
    assert bench.clock.calls_pending == 0


@pytest.mark.parametrize("partitions", [MANY, LARGE])
def test_a_request_of_many_names_takes_many_turns_and_has_the_same_answer(partitions: int) -> None:
    bench = LongBench()
    connection = bench.send(partitions)
    assert connection.is_suspended, "later requests of the connection wait"
    in_turns = list(bench.turns())
    assert max(in_turns) <= STEP + 5, "a slice of 5 ms, and the step in which it is over"
    assert connection.answers == {0: answer_for(partitions)}
    assert not connection.is_suspended
    assert bench.dispatcher.errors.counts == {(2, int(ErrorCode.NOT_LEADER_OR_FOLLOWER)): partitions // 2}


def test_long_requests_of_several_connections_take_turns() -> None:
    bench = LongBench()
    connections = [bench.send(MANY) for _ in range(3)]
    assert max(bench.turns()) <= STEP + 5
    assert [connection.answers for connection in connections] == [{0: answer_for(MANY)}] * 3


def test_a_few_large_requests_are_under_way_at_once_and_the_others_wait() -> None:
    bench = LongBench()
    connections = [bench.send(LARGE) for _ in range(MOST_LARGE + 2)]
    for _ in bench.turns():
        assert sum(map(is_under_way, connections)) == sum(1 for each in connections if not each.answers)
        if not any(connection.answers for connection in connections):
            assert bench.looked_up < MOST_LARGE * LARGE
    assert [connection.answers for connection in connections] == [{0: answer_for(LARGE)}] * len(connections)
    assert len(bench.long) == 0


def is_under_way(connection: RecordingConnection) -> bool:
    return connection.is_suspended


def test_a_connection_that_closes_ends_its_long_request_alone() -> None:
    bench = LongBench()
    gone, other = bench.send(LARGE), bench.send(MANY)
    gone.hang_up()
    list(bench.turns())
    assert gone.answers == {}
    assert other.answers == {0: answer_for(MANY)}
    assert bench.looked_up <= MANY + STEP
    assert len(bench.long) == 0


@pytest.mark.parametrize("partitions", [FEW, MANY, LARGE])
def test_a_refusal_is_the_answer_of_each_partition(partitions: int) -> None:
    bench = LongBench(refusal=KafkaError(ErrorCode.INVALID_REQUEST, "no"))
    connection = bench.send(partitions)
    list(bench.turns())
    response = decode_response(ListOffsetsResponse, VERSION, connection.answers[0] or b"")[1]
    codes = {each.error_code for topic in response.topics for each in topic.partitions}
    assert codes == {ErrorCode.INVALID_REQUEST}
    assert sum(len(topic.partitions) for topic in response.topics) == partitions


@pytest.mark.parametrize("partitions", [FEW, MANY, LARGE])
def test_a_fault_in_a_later_step_is_answered_and_ends_nothing_else(partitions: int) -> None:
    bench = LongBench(refusal=RuntimeError("a fault"))
    connection = bench.send(partitions)
    list(bench.turns())
    response = decode_response(ListOffsetsResponse, VERSION, connection.answers[0] or b"")[1]
    assert {each.error_code for topic in response.topics for each in topic.partitions} == {
        ErrorCode.UNKNOWN_SERVER_ERROR
    }
    bench.refusal = None
    assert bench.send(FEW).answers == {0: answer_for(FEW)}


def test_a_broken_invariant_in_a_later_step_is_reported() -> None:
    bench = LongBench(refusal=AssertionError("broken"))
    bench.send(MANY)
    list(bench.turns())
    assert [str(fault) for fault in bench.broken] == ["broken"]


def test_a_large_request_that_is_cut_short_closes_its_connection() -> None:
    bench = LongBench()
    connection = RecordingConnection()
    frame = b"".join(encode_request(request_for(LARGE), VERSION, 9, "client"))[:-1]
    bench.dispatcher.on_frame(connection, 0, memoryview(frame))
    list(bench.turns())
    assert (connection.is_open, bench.looked_up, bench.dispatcher.malformed) == (False, 0, 1)


def test_a_late_response_is_made_in_slices_too() -> None:
    bench = LongBench()
    kept: list[Any] = []
    dispatcher = Dispatcher(
        by_api({ListOffsetsRequest: Keeping(kept)}), on_broken_invariant=bench.broken.append, long=bench.long
    )
    connection = RecordingConnection()
    frame = b"".join(encode_request(request_for(MANY), VERSION, 9, "client"))
    dispatcher.on_frame(connection, 0, memoryview(frame))
    ((request, context),) = kept
    context.respond_in_steps(bench.handle(request, context))
    assert max(bench.turns()) <= STEP + 5
    assert connection.answers == {0: answer_for(MANY)}


class Keeping:
    """A handler that answers later."""

    def __init__(self, kept: list[Any]) -> None:
        self._kept = kept

    def handle(self, request: Any, context: RequestContext) -> None:
        self._kept.append((request, context))


def test_elements_are_counted_in_order() -> None:
    assert list(result_of(once("abracadabra" * 5)).items()) == [("a", 25), ("b", 10), ("r", 10), ("c", 5), ("d", 5)]


class CountedName(str):
    """A name that counts the names that are still there."""

    there = 0

    def __new__(cls, text: str) -> "CountedName":
        cls.there += 1
        return super().__new__(cls, text)

    def __del__(self) -> None:
        CountedName.there -= 1


class StepsKept(LongRequests):
    """Carries nothing out: the test takes the steps."""

    def __init__(self) -> None:
        super().__init__(Slices(BusyClock()))

    def begin(self, connection: ServerConnection, steps: Steps, *, is_large: bool) -> None:
        self.steps = steps


class NamesHandler:
    """Answers with a topic for each partition."""

    def handle(self, request: ListOffsetsRequest, context: RequestContext) -> Stepwise[ListOffsetsResponse]:
        yield
        return ListOffsetsResponse(
            topics=tuple(
                ListOffsetsTopicResponse(name=CountedName(f"t{partition.partition_index}"), partitions=())
                for topic in request.topics
                for partition in topic.partitions
            )
        )


@pytest.mark.parametrize("partitions", [MANY, LARGE])
def test_the_memory_of_an_answer_is_freed_in_steps(partitions: int) -> None:
    kept, connection, broken = StepsKept(), RecordingConnection(), list[BaseException]()
    dispatcher = Dispatcher(by_api({ListOffsetsRequest: NamesHandler()}), on_broken_invariant=broken.append, long=kept)
    dispatcher.on_frame(connection, 0, memoryview(b"".join(encode_request(request_for(partitions), VERSION, 9, "c"))))
    there_after_steps = [CountedName.there for _ in kept.steps if connection.answers]
    assert there_after_steps[:3] == [partitions - STEP, partitions - 2 * STEP, partitions - 3 * STEP]
    assert (CountedName.there, broken) == (0, [])


def test_elements_are_those_of_the_outer_array_that_has_many() -> None:
    few, many = topic_of("few", range(STEP)), topic_of("many", range(STEP + 1))
    assert elements_of(ListOffsetsRequest(replica_id=-1, topics=(few, many))) == list(many.partitions)
    topics = tuple(topic_of(f"t{number}", range(STEP + 1)) for number in range(STEP + 1))
    assert elements_of(ListOffsetsRequest(replica_id=-1, topics=topics)) == list(topics)
