"""The time of an answer to Produce: acks, flushes that hang, missing replicas and the producer's timeout."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.server.produce.answers import OWN_FLUSH_MS
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of
from testkit.nodes.ports import DeferredDisk
from unit.server.produce.produce_requests import codes_of, flush, request_of, to_topic


def produce_to(*partitions: int, timeout_ms: int) -> ProduceRequest:
    """A request with acks=all."""
    return request_of(to_topic("orders", *((index, batch_of(b"a")) for index in partitions)), timeout_ms=timeout_ms)


def test_acks_one_is_answered_after_the_write_if_another_replica_is_in_sync(disk: DeferredDisk) -> None:
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1, 2))
    assert node.produce("orders", b"a", acks=1).is_answered
    assert not node.produce("orders", b"b", acks=-1).is_answered


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
def test_a_leader_alone_in_sync_answers_a_produce_when_the_record_can_be_read(
    node: DataPath, disk: DeferredDisk, acks: int, replicas: tuple[int, ...]
) -> None:
    partition = node.create("alone", replicas=replicas, in_sync=(1,))
    waiting = node.produce("alone", b"a", acks=acks)
    assert not waiting.is_answered
    assert partition.high_watermark == 0
    flush(node, disk)
    assert waiting.produced.base_offset == 0
    assert partition.high_watermark == 1
    assert len(node.deadlines) == 0


def test_acks_one_does_not_wait_where_no_flush_makes_the_record_readable(disk: DeferredDisk) -> None:
    """Too few replicas are in sync for any record to be committed."""
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(replicas=(1, 2), in_sync=(1,), config=TopicConfig(min_insync_replicas=2))
    assert node.produce("orders", b"a", acks=1).produced.error_code == 0


def test_acks_one_waits_for_no_disk_that_hangs(node: DataPath, disk: DeferredDisk) -> None:
    waiting = node.produce("orders", b"a", acks=1, timeout_ms=1)
    node.clock.advance(OWN_FLUSH_MS - 1)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert (waiting.produced.error_code, waiting.produced.base_offset) == (0, 0)
    flush(node, disk)
    assert len(node.deadlines) == 0


def test_acks_one_fails_when_the_leadership_ends_before_the_flush(node: DataPath, disk: DeferredDisk) -> None:
    waiting = node.produce("orders", b"a", acks=1)
    node.create(leader=2, leader_epoch=1)
    assert waiting.produced.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    flush(node, disk)
    assert len(node.deadlines) == 0


def test_acks_one_fails_when_its_log_goes_offline_before_the_flush(node: DataPath, disk: DeferredDisk) -> None:
    waiting = node.produce("orders", b"a", acks=1)
    node.table.get("orders", 0).log.condemn("a byte has changed")
    flush(node, disk)
    assert waiting.produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("timeout_ms", [0, 1, 2, 5, 10])
@pytest.mark.parametrize("partitions", [(0,), (0, 1)])
def test_the_producers_timeout_does_not_run_against_the_leaders_own_flush(
    node: DataPath, disk: DeferredDisk, timeout_ms: int, partitions: tuple[int, ...]
) -> None:
    node.create(partition=1)
    waiting = node.send(produce_to(*partitions, timeout_ms=timeout_ms), 9)
    node.clock.advance(50)
    assert not waiting.is_answered
    flush(node, disk)
    assert codes_of(waiting) == [0 for _ in partitions]
    assert len(node.deadlines) == 0


@pytest.mark.parametrize("partitions", [(0,), (0, 1)])
def test_a_flush_that_hangs_ends_the_wait_for_acks_all(
    node: DataPath, disk: DeferredDisk, partitions: tuple[int, ...]
) -> None:
    node.create(partition=1)
    waiting = node.send(produce_to(*partitions, timeout_ms=10), 9)
    node.clock.advance(OWN_FLUSH_MS)
    (topic,) = waiting.response.responses
    for answer in topic.partition_responses:
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert answer.error_message == "in the leader's log, but not on its disk after 5000 ms"
    flush(node, disk)
    assert len(node.deadlines) == 0


def test_a_produce_reports_a_missing_replica_at_the_producers_timeout(disk: DeferredDisk) -> None:
    """A request with two partitions: the partition that lacks a replica fails; the other waits for its flush."""
    node = DataPath("/logs", files=SimulatedDisk(), disk=disk)
    node.create(partition=0)
    node.create(partition=1, replicas=(1, 2), in_sync=(1, 2))
    sole = node.produce("orders", b"a", partition=1, timeout_ms=10)
    both = node.send(produce_to(0, 1, timeout_ms=10), 9)
    node.clock.advance(10)
    assert sole.produced.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert not both.is_answered
    flush(node, disk)
    (topic,) = both.response.responses
    assert [answer.error_code for answer in topic.partition_responses] == [0, ErrorCode.REQUEST_TIMED_OUT]
    assert topic.partition_responses[1].error_message == "in the leader's log, but not on enough replicas after 10 ms"
    assert len(node.deadlines) == 0


def test_a_produce_timeout_is_bounded(node: DataPath, disk: DeferredDisk) -> None:
    """A request that waits takes memory, and a client may send the largest timeout."""
    waiting = node.produce("orders", b"a", acks=-1, timeout_ms=2**31 - 1)
    node.clock.advance(299_999)
    assert not waiting.is_answered
    node.clock.advance(1)
    assert waiting.produced.error_code == ErrorCode.REQUEST_TIMED_OUT
    flush(node, disk)


def test_acks_zero_gets_no_answer_and_an_error_closes_the_connection(node: DataPath) -> None:
    silent = node.produce("orders", b"a", acks=0)
    assert silent.is_answered
    assert node.connection.answers == {0: None}
    node.produce("nowhere", b"a", acks=0)
    assert node.connection.close_reason is not None
    assert "UNKNOWN_TOPIC_OR_PARTITION" in node.connection.close_reason


def test_an_unknown_partition_of_a_produce_comes_before_invalid_acks(node: DataPath) -> None:
    for version, code in ((12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)):
        assert node.produce("nowhere", b"a", acks=2, version=version).produced.error_code == code
    node.create("__consumer_offsets")
    assert node.produce("__consumer_offsets", b"a", acks=2).produced.error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_an_answer_to_produce_waits_for_the_slowest_of_its_partitions() -> None:
    node = DataPath("/logs", files=SimulatedDisk(), disk=(disk := DeferredDisk()))
    for partition in range(2):
        node.create(partition=partition)
    batch = batch_of(b"a", now=node.clock.now_ms)
    exchange = node.send(request_of(to_topic("orders", (0, batch), (1, batch))), 9)
    late = disk.waiting.pop()
    flush(node, disk)
    assert not exchange.is_answered
    disk.waiting.append(late)
    flush(node, disk)
    assert codes_of(exchange) == [0, 0]


def test_a_retry_of_a_produce_waits_for_the_flush_of_its_original(node: DataPath, disk: DeferredDisk) -> None:
    records = batch_of(b"a", now=node.clock.now_ms, producer_id=1, producer_epoch=0, base_sequence=0)
    first = node.produce("orders", records=records)
    retry = node.produce("orders", records=records)
    assert (first.is_answered, retry.is_answered) == (False, False)
    flush(node, disk)
    assert (first.produced.base_offset, retry.produced.base_offset) == (0, 0)
    again = node.produce("orders", records=records)
    assert again.produced.base_offset == 0


def test_a_waiting_producer_is_answered_when_the_leadership_ends(node: DataPath) -> None:
    waiting = node.produce("orders", b"a")
    node.create(leader=2, leader_epoch=1)
    assert waiting.produced.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert waiting.produced.current_leader.leader_id == 2
