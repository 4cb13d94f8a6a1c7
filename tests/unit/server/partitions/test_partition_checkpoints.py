"""Checkpoints of the partitions: recovery points that are lowered, log starts and high watermarks."""

import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.server.partitions import partition_checkpoints
from tailrace.storage.checkpoints import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, read_offsets
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.clocks import TickingClock
from testkit.nodes.data_path import DataPath
from unit.server.partitions.table_nodes import new_node, write_recovery_points


def two_partitions(files: SimulatedDisk) -> tuple[DataPath, Partition, Partition]:
    """A node whose partitions have a record each, and no checkpoint of them."""
    node = new_node(files)
    partitions = [node.create(topic) for topic in ("cut", "other")]
    for topic in ("cut", "other"):
        node.produce(topic, b"a")
    return node, partitions[0], partitions[1]


def write_log_starts(node: DataPath) -> None:
    node.table.checkpoints.write_log_starts()
    node.end_turn()


def offsets_in(files: SimulatedDisk, checkpoint: str) -> dict[TopicPartition, int]:
    return dict(read_offsets(files, "/logs", checkpoint))


def test_a_checkpoint_lowers_a_recovery_point_without_a_look_at_other_partitions(files: SimulatedDisk) -> None:
    node, cut, _ = two_partitions(files)
    node.table.checkpoints.write_recovery_points()
    node.produce("other", b"b")
    lowered: list[KafkaError | None] = []
    node.table.checkpoints.lower_recovery_point(cut, 0, lowered.append)
    node.end_turn()
    assert lowered == [None]
    assert offsets_in(files, RECOVERY_POINTS) == {TopicPartition("other", 0): 1}


def test_the_recovery_point_of_a_damaged_log_is_written_at_once_and_stays(files: SimulatedDisk) -> None:
    """A start looks no further back, and a kill may come within the minute between two checkpoints."""
    node, cut, _ = two_partitions(files)
    node.produce("cut", b"b")
    node.produce("cut", b"c")
    write_recovery_points(node)
    cut.log.condemn("the batch at 1 is damaged", offset=1)
    node.end_turn()
    points = {TopicPartition("cut", 0): 1, TopicPartition("other", 0): 1}
    assert offsets_in(files, RECOVERY_POINTS) == points
    assert cut.log.flushed_offset == 3
    write_recovery_points(node)
    node.table.close()
    assert offsets_in(files, RECOVERY_POINTS) == points


def test_a_log_that_is_to_begin_earlier_loses_its_checkpointed_start_before_it_is_cut(files: SimulatedDisk) -> None:
    """Recovery drops a log that ends below its noted start."""
    node, cut, _ = two_partitions(files)
    cut.delete_records(1)
    write_log_starts(node)
    assert offsets_in(files, LOG_STARTS) == {TopicPartition("cut", 0): 1}
    starts: list[object] = []
    node.table.checkpoints.lower_recovery_point(cut, 0, lambda _: starts.append(offsets_in(files, LOG_STARTS)))
    write_log_starts(node)
    assert starts == [{}]
    assert offsets_in(files, LOG_STARTS) == {}


def test_a_log_that_is_deleted_before_its_cut_leaves_the_checkpoints(files: SimulatedDisk) -> None:
    """A checkpoint that names a log which is not there says to the next start that the disk has lost a log."""
    node, cut, _ = two_partitions(files)
    node.produce("cut", b"b")
    node.produce("cut", b"c")
    cut.delete_records(2)
    write_recovery_points(node)
    lowered: list[KafkaError | None] = []
    node.table.checkpoints.lower_recovery_point(cut, 1, lowered.append)
    node.table.delete("cut", 0)
    node.end_turn()
    assert lowered == [None]
    assert offsets_in(files, RECOVERY_POINTS) == {TopicPartition("other", 0): 1}
    assert offsets_in(files, LOG_STARTS) == {}


def test_a_checkpoint_of_some_log_starts_has_no_other_partitions(files: SimulatedDisk) -> None:
    node, cut, other = two_partitions(files)
    for partition in (cut, other):
        partition.delete_records(1)
    written: list[KafkaError | None] = []
    node.table.checkpoints.write_log_starts(written.append, of=[cut])
    node.end_turn()
    assert written == [None]
    assert offsets_in(files, LOG_STARTS) == {TopicPartition("cut", 0): 1}


def test_checkpoints_of_many_partitions_take_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_checkpoints, "AT_ONCE", 1)
    files, clock = SimulatedDisk(), TickingClock()
    node = DataPath("/logs", files=files, clock=clock)
    for number in range(20):
        node.create(partition=number)
        node.produce("orders", b"a", partition=number)
    clock.advance(100)
    node.table.checkpoints.write_high_watermarks()
    assert offsets_in(files, HIGH_WATERMARKS) == {}
    node.table.delete("orders", 19)
    clock.advance(100)
    assert offsets_in(files, HIGH_WATERMARKS) == {TopicPartition("orders", n): 1 for n in range(19)}
