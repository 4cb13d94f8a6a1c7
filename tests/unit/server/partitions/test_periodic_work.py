from tailrace.model.topic_config import TopicConfig
from tailrace.server.partitions.periodic_work import PeriodicWork, PeriodicWorkConfig
from tailrace.storage import checkpoints
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath


def test_checkpoints_are_written_by_the_clock_until_it_is_stopped() -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    partition = node.create().topic_partition
    periodic_work = PeriodicWork(
        node.table, clock=node.clock, disk=node.disk, config=PeriodicWorkConfig(), on_short_of_space=lambda _: None
    )
    periodic_work.start()
    node.produce("orders", b"a")
    node.clock.advance(5_000)
    assert checkpoints.read_offsets(files, "/logs", checkpoints.HIGH_WATERMARKS) == {partition: 1}
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {}
    node.clock.advance(55_000)
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {partition: 1}
    periodic_work.stop()
    node.produce("orders", b"b")
    node.clock.advance(600_000)
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {partition: 1}
    assert node.clock.calls_pending == 0


def test_page_cache_durability_flushes_after_so_many_records() -> None:
    node = DataPath("/logs", files=SimulatedDisk(), settings={"log.durability": "page-cache"})
    log = node.create(config=TopicConfig(flush_messages=3)).log
    flushed = []
    for _ in range(7):
        node.produce("orders", b"a")
        flushed.append(log.flushed_offset)
    assert flushed == [0, 0, 3, 3, 3, 6, 6]


def test_page_cache_durability_flushes_what_has_waited_long_enough_when_it_is_looked_at() -> None:
    node = DataPath("/logs", files=SimulatedDisk(), settings={"log.durability": "page-cache"})
    log = node.create(config=TopicConfig(flush_ms=2_000)).log
    plain = node.create("plain").log
    PeriodicWork(
        node.table,
        clock=node.clock,
        disk=node.disk,
        config=PeriodicWorkConfig(log_flush_scheduler_interval_ms=1_000),
        on_short_of_space=lambda _: None,
    ).start()
    for topic in ("orders", "plain"):
        node.produce(topic, b"a")
    node.clock.advance(2_999)
    assert log.flushed_offset == 0
    node.clock.advance(1)
    assert (log.flushed_offset, plain.flushed_offset) == (1, 0)
