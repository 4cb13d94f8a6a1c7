from tailrace.server.data.upkeep import Upkeep, UpkeepConfig
from tailrace.storage import checkpoints
from tailrace.testing.data_path import DataPath
from tailrace.testing.disk import SimulatedDisk


def test_checkpoints_are_written_by_the_clock_until_it_is_stopped() -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    partition = node.create().topic_partition
    upkeep = Upkeep(node.table, clock=node.clock, config=UpkeepConfig())
    upkeep.start()
    node.produce("orders", b"a")
    node.clock.advance(5_000)
    assert checkpoints.read_offsets(files, "/logs", checkpoints.HIGH_WATERMARKS) == {partition: 1}
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {}
    node.clock.advance(55_000)
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {partition: 1}
    upkeep.stop()
    node.produce("orders", b"b")
    node.clock.advance(600_000)
    assert checkpoints.read_offsets(files, "/logs", checkpoints.RECOVERY_POINTS) == {partition: 1}
    assert node.clock.calls_pending == 0
