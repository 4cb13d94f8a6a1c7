"""kill -9 of a Spark driver, its workers and the brokers during an exactly-once copy: each record is there once.

SPARK_KILLS and SPARK_RECORDS in the environment say how many of each; `make soak` has 50 and 2,000,000, and each step
of a commit. SEED=n chooses the same kills again.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import confluent_kafka
import pytest

from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.spark.java import JavaNotFound, ensure_java
from tailrace.testing import Cluster

KILLS = int(os.environ.get("SPARK_KILLS", "2"))
RECORDS = int(os.environ.get("SPARK_RECORDS", "30000"))
STEPS = ["begin", "written", "commit", "committing", "committed"] if "SPARK_KILLS" in os.environ else ["committing"]
PARTITIONS = 4
BATCHES = 15
TIME_LIMIT_S = 300.0
TESTS = Path(__file__).parent.parent
SOURCE, TARGET = "orders", "copies"

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(7200)]


class Driver:
    """The driver process, its JVM and its workers: one process group, which is started again when it is gone."""

    def __init__(self, servers: str, directory: Path) -> None:
        self._servers = servers
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self, step: str = "", *, batches: int = BATCHES) -> None:
        self.starts += 1
        checkpoint = self._directory / "checkpoint"
        arguments = [self._servers, SOURCE, TARGET, str(checkpoint), str(RECORDS // batches), *([step] if step else [])]
        with (self._directory / f"driver-{self.starts}.txt").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "crash.spark_copier", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            )

    def poll(self) -> int | None:
        assert self._process is not None, "it was started"
        return self._process.poll()

    def wait(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.wait(TIME_LIMIT_S)

    def output(self) -> str:
        return (self._directory / f"driver-{self.starts}.txt").read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill a Python worker of Spark's; whether there was one."""
        assert self._process is not None, "it was started"
        workers = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                is_mine = os.getpgid(int(entry.name)) == self._process.pid
                if (
                    is_mine
                    and b"pyspark" in (entry / "cmdline").read_bytes()
                    and b"java" not in (entry / "cmdline").read_bytes()
                ):
                    workers.append(int(entry.name))
        if not workers:
            return False
        with suppress(ProcessLookupError):
            os.kill(chance.choice(workers), signal.SIGKILL)
        return True


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
    driver = Driver(cluster.bootstrap_servers, tmp_path)
    yield driver
    driver.kill()


def copied(servers: str) -> Counter[int]:
    """The records that a read_committed reader of librdkafka finds, with their numbers of times."""
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
        consumer.assign([confluent_kafka.TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
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


def assert_whole(servers: str) -> None:
    found = copied(servers)
    missing, repeated = RECORDS - len(found), sum(count - 1 for count in found.values())
    assert (missing, repeated) == (0, 0), f"{missing} missing, {repeated} repeated"


def test_each_record_is_copied_once_through_kills(
    cluster: Cluster, driver: Driver, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("SEED", random.randrange(2**32)))
    chance, kills = random.Random(seed), Counter[str]()
    driver.start()
    while sum(kills.values()) < KILLS or driver.poll() != 0:
        time.sleep(chance.uniform(1, 6))
        if driver.poll() is not None:
            if driver.poll() == 0 and sum(kills.values()) >= KILLS:
                break
            driver.start()  # it died, failed with its tasks, or has copied all before the last kill
            continue
        if sum(kills.values()) >= KILLS:
            continue
        kind = chance.choice(["driver", "worker", "broker"])
        if kind == "driver":
            driver.kill()
            driver.start()
        elif kind == "broker":
            node = chance.choice(cluster.broker_ids)
            cluster.kill(node)
            time.sleep(chance.uniform(0, 1))
            cluster.start(node)
        elif not driver.kill_worker(chance):
            continue
        kills[kind] += 1
        assert driver.starts < 10 * (KILLS + 1), driver.output()
    figures = f"{dict(kills)} killed, {driver.starts} starts of the driver, {RECORDS} records"
    record_property("figures", figures)
    print(figures)  # noqa: T201
    assert_whole(cluster.bootstrap_servers)


@pytest.mark.parametrize("step", STEPS)
def test_each_record_is_copied_once_when_the_driver_dies_at_a_step(cluster: Cluster, driver: Driver, step: str) -> None:
    driver.start(step, batches=3)
    assert driver.wait() != 0, "it was killed"
    driver.start(batches=3)
    assert driver.wait() == 0, driver.output()
    assert_whole(cluster.bootstrap_servers)
