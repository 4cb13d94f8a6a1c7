import pytest

from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.server.partitions.directory_work import DirectoryWork
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, read_offsets
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.faults import lose_power
from testkit.nodes.ports import DeferredDisk

TOPIC_ID = TopicId(b"1" * 16)


class DirectoryBench:
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
        self.calls: list[object] = []

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
def bench() -> DirectoryBench:
    return DirectoryBench()


def test_many_new_logs_are_durable_when_it_is_said_and_take_few_syncs(bench: DirectoryBench) -> None:
    bench.make(300)
    bench.work.when_made(lambda: bench.calls.append("made"))
    assert bench.calls == []
    bench.run()
    assert bench.calls == ["made"]
    assert sum(" sync " in line for line in bench.files.history) < 10
    lose_power(bench.files)
    assert len(bench.files.list_dir("/logs")) == 300
    for number in range(300):
        assert bench.files.list_dir(f"/logs/orders-{number}") == ["00000000000000000000.log", "partition.metadata"]
        assert bench.files.read_bytes(f"/logs/orders-{number}/partition.metadata").startswith(b"version: 0\n")


def test_directory_work_that_nothing_asks_for_is_not_awaited(bench: DirectoryBench) -> None:
    bench.work.when_made(lambda: bench.calls.append("made"))
    assert bench.calls == ["made"]


def test_the_first_request_of_directory_work_does_not_wait_for_later_requests(bench: DirectoryBench) -> None:
    bench.make(1)
    bench.work.when_made(lambda: bench.calls.append("first"))
    bench.work.make(TopicPartition("later", 0), TOPIC_ID)
    bench.work.when_made(lambda: bench.calls.append("second"))
    work, on_done = bench.disk.works.pop(0)
    work()
    on_done()
    assert bench.calls == ["first"]
    bench.run()
    assert bench.calls == ["first", "second"]


def test_a_log_that_is_deleted_before_it_is_made_is_never_there(bench: DirectoryBench) -> None:
    partitions = bench.make(3)
    bench.work.when_made(lambda: bench.calls.append("settled"))
    bench.work.delete(partitions[2], TOPIC_ID, bench.calls.append)
    assert bench.calls == [None]
    bench.run()
    assert bench.calls == [None, "settled"]
    assert bench.files.list_dir("/logs") == ["orders-0", "orders-1"]


def test_a_log_that_is_deleted_while_it_is_synced_goes_afterwards(bench: DirectoryBench) -> None:
    (partition,) = bench.make(1)
    bench.work.delete(partition, TOPIC_ID, bench.calls.append)
    assert bench.calls == []
    bench.run()
    (path,) = bench.calls
    assert bench.files.list_dir("/logs") == [str(path).rpartition("/")[2]]


def test_a_log_that_is_wanted_at_once_is_made_at_once_and_durable_later(bench: DirectoryBench) -> None:
    partitions = bench.make(2)
    assert not bench.work.ensure_made(partitions[1])
    assert bench.files.exists("/logs/orders-1/partition.metadata")
    bench.run()
    assert bench.work.ensure_made(partitions[1])


def test_no_checkpoint_speaks_of_a_deleted_log_when_its_name_is_free(bench: DirectoryBench) -> None:
    (partition,) = bench.make(1)
    bench.run()
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        bench.directory.checkpoint(name).update([(partition, 10)])
        bench.work.write_checkpoint(name, bench.calls.append)
    bench.run()
    assert bench.calls == [None, None]
    assert read_offsets(bench.files, "/logs", RECOVERY_POINTS) == {partition: 10}
    bench.work.delete(partition, TOPIC_ID, lambda path: bench.calls.append(read_offsets(bench.files, "/logs", name)))
    bench.run()
    assert bench.calls == [None, None, {}]
    lose_power(bench.files)
    assert not read_offsets(bench.files, "/logs", RECOVERY_POINTS)
    assert not bench.files.exists("/logs/orders-0")


def test_a_checkpoint_that_cannot_be_written_is_reported_and_written_later(bench: DirectoryBench) -> None:
    partition = TopicPartition("orders", 0)
    bench.directory.checkpoint(RECOVERY_POINTS).update([(partition, 10)])
    bench.files.fail_at(bench.files.operations + 1, "No space left on device")
    bench.work.write_checkpoint(RECOVERY_POINTS, bench.calls.append)
    bench.run()
    assert isinstance(bench.calls.pop(), KafkaError)
    bench.work.write_checkpoint(RECOVERY_POINTS, bench.calls.append)
    bench.run()
    assert bench.calls == [None]
    assert read_offsets(bench.files, "/logs", RECOVERY_POINTS) == {partition: 10}


def test_changes_while_a_checkpoint_is_written_are_in_the_next_one(bench: DirectoryBench) -> None:
    partition = TopicPartition("orders", 0)
    for offset in (10, 20):
        bench.directory.checkpoint(RECOVERY_POINTS).update([(partition, offset)])
        bench.work.write_checkpoint(RECOVERY_POINTS, lambda _: bench.calls.append(offsets()))

    def offsets() -> int:
        return read_offsets(bench.files, "/logs", RECOVERY_POINTS)[partition]

    bench.run()
    assert bench.calls == [10, 20]


def test_a_log_that_cannot_be_made_ends_every_wait(bench: DirectoryBench) -> None:
    bench.files.fail_at(bench.files.operations + 1, "No space left on device")
    partitions = bench.make(2)
    bench.work.when_made(lambda: bench.calls.append("settled"))
    bench.run()
    assert bench.calls == ["settled"]
    assert bench.files.list_dir("/logs") == ["orders-1"]
    assert not bench.work.ensure_made(partitions[0])
    assert bench.files.exists("/logs/orders-0/partition.metadata")


def test_a_failing_listener_does_not_hold_back_the_others(bench: DirectoryBench) -> None:

    def fail() -> None:
        raise ValueError("cannot take it")

    bench.make(1)
    bench.work.when_made(fail)
    bench.work.when_made(lambda: bench.calls.append("made"))
    with pytest.raises(ValueError, match="cannot take it"):
        bench.run()
    bench.clock.advance(0)
    assert bench.calls == ["made"]


def test_a_later_log_that_is_complete_first_does_not_stand_for_an_earlier_one(bench: DirectoryBench) -> None:
    """Otherwise a topic would be reported as created while a power cut could still take its directory."""
    bench.make(1)
    bench.work.when_made(lambda: bench.calls.append("orders"))
    bench.files.fail_at(bench.files.operations + 1, "No space left on device")
    bench.work.make(TopicPartition("later", 0), TOPIC_ID)
    bench.work.when_made(lambda: bench.calls.append("later"))
    bench.clock.advance(0)
    assert bench.calls == [], "nothing has been synced yet"
    bench.run()
    assert bench.calls == ["orders", "later"]


def test_later_logs_that_are_deleted_before_they_are_made_end_no_wait_too_early(bench: DirectoryBench) -> None:
    bench.make(1)
    bench.work.when_made(lambda: bench.calls.append("orders"))
    for number in range(3):
        bench.work.make(TopicPartition("later", number), TOPIC_ID)
        bench.work.delete(TopicPartition("later", number), TOPIC_ID, lambda _: None)
    bench.clock.advance(0)
    assert bench.calls == []
    bench.run()
    assert bench.calls == ["orders"]


def test_directory_work_calls_each_callback_of_a_batch_whatever_another_raises(bench: DirectoryBench) -> None:
    partitions = bench.make(2)
    bench.run()

    def fail(_: object = None) -> None:
        raise ValueError("cannot take it")

    bench.work.delete(partitions[0], TOPIC_ID, fail)
    bench.run_through(faults=1)
    bench.work.delete(partitions[1], TOPIC_ID, fail)
    bench.work.write_checkpoint(RECOVERY_POINTS, fail)
    bench.work.write_checkpoint(RECOVERY_POINTS, bench.calls.append)
    bench.work.make(TopicPartition("bills", 0), TOPIC_ID)
    bench.work.when_made(fail)
    bench.work.when_made(lambda: bench.calls.append("made"))
    bench.run_through(faults=3)
    assert bench.calls == [None, "made"]


def test_a_fault_of_one_new_log_does_not_hold_back_the_others(
    bench: DirectoryBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = LogDirectory.make

    def fail_once(directory: LogDirectory, partition: TopicPartition, topic_id: TopicId) -> None:
        if partition.partition == 1:
            raise ValueError("not a fault of the disk")
        make(directory, partition, topic_id)

    monkeypatch.setattr(LogDirectory, "make", fail_once)
    bench.make(3)
    bench.work.when_made(lambda: bench.calls.append("made"))
    bench.run_through(faults=1)
    assert bench.calls == ["made"]
    assert bench.files.list_dir("/logs") == ["orders-0", "orders-2"]
    with pytest.raises(ValueError, match="not a fault of the disk"):
        bench.work.make(TopicPartition("bills", 1), TOPIC_ID)
    bench.work.make(TopicPartition("bills", 0), TOPIC_ID)
    bench.run()
    assert bench.files.exists("/logs/bills-0")


def test_removals_leave_the_disk_to_others_now_and_then(bench: DirectoryBench) -> None:
    """A topic of ten thousand partitions is due for removal at once, and every flush would wait for all of it."""
    partitions = bench.make(50)
    bench.run()
    for partition in partitions:
        bench.work.delete(partition, TOPIC_ID, bench.calls.append)
    bench.run()
    for path in bench.calls:
        bench.work.remove(str(path))
    left = len(partitions)
    while left:
        ((work, on_done),) = bench.disk.works
        bench.disk.works.clear()
        work()
        before, left = left, len(bench.files.list_dir("/logs"))
        assert 1 <= before - left <= 4
        on_done()
    assert not bench.disk.works


def test_very_many_deleted_logs_are_renamed_in_several_batches(bench: DirectoryBench) -> None:
    partitions = bench.make(2_500)
    bench.run()
    gone: list[int] = []
    for partition in partitions:
        bench.work.delete(partition, TOPIC_ID, bench.calls.append)
    while bench.disk.works:
        ((work, on_done),) = bench.disk.works
        bench.disk.works.clear()
        work()
        on_done()
        gone.append(len(bench.calls))
    assert gone == [1, 1_001, 2_001, 2_500]
    assert [name.endswith("-delete") for name in bench.files.list_dir("/logs")] == [True] * 2_500
