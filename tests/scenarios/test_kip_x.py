"""KIP-X: readers share a partition by ranges of key hashes. A test for each sentence, with clients and real nodes.

Single nodes without sockets: tests/unit/server/fetch/test_key_ranges.py.
"""

import time
from collections.abc import Iterator

import pytest

from tailrace.client.blocking import Admin, Consumer, MetricName, NewTopic, Producer
from tailrace.model.key_ranges import HASH_SPACE, KeyRange, contains, hash_of
from tailrace.model.partitions import TopicPartition
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
    """Three nodes in three racks, with a partition that has a replica on each."""
    config = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
    with Cluster(brokers=3, racks=["a", "b", "c"], config=config) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name=ORDERS.topic, partitions=1, replication_factor=3)])
        yield cluster


class SharingReader:
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


def read_to(readers: list[SharingReader], end: int) -> None:
    deadline = time.monotonic() + SECONDS
    while not all(reader.is_at(end) for reader in readers):
        assert time.monotonic() < deadline, [reader.consumer.position(ORDERS) for reader in readers]
        for reader in readers:
            reader.poll()


def test_each_key_has_one_reader_which_gets_its_records_once_and_in_order(cluster: Cluster) -> None:
    """'Key based filtering fetch': 'the broker will answer only matching records'; from the closest replica too, and
    through a change of the leader."""
    readers = [SharingReader(cluster, ranges, rack) for ranges, rack in zip(RANGES, "abc", strict=True)]
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
    reader = SharingReader(cluster, [], "a")
    try:
        read_to([reader], 500)
    finally:
        reader.consumer.close()
    assert reader.read == list(enumerate(KEYS[:500]))
