"""The log lines of a node about records that it has deleted: how many, why, and up to which offset."""

import logging

import pytest

from tailrace.model.topic_config import TopicConfig
from tailrace.server.bounded_lines import LINES, WINDOW_MS
from tailrace.server.partitions.deletion_log import DeletionLog
from tailrace.server.partitions.periodic_work import PartitionPasses
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath

YEAR_MS = 365 * 24 * 3_600_000
SMALL = TopicConfig(segment_bytes=200, retention_ms=YEAR_MS)


@pytest.fixture
def node(caplog: pytest.LogCaptureFixture) -> DataPath:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    return DataPath("/logs", files=SimulatedDisk())


def deleted(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "event=records-deleted" in record.getMessage()]


def test_retention_tells_how_many_records_went_and_why(node: DataPath, caplog: pytest.LogCaptureFixture) -> None:
    partition = node.create(config=SMALL)
    for _ in range(5):
        node.produce("orders", b"x" * 60, b"y" * 40)
    node.clock.advance(2 * YEAR_MS)
    PartitionPasses(node.table, clock=node.clock).apply_retention()
    node.end_turn()
    (line,) = deleted(caplog)
    assert partition.log.log_start_offset == 8
    assert line.startswith("event=records-deleted partition=orders-0 why=retention.ms segments=4 records=8 bytes=")
    assert line.endswith(" log-start=8 newest-timestamp=2023-11-14T22:13:20+00:00")


def test_a_log_that_is_too_large_names_the_other_setting(node: DataPath, caplog: pytest.LogCaptureFixture) -> None:
    node.create(config=TopicConfig(segment_bytes=200, retention_bytes=300))
    for _ in range(5):
        node.produce("orders", b"x" * 100)
    PartitionPasses(node.table, clock=node.clock).apply_retention()
    node.end_turn()
    (line,) = deleted(caplog)
    assert " why=retention.bytes " in line


def test_the_deletion_log_has_no_line_without_a_deletion(node: DataPath, caplog: pytest.LogCaptureFixture) -> None:
    node.create(config=SMALL)
    node.produce("orders", b"x")
    passes = PartitionPasses(node.table, clock=node.clock)
    passes.apply_retention()
    node.end_turn()
    assert deleted(caplog) == []


def test_a_thousand_partitions_do_not_write_a_thousand_lines(node: DataPath, caplog: pytest.LogCaptureFixture) -> None:
    log = DeletionLog(node.clock)
    partition = node.create()
    node.produce("orders", b"a", b"b", b"c")
    partition.delete_records(3)
    for _ in range(1_000):
        log.asked_for(partition, 0, "127.0.0.1 admin")
    node.clock.advance(WINDOW_MS)
    lines = deleted(caplog)
    assert (
        lines[:LINES]
        == ["event=records-deleted partition=orders-0 why=DeleteRecords records=3 log-start=3 by='127.0.0.1 admin'"]
        * LINES
    )
    assert lines[LINES:] == ["event=records-deleted more=990 records=2970"]


@pytest.mark.parametrize("timestamp", [2**62, 10**17])
def test_a_timestamp_that_no_calendar_has_is_logged_as_it_is(
    node: DataPath, caplog: pytest.LogCaptureFixture, timestamp: int
) -> None:
    partition = node.create(config=TopicConfig(segment_bytes=200, retention_bytes=300))
    for _ in range(5):
        node.produce("orders", b"x" * 100)
    before = partition.log.log_start_offset
    retired = partition.apply_retention(node.clock.now_ms())
    DeletionLog(node.clock).retired(partition, before, [retired[0]._replace(newest_timestamp=timestamp)])
    (line,) = deleted(caplog)
    assert line.endswith(f"newest-timestamp={timestamp}")
