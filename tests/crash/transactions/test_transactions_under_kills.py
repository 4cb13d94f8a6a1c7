"""kill -9 in the middle of transactions: a transaction is there whole or not at all, and none stays open.

A transaction whose end was decided ends like that, although the node dies before the markers are written.
"""

import os
import random
import threading
import time
from pathlib import Path

import confluent_kafka
import pytest

from crash.program import next_instance
from crash.transactions.committed_reads import committed_values, is_nothing_open
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

KILLS = int(os.environ.get("KILLS", "5"))
TOPICS = ("left", "right")
PATIENCE_S = 60.0


class TransactionWriter:
    """Transactions over two topics, one after the other: each says its number in both."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self.committed: list[int] = []
        """The acknowledged values, in order."""
        self.aborted: set[int] = set()
        """The values that were aborted on purpose."""
        self.faults: list[BaseException] = []
        self.number = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(2 * PATIENCE_S)
        assert not self._thread.is_alive(), "the producer hangs"

    def _write(self) -> None:
        try:
            producer = self.new_producer()
            while not self._is_over.is_set():
                self.number += 1
                try:
                    self._transaction(producer, self.number)
                except confluent_kafka.KafkaException:
                    producer = self.new_producer()  # what has become of it is not known: a new instance finds out
        except BaseException as fault:  # noqa: BLE001 - the test shows it
            self.faults.append(fault)

    def new_producer(self) -> confluent_kafka.Producer:
        """The next instance, which fences the one before."""
        settings = {"bootstrap.servers": self._bootstrap, "transactional.id": "writer", "log_level": 0}
        return next_instance(settings)

    def _produce(self, producer: confluent_kafka.Producer, number: int) -> None:
        for topic in TOPICS:
            producer.produce(topic, str(number).encode())

    def _transaction(self, producer: confluent_kafka.Producer, number: int) -> None:
        producer.begin_transaction()
        self._produce(producer, number)
        if number % 5 == 0:
            producer.flush(10)
            self.aborted.add(number)
            producer.abort_transaction(10)
        else:
            producer.commit_transaction(10)
            self.committed.append(number)


def _numbers(bootstrap: str, topic: str) -> list[int]:
    return [int(value) for value in committed_values(bootstrap, TopicPartition(topic, 0))]


REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
}


@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_transaction_is_there_whole_or_not_at_all(tmp_path: Path, brokers: int) -> None:
    """With three brokers one dies at a time, and comes back: its transactions end under another coordinator."""
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    chance = random.Random(seed)
    with Cluster(brokers=brokers, directory=tmp_path, config=REPLICATED if brokers > 1 else {}) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics(dict.fromkeys(TOPICS, 1))
        writer = TransactionWriter(cluster.bootstrap_servers)
        writer.start()
        for _ in range(KILLS):
            before = len(writer.committed)
            deadline = time.monotonic() + PATIENCE_S
            while len(writer.committed) < before + 5 and time.monotonic() < deadline and not writer.faults:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.1))
            victim = chance.choice(cluster.broker_ids)
            cluster.kill(victim)
            cluster.start(victim)
        writer.stop()
        assert not writer.faults, (seed, writer.faults)
        writer.new_producer()  # the next instance aborts what the last one left open
        deadline = time.monotonic() + PATIENCE_S
        while not is_nothing_open(cluster.bootstrap_servers, [TopicPartition(topic, 0) for topic in TOPICS]):
            assert time.monotonic() < deadline, f"a transaction stays open with SEED={seed}"
            time.sleep(0.1)
        left, right = (_numbers(cluster.bootstrap_servers, topic) for topic in TOPICS)
    assert left == right, f"half a transaction with SEED={seed}"
    assert left == sorted(set(left)), f"out of order or twice with SEED={seed}"
    lost = set(writer.committed) - set(left)
    assert not lost, f"acknowledged and lost with SEED={seed}: {sorted(lost)}"
    assert not writer.aborted & set(left), f"aborted and read with SEED={seed}"
    assert len(writer.committed) >= 5 * KILLS
