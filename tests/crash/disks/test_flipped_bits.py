"""Single flipped bits over every kind of file of one replica, under acks=all load on three nodes.

No acknowledged record is lost, none is served wrong, and every replica becomes whole again by itself. FLIPS in the
environment says how many; `make soak` runs 200. SEED repeats the choices, as far as processes allow.

A flipped bit in a segment at rest is found by the scrubber, some time later. Until then bits are flipped in the same
node's files only: a partition with two damaged replicas heals by itself only if the third is in sync.
"""

import os
import random
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from crash.disks.bit_flips import OF_ALL, OF_PARTITIONS, flip_some_bit, values_on_disk
from crash.librdkafka_offsets import is_there
from crash.replicas.replicated_load import PARTITIONS, TOPIC, ReplicatedLoad
from tailrace.testing import Cluster

FLIPS = int(os.environ.get("FLIPS", "4"))
WHOLE_WITHIN_S = float(os.environ.get("WHOLE_WITHIN_S", "240"))
"""A deadline for a busy machine; what is aimed at is 60."""
NAMES = [f"{TOPIC}-{number}" for number in range(PARTITIONS)]
FLIPS_OF_ONE_NODE = 10
RACKS = ("a", "b", "c")
CONFIG = {
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "log.segment.bytes": "20000",
    "log.index.interval.bytes": "500",
    "log.scrub.interval.ms": "3000",
    "log.scrub.io.max.bytes.per.second": "50000000",
    "metrics.listener": "127.0.0.1:0",
}
QUIET = {"log_level": 0}
MOMENTS = ("killed with all others", "running", "stopped", "killed")


class Reader:
    """Reads everything again and again, from one rack after the other, as long as the block lasts; what it was given,
    by partition and offset."""

    def __init__(self, servers: str) -> None:
        self.given: dict[tuple[int, int], str] = {}
        self.wrong: list[str] = []
        self._servers = servers
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> "Reader":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _read(self) -> None:
        for rack in cycle(RACKS):
            if self._is_over.is_set():
                return
            consumer = confluent_kafka.Consumer(
                {"bootstrap.servers": self._servers, "group.id": "r", "enable.auto.commit": False, "check.crcs": True}
                | {"client.rack": rack}
                | QUIET
            )
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
            until = time.monotonic() + 10
            while time.monotonic() < until and not self._is_over.is_set():
                for message in consumer.consume(5_000, 0.5):
                    if message.error() is None:  # a damaged batch is refused for a while, and is not served wrong
                        self._take(message.partition(), message.offset(), message.value().decode())
            consumer.close()

    def _take(self, partition: int, offset: int, value: str) -> None:
        before = self.given.setdefault((partition, offset), value)
        if before != value:
            self.wrong.append(f"{TOPIC}-{partition} at {offset}: {before}, later {value}")


def whole(admin: AdminClient) -> bool:
    """Whether every replica of every partition is in sync."""
    partitions = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    return len(partitions) == PARTITIONS and all(
        partition.leader > 0 and len(partition.replicas) == 3 and set(partition.isrs) == set(partition.replicas)
        for partition in partitions.values()
    )


def seconds_until(condition: Callable[[], bool], described: Callable[[], str]) -> float:
    since = time.monotonic()
    while not _holds(condition):
        assert time.monotonic() - since < WHOLE_WITHIN_S, described()
        time.sleep(0.2)
    return time.monotonic() - since


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except confluent_kafka.KafkaException:
        return False  # no node answers yet


def metric(cluster: Cluster, node: int, name: str) -> float:
    """A number of this node."""
    address = re.findall(r"event=metrics-served address=(\S+)", cluster.log_text(node))[-1]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        found = re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, f"node {node} has no {name}"
    return float(found[1])


def until_looked_through(cluster: Cluster, node: int) -> None:
    """Return when the scrubber has read all logs of the node, and no log is offline because of what it found."""
    passes = "tailrace_log_scrub_passes_total"
    seen = metric(cluster, node, passes)

    def is_looked_through() -> bool:
        is_read = metric(cluster, node, passes) >= seen + 2  # the first of them has begun before
        return is_read and not metric(cluster, node, "kafka_server_replicamanager_offlinereplicacount")

    seconds_until(is_looked_through, lambda: f"node {node} still looks through its logs, or repairs them")


@contextmanager
def down(cluster: Cluster, node: int, moment: str) -> Iterator[None]:
    """The events of the node, and of other nodes, around the flip."""
    if moment == "killed with all others":
        cluster.kill()
    elif moment == "killed":
        cluster.kill(node)
    elif moment == "stopped":
        cluster.stop(node)
    yield
    if moment != "running":
        cluster.start()


def state_of(cluster: Cluster, admin: AdminClient) -> str:
    """For a failure's message: the in-sync replicas, and the nodes' log lines about them."""
    partitions = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    states = [
        f"{partition.id}: leader {partition.leader}, in sync {partition.isrs}" for partition in partitions.values()
    ]
    for node in cluster.node_ids:
        lines = [line for line in cluster.log_text(node).splitlines() if TOPIC in line or "Traceback" in line]
        states += [f"node {node}: {line}" for line in lines[-12:]]
    return "\n".join(states)


def have_segments_at_rest(cluster: Cluster) -> bool:
    """Whether every log has more than the segment that is written to."""
    logs = [cluster.data_dir(node) / name for node in cluster.node_ids for name in NAMES]
    return all(len(list(log.glob("*.log"))) > 1 for log in logs)


@pytest.mark.crash
@pytest.mark.in_turn(3)
@pytest.mark.timeout(600 + FLIPS * 300)
def test_a_flipped_bit_costs_no_acknowledged_record_and_heals_by_itself(tmp_path: Path, chance: random.Random) -> None:
    with Cluster(brokers=3, racks=RACKS, directory=tmp_path / "cluster", config=CONFIG) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers} | QUIET)
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})])[TOPIC].result(60)
        load = ReplicatedLoad(cluster.bootstrap_servers, tmp_path / "history", 0.02)
        with Reader(cluster.bootstrap_servers) as reader, load.running():
            seconds_until(lambda: have_segments_at_rest(cluster), lambda: "no segment was rolled")
            node = chance.choice(cluster.node_ids)
            for number in range(FLIPS):
                if number and number % FLIPS_OF_ONE_NODE == 0:
                    until_looked_through(cluster, node)
                    seconds_until(lambda: whole(admin), lambda: state_of(cluster, admin))
                    node = chance.choice(cluster.node_ids)
                moment = MOMENTS[number % len(MOMENTS)]
                # A record in the log is what may be lost: half of all flips are there.
                kinds = OF_PARTITIONS[:1] if chance.random() < 0.5 else OF_PARTITIONS[1:] + OF_ALL
                with down(cluster, node, moment):
                    flip = flip_some_bit(cluster.data_dir(node), NAMES, chance, kinds=kinds)
                    print(f"{number}: node {node}, {moment}: {flip}")  # noqa: T201
                time.sleep(chance.uniform(0.5, 3))
                took = seconds_until(lambda: whole(admin), lambda: state_of(cluster, admin))
                print(f"   in sync after {took:.1f} s")  # noqa: T201
        acked = [(partition, offset, value) for _, partition, offset, value in load.acknowledged()]

        def lacking() -> list[str]:
            """The records that a replica lacks on its disk."""
            found = {
                (node, number): values_on_disk(cluster.data_dir(node) / name)
                for node in cluster.node_ids
                for number, name in enumerate(NAMES)
            }
            return [
                f"{TOPIC}-{number} on node {node} at {offset}"
                for number, offset, value in acked
                for node in cluster.node_ids
                if not is_there(found[node, number], offset, value)
            ]

        took = seconds_until(
            lambda: not lacking(), lambda: f"{len(lacking())} lacking: {lacking()[:5]}\n{state_of(cluster, admin)}"
        )
        print(f"whole on every disk after {took:.1f} s; {len(acked)} records")  # noqa: T201
    assert not reader.wrong, reader.wrong[:5]
    written = {(partition, offset): value for partition, offset, value in acked}
    served = [f"{where}: {value}" for where, value in reader.given.items() if written.get(where, value) != value]
    assert not served, served[:5]
