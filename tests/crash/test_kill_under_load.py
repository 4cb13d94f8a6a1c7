"""kill -9 while more than a hundred requests are in flight, ten times: what was acknowledged is there, once, in order.

Each producer is librdkafka with idempotence on and one record per request, five requests in flight, so that thirty of
them keep up to 150 requests open. The node is killed after a random number of acknowledgements and started again on the
same port and data; the producers retry by themselves.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import confluent_kafka
import pytest

from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

PRODUCERS = 30
PARTITIONS = 3
KILLS = 10
IN_FLIGHT = 100
TOPIC = "survives"
DEADLINE_S = 240


@dataclass
class Load:
    """Producers that keep sending numbered records, and what became of each."""

    bootstrap: str
    acked: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    sent: int = 0
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.producers = [
            confluent_kafka.Producer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 0,
                    "batch.num.messages": 1,
                    "message.timeout.ms": 0,
                    "reconnect.backoff.max.ms": 200,
                    "retry.backoff.ms": 50,
                    "log_level": 0,
                }
            )
            for _ in range(PRODUCERS)
        ]
        self.numbers = [0] * PRODUCERS

    @property
    def in_flight(self) -> int:
        return self.sent - len(self.acked) - len(self.faults)

    def on_delivery(self, fault: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if fault is not None:
            self.faults.append(str(fault))
        else:
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            self.acked[value] = (partition, offset)

    def turn(self) -> None:
        """Keep each producer's queue short but never empty, and take its acknowledgements."""
        for index, producer in enumerate(self.producers):
            while len(producer) < 8:
                value = f"{index}:{self.numbers[index]}".encode()
                producer.produce(TOPIC, value=value, partition=index % PARTITIONS, on_delivery=self.on_delivery)
                self.numbers[index] += 1
                self.sent += 1
            producer.poll(0)

    def finish(self) -> None:
        for producer in self.producers:
            assert producer.flush(DEADLINE_S) == 0


def _read_everything(bootstrap: str) -> dict[int, list[tuple[int, bytes]]]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "checker", "enable.partition.eof": True}
    )
    partitions = [confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    read: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        for message in consumer.consume(10_000, timeout=1.0):
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            if message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
                ended.add(partition)
            else:
                assert offset is not None
                assert value is not None
                read[partition].append((offset, value))
    consumer.close()
    return read


def _check(load: Load, read: dict[int, list[tuple[int, bytes]]]) -> None:
    positions: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for partition, records in read.items():
        for offset, value in records:
            positions[value].append((partition, offset))
    lost = [value for value in load.acked if value not in positions]
    assert not lost, f"{len(lost)} acknowledged records are lost, for example {lost[:3]}"
    doubled = {value: places for value, places in positions.items() if len(places) > 1}
    assert not doubled, f"{len(doubled)} records are doubled, for example {list(doubled.items())[:3]}"
    moved = [v for v, place in load.acked.items() if positions[v] != [place] and place[1] >= 0]
    assert not moved, f"{len(moved)} records stand elsewhere than acknowledged, for example {moved[:3]}"
    for partition, records in read.items():
        order: dict[bytes, int] = defaultdict(lambda: -1)
        for _, value in records:
            producer, _, number = value.partition(b":")
            assert int(number) > order[producer], f"partition {partition}: producer {producer!r} is out of order"
            order[producer] = int(number)


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_and_nothing_is_doubled(record_property: Callable[[str, object], None]) -> None:
    seed = random.randrange(2**32)
    record_property("seed", seed)
    chance = random.Random(seed)
    with Cluster(brokers=1) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics({TOPIC: PARTITIONS})
        load = Load(cluster.bootstrap_servers)
        for _ in range(KILLS):
            target = len(load.acked) + chance.randrange(50, 3000)
            deadline = time.monotonic() + DEADLINE_S
            while len(load.acked) < target or load.in_flight < IN_FLIGHT:
                load.turn()
                assert time.monotonic() < deadline, "the node takes no records"
            cluster.kill(0)
            cluster.restart(0)
        load.finish()
        assert not load.faults, load.faults[:3]
        assert len(load.acked) == load.sent
        _check(load, _read_everything(cluster.bootstrap_servers))
