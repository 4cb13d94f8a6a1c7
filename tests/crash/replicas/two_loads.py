"""Two loads of acks=all side by side, librdkafka's idempotent producer and ours: numbers, and proof that each is there.

Both produce to topics of their own, of three replicas and min.insync.replicas=2, while a test does something to the
cluster that must fail no produce. An answer may take as long as a record's delivery. So a produce whose answer never
comes fails, and is not hidden by another try.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from crash.replicas.producer import DELIVERY_S
from crash.replicas.replicated_load import PARTITIONS, TOPIC, ReplicatedLoad
from tailrace.client.blocking import Admin, Consumer, NewTopic, Producer, TopicPartition
from tailrace.client.offsets import LATEST
from tailrace.testing import Cluster

OURS = "ours"
TOPICS = (TOPIC, OURS)
DEADLINE_S = 60


class OurLoad:
    """Our producer's records, a number each, for all partitions in turn, as long as the block lasts."""

    def __init__(self, servers: str) -> None:
        self.written: list[tuple[int, int, bytes]] = []
        """Partition, offset and value of the acknowledged records."""
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
        answer_ms = DELIVERY_S * 1_000
        with Producer(self._servers, delivery_timeout_ms=answer_ms, request_timeout_ms=answer_ms) as producer:
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
            partition.partition: offset.offset
            for partition, offset in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()
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


class TwoLoads:
    """The records of both producers."""

    def __init__(self, cluster: Cluster, history: Path) -> None:
        """Creates the topics."""
        self._cluster = cluster
        self._theirs = ReplicatedLoad(cluster.bootstrap_servers, history, 0.001, DELIVERY_S)
        self._ours = OurLoad(cluster.bootstrap_servers)
        settings = {"min.insync.replicas": "2"}
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(
                [NewTopic(name=name, partitions=PARTITIONS, replication_factor=3, configs=settings) for name in TOPICS]
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        with self._theirs.running(), self._ours.running():
            yield

    def check(self) -> str:
        """Assert that no produce has failed, and that each record is there once and in order; the figures."""
        servers, ours = self._cluster.bootstrap_servers, self._ours
        acked = self._theirs.acknowledged(must_be_all=True)
        found, found_ours = self._theirs.read_all(acked), read_ours(servers)
        assert not ours.failed, f"{len(ours.failed)} of our producer's records failed: {ours.failed[:3]}"
        assert ours.written
        for partition, offset, value in ours.written:
            assert found_ours[partition][offset] == value
        for number in range(PARTITIONS):
            for values in (found[number], found_ours[number]):
                sequence = [int(values[offset]) for offset in sorted(values)]
                assert sequence == list(range(len(sequence))), f"partition {number}: something is missing, or twice"
        pause = _longest_pause([at for at, *_ in acked])
        return f"{len(acked)} and {len(ours.written)} acknowledged, longest pause {pause:.2f} s"


def _longest_pause(times: list[float]) -> float:
    return max(later - earlier for earlier, later in pairwise(times))
