"""Markers to the leaders of partitions, here and elsewhere, with a network that the test plays."""

from collections.abc import Sequence
from typing import Any

import pytest

from tailrace.coordinators.transactions.commands import MarkersToWrite
from tailrace.metadata.image import ClusterImage, TopicImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tailrace.protocol.records.control import NO_DECISION
from tailrace.protocol.schema import encode_bytes
from tailrace.server.transactions.marker_sender import MarkerSender
from tailrace.server.transactions.markers import REQUEST_TIMEOUT_MS, DecisionNumber, OnWritten, TransactionMarker
from tailrace.testing.clock import ManualClock
from testkit.nodes.ports import DeferredPeer

E = ErrorCode
HERE, THERE, ELSEWHERE, NOBODY = BrokerId(1), BrokerId(2), BrokerId(3), BrokerId(-1)
TOPIC_ID = TopicId(b"i" * 16)


def image(*leaders: BrokerId) -> ClusterImage:
    """An image with one topic, `orders`, whose partitions are led by these brokers."""
    partitions = {
        number: PartitionState(
            topic_id=TOPIC_ID,
            replicas=(HERE, THERE),
            in_sync_replicas=(HERE, THERE),
            leader=leader,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
        )
        for number, leader in enumerate(leaders)
    }
    topic = TopicImage(name="orders", topic_id=TOPIC_ID, partitions=partitions)
    return ClusterImage(topics={"orders": topic})


KAFKAS = WriteTxnMarkersRequest(
    markers=(
        WritableTxnMarker(
            producer_id=7,
            producer_epoch=3,
            transaction_result=True,
            topics=(WritableTxnMarkerTopic(name="orders", partition_indexes=(0,)),),
            coordinator_epoch=5,
        ),
    )
)


class MarkerSenderBench:
    """A sender, its own broker and the leaders that it asks."""

    def __init__(self, *leaders: BrokerId) -> None:
        self.clock = ManualClock()
        self.image = image(*leaders)
        self.here: list[tuple[TransactionMarker, OnWritten]] = []
        self.peer = DeferredPeer()
        self.done = 0
        self.sender = MarkerSender(
            broker_id=HERE, image=lambda: self.image, write_here=self._write_here, peer=self.peer, clock=self.clock
        )

    def write(self, *partitions: int, producer_id: int = 7, version: int = 0) -> Any:
        sending = self.begin(*partitions, producer_id=producer_id, version=version)
        self.clock.advance(0)
        return sending

    def begin(self, *partitions: int, producer_id: int = 7, version: int = 0) -> Any:
        """Like `write`, but without the end of the turn."""
        markers = MarkersToWrite(
            transactional_id="pay",
            producer_id=producer_id,
            producer_epoch=3,
            transaction_version=version,
            is_commit=True,
            partitions=frozenset(TopicPartition("orders", number) for number in partitions),
        )
        return self.sender.write(markers, DecisionNumber(5, 60), self._done)

    def _done(self) -> None:
        self.done += 1

    def _write_here(self, markers: Sequence[TransactionMarker], on_done: OnWritten) -> None:
        (marker,) = markers
        self.here.append((marker, on_done))

    def answer_here(self, code: ErrorCode = E.NONE) -> None:
        marker, on_done = self.here.pop(0)
        on_done([dict.fromkeys(marker.partitions, code)])

    def answer_there(self, code: ErrorCode = E.NONE) -> None:
        _, request, on_reply = self.peer.waiting.pop(0)
        results = tuple(
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=tuple(
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=tuple(
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ),
                    )
                    for topic in marker.topics
                ),
            )
            for marker in request.markers
        )
        on_reply(WriteTxnMarkersResponse(markers=results[::-1]))  # the order of the results is not specified


def test_each_leader_gets_one_request_for_the_markers_of_all_its_partitions() -> None:
    bench = MarkerSenderBench(HERE, THERE, THERE, HERE)
    bench.write(0, 1, 2, 3)
    ((marker, _),) = bench.here
    assert marker.partitions == (TopicPartition("orders", 0), TopicPartition("orders", 3))
    assert (marker.producer_id, marker.producer_epoch, marker.decision, marker.is_commit) == (7, 3, (5, 60), True)
    ((node_id, request, _),) = bench.peer.waiting
    assert node_id == THERE
    assert request.markers[0].topics[0].partition_indexes == (1, 2)
    bench.answer_here()
    assert not bench.done
    bench.answer_there()
    assert bench.done == 1
    bench.clock.advance(100_000)
    assert not bench.here
    assert not bench.peer.waiting


def test_an_older_producers_marker_has_the_number_of_its_decision_each_time_it_is_sent() -> None:
    for version, offset in ((0, 60), (1, 60), (2, NO_DECISION)):
        bench = MarkerSenderBench(THERE)
        bench.write(0, version=version)
        bench.answer_there(E.NOT_LEADER_OR_FOLLOWER)
        bench.clock.advance(1_000)
        ((_, request, _),) = bench.peer.waiting
        (marker,) = request.markers
        assert (marker.coordinator_epoch, marker.decision_offset, marker.transaction_version) == (5, offset, version)
        assert encode_bytes(request, 1) == encode_bytes(KAFKAS, 1), "a leader that knows v1 only is sent Kafka's bytes"


def test_the_marker_sender_looks_up_a_leader_again_that_leads_no_more() -> None:
    bench = MarkerSenderBench(THERE)
    bench.write(0)
    bench.answer_there(E.NOT_LEADER_OR_FOLLOWER)
    bench.image = image(ELSEWHERE)
    bench.clock.advance(1_000)
    assert bench.peer.waiting[0][0] == ELSEWHERE
    bench.answer_there()
    assert bench.done == 1


def test_silence_is_no_answer_to_a_marker() -> None:
    bench = MarkerSenderBench(THERE)
    bench.write(0)
    bench.peer.waiting.pop(0)[2](None)
    bench.clock.advance(1_000)
    bench.peer.waiting.clear()  # and this request is never answered
    bench.clock.advance(30_000)
    bench.answer_there()
    assert bench.done == 1


def test_a_missing_answer_to_markers_is_logged_as_missing(caplog: pytest.LogCaptureFixture) -> None:
    bench = MarkerSenderBench(THERE, THERE)
    with caplog.at_level("INFO", logger="tailrace.server"):
        bench.write(0, 1)
        bench.peer.waiting.pop(0)[2](None)
    (line,) = caplog.messages
    assert line == (
        "event=marker-unanswered id='pay' broker=2 partitions=2 first=orders-0 why=no-answer action=send-again"
    )
    bench.clock.advance(1_000)
    bench.answer_there()
    assert bench.done == 1


def test_a_partition_that_an_answer_leaves_out_is_sent_its_marker_again(caplog: pytest.LogCaptureFixture) -> None:
    bench = MarkerSenderBench(THERE)
    with caplog.at_level("INFO", logger="tailrace.server"):
        bench.write(0)
        bench.peer.waiting.pop(0)[2](WriteTxnMarkersResponse(markers=()))
    (line,) = caplog.messages
    assert "event=marker-unanswered" in line
    assert "why=left-out-of-the-answer" in line
    bench.clock.advance(1_000)
    bench.answer_there()
    assert bench.done == 1


def test_a_refused_marker_is_logged_with_the_code_of_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    bench = MarkerSenderBench(THERE)
    with caplog.at_level("INFO", logger="tailrace.server"):
        bench.write(0)
        bench.answer_there(E.UNKNOWN_SERVER_ERROR)
    (line,) = caplog.messages
    assert line == "event=marker-refused id='pay' partition=orders-0 code=UNKNOWN_SERVER_ERROR"


def test_an_answer_to_markers_that_comes_late_counts() -> None:
    bench = MarkerSenderBench(THERE, HERE)
    bench.write(0, 1)
    late = bench.peer.waiting[:]
    bench.clock.advance(30_000)
    bench.peer.waiting = late
    bench.answer_there()
    bench.here.pop(0)
    bench.answer_here(E.NOT_ENOUGH_REPLICAS)
    assert not bench.done
    bench.clock.advance(60_000)
    assert not bench.peer.waiting, "that partition has its marker"
    while bench.here:
        bench.answer_here()
    assert bench.done == 1


def test_no_marker_is_sent_without_a_leader() -> None:
    bench = MarkerSenderBench(NOBODY)
    bench.write(0)
    assert not bench.peer.waiting
    bench.image = image(HERE)
    bench.clock.advance(1_000)
    bench.answer_here()
    assert bench.done == 1


def test_a_deleted_partition_needs_no_marker() -> None:
    bench = MarkerSenderBench(THERE)
    bench.write(0, 9)
    bench.answer_there(E.UNKNOWN_TOPIC_OR_PARTITION)
    bench.image = ClusterImage()
    bench.clock.advance(1_000)
    assert bench.done == 1


def test_another_nodes_answer_to_a_marker_is_final() -> None:
    bench = MarkerSenderBench(THERE, HERE)
    bench.write(0, 1)
    bench.answer_there(E.TRANSACTION_COORDINATOR_FENCED)
    bench.answer_here(E.INVALID_PRODUCER_EPOCH)
    assert bench.done == 1


def test_a_former_coordinator_sends_no_marker() -> None:
    bench = MarkerSenderBench(THERE)
    sending = bench.write(0)
    sending.cancel()
    bench.answer_there(E.NOT_LEADER_OR_FOLLOWER)
    bench.clock.advance(100_000)
    assert not bench.peer.waiting
    assert not bench.done


def test_a_transaction_that_wrote_nothing_is_done_at_once() -> None:
    bench = MarkerSenderBench(HERE)
    bench.write()
    assert bench.done == 1


def test_all_markers_of_one_turn_for_a_broker_go_in_one_request() -> None:
    bench = MarkerSenderBench(THERE, THERE, ELSEWHERE)
    for producer_id in (7, 8, 9):
        bench.begin(0, 1, 2, producer_id=producer_id)
    bench.begin(0, producer_id=7)  # of a coordinator that has just taken over from one on this node
    bench.clock.advance(0)
    asked = [(leader, [marker.producer_id for marker in request.markers]) for leader, request, _ in bench.peer.waiting]
    assert asked == [(THERE, [7, 8, 9]), (THERE, [7]), (ELSEWHERE, [7, 8, 9])]
    bench.answer_there()
    assert bench.done == 0
    bench.answer_there()
    assert bench.done == 1
    bench.answer_there()
    assert bench.done == 4


def test_a_request_of_markers_holds_only_so_many_partitions() -> None:
    bench = MarkerSenderBench(*[THERE] * 600)
    for producer_id in (7, 8, 9):
        bench.begin(*range(400), producer_id=producer_id)
    bench.clock.advance(0)
    assert [[marker.producer_id for marker in request.markers] for _, request, _ in bench.peer.waiting] == [[7, 8], [9]]


def test_a_transaction_of_very_many_partitions_takes_several_requests() -> None:
    """A broker closes the connection of a request of too many elements, each time."""
    bench = MarkerSenderBench(*[THERE] * 2_500)
    bench.write(*range(2_500))
    counts = [
        len(topic.partition_indexes) for _, request, _ in bench.peer.waiting for topic in request.markers[0].topics
    ]
    assert counts == [1_000, 1_000, 500]
    for _ in range(3):
        assert bench.done == 0
        bench.answer_there()
    assert bench.done == 1


def test_a_refused_marker_is_not_the_refusal_of_another() -> None:
    bench = MarkerSenderBench(THERE, THERE)
    bench.begin(0, producer_id=7)
    bench.begin(1, producer_id=8)
    bench.clock.advance(0)
    (_, request, on_reply) = bench.peer.waiting.pop()
    assert len(request.markers) == 2
    done = WritableTxnMarkerPartitionResult(partition_index=0, error_code=0)
    topics = (WritableTxnMarkerTopicResult(name="orders", partitions=(done,)),)
    on_reply(WriteTxnMarkersResponse(markers=(WritableTxnMarkerResult(producer_id=7, topics=topics),)))
    assert bench.done == 1
    bench.clock.advance(1_000)
    (marker,) = bench.peer.waiting[0][1].markers
    assert marker.producer_id == 8, "nothing was said about it"


def test_a_leader_answers_long_before_the_senders_timeout() -> None:
    """The leader reports durable markers when its time is over; a connection closed earlier would lose the report."""
    bench = MarkerSenderBench(THERE)
    bench.write(0)
    assert bench.peer.timeout_ms is not None
    assert bench.peer.timeout_ms >= 2 * REQUEST_TIMEOUT_MS


def test_a_refusal_that_this_release_has_no_name_for_is_tried_again_soon() -> None:
    bench = MarkerSenderBench(THERE, THERE)
    bench.begin(0, producer_id=7)
    bench.begin(1, producer_id=8)
    bench.clock.advance(0)
    (_, _, on_reply) = bench.peer.waiting.pop()
    results = tuple(
        WritableTxnMarkerResult(
            producer_id=producer_id,
            topics=(
                WritableTxnMarkerTopicResult(
                    name="orders",
                    partitions=(WritableTxnMarkerPartitionResult(partition_index=index, error_code=code),),
                ),
            ),
        )
        for producer_id, index, code in ((7, 0, 32_000), (8, 1, 0))
    )
    on_reply(WriteTxnMarkersResponse(markers=results))
    assert bench.done == 1, "the other one's answer counts"
    bench.clock.advance(1_000)
    bench.answer_there()
    assert bench.done == 2
