"""The replica fetchers of a broker whose disk fails, is full or cannot store."""

from dataclasses import replace

import pytest

from tailrace.metadata.image import ImageDelta
from tailrace.model.errors import StorageError
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from testkit.nodes.faults import tear_next_write
from unit.server.replicas.fetchers_bench import ORDERS, ReplicaFetchersBench, batch, data, state


def test_a_log_that_fails_is_not_fetched_until_there_is_another_leader() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    tear_next_write(bench.files)
    bench.take_answer(data(0, batch(0, b"a")))
    assert bench.hosts.failed_partitions == 1
    assert bench.fetched == [1]


def test_a_log_that_fails_while_its_flush_is_awaited_stops_no_other_partition() -> None:
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.answer(data(0, batch(0, b"a")), data(1, batch(0, b"b")))
    tear_next_write(bench.files)
    with pytest.raises(StorageError):
        bench.partition(0).following.append(batch(1, b"c"))
    bench.settle()
    assert bench.hosts.failed_partitions == 1
    assert bench.fetched == [1]


def test_a_replica_on_a_disk_that_was_full_is_fetched_again() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    bench.files.fail_at(bench.files.operations + 1)
    bench.take_answer(data(0, batch(0, b"a")))
    assert (bench.fetches, bench.hosts.failed_partitions) == ([], 1)
    bench.clock.advance(50)
    bench.take_answer(data(0, batch(0, b"a")))
    assert bench.partition().log.log_end_offset == 1


def test_a_fault_of_a_replica_that_is_tried_again_has_one_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    bench = ReplicaFetchersBench(state(2, 0))

    def fail(reason: str, times: int) -> int:
        """The lines about so many tries, 50 ms after each other."""
        caplog.clear()
        for _ in range(times):
            bench.files.fail_at(bench.files.operations + 1, reason)
            bench.answer(data(0, batch(0, b"a")))
            bench.settle()
            bench.clock.advance(50)
        return sum("event=replica-failed partition=" in record.getMessage() for record in caplog.records)

    assert fail("No space left on device", 30) == 1
    assert fail("Disk quota exceeded", 30) == 1
    bench.clock.advance(60_000)
    assert fail("Disk quota exceeded", 30) == 1


def test_a_disk_that_cannot_store_fetches_in_sync_replicas_only() -> None:
    in_sync, out_of_sync = state(2, 0), replace(state(2, 0), in_sync_replicas=(BrokerId(2), BrokerId(3)))
    bench = ReplicaFetchersBench(in_sync, in_sync, out_of_sync)
    bench.take_answer()
    bench.hosts.fetch_only_in_sync(True)
    bench.answer()
    assert bench.fetched == [0, 1]
    bench.take(0, replace(out_of_sync, partition_epoch=1))
    bench.answer()
    assert bench.fetched == [1]
    bench.hosts.fetch_only_in_sync(False)
    bench.settle()
    bench.answer()
    assert set(bench.fetched) == {0, 1, 2}


def fetched(bench: ReplicaFetchersBench) -> list[int]:
    """The partitions of the next fetch from broker 2."""
    bench.settle()
    if bench.peer.waiting:
        bench.answer()
    bench.settle()
    return sorted(partition.partition for _, wanted in bench.fetches for partition in wanted)


def leaving_bench() -> ReplicaFetchersBench:
    """Two partitions in sync on a disk that cannot store; the first leaves."""
    bench = ReplicaFetchersBench(state(2, 0), state(2, 0))
    bench.hosts.fetch_only_in_sync(True)
    bench.hosts.pause(ORDERS, state(2, 0))
    return bench


def test_a_replica_that_leaves_a_bad_disk_is_not_fetched_whatever_an_image_of_before_says() -> None:
    """A hung disk keeps the image from going on, and a fetch would put the replica back in sync."""
    bench = leaving_bench()
    assert fetched(bench) == [1]
    left = replace(state(2, 0), in_sync_replicas=(BrokerId(2), BrokerId(3)), partition_epoch=2)
    bench.hosts.left(ORDERS, left)
    assert fetched(bench) == [1]
    bench.take(0, replace(state(2, 0), partition_epoch=1))
    assert fetched(bench) == [1], "it is late"
    bench.take(0, left)
    assert fetched(bench) == [1]
    bench.take(0, replace(state(2, 0), partition_epoch=3))
    assert fetched(bench) == [0, 1], "it is in sync again"


def test_a_replica_that_stays_on_a_bad_disk_is_fetched_again() -> None:
    bench = leaving_bench()
    assert fetched(bench) == [1]
    bench.hosts.resume(ORDERS, state(2, 0))
    assert fetched(bench) == [0, 1]


def test_when_the_disk_can_store_again_all_replicas_are_fetched_and_late_answers_change_nothing() -> None:
    bench = leaving_bench()
    bench.hosts.left(TopicPartition("orders", 1), replace(state(2, 0), partition_epoch=2))
    assert fetched(bench) == []
    bench.hosts.fetch_only_in_sync(False)
    assert fetched(bench) == [0, 1]
    bench.hosts.pause(ORDERS, state(2, 0))
    bench.hosts.left(ORDERS, replace(state(2, 0), partition_epoch=2))
    assert fetched(bench) == [0, 1]


def test_a_topic_made_again_is_fetched_though_a_replica_of_the_old_one_has_left() -> None:
    bench = ReplicaFetchersBench(state(2, 0))
    topic = bench.image.topics["orders"]
    bench.hosts.fetch_only_in_sync(True)
    bench.hosts.left(ORDERS, replace(state(2, 0), partition_epoch=7))
    assert fetched(bench) == []
    bench.hosts.on_image(bench.image, ImageDelta(deleted_topics=(topic,), created_topics=(topic,)))
    assert fetched(bench) == [0]
