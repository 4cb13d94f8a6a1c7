import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.server.data.directory_work import DirectoryWork
from tailrace.server.data.log_directory import LogDirectory
from tailrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from tailrace.testing.ports import DeferredDisk

TOPIC_ID = TopicId(b"1" * 16)


class Site:
    """A directory, and the work on it."""

    def __init__(self) -> None:
        self.files = SimulatedDisk(7)
        self.files.make_dirs("/logs")
        self.files.sync_dir("/")
        self.directory = LogDirectory("/logs", files=self.files)
        self.directory.scan()
        self.clock = ManualClock()
        self.disk = DeferredDisk()
        self.work = DirectoryWork(self.directory, disk=self.disk, clock=self.clock)
        self.told: list[object] = []

    def run(self) -> None:
        while self.disk.works or self.clock.calls_pending:
            self.clock.advance(0)
            self.disk.run()

    def make(self, count: int) -> list[TopicPartition]:
        partitions = [TopicPartition("orders", number) for number in range(count)]
        for partition in partitions:
            self.work.make(partition, TOPIC_ID)
        return partitions


def test_many_new_logs_are_durable_when_it_is_said_and_take_few_syncs() -> None:
    site = Site()
    site.make(300)
    site.work.when_made(lambda: site.told.append("made"))
    assert site.told == []
    site.run()
    assert site.told == ["made"]
    assert sum(" sync " in line for line in site.files.history) < 10
    site.files.power_cut()
    site.files.reboot()
    assert len(site.files.list_dir("/logs")) == 300
    for number in range(300):
        assert site.files.list_dir(f"/logs/orders-{number}") == ["00000000000000000000.log", "partition.metadata"]
        assert site.files.read_bytes(f"/logs/orders-{number}/partition.metadata").startswith(b"version: 0\n")


def test_nothing_asked_for_is_nothing_to_wait_for() -> None:
    site = Site()
    site.work.when_made(lambda: site.told.append("made"))
    assert site.told == ["made"]


def test_who_asked_first_does_not_wait_for_those_who_came_later() -> None:
    site = Site()
    site.make(1)
    site.work.when_made(lambda: site.told.append("first"))
    site.work.make(TopicPartition("later", 0), TOPIC_ID)
    site.work.when_made(lambda: site.told.append("second"))
    work, on_done = site.disk.works.pop(0)
    work()
    on_done()
    assert site.told == ["first"]
    site.run()
    assert site.told == ["first", "second"]


def test_a_log_that_is_deleted_before_it_is_made_is_never_there() -> None:
    site = Site()
    partitions = site.make(3)
    site.work.when_made(lambda: site.told.append("settled"))
    site.work.delete(partitions[2], TOPIC_ID, site.told.append)
    assert site.told == [None]
    site.run()
    assert site.told == [None, "settled"]
    assert site.files.list_dir("/logs") == ["orders-0", "orders-1"]


def test_a_log_that_is_deleted_while_it_is_synced_goes_afterwards() -> None:
    site = Site()
    (partition,) = site.make(1)
    site.work.delete(partition, TOPIC_ID, site.told.append)
    assert site.told == []
    site.run()
    (path,) = site.told
    assert site.files.list_dir("/logs") == [str(path).rpartition("/")[2]]


def test_a_log_that_is_wanted_at_once_is_made_at_once_and_durable_later() -> None:
    site = Site()
    partitions = site.make(2)
    assert not site.work.ensure_made(partitions[1])
    assert site.files.exists("/logs/orders-1/partition.metadata")
    site.run()
    assert site.work.ensure_made(partitions[1])


def test_no_checkpoint_speaks_of_a_deleted_log_when_its_name_is_free() -> None:
    site = Site()
    (partition,) = site.make(1)
    site.run()
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        site.directory.checkpoint(name).take([(partition, 10)])
        site.work.write_checkpoint(name, site.told.append)
    site.run()
    assert site.told == [None, None]
    assert read_offsets(site.files, "/logs", RECOVERY_POINTS) == {partition: 10}
    site.work.delete(partition, TOPIC_ID, lambda path: site.told.append(read_offsets(site.files, "/logs", name)))
    site.run()
    assert site.told == [None, None, {}]
    site.files.power_cut()
    site.files.reboot()
    assert not read_offsets(site.files, "/logs", RECOVERY_POINTS)
    assert not site.files.exists("/logs/orders-0")


def test_a_checkpoint_that_cannot_be_written_is_told_of_and_written_later() -> None:
    site = Site()
    partition = TopicPartition("orders", 0)
    site.directory.checkpoint(RECOVERY_POINTS).take([(partition, 10)])
    site.files.fail_at(site.files.operations + 1, "No space left on device")
    site.work.write_checkpoint(RECOVERY_POINTS, site.told.append)
    site.run()
    assert isinstance(site.told.pop(), KafkaError)
    site.work.write_checkpoint(RECOVERY_POINTS, site.told.append)
    site.run()
    assert site.told == [None]
    assert read_offsets(site.files, "/logs", RECOVERY_POINTS) == {partition: 10}


def test_what_changes_while_a_checkpoint_is_written_is_in_the_next_one() -> None:
    site = Site()
    partition = TopicPartition("orders", 0)
    for offset in (10, 20):
        site.directory.checkpoint(RECOVERY_POINTS).take([(partition, offset)])
        site.work.write_checkpoint(RECOVERY_POINTS, lambda _: site.told.append(offsets()))

    def offsets() -> int:
        return read_offsets(site.files, "/logs", RECOVERY_POINTS)[partition]

    site.run()
    assert site.told == [10, 20]


def test_a_log_that_cannot_be_made_keeps_nobody_waiting() -> None:
    site = Site()
    site.files.fail_at(site.files.operations + 1, "No space left on device")
    partitions = site.make(2)
    site.work.when_made(lambda: site.told.append("settled"))
    site.run()
    assert site.told == ["settled"]
    assert site.files.list_dir("/logs") == ["orders-1"]
    assert not site.work.ensure_made(partitions[0])
    assert site.files.exists("/logs/orders-0/partition.metadata")


def test_whoever_cannot_take_the_news_keeps_nobody_from_theirs() -> None:
    site = Site()

    def fail() -> None:
        raise ValueError("cannot take it")

    site.make(1)
    site.work.when_made(fail)
    site.work.when_made(lambda: site.told.append("made"))
    with pytest.raises(ValueError, match="cannot take it"):
        site.run()
    site.clock.advance(0)
    assert site.told == ["made"]
