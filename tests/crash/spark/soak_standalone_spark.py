"""A standalone Spark cluster of two workers in two racks reads and copies two million records; its workers are killed.

Tailrace is in a packed environment alone, not in the workers' own Python. For `make soak`, which names this file:
SPARK_RECORDS and WORKER_KILLS in the environment say how many. SEED=n chooses the same kills again.
"""

import json
import os
import random
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.spark import packed_copier
from crash.spark.driver import Progress, kill_session
from crash.spark.standalone import PACKED_PYTHON, StandaloneSpark, pack_environment, running
from crash.spark.test_spark_exactly_once import copied
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.model import __version__
from tailrace.testing import Cluster

RECORDS = int(os.environ.get("SPARK_RECORDS", "2000000"))
KILLS = int(os.environ.get("WORKER_KILLS", "10"))
BATCHES = 2 * KILLS + 2
RACKS = ("a", "b", "c")
"""The racks of the brokers; workers are in the first two."""
OF_OTHER_RACKS = 0.02
"""The part of the bytes that may come from another rack: a replica that lags is not read from for a moment."""
PARTITIONS = 4
SOURCE, TARGET = "orders", "copies"
PROGRAM = Path(packed_copier.__file__)
SETTINGS = {
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "metrics.listener": "127.0.0.1:0",
}
TIME_LIMIT_S = 3_000
WAIT_FOR_ALL = ("minRegisteredResourcesRatio=1.0", "maxRegisteredResourcesWaitingTime=10min")
"""Tasks begin when the executors of both workers are there."""

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(7200)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(brokers=3, racks=RACKS, directory=tmp_path / "nodes", config=SETTINGS) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name=SOURCE, partitions=PARTITIONS, replication_factor=3)])
        with Producer(cluster.bootstrap_servers, linger_ms=20) as producer:
            for number in range(RECORDS):
                producer.send(SOURCE, b"%d" % number, key=b"%d" % (number % 1_000))
            producer.flush()
        yield cluster


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[StandaloneSpark]:
    with running(tmp_path / "spark", RACKS[:2]) as spark:
        yield spark


def sent_to_consumers(cluster: Cluster) -> dict[str, int]:
    """The bytes of records that the broker of each rack has sent to consumers so far."""
    sent = {}
    for broker, rack in zip(cluster.broker_ids, RACKS, strict=True):
        address = re.findall(r"event=metrics-served address=(\S+)", cluster.log_text(broker))[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            page = answer.read().decode()
        values = re.findall(r"^tailrace_consumer_bytesout_total\{.*\} (\S+)$", page, re.MULTILINE)
        sent[rack] = sum(int(float(value)) for value in values)
    return sent


def bytes_of_a_read(cluster: Cluster, spark: StandaloneSpark, archive: Path, output: Path) -> dict[str, int]:
    """The bytes that the broker of each rack sends while all records are read as a batch."""
    before = sent_to_consumers(cluster)
    counting = spark.submit(archive, PROGRAM, ["count", cluster.bootstrap_servers, SOURCE], output)
    assert counting.wait(TIME_LIMIT_S) == 0, output.read_text()[-4000:]
    found = re.search(r"^FOUND (.*)$", output.read_text(), re.MULTILINE)
    assert found is not None
    assert json.loads(found[1]) == [RECORDS, RECORDS]
    return {rack: size - before[rack] for rack, size in sent_to_consumers(cluster).items()}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_environment(tmp_path_factory.mktemp("packed"))


def test_the_doctor_finds_the_packed_environment_on_every_worker(
    cluster: Cluster, spark: StandaloneSpark, archive: Path
) -> None:
    asked = ["--rack-env", "RACK", "--bootstrap-server", cluster.bootstrap_servers, "-o", "json"]
    for both_workers in ("cores.max=2", *(f"scheduler.{name}" for name in WAIT_FOR_ALL)):
        asked += ["--conf", f"spark.{both_workers}"]
    relative = os.path.relpath(archive, spark.home(archive))
    ended = spark.examine(archive, "--archives", f"{relative}#environment", *asked)
    assert ended.returncode == 0, ended.stderr[-4000:]
    driver, *executors = json.loads(ended.stdout)
    assert driver["PYTHON"].split()[0] == str(spark.home(archive) / PACKED_PYTHON)
    assert sorted(executor["RACK"] for executor in executors) == list(RACKS[:2])
    assert sum(executor["TASKS"] for executor in executors) == 16
    for executor in executors:
        assert f"/work-{executor['RACK']}/" in executor["PYTHON"], (
            "the packed Python, unpacked in the worker's directory"
        )
        found = (executor["TAILRACE"], executor["PYARROW"], executor["KERNEL"], executor["BROKERS"])
        assert found == (__version__, driver["PYARROW"], driver["KERNEL"], "3/3")
        assert executor["ADVICE"] == driver["ADVICE"]

    forgotten = spark.examine(archive, *asked)
    assert (forgotten.returncode, forgotten.stdout) == (1, "")
    assert re.search(
        rf'^tailrace: the job on {spark.url} failed: .* Cannot run program "{PACKED_PYTHON}".*PYSPARK_DRIVER_PYTHON',
        forgotten.stderr.splitlines()[-1],
    )


def test_the_doctor_lists_workers_whose_python_lacks_tailrace_and_pyarrow(
    spark: StandaloneSpark, archive: Path
) -> None:
    base = str(Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}"))
    ended = spark.examine(archive, "-o", "json", PYSPARK_DRIVER_PYTHON=base)
    assert ended.returncode == 1, ended.stderr[-4000:]
    driver, *executors = json.loads(ended.stdout)
    assert len(executors) == 2
    for process in (driver, *executors):
        assert process["PYTHON"].split()[0] == base
        assert (process["TAILRACE"], process["PYARROW"]) == ("none", "none")
        assert "its Python has no Tailrace" in process["ADVICE"]
        assert "no pyarrow, and tasks will fail: pip install" in process["ADVICE"]


def test_the_doctor_ends_a_job_that_no_executor_takes(spark: StandaloneSpark, archive: Path) -> None:
    """The workers have one core each; Spark itself would wait for a worker with two for ever."""
    limit = ("--conf", "spark.executor.cores=2", "--timeout", "60")
    ended = spark.examine(archive, "--archives", f"{archive}#environment", *limit)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.search(
        rf"^tailrace: the job on {spark.url} failed: no executor has taken a task after 60 s: .*spark.driver.host",
        ended.stderr.splitlines()[-1],
    )


def test_a_packed_environment_reads_in_its_racks_and_copies_once(
    cluster: Cluster, spark: StandaloneSpark, archive: Path, tmp_path: Path, chance: random.Random
) -> None:
    servers = cluster.bootstrap_servers
    sent = bytes_of_a_read(cluster, spark, archive, tmp_path / "count.txt")
    assert min(sent["a"], sent["b"]) > 0, sent
    assert sent["c"] < OF_OTHER_RACKS * sum(sent.values()), f"{sent} bytes: no worker is in rack c"
    for rack, other in (("a", "b"), ("b", "a")):
        spark.kill_worker(other)
        alone = bytes_of_a_read(cluster, spark, archive, tmp_path / f"count-{rack}.txt")
        assert alone[rack] > (1 - OF_OTHER_RACKS) * sum(alone.values()), f"{alone} bytes for a worker of rack {rack}"
        spark.start_worker(other)
    kills, copies = Counter[str](), 0
    while kills.total() < KILLS:  # a copy may be done before them all
        copies += 1
        kills += _copied_under_kills(
            cluster, spark, archive, tmp_path / f"{TARGET}-{copies}", KILLS - kills.total(), chance
        )
        found = copied(servers, f"{TARGET}-{copies}")
        missing, repeated = RECORDS - len(found), sum(count - 1 for count in found.values())
        print(f"copy {copies}: {missing} missing, {repeated} repeated")  # noqa: T201
        assert (missing, repeated) == (0, 0)
    print(  # noqa: T201
        f"{RECORDS} records, bytes by rack {sent}; {copies} copies, workers killed: {dict(kills)}"
    )


def _copied_under_kills(
    cluster: Cluster, spark: StandaloneSpark, archive: Path, directory: Path, most: int, chance: random.Random
) -> Counter[str]:
    """Copy all records to a topic with the name of the directory; so many workers are killed at most.

    Returns the kills by rack.
    """
    servers, checkpoint = cluster.bootstrap_servers, directory / "checkpoint"
    directory.mkdir()
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(name=directory.name, partitions=PARTITIONS, replication_factor=3)])
    arguments = ["copy", servers, SOURCE, directory.name, str(checkpoint), str(RECORDS // BATCHES)]
    progress, kills, starts = Progress(checkpoint), Counter[str](), 0
    copying = None
    try:
        while True:
            if copying is None:
                starts += 1
                assert starts <= KILLS + 2, (directory / f"{starts - 1}.txt").read_text()[-4000:]
                copying = spark.submit(archive, PROGRAM, arguments, directory / f"{starts}.txt")
            if (code := copying.poll()) == 0:
                return kills
            if code is not None:
                copying = None  # a task has failed too often
            elif kills.total() < most and progress.begun >= 2 * kills.total() and progress.is_in_a_batch:
                rack = chance.choice(RACKS[:2])
                time.sleep(chance.uniform(0, min(progress.seconds_of_a_batch(), 5.0)))
                spark.kill_worker(rack)
                kills[rack] += 1
                time.sleep(chance.uniform(0, 2))
                spark.start_worker(rack)
            time.sleep(0.02)
    finally:
        if copying is not None:
            kill_session(copying.pid)
            copying.wait()
