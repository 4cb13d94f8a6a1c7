"""kill -9 of a Spark driver, its workers and the brokers during an exactly-once copy: each record is there once.

SPARK_KILLS and SPARK_RECORDS in the environment say how many of each; `make soak` has 50 and 2,000,000, each step of a
commit, and Spark as a reader each time. SEED=n chooses the same kills again.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from crash.spark.driver import TIME_LIMIT_S, Driver, environment
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.spark.java import JavaNotFound, ensure_java
from tailrace.testing import Cluster

IS_LONG = "SPARK_KILLS" in os.environ
KILLS = int(os.environ.get("SPARK_KILLS", "1"))
RECORDS = int(os.environ.get("SPARK_RECORDS", "30000"))
STEPS = ["begin", "written", "commit", "committing", "committed"] if IS_LONG else ["committing"]
PARTITIONS = 4
BATCHES_PER_KILL = 2
BATCHES = BATCHES_PER_KILL * (KILLS + 1)
LONGEST_PAUSE_S = 5.0
SOURCE, TARGET = "orders", "copies"

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(7200)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    try:
        ensure_java()
    except JavaNotFound as fault:
        pytest.skip(str(fault))
    settings = {"min.insync.replicas": "2", "default.replication.factor": "3"}
    with Cluster(brokers=3, directory=tmp_path / "nodes", config=settings) as cluster:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            topics = [NewTopic(name=name, partitions=PARTITIONS, replication_factor=3) for name in (SOURCE, TARGET)]
            admin.create_topics(topics)
        with Producer(servers) as producer:
            for number in range(RECORDS):
                producer.send(SOURCE, b"%d" % number, key=b"%d" % (number % 1_000))
            producer.flush()
        yield cluster


@pytest.fixture
def driver(cluster: Cluster, tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(cluster.bootstrap_servers, SOURCE, TARGET, tmp_path)
    yield driver
    driver.kill()


def copied(servers: str, topic: str = TARGET) -> Counter[int]:
    """The records that a read_committed reader of librdkafka finds there, with their numbers of times."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: Counter[int] = Counter()
    ended: set[int] = set()
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        while len(ended) < PARTITIONS:
            message = consumer.poll(60)
            assert message is not None, "a transaction stays open"
            if message.error() is None:
                found[int(message.value())] += 1
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        consumer.close()
    return found


def read_by_spark(servers: str) -> dict[str, int]:
    """The rows that Spark finds: how many there are, how many different rows, the least and the greatest."""
    command = [sys.executable, "-m", "crash.spark.reader", servers, TARGET]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=TIME_LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


def assert_whole(servers: str) -> None:
    found = copied(servers)
    missing, repeated = RECORDS - len(found), sum(count - 1 for count in found.values())
    assert (missing, repeated) == (0, 0), f"{missing} missing, {repeated} repeated"


def assert_whole_for_spark(servers: str) -> None:
    found = read_by_spark(servers)
    assert found == {"rows": RECORDS, "numbers": RECORDS, "least": 0, "greatest": RECORDS - 1}


class Kills:
    """Kills of a copy's parts, each after so many batches more than the one before."""

    def __init__(self, cluster: Cluster, driver: Driver, chance: random.Random) -> None:
        self._cluster = cluster
        self._driver = driver
        self._chance = chance
        self.counts: Counter[str] = Counter()
        self.unfinished = 0
        """The kills that came while records were still to be copied."""
        self.in_a_batch = 0
        """The kills that came while a batch ran."""

    def next(self) -> None:
        """Wait for the batch that is due, and for a moment in it, and kill something."""
        kind = self._chance.choice(["driver", "worker", "broker"])
        due = BATCHES_PER_KILL * self.counts.total()
        self._wait_until(lambda: self._driver.progress.begun >= due)
        time.sleep(self._chance.uniform(0, min(self._driver.progress.seconds_of_a_batch(), LONGEST_PAUSE_S)))
        is_unfinished, is_in_a_batch = self._driver.progress.copied() < RECORDS, self._driver.progress.is_in_a_batch
        match kind:
            case "driver":
                self._driver.kill()
                self._driver.start(RECORDS // BATCHES)
            case "worker":
                self._wait_until(lambda: self._driver.kill_worker(self._chance))
            case _:
                node = self._chance.choice(self._cluster.broker_ids)
                self._cluster.kill(node)
                time.sleep(self._chance.uniform(0, 1))
                self._cluster.start(node)
        self.counts[kind] += 1
        self.unfinished += is_unfinished
        self.in_a_batch += is_in_a_batch

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        """A driver that has failed with its tasks, or copied all before the last kill, is started again."""
        while not is_so():
            if self._driver.poll() is not None:
                self._driver.start(RECORDS // BATCHES)
            assert self._driver.starts < 10 * (KILLS + 1), self._driver.output()
            time.sleep(0.01)


@pytest.mark.always
def test_each_record_is_copied_once_through_kills(
    cluster: Cluster, driver: Driver, chance: random.Random, record_property: Callable[[str, object], None]
) -> None:
    driver.start(RECORDS // BATCHES)
    kills = Kills(cluster, driver, chance)
    while kills.counts.total() < KILLS:
        kills.next()
    while driver.wait() != 0:
        assert driver.starts < 10 * (KILLS + 1), driver.output()
        driver.start(RECORDS // BATCHES)
    figures = (
        f"{dict(kills.counts)} killed, {kills.unfinished} of them while records were still to be copied, "
        f"{kills.in_a_batch} while a batch ran; {driver.progress.begun + 1} batches, {driver.starts} starts of the "
        f"driver, {RECORDS} records"
    )
    record_property("figures", figures)
    print(figures)  # noqa: T201
    assert_whole(cluster.bootstrap_servers)
    if IS_LONG:
        assert_whole_for_spark(cluster.bootstrap_servers)


@pytest.mark.parametrize("step", STEPS)
def test_each_record_is_copied_once_when_the_driver_dies_at_a_step(cluster: Cluster, driver: Driver, step: str) -> None:
    driver.start(RECORDS // 3, step)
    assert driver.wait() < 0, "it was killed"
    driver.start(RECORDS // 3)
    assert driver.wait() == 0, driver.output()
    assert_whole(cluster.bootstrap_servers)
    if IS_LONG:
        assert_whole_for_spark(cluster.bootstrap_servers)
