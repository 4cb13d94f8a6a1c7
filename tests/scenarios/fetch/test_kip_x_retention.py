"""KIP-X: retention deletes records of other keys while a group of a view is away. With clients and real nodes.

A view partition stands for a partition: in Kafka the offset of a group falls below the start of its partition only if
records of the partition are deleted. The rules, on single nodes: tests/unit/server/fetch/views/test_view_starts.py.
"""

import time
from collections.abc import Iterator

import pytest

from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer
from tailrace.client.offsets import EARLIEST, LATEST
from tailrace.client.reader_settings import Reset
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import key_range_of
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

SECONDS = 60.0
SETTINGS = {
    "log.retention.check.interval.ms": "200",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
KEYS = [b"key-%d" % number for number in range(400)]
RARE = next(key for key in KEYS if contains([key_range_of(1, 4)], hash_of(key, 0)))
OTHERS = [key for key in KEYS if not contains([key_range_of(1, 4)], hash_of(key, 0))]


class RareKeyGroup:
    """A group commits an offset of a rare key, and goes away; other keys' records push the log start beyond it."""

    def __init__(self, cluster: Cluster, *, replicas: int, topic: str = "orders") -> None:
        self.bootstrap = cluster.bootstrap_servers
        self.stored = TopicPartition(topic, 0)
        self.of_rare, self.of_others = (TopicPartition(f"{topic}.shared-4", number) for number in (1, 0))
        self.group = f"group-{topic}"
        new = NewTopic(
            name=topic,
            partitions=1,
            replication_factor=replicas,
            configs={"segment.bytes": "100000", "retention.bytes": "300000"},
        )
        with Admin(self.bootstrap) as admin:
            admin.create_topics([new])
        self.write([RARE])
        self.read("earliest", wanted=1)

    def write(self, keys: list[bytes], value: bytes = b"value") -> None:
        with Producer(self.bootstrap, acks=-1, linger_ms=5) as producer:
            for key in keys:
                producer.send(self.stored.topic, value, key=key, partition=0)
            producer.flush()

    def read(self, reset: Reset, *, wanted: int, rack: str = "") -> list[bytes | None]:
        """The keys of the records that a member reads behind the committed offset, which is moved on."""
        found: list[bytes | None] = []
        with Consumer(
            self.bootstrap, group=self.group, auto_offset_reset=reset, client_rack=rack, fetch_max_wait_ms=50
        ) as consumer:
            consumer.assign([self.of_rare])
            deadline = time.monotonic() + SECONDS
            while len(found) < wanted:
                assert time.monotonic() < deadline, found
                found += [record.key for record in consumer.poll(0.1)]
            consumer.commit()
        return found

    def offset(self, partition: TopicPartition, spec: int) -> int:
        with Admin(self.bootstrap) as admin:
            return admin.list_offsets({partition: spec})[partition].offset

    def push_log_start(self) -> None:
        """Write records of other keys until the log has lost its first segment."""
        before = self.offset(self.stored, EARLIEST)
        value = bytes(1_000)
        while self.offset(self.stored, EARLIEST) == before:
            self.write([OTHERS[number % len(OTHERS)] for number in range(1_000)], value)

    def health(self) -> dict[int, tuple[int | None, int | None]]:
        """By view partition, the records that the group has lost, and its lag."""
        with Admin(self.bootstrap) as admin:
            committed = {partition: found.offset for partition, found in admin.group_offsets(self.group).items()}
            health = admin.partition_health(committed, None, timeout_ms=10_000)
        return {partition.partition: (found.lost, found.lag) for partition, found in health.items()}

    def leader(self) -> int:
        with Admin(self.bootstrap) as admin:
            (topic,) = admin.describe_topics([self.stored.topic])
        return topic.partitions[0].leader


@pytest.fixture
def node() -> Iterator[Cluster]:
    with Cluster(config=SETTINGS) as cluster:
        yield cluster


@pytest.mark.parametrize("way", ["goes on", "stops and starts", "is killed and starts"])
def test_a_member_that_comes_back_gets_every_record_of_its_keys(node: Cluster, way: str) -> None:
    """The node forgets nothing that it needs for that."""
    resets: tuple[Reset, ...] = ("latest", "earliest", "none")
    stories = {reset: RareKeyGroup(node, replicas=1, topic=f"orders-{reset}") for reset in resets}
    for story in stories.values():
        story.push_log_start()
        assert story.health() == {1: (0, 0)}
    if way == "stops and starts":
        node.restart()
    elif way == "is killed and starts":
        node.kill()
        node.start()
    for reset, story in stories.items():
        story.write([RARE] * 5)
        assert story.health()[1][0] == 0
        assert story.read(reset, wanted=5) == [RARE] * 5, reset
        assert story.health() == {1: (0, 0)}


def test_a_member_whose_records_were_deleted_is_out_of_range_and_its_group_has_lost_records(node: Cluster) -> None:
    story = RareKeyGroup(node, replicas=1)
    story.write([RARE])
    deleted = story.offset(story.stored, LATEST) - 1
    story.push_log_start()
    assert story.offset(story.stored, EARLIEST) > deleted
    assert story.offset(story.of_rare, EARLIEST) == story.offset(story.of_rare, LATEST) == deleted + 1
    assert story.health() == {1: (deleted, 0)}, "lost from offset 1, the committed offset, on"
    with pytest.raises(KafkaError) as refused:
        story.read("none", wanted=1)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    story.write([RARE])
    assert story.read("earliest", wanted=1) == [RARE]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes in three racks."""
    with Cluster(brokers=3, racks=["a", "b", "c"], config=SETTINGS) as cluster:
        yield cluster


def test_a_member_comes_back_to_another_leader(cluster: Cluster) -> None:
    """A new leader knows what was deleted while it followed."""
    story = RareKeyGroup(cluster, replicas=3)
    story.push_log_start()
    of_others = story.offset(story.of_others, EARLIEST)
    assert 0 < of_others <= story.offset(story.stored, EARLIEST)
    before = story.leader()
    cluster.kill(before)
    wait_until(lambda: story.leader() not in (before, -1), "another leader")
    wait_until(lambda: story.offset(story.of_others, EARLIEST) >= of_others, "the follower deletes the same records")
    assert story.offset(story.of_rare, EARLIEST) == 1
    story.write([RARE] * 5)
    assert story.health()[1][0] == 0
    assert story.read("latest", wanted=5) == [RARE] * 5
    assert story.health() == {1: (0, 0)}


def test_a_member_comes_back_to_a_follower(cluster: Cluster) -> None:
    story = RareKeyGroup(cluster, replicas=3)
    story.push_log_start()
    story.write([RARE] * 5)
    leader = story.leader()
    rack = next(rack for broker, rack in zip((1, 2, 3), "abc", strict=True) if broker != leader)
    assert story.read("latest", wanted=5, rack=rack) == [RARE] * 5


def test_a_member_comes_back_to_a_replica_that_has_never_had_what_was_deleted(cluster: Cluster) -> None:
    """A new replica begins at the log start of its leader, and gets its leader's knowledge."""
    story = RareKeyGroup(cluster, replicas=1)
    story.push_log_start()
    other = next(broker for broker in cluster.broker_ids if broker != story.leader())
    with Admin(cluster.bootstrap_servers) as admin:
        admin.alter_partition_reassignments({story.stored: [other]})
    wait_until(lambda: story.leader() == other, "the partition has moved")
    assert story.offset(story.of_rare, EARLIEST) == 1
    assert story.offset(story.of_others, EARLIEST) > 0
    story.write([RARE] * 5)
    assert story.health()[1][0] == 0
    assert story.read("latest", wanted=5) == [RARE] * 5
