"""Three nodes are restarted one after the other under acks=all load: no produce fails, and no record is there twice.

Two clients produce to a topic of three replicas and min.insync.replicas=2: librdkafka's idempotent producer, and ours.
Each stop hands the leaderships over first; the next node stops when all replicas are in sync again, as an operator has
it. ROLLING_RESTARTS in the environment says how many rounds; `make soak` runs twenty.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from crash.test_replica_kills import (
    PARTITIONS,
    TOPIC,
    acknowledged,
    producing,
    read_all,
    until_something_is_acknowledged,
)
from interop.librdkafka import wait_until
from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer, TopicPartition
from tailrace.client.offsets import LATEST
from tailrace.model.errors import KafkaError
from tailrace.testing import Cluster

ROUNDS = int(os.environ.get("ROLLING_RESTARTS", "1"))
OURS = "ours"
DEADLINE_S = 60


class OurLoad:
    """Our producer's records, a number each, for all partitions in turn, as long as the block lasts."""

    def __init__(self, servers: str) -> None:
        self.written: list[tuple[int, int, bytes]] = []
        """Partition, offset and value of the acknowledged ones."""
        self.failed: list[BaseException] = []
        self._servers = servers
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._produce)

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            self._thread.join()

    def _produce(self) -> None:
        sent = []
        with Producer(self._servers) as producer:
            number = 0
            while not self._is_over.wait(0.002):
                for partition in range(PARTITIONS):
                    value = str(number).encode()
                    sent.append((partition, value, producer.send(OURS, value, partition=partition)))
                number += 1
            for partition, value, future in sent:
                fault = future.exception()
                if fault is None:
                    self.written.append((partition, future.result().offset, value))
                else:
                    self.failed.append(fault)


def read_ours(servers: str) -> dict[int, dict[int, bytes]]:
    """Every record of our producer's topic, by partition and offset."""
    partitions = [TopicPartition(OURS, number) for number in range(PARTITIONS)]
    found: dict[int, dict[int, bytes]] = {number: {} for number in range(PARTITIONS)}
    with Admin(servers) as admin:
        ends = {
            one.partition: offset.offset
            for one, offset in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()
        }
    deadline = time.monotonic() + DEADLINE_S
    with Consumer(servers, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        while any(max(found[number], default=-1) + 1 < end for number, end in ends.items()):
            assert time.monotonic() < deadline, f"{[len(values) for values in found.values()]} of {ends}"
            for record in consumer.poll(timeout=1):
                assert record.value is not None
                found[record.partition][record.offset] = record.value
    return found


def all_are_in_sync(servers: str) -> bool:
    try:
        with Admin(servers) as admin:
            topics = admin.describe_topics([TOPIC, OURS])
    except KafkaError:
        return False  # the node that was asked has only just come back
    return all(len(one.in_sync_replicas) == 3 for topic in topics for one in topic.partitions)


def longest_pause(times: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_no_produce_fails_while_every_node_is_restarted(tmp_path: Path) -> None:
    history = tmp_path / "history"
    with Cluster(brokers=3, directory=tmp_path / "cluster") as cluster:
        servers = cluster.bootstrap_servers
        settings = {"min.insync.replicas": "2"}
        with Admin(servers) as admin:
            admin.create_topics(
                [
                    NewTopic(name=name, partitions=PARTITIONS, replication_factor=3, configs=settings)
                    for name in (TOPIC, OURS)
                ]
            )
        ours = OurLoad(servers)
        with producing(cluster, history), ours.running():
            until_something_is_acknowledged(history)
            for _ in range(ROUNDS):
                for node in cluster.node_ids:
                    cluster.restart(node)
                    wait_until(lambda: all_are_in_sync(servers), f"all are in sync after the restart of node {node}")
        acked = acknowledged(history)
        found, found_ours = read_all(servers), read_ours(servers)
        logs = "\n".join(map(cluster.log_text, cluster.node_ids))
    assert not ours.failed, f"{len(ours.failed)} of our producer's records failed: {ours.failed[:3]}"
    assert ours.written
    for partition, offset, value in ours.written:
        assert found_ours[partition][offset] == value
    for _, partition, offset, text in acked:
        assert found[partition][offset] == text
    for number in range(PARTITIONS):
        for values in (found[number], found_ours[number]):
            sequence = [int(values[offset]) for offset in sorted(values)]
            assert sequence == list(range(len(sequence))), f"partition {number}: something is missing, or there twice"
    for node in (1, 2, 3):
        handovers = logs.count(f"event=broker-shutting-down broker={node} ")
        assert handovers == ROUNDS, f"node {node} has handed over {handovers} times in {ROUNDS} stops"
    pause = longest_pause([at for at, *_ in acked])
    print(f"{len(acked)} and {len(ours.written)} acknowledged, longest pause {pause:.2f} s, {ROUNDS} rounds")  # noqa: T201
