"""Logs at rest are looked through slowly; damage puts a log offline, and a partition that sleeps sleeps on."""

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import LeaderEpoch
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.server.partitions.scrubber import FIRST_PASS_MS, Scrubber, ScrubberConfig
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import BROKER, DataPath, topic_id_of

INTERVAL_MS = 3_600_000
CONFIG = TopicConfig(segment_bytes=600, index_interval_bytes=100)
PARTITIONS = 3


@pytest.fixture
def node(files: SimulatedDisk) -> DataPath:
    node = DataPath("/logs", files=files)
    for number in range(PARTITIONS):
        node.create(partition=number, config=CONFIG)
        for value in range(20):
            node.produce("orders", b"value %d" % value, partition=number)
    return node


def scrubber_of(node: DataPath, *, bytes_per_second: float = 1e9, enable: bool = True) -> Scrubber:
    config = ScrubberConfig(
        log_scrub_enable=enable, log_scrub_interval_ms=INTERVAL_MS, log_scrub_io_max_bytes_per_second=bytes_per_second
    )
    return Scrubber(node.table, disk=node.disk, clock=node.clock, config=config)


def size_bytes(node: DataPath) -> int:
    return sum(size for _, size in node.table.sizes())


def log_files(files: SimulatedDisk, number: int, suffix: str) -> list[str]:
    directory = f"/logs/orders-{number}"
    return [f"{directory}/{name}" for name in files.list_dir(directory) if name.endswith(suffix)]


def test_the_scrubber_reads_every_log_once_in_an_interval(node: DataPath) -> None:
    scrubber = scrubber_of(node)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS - 1)
    assert scrubber.measure.bytes_read == 0
    node.clock.advance(10_000)
    assert scrubber.measure == (1, size_bytes(node), 0, 0)
    node.clock.advance(INTERVAL_MS - 20_000)
    assert scrubber.measure.passes == 1
    node.clock.advance(30_000)
    assert scrubber.measure == (2, 2 * size_bytes(node), 0, 0)
    scrubber.stop()
    node.clock.advance(3 * INTERVAL_MS)
    assert scrubber.measure.passes == 2


def test_the_scrubber_reads_no_more_in_a_second_than_the_setting_allows(node: DataPath) -> None:
    scrubber = scrubber_of(node, bytes_per_second=500)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS)
    for second in range(1, 6):
        node.clock.advance(1_000)
        # One slice, here a segment, may be ahead of the time that it is allowed to take.
        assert 0 < scrubber.measure.bytes_read <= 500 * second + CONFIG.segment_bytes
    assert scrubber.measure.bytes_read < size_bytes(node)


def test_the_scrubber_reads_nothing_when_it_is_switched_off(node: DataPath) -> None:
    scrubber = scrubber_of(node, enable=False)
    scrubber.start()
    node.clock.advance(3 * INTERVAL_MS)
    assert scrubber.measure == (0, 0, 0, 0)


def test_damage_puts_the_log_offline_and_the_others_are_read(node: DataPath, files: SimulatedDisk) -> None:
    path = log_files(files, 1, ".log")[0]
    files.flip_bit(path, files.size_of(path) - 1)
    scrubber = scrubber_of(node)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS + 10_000)
    assert (scrubber.measure.passes, scrubber.measure.damaged_logs) == (1, 1)
    assert [node.table.offline_replica("orders", number) is not None for number in range(3)] == [False, True, False]
    assert node.fetch("orders", 0, partition=1).fetched.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    node.clock.advance(INTERVAL_MS)
    assert (scrubber.measure.passes, scrubber.measure.damaged_logs) == (2, 1)


def asleep(node: DataPath, files: SimulatedDisk) -> DataPath:
    """The node after a clean stop; no request has used a partition since."""
    node.table.close()
    again = DataPath("/logs", files=files)
    for number in range(PARTITIONS):
        state = PartitionState(
            topic_id=topic_id_of("orders"),
            replicas=(BROKER,),
            in_sync_replicas=(BROKER,),
            leader=BROKER,
            leader_epoch=LeaderEpoch(0),
            partition_epoch=0,
        )
        again.table.add(TopicPartition("orders", number), state=state, config=CONFIG)
    assert len(again.table.dormant) == PARTITIONS
    return again


def test_a_dormant_partition_is_read_and_sleeps_on(node: DataPath, files: SimulatedDisk) -> None:
    node = asleep(node, files)
    scrubber = scrubber_of(node)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS + 10_000)
    assert scrubber.measure == (1, size_bytes(node), 0, 0)
    assert len(node.table.dormant) == PARTITIONS


def test_a_dormant_partition_is_woken_to_report_its_damage(node: DataPath, files: SimulatedDisk) -> None:
    node = asleep(node, files)
    files.flip_bit(log_files(files, 2, ".log")[1], 70)
    scrubber = scrubber_of(node)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS + 10_000)
    assert (scrubber.measure.damaged_logs, len(node.table.dormant)) == (1, PARTITIONS - 1)
    assert node.table.offline_replica("orders", 2) is not None


@pytest.mark.parametrize("cut_at", [1, 9])
def test_a_log_that_woke_while_its_files_were_read_is_looked_at_again(
    node: DataPath, files: SimulatedDisk, cut_at: int
) -> None:
    """Damage found by a scrub outside of the table may be repaired by then: cut, or fetched again."""
    node = asleep(node, files)
    scrubber = scrubber_of(node, bytes_per_second=500)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS + 500)
    assert 0 < scrubber.measure.bytes_read < size_bytes(node) // PARTITIONS
    woken = node.table.get("orders", 0)
    woken.log.truncate_to(cut_at)
    read_before = scrubber.measure.bytes_read
    node.clock.advance(100_000)
    assert (scrubber.measure.passes, scrubber.measure.damaged_logs) == (1, 0)
    assert not woken.log.is_offline
    assert scrubber.measure.bytes_read >= read_before + size_bytes(node)


@pytest.mark.parametrize("is_asleep", [False, True])
def test_a_wrong_index_is_made_anew(node: DataPath, files: SimulatedDisk, is_asleep: bool) -> None:
    if is_asleep:
        node = asleep(node, files)
    path = log_files(files, 0, ".index")[0]
    good = files.read_bytes(path)
    files.flip_bit(path, 7)
    scrubber = scrubber_of(node)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS + 10_000)
    assert (scrubber.measure.damaged_logs, scrubber.measure.indexes_rebuilt) == (0, 1)
    assert files.read_bytes(path) == good
    assert len(node.table.dormant) == (PARTITIONS - 1 if is_asleep else 0)


def test_a_partition_that_is_deleted_meanwhile_is_no_damage(node: DataPath) -> None:
    scrubber = scrubber_of(node, bytes_per_second=500)
    scrubber.start()
    node.clock.advance(FIRST_PASS_MS + 500)
    for number in range(PARTITIONS):
        node.table.delete("orders", number)
    node.clock.advance(100_000)
    assert (scrubber.measure.passes, scrubber.measure.damaged_logs) == (1, 0)
