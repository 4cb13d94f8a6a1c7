"""The small files: Kafka's bytes, and the refusal of other bytes."""

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.storage import checkpoints
from tailrace.testing.disk import SimulatedDisk

ROOT = "/data"
ID = TopicId(bytes(range(16)))


@pytest.fixture
def disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs(ROOT)
    return disk


def test_a_checkpoint_of_offsets_has_kafkas_lines(disk: SimulatedDisk) -> None:
    assert checkpoints.read_offsets(disk, ROOT, checkpoints.RECOVERY_POINTS) == {}
    offsets = {TopicPartition("orders", 0): 17, TopicPartition("a.b_c-d", 12): 0}
    checkpoints.write_offsets(disk, ROOT, checkpoints.RECOVERY_POINTS, offsets)
    assert disk.read_bytes(f"{ROOT}/recovery-point-offset-checkpoint") == b"0\n2\norders 0 17\na.b_c-d 12 0\n"
    assert checkpoints.read_offsets(disk, ROOT, checkpoints.RECOVERY_POINTS) == offsets


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na 0 x\n",
        b"0\n1\na 0 -1\n",
        b"0\n1\na 0 9223372036854775808\n",
        b"\xff",
    ],
)
def test_a_wrong_checkpoint_of_offsets_is_refused_by_name(disk: SimulatedDisk, content: bytes) -> None:
    checkpoints.replace_file(disk, f"{ROOT}/{checkpoints.LOG_STARTS}", content)
    with pytest.raises(CorruptRecords, match="log-start-offset-checkpoint"):
        checkpoints.read_offsets(disk, ROOT, checkpoints.LOG_STARTS)


def test_the_mark_of_a_clean_stop_is_taken_once_and_for_good(disk: SimulatedDisk) -> None:
    assert checkpoints.take_clean_shutdown(disk, ROOT) is None
    checkpoints.write_clean_shutdown(disk, ROOT, broker_epoch=42)
    assert disk.read_bytes(f"{ROOT}/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":42}'
    assert checkpoints.take_clean_shutdown(disk, ROOT) == 42
    disk.power_cut()
    disk.reboot()
    assert checkpoints.take_clean_shutdown(disk, ROOT) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"version":1,"brokerEpoch":1}',
        b'{"version":0,"brokerEpoch":Infinity}',
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_an_illegible_mark_is_no_clean_stop(disk: SimulatedDisk, content: bytes) -> None:
    checkpoints.replace_file(disk, f"{ROOT}/{checkpoints.CLEAN_SHUTDOWN}", content)
    assert checkpoints.take_clean_shutdown(disk, ROOT) is None


def test_meta_properties_are_kafkas(disk: SimulatedDisk) -> None:
    assert checkpoints.read_meta_properties(disk, ROOT) is None
    ours = checkpoints.MetaProperties(cluster_id="Xy-1", node_id=3, directory_id=ID)
    checkpoints.write_meta_properties(disk, ROOT, ours)
    assert disk.read_bytes(f"{ROOT}/meta.properties") == (
        b"#\ncluster.id=Xy-1\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\nnode.id=3\nversion=1\n"
    )
    assert checkpoints.read_meta_properties(disk, ROOT) == ours
    theirs = b"#\n#Thu Nov 20 15:00:00 UTC 2026\nnode.id=1\nversion=1\ncluster.id=abc\n"
    checkpoints.replace_file(disk, f"{ROOT}/meta.properties", theirs)
    assert checkpoints.read_meta_properties(disk, ROOT) == checkpoints.MetaProperties(cluster_id="abc", node_id=1)
    checkpoints.replace_file(disk, f"{ROOT}/meta.properties", b"version=1\n")
    with pytest.raises(CorruptRecords, match="has no node.id"):
        checkpoints.read_meta_properties(disk, ROOT)


def test_partition_metadata_is_kafkas(disk: SimulatedDisk) -> None:
    assert checkpoints.read_partition_metadata(disk, ROOT) is None
    checkpoints.write_partition_metadata(disk, ROOT, ID)
    assert disk.read_bytes(f"{ROOT}/partition.metadata") == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert checkpoints.read_partition_metadata(disk, ROOT) == ID
    checkpoints.replace_file(disk, f"{ROOT}/partition.metadata", b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw")
    with pytest.raises(CorruptRecords, match=r"partition\.metadata"):
        checkpoints.read_partition_metadata(disk, ROOT)


def test_a_full_disk_leaves_the_old_checkpoint(disk: SimulatedDisk) -> None:
    path = f"{ROOT}/checkpoint"
    checkpoints.replace_file(disk, path, b"old")
    disk.write_short_at(disk.operations + 2, 1)
    with pytest.raises(StorageError, match="only 1 of 3 bytes"):
        checkpoints.replace_file(disk, path, b"new")
    assert disk.read_bytes(path) == b"old"
