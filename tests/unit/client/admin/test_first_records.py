"""The first records of many partitions, with few fetches."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.client.admin import first_records
from tailrace.client.admin.first_records import FirstRecord
from tailrace.client.blocking import Admin, Consumer, Producer
from tailrace.client.reading.fetching import Fetched, PartitionFetch, fetch
from tailrace.model.committed_progress import Rectangle
from tailrace.model.key_ranges import HASH_SPACE, hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Connection
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

TIMEOUT_MS = 30_000
PARTITIONS = 40


@pytest.fixture
def admin(tailrace_cluster: Cluster) -> Iterator[Admin]:
    with Admin(tailrace_cluster.bootstrap_servers) as made:
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of partitions in each fetch."""
    numbers: list[int] = []

    async def counted(connection: Connection, wanted: list[PartitionFetch], *rest: Any, **more: Any) -> list[Fetched]:
        numbers.append(len(wanted))
        return await fetch(connection, wanted, *rest, **more)

    monkeypatch.setattr(first_records, "fetch", counted)
    return numbers


def test_one_fetch_brings_the_first_records_of_all_partitions(
    tailrace_cluster: Cluster, admin: Admin, asked: list[int]
) -> None:
    topic, now_ms = new_topic(tailrace_cluster, partitions=PARTITIONS), int(time.time() * 1000)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(PARTITIONS):
            for place in range(3):
                key = b"%d-%d" % (number, place)
                producer.send(topic, b"value", key=key, partition=number, timestamp=now_ms + place)
    wanted = {TopicPartition(topic, number): 1 for number in range(PARTITIONS)}
    found = admin.first_records(wanted, timeout_ms=TIMEOUT_MS)
    assert found == {name: FirstRecord(1, now_ms + 1, b"%d-1" % name.partition) for name in wanted}
    assert asked == [PARTITIONS]
    assert admin.first_records({(topic, 0): 1}, timeout_ms=TIMEOUT_MS).keys() == {(topic, 0)}


def test_large_batches_come_in_later_fetches(tailrace_cluster: Cluster, admin: Admin, asked: list[int]) -> None:
    topic = new_topic(tailrace_cluster, partitions=3)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(3):
            producer.send(topic, bytes(100_000), key=b"%d" % number, partition=number)
    found = admin.first_records({TopicPartition(topic, number): 0 for number in range(3)}, timeout_ms=TIMEOUT_MS)
    assert [record.key for _, record in sorted(found.items())] == [b"0", b"1", b"2"]
    assert asked == [3, 2]


def test_partitions_without_such_a_record_are_left_out(
    tailrace_cluster: Cluster, admin: Admin, asked: list[int]
) -> None:
    topic = new_topic(tailrace_cluster, partitions=2)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send(topic, b"value", partition=0)
    wanted = {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 7}
    assert admin.first_records(wanted, timeout_ms=TIMEOUT_MS) == {}
    assert asked == [2]


def test_the_first_records_of_view_partitions_are_their_own(tailrace_cluster: Cluster, admin: Admin) -> None:
    topic, slots = new_topic(tailrace_cluster), 16
    keys = [b"key-%d" % number for number in range(200)]
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for key in keys:
            producer.send(topic, b"value", key=key)
    wanted = {TopicPartition(f"{topic}.shared-{slots}", number): 20 for number in range(slots)}
    found = admin.first_records(wanted, timeout_ms=TIMEOUT_MS)
    for name in wanted:
        offset = next(at for at in range(20, 200) if hash_of(keys[at], at) * slots // HASH_SPACE == name.partition)
        assert (found[name].offset, found[name].key) == (offset, keys[offset])


def test_records_that_are_done_by_their_hashes_are_passed(tailrace_cluster: Cluster, admin: Admin) -> None:
    topic = new_topic(tailrace_cluster)
    name, keys = TopicPartition(topic, 0), [b"key-%d" % number for number in range(50)]
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for key in keys:
            producer.send(topic, b"value", key=key)
    held = hash_of(keys[30], 30)
    with Consumer(tailrace_cluster.bootstrap_servers, group=topic) as consumer:
        below, above = Rectangle(0, 49, 0, held - 1), Rectangle(0, 49, held + 1, HASH_SPACE - 1)
        consumer.commit(ranges={name: [below, above, Rectangle(0, 9, held, held)]})
    progress = admin.group_progress(topic)
    found = admin.first_records({name: progress[name].stable_offset}, progress, timeout_ms=TIMEOUT_MS)
    assert (progress[name].stable_offset, found[name].offset, found[name].key) == (10, 30, keys[30])
