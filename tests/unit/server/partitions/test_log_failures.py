"""Logs that vanish, fail or cannot be opened, and the failures that the partition table reports."""

import errno
from dataclasses import replace

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, StorageError
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.records.batch import stamp
from tailrace.storage import Log
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of
from testkit.nodes.faults import tear_next_write
from testkit.nodes.ports import DeferredDisk, NotedFailures
from unit.server.partitions.table_nodes import (
    ORDERS,
    OTHER_ID,
    add,
    new_node,
    started_node,
    stopped_node,
    write_recovery_points,
)


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_fault_of_a_deleted_log_is_not_charged_to_a_topic_that_has_its_name(is_damaged: bool) -> None:
    files, disk, failures = SimulatedDisk(), DeferredDisk(), NotedFailures()
    node = new_node(files, disk, failures)
    old = node.create()
    disk.run()
    node.produce("orders", b"old", acks=1)
    assert old.state is not None
    node.table.delete("orders", 0)
    made = replace(old.state, topic_id=OTHER_ID)
    assert node.table.create(ORDERS, state=made, config=TopicConfig()) is None, "the old log waits for its flush"
    if is_damaged:
        old.log.condemn("a read that had begun before has found a wrong checksum")
    else:
        tear_next_write(files)
        with pytest.raises(StorageError):
            old.following.append(batch_at(1))
    assert old.log.is_offline
    disk.run()
    assert node.table.get("orders", 0).topic_id == OTHER_ID
    assert failures.all == []


def batch_at(base_offset: int) -> bytes:
    made = bytearray(batch_of(b"late"))
    stamp(made, 0, base_offset, 0)
    return bytes(made)


def test_a_log_that_fails_while_it_waits_for_a_flush_can_be_deleted() -> None:
    files, disk = SimulatedDisk(), DeferredDisk()
    node = new_node(files, disk)
    partition = node.create()
    disk.run()
    node.produce("orders", b"old", acks=1)
    tear_next_write(files)
    node.produce("orders", b"torn", acks=1)
    assert partition.log.is_offline
    node.table.delete("orders", 0)
    disk.run()
    assert node.create(topic_id=OTHER_ID).topic_id == OTHER_ID, "the name is free"


def test_a_partition_whose_log_is_damaged_is_offline_and_the_others_are_not(files: SimulatedDisk) -> None:
    node = new_node(files)
    node.create("orders")
    node.create("invoices")
    node.produce("orders", b"a" * 100)
    write_recovery_points(node)
    files.flip_bit("/logs/orders-0/00000000000000000000.log", 80)
    again = new_node(files)
    with pytest.raises(KafkaError):
        again.create("orders")
    again.create("invoices")
    assert again.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert again.produce("invoices", b"b").produced.error_code == 0


def test_a_damaged_log_stays_damaged_after_every_stop_and_is_never_taken_for_a_torn_end(files: SimulatedDisk) -> None:
    node = new_node(files)
    node.create("orders")
    node.produce("orders", b"a" * 100)
    write_recovery_points(node)
    files.flip_bit("/logs/orders-0/00000000000000000000.log", 80)
    for stop_cleanly in (True, False, True):
        node = new_node(files)
        with pytest.raises(KafkaError, match="was flushed up to"):
            node.create("orders")
        node.create("invoices")
        node.produce("invoices", b"b")
        write_recovery_points(node)
        if stop_cleanly:
            node.table.close()


def node_without_its_directory(files: SimulatedDisk, failures: NotedFailures) -> DataPath:
    """A node that starts again, and has a log in its checkpoints alone."""
    stopped_node(files)
    files.remove_tree("/logs/orders-0")
    return new_node(files, failures=failures)


def test_a_partition_directory_that_vanished_while_the_node_was_down_is_reported(
    files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    failures = NotedFailures()
    node = node_without_its_directory(files, failures)
    add(node)
    assert failures.all == [("lost", ORDERS)]
    assert (node.table.offline.take_vanished(), node.table.offline.take_vanished()) == ([ORDERS], [])
    node.end_turn()
    assert node.values("orders") == []
    assert "event=partition-vanished partition=orders-0" in caplog.text


def test_a_replica_that_was_removed_before_a_kill_is_not_missed_when_it_is_assigned_again(
    files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory is gone and its entries in the checkpoints are not. Found by simulation, seed 5,007,780."""
    failures = NotedFailures()
    node = node_without_its_directory(files, failures)
    assert node.table.offline.take_vanished() == []  # the metadata of the start does not name it
    add(node, topic_id=OTHER_ID)
    node.end_turn()
    assert failures.all == []
    assert "event=partition-vanished" not in caplog.text


def watched_node() -> tuple[DataPath, SimulatedDisk, NotedFailures]:
    """A node with a partition, its disk, and the failures that it reports."""
    files, failures = SimulatedDisk(), NotedFailures()
    node = new_node(files, failures=failures)
    node.create()
    return node, files, failures


def test_a_log_that_fails_while_it_is_used_is_reported_once() -> None:
    node, files, failures = watched_node()
    node.produce("orders", b"a")
    tear_next_write(files)
    assert node.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.produce("orders", b"c").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert failures.all == [("stalled", ORDERS)], "the flushed records are there"


def test_a_log_that_cannot_be_written_is_stalled_until_it_can() -> None:
    node, files, failures = watched_node()
    for _ in range(2):
        files.fail_at(files.operations + 1)
        assert node.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert failures.all == [("stalled", ORDERS)] * 2
    assert node.produce("orders", b"c").produced.error_code == ErrorCode.NONE
    assert node.produce("orders", b"d").produced.error_code == ErrorCode.NONE
    assert failures.all == [*[("stalled", ORDERS)] * 2, ("resumed", ORDERS)]


def test_a_write_without_space_reports_a_full_disk_and_no_failed_log() -> None:
    files, failures = SimulatedDisk(), NotedFailures()
    node = new_node(files, failures=failures)
    reports: list[bool] = []
    node.table.faults.on_disk_full = lambda: reports.append(True)
    node.create()
    files.free_space = 20
    assert node.produce("orders", b"b").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    node.clock.advance(0)
    assert (reports, failures.all) == ([True], [])


def test_a_log_that_is_found_damaged_is_lost_and_one_that_is_closed_is_not() -> None:
    failures = NotedFailures()
    node = new_node(failures=failures)
    node.create().log.condemn("a scrub has found a wrong checksum")
    node.create("other")
    node.table.close()
    assert failures.all == [("lost", ORDERS)]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, "lost"), (errno.ENOSPC, "stalled"), (errno.EMFILE, "stalled")]
)
def test_a_log_that_cannot_be_opened_is_reported(number: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Log:
        raise StorageError("cannot open the log", number)

    monkeypatch.setattr(Log, "open", fail)
    failures = NotedFailures()
    with pytest.raises(StorageError):
        new_node(failures=failures).create()
    assert failures.all == [(kind, ORDERS)]


def test_a_log_that_failed_is_looked_through_again_after_a_clean_stop(files: SimulatedDisk) -> None:
    node = started_node(files)
    node.produce("orders", b"kept")
    tear_next_write(files)
    assert node.produce("orders", b"torn").produced.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert node.table.get("orders", 0).log.is_offline
    node.table.close()
    node = started_node(files)
    assert node.values("orders") == [b"kept"]
