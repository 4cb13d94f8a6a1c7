from pathlib import Path

import pytest

from tailrace.model.errors import CorruptRecords, StorageError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.renamed_directories import KeptLogs, parse_directory_name
from tailrace.storage import DamagedLog, OsFiles, checkpoints
from tailrace.testing.disk import SimulatedDisk
from testkit.records.batches import stored_batch

PARTITION = TopicPartition("orders", 0)
FIRST_ID, SECOND_ID = TopicId(b"1" * 16), TopicId(b"2" * 16)
SMALL = TopicConfig(segment_bytes=1000, retention_ms=-1)


def scanned(files: SimulatedDisk) -> LogDirectory:
    directory = LogDirectory("/logs", files=files, is_durable=True)
    directory.scan()
    return directory


def open_log(directory: LogDirectory, topic_id: TopicId) -> None:
    directory.open_log(PARTITION, topic_id=topic_id, config=TopicConfig(), now_ms=0, leader_epoch=None).close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-3", TopicPartition("orders", 3)),
        ("a-b-12", TopicPartition("a-b", 12)),
        ("__consumer_offsets-49", TopicPartition("__consumer_offsets", 49)),
        ("__cluster_metadata-0", None),
        ("orders-03", None),
        ("orders", None),
        ("-1", None),
        ("orders-x", None),
        ("meta.properties", None),
        ("orders-٣", None),
        ("or ders-1", None),
    ],
)
def test_only_names_that_kafka_would_give_are_partitions(name: str, expected: TopicPartition | None) -> None:
    assert parse_directory_name(name) == expected


def test_a_partition_on_disk_is_unclaimed_until_it_is_opened(files: SimulatedDisk) -> None:
    open_log(scanned(files), FIRST_ID)
    directory = scanned(files)
    assert directory.unclaimed == {PARTITION}
    open_log(directory, FIRST_ID)
    assert directory.unclaimed == frozenset()


def test_a_write_torn_by_a_crash_is_cut_and_the_cut_is_reported(
    files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    open_log(scanned(files), FIRST_ID)
    file = files.open("/logs/orders-0/00000000000000000000.log", create=False)
    file.writev([b"torn"])
    file.close()
    open_log(scanned(files), FIRST_ID)
    assert "event=log-cut partition=orders-0 end_offset=0 bytes=4" in caplog.text


def test_a_log_start_that_is_ignored_is_reported(files: SimulatedDisk, caplog: pytest.LogCaptureFixture) -> None:
    log = scanned(files).open_log(PARTITION, topic_id=FIRST_ID, config=SMALL, now_ms=0, leader_epoch=None)
    log.append([stored_batch(offset) for offset in range(5)])
    log.flush()
    checkpoints.write_offsets(files, "/logs", checkpoints.LOG_STARTS, {PARTITION: 5_000})
    log = scanned(files).open_log(PARTITION, topic_id=FIRST_ID, config=SMALL, now_ms=0, leader_epoch=None)
    assert (log.log_start_offset, log.log_end_offset) == (0, 5)
    assert "event=log-start-ignored partition=orders-0 noted=5000 end_offset=5" in caplog.text
    assert "event=log-cut" not in caplog.text


def test_a_flipped_bit_in_the_name_of_the_topic_costs_no_record() -> None:
    """The directory of another topic would be removed."""
    content = len(b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw")
    topic_id = TopicId(bytes(range(7, 23)))
    for bit in range(8 * content):
        files = SimulatedDisk()
        directory = scanned(files)
        log = directory.open_log(PARTITION, topic_id=topic_id, config=TopicConfig(), now_ms=0, leader_epoch=None)
        log.append([stored_batch(0)])
        log.close()
        directory.checkpoint(checkpoints.RECOVERY_POINTS).update([(PARTITION, 1)])
        directory.write_checkpoints()
        path = "/logs/orders-0/partition.metadata"
        good = files.read_bytes(path)
        files.flip_bit(path, bit // 8, bit % 8)
        try:
            log = scanned(files).open_log(
                PARTITION, topic_id=topic_id, config=TopicConfig(), now_ms=0, leader_epoch=None
            )
        except CorruptRecords:
            assert files.exists(f"/logs/orders-0/{0:020d}.log")
        else:
            assert log.log_end_offset == 1
            assert checkpoints.read_partition_metadata(files, "/logs/orders-0") == topic_id
            assert files.read_bytes(path)[:10] == good[:10]


def test_a_directory_of_another_topic_with_the_same_name_is_never_opened(files: SimulatedDisk) -> None:
    open_log(scanned(files), FIRST_ID)
    checkpoints.write_offsets(files, "/logs", checkpoints.RECOVERY_POINTS, {PARTITION: 1000})
    open_log(scanned(files), SECOND_ID)
    assert checkpoints.read_partition_metadata(files, "/logs/orders-0") == SECOND_ID
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {}


def test_a_directory_of_another_topic_that_cannot_be_renamed_is_not_opened_the_next_time_either(
    files: SimulatedDisk,
) -> None:
    log = scanned(files).open_log(PARTITION, topic_id=FIRST_ID, config=TopicConfig(), now_ms=0, leader_epoch=None)
    log.append([stored_batch(0)])
    log.close()
    directory = scanned(files)
    for _ in range(2):
        files.fail_at(files.operations + 1)
        with pytest.raises(StorageError, match="rename"):
            open_log(directory, SECOND_ID)
    log = directory.open_log(PARTITION, topic_id=SECOND_ID, config=TopicConfig(), now_ms=0, leader_epoch=None)
    assert log.log_end_offset == 0


def test_a_removal_that_a_crash_cut_short_is_finished_by_the_next_scan(files: SimulatedDisk) -> None:
    directory = scanned(files)
    open_log(directory, FIRST_ID)
    path = directory.renamed.rename_deleted(PARTITION, FIRST_ID)
    assert path.endswith(f"/orders-0.{FIRST_ID.hex()}-delete")
    assert files.exists(path)
    scanned(files)
    assert files.list_dir("/logs") == []


def test_the_name_of_a_renamed_directory_is_not_longer_than_a_file_system_takes(files: SimulatedDisk) -> None:
    directory = scanned(files)
    long = TopicPartition("t" * 249, 12345)
    directory.open_log(long, topic_id=FIRST_ID, config=TopicConfig(), now_ms=0, leader_epoch=None).close()
    assert len(directory.renamed.rename_deleted(long, FIRST_ID).rpartition("/")[2]) == 255


def test_a_renamed_directory_never_replaces_another(files: SimulatedDisk) -> None:
    """Removing the older directory first would keep the disk busy, and end its file.delete.delay.ms early."""
    directory = scanned(files)
    aside: set[str] = set()
    for partition in (TopicPartition("t" * 249, 1), TopicPartition("t" * 249, 12), PARTITION, PARTITION):
        directory.open_log(partition, topic_id=FIRST_ID, config=TopicConfig(), now_ms=0, leader_epoch=None).close()
        aside.add(directory.renamed.rename_deleted(partition, FIRST_ID))
    assert len(aside) == 4
    assert all(map(files.exists, aside))


def test_a_checkpoint_is_written_only_when_something_changed(files: SimulatedDisk) -> None:
    directory = scanned(files)
    checkpoint = directory.checkpoint(checkpoints.RECOVERY_POINTS)
    checkpoint.update([(PARTITION, 7)])
    checkpoint.write()
    operations = files.operations
    checkpoint.update([(PARTITION, 7)])
    checkpoint.write()
    assert files.operations == operations


def test_partitions_that_are_not_opened_yet_keep_their_checkpoints(files: SimulatedDisk) -> None:
    open_log(scanned(files), FIRST_ID)
    checkpoints.write_offsets(files, "/logs", checkpoints.RECOVERY_POINTS, {PARTITION: 3})
    directory = scanned(files)
    other = TopicPartition("other", 1)
    directory.checkpoint(checkpoints.RECOVERY_POINTS).update([(other, 5)])
    directory.write_checkpoints()
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {PARTITION: 3, other: 5}


def test_a_directory_that_vanished_while_the_node_was_down_is_an_error_and_begins_empty(
    files: SimulatedDisk, caplog: pytest.LogCaptureFixture
) -> None:
    open_log(scanned(files), FIRST_ID)
    checkpoints.write_offsets(files, "/logs", checkpoints.RECOVERY_POINTS, {PARTITION: 7})
    files.remove_tree("/logs/orders-0")
    directory = scanned(files)
    assert directory.has_vanished(PARTITION), "records that this broker has acknowledged may be lost"
    open_log(directory, FIRST_ID)
    assert files.size_of("/logs/orders-0/00000000000000000000.log") == 0
    (error,) = [
        record for record in caplog.records if record.name.startswith("tailrace") and record.levelname == "ERROR"
    ]
    assert "event=partition-vanished partition=orders-0 flushed_up_to=7" in error.getMessage()


def test_checkpoints_forget_what_is_gone_at_the_start_and_not_while_another_thread_may_write_them(
    files: SimulatedDisk,
) -> None:
    open_log(scanned(files), FIRST_ID)
    checkpoints.write_offsets(files, "/logs", checkpoints.RECOVERY_POINTS, {PARTITION: 7})
    files.remove_tree("/logs/orders-0")
    directory = scanned(files)
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {}
    before = len(files.history)
    directory.make(PARTITION, FIRST_ID)
    assert not [line for line in files.history[before:] if "checkpoint" in line]


def test_a_new_partition_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    open_log(scanned(SimulatedDisk()), FIRST_ID)
    assert [record for record in caplog.records if record.name.startswith("tailrace")] == []


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_processs_new_partition_is_durable_before_the_next_process_uses_it(seed: int) -> None:
    """Otherwise a power cut would leave acknowledged records in a log without the id of its topic."""
    files = SimulatedDisk(seed)
    files.make_dirs("/logs")
    scanned(files).make(PARTITION, FIRST_ID)  # the process is killed before it syncs
    open_log(scanned(files), FIRST_ID)
    files.power_cut()
    files.reboot()
    assert checkpoints.read_partition_metadata(files, "/logs/orders-0") == FIRST_ID


def test_the_new_logs_of_an_ordinary_topic_do_not_wait_for_all_else_on_the_disk(files: SimulatedDisk) -> None:
    """Another program may have written gigabytes there."""
    directory = scanned(files)
    partitions = [TopicPartition("orders", number) for number in range(16)]
    for partition in partitions:
        directory.make(partition, FIRST_ID)
    before = len(files.history)
    directory.sync_made(partitions)
    synced = [line for line in files.history[before:] if " sync " in line]
    assert len(synced) == 2 * 16 + 1
    assert not any(" sync all " in line for line in synced)


def cut_at(directory: LogDirectory, good_end_offset: int) -> DamageCut:
    cut = directory.damage_cut(
        PARTITION, topic_id=FIRST_ID, good_end_offset=good_end_offset, config=SMALL, now_ms=0, leader_epoch=0
    )
    while not cut.is_copied:
        cut.copy_some()
        assert cut.fault is None
    cut.cut()
    return cut


def segment_files(files: SimulatedDisk, path: str) -> dict[str, bytes]:
    return {name: files.read_bytes(f"{path}/{name}") for name in files.list_dir(path) if name.endswith(".log")}


def test_a_cut_takes_nothing_that_was_not_copied(files: SimulatedDisk) -> None:
    """More is damaged than the administrator was shown and agreed to lose, and so must be confirmed again."""
    directory = scanned(files)
    log = directory.open_log(PARTITION, topic_id=FIRST_ID, config=SMALL, now_ms=0, leader_epoch=None)
    for offset in range(40):
        log.append([stored_batch(offset)])
    log.flush()
    log.close(clean=False)
    whole = segment_files(files, "/logs/orders-0")
    assert len(whole) == 4
    files.flip_bit("/logs/orders-0/00000000000000000000.log", 300)  # the fourth batch; not read yet
    damaged = segment_files(files, "/logs/orders-0")
    cut = cut_at(directory, 35)
    assert isinstance(cut.fault, DamagedLog)
    assert cut.fault.damage.good_end_offset == 3
    assert segment_files(files, "/logs/orders-0") == damaged
    cut = cut_at(directory, 3)
    assert (cut.fault, cut.end_offset) == (None, 3)
    assert segment_files(files, cut.copy_path) == damaged


def test_a_file_with_the_name_of_a_damaged_log_keeps_no_node_from_starting(tmp_path: Path) -> None:
    kept = tmp_path / "orders-0.6f72646572730000.1-damaged"
    kept.mkdir()
    (kept / "00000000000000000000.log").write_bytes(bytes(100))
    (tmp_path / "notes-damaged").write_text("what was damaged")
    directory = LogDirectory(str(tmp_path), files=OsFiles(), is_durable=True)
    directory.scan()
    assert directory.renamed.kept_logs == KeptLogs(directories=1, size_bytes=100)
