import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.server.partitions.directory_work import DirectoryWork
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.ports import DeferredDisk

TOPIC_ID = TopicId(b"1" * 16)


class Site:
    """A directory, and the work on it."""

    def __init__(self) -> None:
        self.files = SimulatedDisk(7)
        self.files.make_dirs("/logs")
        self.files.sync_dir("/")
        self.directory = LogDirectory("/logs", files=self.files, is_durable=True)
        self.directory.scan()
        self.clock = ManualClock()
        self.disk = DeferredDisk()
        self.work = DirectoryWork(self.directory, disk=self.disk, clock=self.clock)
        self.told: list[object] = []

    def run(self) -> None:
        while self.disk.works or self.clock.calls_pending:
            self.clock.advance(0)
            self.disk.run()

    def run_through(self, *, faults: int) -> None:
        """Like an event loop, it survives the exceptions of its callbacks."""
        for _ in range(faults):
            with pytest.raises(ValueError):  # noqa: PT011 - whatever the test has raised
                self.run()
        self.run()

    def make(self, count: int) -> list[TopicPartition]:
        partitions = [TopicPartition("orders", number) for number in range(count)]
        for partition in partitions:
            self.work.make(partition, TOPIC_ID)
        return partitions


@pytest.fixture
def site() -> Site:
    return Site()


def test_many_new_logs_are_durable_when_it_is_said_and_take_few_syncs(site: Site) -> None:
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


def test_nothing_asked_for_is_nothing_to_wait_for(site: Site) -> None:
    site.work.when_made(lambda: site.told.append("made"))
    assert site.told == ["made"]


def test_the_first_request_does_not_wait_for_later_ones(site: Site) -> None:
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


def test_a_log_that_is_deleted_before_it_is_made_is_never_there(site: Site) -> None:
    partitions = site.make(3)
    site.work.when_made(lambda: site.told.append("settled"))
    site.work.delete(partitions[2], TOPIC_ID, site.told.append)
    assert site.told == [None]
    site.run()
    assert site.told == [None, "settled"]
    assert site.files.list_dir("/logs") == ["orders-0", "orders-1"]


def test_a_log_that_is_deleted_while_it_is_synced_goes_afterwards(site: Site) -> None:
    (partition,) = site.make(1)
    site.work.delete(partition, TOPIC_ID, site.told.append)
    assert site.told == []
    site.run()
    (path,) = site.told
    assert site.files.list_dir("/logs") == [str(path).rpartition("/")[2]]


def test_a_log_that_is_wanted_at_once_is_made_at_once_and_durable_later(site: Site) -> None:
    partitions = site.make(2)
    assert not site.work.ensure_made(partitions[1])
    assert site.files.exists("/logs/orders-1/partition.metadata")
    site.run()
    assert site.work.ensure_made(partitions[1])


def test_no_checkpoint_speaks_of_a_deleted_log_when_its_name_is_free(site: Site) -> None:
    (partition,) = site.make(1)
    site.run()
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        site.directory.checkpoint(name).update([(partition, 10)])
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


def test_a_checkpoint_that_cannot_be_written_is_reported_and_written_later(site: Site) -> None:
    partition = TopicPartition("orders", 0)
    site.directory.checkpoint(RECOVERY_POINTS).update([(partition, 10)])
    site.files.fail_at(site.files.operations + 1, "No space left on device")
    site.work.write_checkpoint(RECOVERY_POINTS, site.told.append)
    site.run()
    assert isinstance(site.told.pop(), KafkaError)
    site.work.write_checkpoint(RECOVERY_POINTS, site.told.append)
    site.run()
    assert site.told == [None]
    assert read_offsets(site.files, "/logs", RECOVERY_POINTS) == {partition: 10}


def test_changes_while_a_checkpoint_is_written_are_in_the_next_one(site: Site) -> None:
    partition = TopicPartition("orders", 0)
    for offset in (10, 20):
        site.directory.checkpoint(RECOVERY_POINTS).update([(partition, offset)])
        site.work.write_checkpoint(RECOVERY_POINTS, lambda _: site.told.append(offsets()))

    def offsets() -> int:
        return read_offsets(site.files, "/logs", RECOVERY_POINTS)[partition]

    site.run()
    assert site.told == [10, 20]


def test_a_log_that_cannot_be_made_ends_every_wait(site: Site) -> None:
    site.files.fail_at(site.files.operations + 1, "No space left on device")
    partitions = site.make(2)
    site.work.when_made(lambda: site.told.append("settled"))
    site.run()
    assert site.told == ["settled"]
    assert site.files.list_dir("/logs") == ["orders-1"]
    assert not site.work.ensure_made(partitions[0])
    assert site.files.exists("/logs/orders-0/partition.metadata")


def test_a_failing_listener_does_not_hold_back_the_others(site: Site) -> None:

    def fail() -> None:
        raise ValueError("cannot take it")

    site.make(1)
    site.work.when_made(fail)
    site.work.when_made(lambda: site.told.append("made"))
    with pytest.raises(ValueError, match="cannot take it"):
        site.run()
    site.clock.advance(0)
    assert site.told == ["made"]


def test_a_later_log_that_is_complete_first_does_not_stand_for_an_earlier_one(site: Site) -> None:
    """Otherwise a topic would be reported as created while a power cut could still take its directory."""
    site.make(1)
    site.work.when_made(lambda: site.told.append("orders"))
    site.files.fail_at(site.files.operations + 1, "No space left on device")
    site.work.make(TopicPartition("later", 0), TOPIC_ID)
    site.work.when_made(lambda: site.told.append("later"))
    site.clock.advance(0)
    assert site.told == [], "nothing has been synced yet"
    site.run()
    assert site.told == ["orders", "later"]


def test_later_logs_that_are_deleted_before_they_are_made_end_no_wait_too_early(site: Site) -> None:
    site.make(1)
    site.work.when_made(lambda: site.told.append("orders"))
    for number in range(3):
        site.work.make(TopicPartition("later", number), TOPIC_ID)
        site.work.delete(TopicPartition("later", number), TOPIC_ID, lambda _: None)
    site.clock.advance(0)
    assert site.told == []
    site.run()
    assert site.told == ["orders"]


def test_each_callback_of_a_batch_is_called_whatever_the_one_before_raises(site: Site) -> None:
    partitions = site.make(2)
    site.run()

    def fail(_: object = None) -> None:
        raise ValueError("cannot take it")

    site.work.delete(partitions[0], TOPIC_ID, fail)
    site.run_through(faults=1)
    site.work.delete(partitions[1], TOPIC_ID, fail)
    site.work.write_checkpoint(RECOVERY_POINTS, fail)
    site.work.write_checkpoint(RECOVERY_POINTS, site.told.append)
    site.work.make(TopicPartition("bills", 0), TOPIC_ID)
    site.work.when_made(fail)
    site.work.when_made(lambda: site.told.append("made"))
    site.run_through(faults=3)
    assert site.told == [None, "made"]


def test_a_fault_of_one_new_log_does_not_hold_back_the_others(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    make = LogDirectory.make

    def fail_once(directory: LogDirectory, partition: TopicPartition, topic_id: TopicId) -> None:
        if partition.partition == 1:
            raise ValueError("not a fault of the disk")
        make(directory, partition, topic_id)

    monkeypatch.setattr(LogDirectory, "make", fail_once)
    site.make(3)
    site.work.when_made(lambda: site.told.append("made"))
    site.run_through(faults=1)
    assert site.told == ["made"]
    assert site.files.list_dir("/logs") == ["orders-0", "orders-2"]
    with pytest.raises(ValueError, match="not a fault of the disk"):
        site.work.make(TopicPartition("bills", 1), TOPIC_ID)
    site.work.make(TopicPartition("bills", 0), TOPIC_ID)
    site.run()
    assert site.files.exists("/logs/bills-0")


def test_removals_leave_the_disk_to_others_now_and_then(site: Site) -> None:
    """A topic of ten thousand partitions is due for removal at once, and every flush would wait for all of it."""
    partitions = site.make(50)
    site.run()
    for partition in partitions:
        site.work.delete(partition, TOPIC_ID, site.told.append)
    site.run()
    for path in site.told:
        site.work.remove(str(path))
    left = len(partitions)
    while left:
        ((work, on_done),) = site.disk.works
        site.disk.works.clear()
        work()
        before, left = left, len(site.files.list_dir("/logs"))
        assert 1 <= before - left <= 4
        on_done()
    assert not site.disk.works


def test_very_many_deleted_logs_are_renamed_in_several_batches(site: Site) -> None:
    partitions = site.make(2_500)
    site.run()
    gone: list[int] = []
    for partition in partitions:
        site.work.delete(partition, TOPIC_ID, site.told.append)
    while site.disk.works:
        ((work, on_done),) = site.disk.works
        site.disk.works.clear()
        work()
        on_done()
        gone.append(len(site.told))
    assert gone == [1, 1_001, 2_001, 2_500]
    assert [name.endswith("-delete") for name in site.files.list_dir("/logs")] == [True] * 2_500
