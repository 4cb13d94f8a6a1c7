import pytest

from tailrace.model.partitions import TopicPartition
from tailrace.server.partitions.offset_checkpoints import OffsetCheckpoint
from tailrace.storage.checkpoints import RECOVERY_POINTS, read_offsets, write_offsets
from tailrace.testing.disk import SimulatedDisk

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def checkpoint(disk: SimulatedDisk) -> OffsetCheckpoint:
    return OffsetCheckpoint(RECOVERY_POINTS, files=disk, directory="/")


def stored(disk: SimulatedDisk) -> dict[TopicPartition, int]:
    return read_offsets(disk, "/", RECOVERY_POINTS)


def test_updated_offsets_are_written_and_the_others_stay() -> None:
    disk = SimulatedDisk()
    first = checkpoint(disk)
    first.update([(FIRST, 5)])
    first.write()
    again = checkpoint(disk)
    again.update([(SECOND, 7)])
    again.write()
    assert stored(disk) == {FIRST: 5, SECOND: 7}
    assert (again.get(FIRST), again.get(TopicPartition("orders", 2))) == (5, 0)


def test_zero_is_the_same_as_none() -> None:
    disk = SimulatedDisk()
    kept = checkpoint(disk)
    kept.update([(FIRST, 0)])
    kept.write()
    assert disk.operations == 0
    kept.update([(FIRST, 5)])
    kept.update([(FIRST, 0)])
    kept.write()
    assert stored(disk) == {}


def test_forgotten_partitions_are_not_written() -> None:
    disk = SimulatedDisk()
    kept = checkpoint(disk)
    kept.update([(FIRST, 5), (SECOND, 7)])
    kept.write()
    assert kept.forget(FIRST)
    assert not kept.forget(FIRST)
    kept.write()
    assert stored(disk) == {SECOND: 7}


def test_a_write_has_the_offsets_of_its_beginning_and_a_failed_write_is_repeated() -> None:
    disk = SimulatedDisk()
    kept = checkpoint(disk)
    kept.update([(FIRST, 5)])
    write = kept.begin_write()
    kept.update([(FIRST, 6)])
    write.run()
    assert kept.finish_write(write) is None
    assert stored(disk) == {FIRST: 5}
    write = kept.begin_write()
    disk.fail_at(disk.operations + 1)
    write.run()
    assert kept.finish_write(write) is not None
    kept.write()
    assert stored(disk) == {FIRST: 6}


def test_a_damaged_file_is_begun_anew_and_keeps_no_node_from_starting(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimulatedDisk()
    disk.make_dirs("/logs")
    write_offsets(disk, "/logs", RECOVERY_POINTS, {TopicPartition("orders", 0): 500})
    disk.flip_bit(f"/logs/{RECOVERY_POINTS}", 0, 6)
    found = OffsetCheckpoint(RECOVERY_POINTS, files=disk, directory="/logs")
    assert list(found) == []
    assert "event=checkpoint-damaged name=recovery-point-offset-checkpoint" in caplog.text
    found.write()
    assert read_offsets(disk, "/logs", RECOVERY_POINTS) == {}
