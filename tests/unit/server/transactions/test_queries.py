"""DescribeProducers (61): the producers whose state a partition keeps."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.transactions import (
    ActiveProducer,
    DescribedPartitions,
    DescribeProducersRequest,
    PartitionProducers,
)
from tailrace.protocol.records.control import ControlType, EndTransactionMarker
from tailrace.replication.verification import UNVERIFIED
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import batch_of


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders", partitions=2)
    return node


def describe(node: AdminPath, topic: str, *partitions: int) -> list[PartitionProducers]:
    topics = (DescribedPartitions(name=topic, partition_indexes=partitions),)
    (answer,) = node.send(DescribeProducersRequest(topics=topics), 0).response.topics
    assert answer.name == topic
    return list(answer.partitions)


def test_a_producer_is_described_with_its_last_batch(node: AdminPath) -> None:
    first = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 0}
    node.produce("orders", records=batch_of(b"a", b"b", now=lambda: 5_000, **first))
    node.produce("orders", records=batch_of(b"c", now=lambda: 6_000, **{**first, "base_sequence": 2}))
    node.produce("orders", b"from nobody")
    written, untouched = describe(node, "orders", 0, 1)
    assert written.active_producers == (
        ActiveProducer(
            producer_id=7,
            producer_epoch=2,
            last_sequence=2,
            last_timestamp=6_000,
            coordinator_epoch=-1,
            current_txn_start_offset=-1,
        ),
    )
    assert untouched.active_producers == ()


def test_describe_producers_has_an_error_for_a_partition_that_is_not_here(node: AdminPath) -> None:
    node.table.get("orders", 1).step_down()
    codes = [each.error_code for each in describe(node, "orders", 0, 1, 2)]
    assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert describe(node, "missing", 0)[0].error_message


def test_a_topic_that_cannot_be_has_kafkas_code(node: AdminPath) -> None:
    assert describe(node, "no/such", 0)[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_partition_that_is_named_twice_is_described_once(node: AdminPath) -> None:
    """4 bytes of a request would be worth any number of producers otherwise."""
    assert [each.partition_index for each in describe(node, "orders", 1, 0, 1)] == [1, 0]


def test_an_open_transaction_has_its_start_and_an_ended_one_its_coordinator(node: AdminPath) -> None:
    partition = node.table.get("orders", 0)
    node.produce("orders", b"before")
    partition.staging.append_records(
        [(b"k", b"v")], now_ms=5_000, on_done=lambda _: None, producer_id=7, producer_epoch=2, verification=UNVERIFIED
    )
    node.end_turn()
    (producer,) = describe(node, "orders", 0)[0].active_producers
    assert (producer.current_txn_start_offset, producer.coordinator_epoch) == (1, -1)
    partition.staging.append_marker(
        EndTransactionMarker(ControlType.COMMIT, coordinator_epoch=4),
        producer_id=7,
        producer_epoch=3,
        now_ms=6_000,
        on_done=lambda _: None,
    )
    node.end_turn()
    (producer,) = describe(node, "orders", 0)[0].active_producers
    assert (producer.current_txn_start_offset, producer.coordinator_epoch) == (-1, 4)
    assert (producer.producer_epoch, producer.last_sequence, producer.last_timestamp) == (3, -1, 6_000)
