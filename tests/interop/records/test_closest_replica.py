"""KIP-392 with real clients: each reads from the replica in its rack, as brokers' metrics show, and outlives its loss.

Three brokers in three racks. Records are written all the time, one after the other, so that a reset of the consumer's
position, or a skip, leaves a gap in what it reads.
"""

import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from uuid import uuid4

import pytest
from prometheus_client.parser import text_string_to_metric_families

from interop.records.rack_consumers import CONSUMERS, RackConsumer, absent
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin, Producer
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

RACKS = ("a", "b", "c")
STEADY_S = 12.0
"""A fifth of a minute: nothing may happen in it that happens less than once a minute, unless by chance."""
FORGETFUL = {"kafka-python"}
"""kafka-python 3.0.12 takes "no other replica" in the answer of a follower for "back to the leader": before each fetch
from its rack it asks the leader, which sends no records."""
STANDING_STILL = {"kafka-python", "kafkajs"}
"""Clients that read on from a replica that was lost and is back only when their metadata are old: here they ask for
metadata every 5 s."""
REJOINING = {"kafkajs"}
"""kafkajs 2.2.4 goes on from the last offset that its group has committed: at least once."""
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    settings = {
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        "metrics.listener": "127.0.0.1:0",
        "min.insync.replicas": "2",
        "offsets.topic.replication.factor": "3",
    }
    with Cluster(brokers=3, racks=RACKS, config=settings) as running:
        yield running


class Load:
    """The numbers from 0 on, written to partition 0 one after the other until `end`."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written = 0
        self._topic = topic
        self._is_over = threading.Event()
        self._faults: list[BaseException] = []
        self._producer = Producer(bootstrap, linger_ms=0)
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            while not self._is_over.wait(0.005):
                self._producer.send(self._topic, b"%d" % self.written, partition=0).result(60)
                self.written += 1
        except BaseException as fault:  # noqa: BLE001 - raised by `end`
            self._faults.append(fault)

    def end(self) -> int:
        """Stop; returns how many were written."""
        self._is_over.set()
        self._thread.join(90)
        self._producer.close()
        if self._faults:
            raise self._faults[0]
        return self.written


class Tail:
    """The numbers that a consumer reads: without a gap, and each once."""

    def __init__(self, consumer: RackConsumer, *, may_repeat: bool) -> None:
        self._consumer = consumer
        self._may_repeat = may_repeat
        self._next: int | None = None

    def read(self) -> None:
        for value in self._consumer.poll():
            number = int(value)
            if self._next is not None and self._may_repeat and number < self._next:
                continue
            assert self._next is None or number == self._next, f"{number} came where {self._next} was next"
            self._next = number + 1

    def has_read(self, count: int) -> bool:
        """Whether every number below this number has come."""
        self.read()
        return self._next is not None and self._next >= count


def samples_of(cluster: Cluster, node: int) -> Samples:
    (*_, address) = re.findall(r"event=metrics-served address=(\S+)", cluster.log_text(node))
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


class Counts:
    """Sums over brokers, at one moment."""

    def __init__(self, cluster: Cluster, nodes: Sequence[int]) -> None:
        samples = {node: samples_of(cluster, node) for node in nodes}
        self.by_follower = {
            node: found["tailrace_consumer_bytesout_total", frozenset({("role", "follower")})]
            for node, found in samples.items()
        }
        everything = [entry for found in samples.values() for entry in found.items()]
        self.by_leaders = sum(
            value
            for (name, labels), value in everything
            if name == "tailrace_consumer_bytesout_total" and ("role", "leader") in labels
        )
        self.metadata_requests = sum(
            value
            for (name, labels), value in everything
            if name == "kafka_network_requestmetrics_requests_total" and ("request", "Metadata") in labels
        )
        self.redirects = sum(
            value for (name, _), value in everything if name == "tailrace_preferred_read_replica_answers_total"
        )


def leader_of(cluster: Cluster, topic: str) -> int:
    with Admin(cluster.bootstrap_servers) as admin:
        (described,) = (description for description in admin.describe_topics() if description.name == topic)
        return int(described.partitions[0].leader)


def create_topic(cluster: Cluster, topic: str) -> None:
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=topic, partitions=1, replication_factor=3)])


@pytest.mark.interop
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.always] if name == "tailrace" else []) for name in CONSUMERS]
)
def test_a_client_reads_from_its_rack_and_outlives_the_loss_of_that_replica(cluster: Cluster, name: str) -> None:
    if why := absent(name):
        pytest.skip(why)
    topic = f"closest-{name}-{uuid4()}"
    create_topic(cluster, topic)
    leader = leader_of(cluster, topic)
    near = leader % 3 + 1  # a broker in another rack
    load = Load(cluster.bootstrap_servers, topic)
    consumer = CONSUMERS[name](cluster.bootstrap_servers, topic, RACKS[near - 1])
    tail = Tail(consumer, may_repeat=name in REJOINING)
    try:
        # The consumer has begun, with latest, and is with the follower in its rack.
        wait_until(lambda: tail.has_read(1), "a record")

        def is_near() -> bool:
            tail.read()
            return Counts(cluster, [near]).by_follower[near] > 0

        wait_until(is_near, "a record from the consumer's rack")
        tail.has_read(load.written)
        before = Counts(cluster, cluster.broker_ids)
        until = time.monotonic() + STEADY_S
        while time.monotonic() < until:
            tail.read()

        def has_read_on() -> bool:
            tail.read()
            return Counts(cluster, [near]).by_follower[near] > before.by_follower[near]

        wait_until(has_read_on, "another record from the consumer's rack")
        after = Counts(cluster, cluster.broker_ids)
        assert after.by_leaders == before.by_leaders, "all of it came from the rack"
        if name not in STANDING_STILL:
            assert after.metadata_requests == before.metadata_requests
        if name not in FORGETFUL | REJOINING:
            assert after.redirects == before.redirects

        cluster.kill(near)
        lost_at = load.written
        wait_until(lambda: tail.has_read(lost_at + 200), "records after the loss of the replica")
        cluster.start(near)
        count = load.end()
        wait_until(lambda: tail.has_read(count), "all records")
    finally:
        load.end()
        consumer.close()
        cluster.start()
