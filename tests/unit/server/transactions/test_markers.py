"""WriteTxnMarkers: one answer for many transactions, which may end in partitions that cannot commit anything."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tailrace.server.transactions.markers import REQUEST_TIMEOUT_MS
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath

SAFE, STUCK = 0, 1


@pytest.fixture
def node() -> DataPath:
    """A partition with a single replica, and a partition with another in-sync replica that does not fetch."""
    node = DataPath("/logs", files=SimulatedDisk())
    node.create(partition=SAFE)
    node.create(partition=STUCK, in_sync=(BROKER, 2), replicas=(BROKER, 2))
    return node


def end(*partitions: int, producer_id: int) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=0,
        transaction_result=True,
        topics=(WritableTxnMarkerTopic(name="orders", partition_indexes=partitions),),
        coordinator_epoch=0,
    )


def codes(response: WriteTxnMarkersResponse) -> dict[tuple[int, int], int]:
    """The error codes by producer and partition."""
    return {
        (marker.producer_id, partition.partition_index): partition.error_code
        for marker in response.markers
        for topic in marker.topics
        for partition in topic.partitions
    }


def test_a_partition_that_cannot_commit_is_late_alone(node: DataPath) -> None:
    """The results of the other partitions are sent now: in the next request they might stand beside it again."""
    markers = (end(SAFE, STUCK, producer_id=7), end(SAFE, 9, producer_id=8), end(STUCK, producer_id=9))
    waiting = node.send(WriteTxnMarkersRequest(markers=markers), 1)
    node.clock.advance(REQUEST_TIMEOUT_MS - 1)
    assert not waiting.is_answered
    node.clock.advance(1)
    late, unknown = ErrorCode.REQUEST_TIMED_OUT, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert codes(waiting.response) == {(7, SAFE): 0, (7, STUCK): late, (8, SAFE): 0, (8, 9): unknown, (9, STUCK): late}
    node.create(partition=STUCK, leader_epoch=1, in_sync=(BROKER,), replicas=(BROKER, 2))
    node.end_turn()
    assert node.table.get("orders", STUCK).high_watermark == 2, "they are safe now, and that is no second answer"


def test_markers_that_are_all_safe_or_refused_are_answered_at_once(node: DataPath) -> None:
    answered = node.send(WriteTxnMarkersRequest(markers=(end(SAFE, 9, producer_id=7),)), 1)
    assert codes(answered.response) == {(7, SAFE): 0, (7, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(node.deadlines) == 0
