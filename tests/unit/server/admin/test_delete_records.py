"""DeleteRecords (21): the log starts later, for good."""

import logging

import pytest

from tailrace.metadata.commands import TopicSpec
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.topics import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import Exchange
from testkit.nodes.ports import DeferredDisk
from testkit.quorum.controller_commands import create_topics


@pytest.fixture
def node() -> AdminPath:
    node = AdminPath("/data", files=SimulatedDisk())
    node.create_topics("orders", partitions=2)
    for _ in range(5):
        node.produce("orders", b"one", b"two")
    return node


def ask(node: AdminPath, topic: str, *wanted: tuple[int, int], version: int = 2, same_turn: bool = False) -> Exchange:
    """`wanted` are (partition, offset)."""
    partitions = tuple(DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in wanted)
    topics = (DeleteRecordsTopic(name=topic, partitions=partitions),)
    return node.send(DeleteRecordsRequest(topics=topics, timeout_ms=1_000), version, same_turn=same_turn)


def results(exchange: Exchange) -> list[DeleteRecordsPartitionResult]:
    (topic,) = exchange.response.topics
    return list(topic.partitions)


def delete(node: AdminPath, topic: str, offset: int, *, partition: int = 0, version: int = 2) -> tuple[int, int]:
    (result,) = results(ask(node, topic, (partition, offset), version=version))
    assert result.partition_index == partition
    return result.low_watermark, result.error_code


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_below_the_offset_cannot_be_read_any_more(node: AdminPath, version: int) -> None:
    assert delete(node, "orders", 3, version=version) == (3, 0)
    assert node.table.get("orders", 0).log.log_start_offset == 3
    assert node.fetch("orders", 2).fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(node.values("orders")) == 7


def test_the_clients_name_does_not_make_the_line_of_deleted_records_long(
    node: AdminPath, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    partitions = (DeleteRecordsPartition(partition_index=0, offset=3),)
    request = DeleteRecordsRequest(topics=(DeleteRecordsTopic(name="orders", partitions=partitions),), timeout_ms=1_000)
    node.send(request, 2, client_id="\0" * 32_000)
    (line,) = (text for record in caplog.records if "event=records-deleted" in (text := record.getMessage()))
    assert " by='127.0.0.1 " in line
    assert len(line) < 500


def test_minus_one_is_the_high_watermark(node: AdminPath) -> None:
    assert delete(node, "orders", -1) == (10, 0)
    assert node.values("orders") == []
    assert node.produce("orders", b"next").produced.base_offset == 10


def test_deleted_records_stay_deleted(node: AdminPath) -> None:
    assert delete(node, "orders", 6) == (6, 0)
    assert delete(node, "orders", 2) == (6, 0)


@pytest.mark.parametrize("offset", [11, -2, 2**63 - 1])
def test_a_log_cannot_start_above_its_high_watermark(node: AdminPath, offset: int) -> None:
    assert delete(node, "orders", offset) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
    assert node.table.get("orders", 0).log.log_start_offset == 0


def test_each_partition_of_delete_records_has_an_error_of_its_own(node: AdminPath) -> None:
    answers = results(ask(node, "orders", (0, 4), (1, 1), (2, 0)))
    assert [(each.low_watermark, each.error_code) for each in answers] == [
        (4, ErrorCode.NONE),
        (-1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("__cluster_metadata", ErrorCode.POLICY_VIOLATION),
        ("__consumer_offsets", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__transaction_state", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),  # it is not there
    ],
)
def test_delete_records_leaves_the_clusters_own_logs_alone(node: AdminPath, topic: str, code: ErrorCode) -> None:
    node.create_topics("__consumer_offsets", partitions=1)
    assert delete(node, topic, 0) == (-1, code)


@pytest.mark.parametrize(("policy", "code"), [("compact", ErrorCode.POLICY_VIOLATION), ("compact,delete", 0)])
def test_a_topic_that_keeps_the_last_word_of_every_key_loses_none(node: AdminPath, policy: str, code: int) -> None:
    node.submit(create_topics(TopicSpec(name="table", configs=(("cleanup.policy", policy),))))
    node.end_turn()
    assert delete(node, "table", 0)[1] == code


def test_only_the_leader_moves_the_log_start(node: AdminPath) -> None:
    node.table.get("orders", 0).step_down()
    assert delete(node, "orders", 1) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_a_partition_named_twice_keeps_its_records(node: AdminPath) -> None:
    answers = results(ask(node, "orders", (0, 4), (0, 5)))
    assert [each.error_code for each in answers] == [ErrorCode.INVALID_REQUEST] * 2
    assert node.table.get("orders", 0).log.log_start_offset == 0


def test_acknowledged_deletions_survive_a_power_cut() -> None:
    disk = SimulatedDisk(7)
    node = AdminPath("/data", files=disk)
    node.create_topics("orders")
    node.produce("orders", b"one", b"two", b"three")
    assert delete(node, "orders", 2) == (2, 0)
    disk.power_cut()
    disk.reboot()
    node = AdminPath("/data", files=disk, start=2)
    assert node.table.get("orders", 0).log.log_start_offset == 2
    assert node.fetch("orders", 2).fetched.log_start_offset == 2


def test_only_committed_records_can_be_deleted() -> None:
    disk = DeferredDisk()
    node = AdminPath("/data", files=SimulatedDisk(), disk=disk)
    while not node.is_ready:
        disk.run()
        node.end_turn()
    node.create_topics("orders")
    disk.run()
    node.end_turn()
    produced = node.produce("orders", b"not flushed yet")
    assert not produced.is_answered
    assert delete(node, "orders", 1) == (-1, ErrorCode.OFFSET_OUT_OF_RANGE)
    disk.run()
    deleted = ask(node, "orders", (0, 1))
    assert not deleted.is_answered, "not before the new log start is written down"
    disk.run()
    assert (results(deleted)[0].low_watermark, results(deleted)[0].error_code) == (1, 0)


def test_requests_of_one_turn_share_one_write(node: AdminPath) -> None:
    disk = node.files
    assert isinstance(disk, SimulatedDisk)
    before = disk.operations
    delete(node, "orders", 1)
    cost = disk.operations - before
    before = disk.operations
    exchanges = [ask(node, "orders", (0, offset), same_turn=True) for offset in (2, 3, 4)]
    node.end_turn()
    assert [results(exchange)[0].low_watermark for exchange in exchanges] == [2, 3, 4]
    assert disk.operations - before == cost


def test_the_log_names_the_client_that_had_records_deleted(node: AdminPath, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    delete(node, "orders", 4)
    delete(node, "orders", 4)
    (line,) = (record.getMessage() for record in caplog.records if "records-deleted" in record.getMessage())
    assert line.startswith("event=records-deleted partition=orders-0 why=DeleteRecords records=4 log-start=4 by='")
