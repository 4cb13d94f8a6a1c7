"""KIP-X: readers split a partition by ranges of key hashes. A test for each sentence, with clients and real nodes.

Single nodes without sockets: tests/unit/server/fetch/test_key_ranges.py.
"""

import time
from collections.abc import Iterator

import pytest

from tailrace.client.blocking import Admin, Consumer, MetricName, NewTopic, Producer
from tailrace.model.key_ranges import HASH_SPACE, KeyRange, contains, hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import key_range_of
from tailrace.testing import Cluster

ORDERS = TopicPartition("orders", 0)
SECONDS = 60.0
RANGES = [
    [KeyRange(0, 99), KeyRange(HASH_SPACE // 2, HASH_SPACE - 1)],
    [KeyRange(100, HASH_SPACE // 3)],
    [KeyRange(HASH_SPACE // 3 + 1, HASH_SPACE // 2 - 1)],
]
KEYS = [None if number % 7 == 0 else b"" if number % 31 == 0 else b"key-%d" % (number % 400) for number in range(3_000)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes in three racks, with a partition that has a replica on each node."""
    config = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with Cluster(brokers=3, racks=["a", "b", "c"], config=config) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name=ORDERS.topic, partitions=1, replication_factor=3)])
        yield cluster


class RangesReader:
    """A consumer of some ranges, and what it has read."""

    def __init__(self, cluster: Cluster, ranges: list[KeyRange], rack: str) -> None:
        self.consumer = Consumer(
            cluster.bootstrap_servers, auto_offset_reset="earliest", client_rack=rack, fetch_max_wait_ms=50
        )
        self.ranges = ranges
        self.read: list[tuple[int, bytes | None]] = []
        self.consumer.assign({ORDERS: ranges})

    def poll(self) -> None:
        self.read += [(record.offset, record.key) for record in self.consumer.poll(0.02)]

    def is_at(self, end: int) -> bool:
        return self.consumer.position(ORDERS) == end


def write(cluster: Cluster, first: int, end: int) -> None:
    with Producer(cluster.bootstrap_servers, acks=-1, linger_ms=5) as producer:
        for number in range(first, end):
            producer.send(ORDERS.topic, b"value-%d" % number, key=KEYS[number], partition=0)
        producer.flush()


def read_to(readers: list[RangesReader], end: int) -> None:
    deadline = time.monotonic() + SECONDS
    while not all(reader.is_at(end) for reader in readers):
        assert time.monotonic() < deadline, [reader.consumer.position(ORDERS) for reader in readers]
        for reader in readers:
            reader.poll()


def test_each_key_has_one_reader_which_gets_its_records_once_and_in_order(cluster: Cluster) -> None:
    """'Key based filtering fetch': 'the broker will answer only matching records'; from the closest replica too, and
    through a change of the leader."""
    readers = [RangesReader(cluster, ranges, rack) for ranges, rack in zip(RANGES, "abc", strict=True)]
    try:
        write(cluster, 0, 2_000)
        read_to(readers, 2_000)
        with Admin(cluster.bootstrap_servers) as admin:
            (described,) = admin.describe_topics([ORDERS.topic])
        leader = described.partitions[0].leader
        replica = MetricName("preferred-read-replica", ORDERS)
        found = [reader.consumer.metrics().get(replica, -1) for reader in readers]
        assert found == [-1 if broker == leader else broker for broker in (1, 2, 3)]
        cluster.kill(leader)
        write(cluster, 2_000, 3_000)
        read_to(readers, 3_000)
    finally:
        for reader in readers:
            reader.consumer.close()
    for reader in readers:
        assert reader.read == [
            (offset, key) for offset, key in enumerate(KEYS) if contains(reader.ranges, hash_of(key, offset))
        ]


def test_an_empty_list_of_ranges_is_the_whole_partition(cluster: Cluster) -> None:
    """'assign(Map<TopicPartition, List<Tuple>>)': 'an empty list' stands for all records."""
    write(cluster, 0, 500)
    reader = RangesReader(cluster, [], "a")
    try:
        read_to([reader], 500)
    finally:
        reader.consumer.close()
    assert reader.read == list(enumerate(KEYS[:500]))


VIEW = "orders.shared-4"


class ViewConsumer:
    """A consumer of one partition of a view, which knows nothing of key ranges."""

    def __init__(self, cluster: Cluster, number: int, rack: str) -> None:
        self.consumer = Consumer(
            cluster.bootstrap_servers, auto_offset_reset="earliest", client_rack=rack, fetch_max_wait_ms=50
        )
        self.partition = TopicPartition(VIEW, number)
        self.read: list[tuple[int, bytes | None]] = []
        self.consumer.assign([self.partition])

    def has_read_to(self, end: int) -> bool:
        self.read += [(record.offset, record.key) for record in self.consumer.poll(0.02)]
        return self.consumer.position(self.partition) == end


def test_a_view_is_read_from_the_closest_replica_and_through_a_change_of_the_leader(cluster: Cluster) -> None:
    """Every replica serves views, up to its own high watermark."""
    readers = [ViewConsumer(cluster, number, rack) for number, rack in enumerate("abca")]
    expected = {
        reader.partition: [
            (offset, key)
            for offset, key in enumerate(KEYS)
            if contains([key_range_of(reader.partition.partition, 4)], hash_of(key, offset))
        ]
        for reader in readers
    }

    def read_all(below: int) -> None:
        ends = {
            view_partition: max(offset for offset, _ in found if offset < below) + 1
            for view_partition, found in expected.items()
        }
        deadline = time.monotonic() + SECONDS
        left = readers
        while left:
            assert time.monotonic() < deadline, [reader.consumer.position(reader.partition) for reader in left]
            left = [reader for reader in left if not reader.has_read_to(ends[reader.partition])]

    try:
        write(cluster, 0, 2_000)
        read_all(2_000)
        with Admin(cluster.bootstrap_servers) as admin:
            (described,) = admin.describe_topics([ORDERS.topic])
            (of_view,) = admin.describe_topics([VIEW])
        leader = described.partitions[0].leader
        assert [partition.leader for partition in of_view.partitions] == [leader] * 4
        found = [
            reader.consumer.metrics().get(MetricName("preferred-read-replica", reader.partition), -1)
            for reader in readers
        ]
        assert found == [-1 if broker == leader else broker for broker in (1, 2, 3, 1)]
        cluster.kill(leader)
        write(cluster, 2_000, 3_000)
        read_all(3_000)
    finally:
        for reader in readers:
            reader.consumer.close()
    assert {reader.partition: reader.read for reader in readers} == expected
