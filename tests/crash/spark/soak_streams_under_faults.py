"""A read_committed stream and an exactly-once copy run on three brokers that die, hang and hand over their leaderships.

No query ends, and both have each committed record once. For `make soak`, which names this file: STREAM_FAULT_SECONDS in
the environment says for how long. SEED=n chooses the same faults again.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import confluent_kafka
import pytest

from crash.replicas.faults import SESSION_S, Fault, Scene, in_turn, possible_faults
from crash.spark.driver import environment, kill_session
from crash.transactions.committed_reads import committed_values, is_nothing_open
from crash.transactions.writer import REPLICATED, TransactionWriter
from tailrace.client.blocking import Admin, NewTopic
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until
from testkit.verdicts.stream_verdict import StreamEvidence, broken_promises

FAULT_SECONDS = float(os.environ.get("STREAM_FAULT_SECONDS", "1800"))
PARTITIONS = 4
OF_ONE_TRANSACTION = 20
PAUSE_S = 0.02
"""Between two transactions: a run of half an hour shall not fill the disk."""
CALM_S = 3.0
"""The longest time between two faults."""
SOURCE, TARGET = "orders", "copies"
PATIENCE_S = 600.0
SETTINGS = {**REPLICATED, "broker.session.timeout.ms": str(int(SESSION_S * 1000))}

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.timeout(7200)]


class NumberWriter(TransactionWriter):
    """Transactions of numbers over all partitions of the source; the fifth part of them is aborted."""

    def _transaction(self, producer: confluent_kafka.Producer, number: int) -> None:
        super()._transaction(producer, number)
        self._is_over.wait(PAUSE_S)

    def produce(self, producer: confluent_kafka.Producer, number: int) -> None:
        for value in numbers_of(number):
            producer.produce(SOURCE, b"%d" % value, partition=value % PARTITIONS)


def numbers_of(transaction: int) -> range:
    return range(transaction * OF_ONE_TRANSACTION, (transaction + 1) * OF_ONE_TRANSACTION)


def places(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(PARTITIONS)]


def leaders_moved(scene: Scene) -> str:
    """Another replica of each partition is the preferred replica, and is elected."""
    order = scene.chance.sample(scene.cluster.broker_ids, 3)
    wanted = {place: order[index % 3 :] + order[: index % 3] for index, place in enumerate(places(SOURCE))}
    wanted |= {place: order[(index + 1) % 3 :] + order[: (index + 1) % 3] for index, place in enumerate(places(TARGET))}
    with Admin(scene.cluster.bootstrap_servers) as admin:
        try:
            admin.alter_partition_reassignments(wanted)
            admin.elect_leaders(list(wanted))
        except KafkaError as fault:
            return f"refused: {fault.code.name}"
    return "all partitions"


FAULTS: Mapping[str, Fault] = {**possible_faults(None, ("kill -9", "SIGSTOP")), "leaders moved": leaders_moved}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(brokers=3, directory=tmp_path / "nodes", config=SETTINGS) as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            topics = [NewTopic(name=name, partitions=PARTITIONS, replication_factor=3) for name in (SOURCE, TARGET)]
            admin.create_topics(topics)
        yield cluster


@pytest.fixture
def streams(cluster: Cluster, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [cluster.bootstrap_servers, SOURCE, TARGET, str(tmp_path)]
    with (tmp_path / "streams.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "crash.spark.endless_streams", *arguments],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
    yield process
    kill_session(process.pid)
    process.wait()


def rows_by_partition(directory: Path) -> dict[int, list[tuple[int, bytes]]]:
    """The offsets and values of the rows that the stream has written, in the order of its batches."""
    found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(PARTITIONS)}
    for file in sorted(directory.glob("*.json"), key=lambda file: int(file.stem)):
        batch = sorted(map(json.loads, file.read_text().splitlines()))
        for partition, offset, value in batch:
            found[partition].append((offset, value.encode()))
    return found


def test_two_streams_outlive_the_faults_and_have_each_committed_record_once(
    cluster: Cluster, streams: subprocess.Popen[bytes], tmp_path: Path, chance: random.Random
) -> None:
    scene = Scene(cluster, None, tmp_path, chance, topics=(SOURCE, TARGET))
    writer, counts = NumberWriter(cluster.bootstrap_servers), Counter[str]()

    def output() -> str:
        return f"after {dict(counts)}:\n" + (tmp_path / "streams.txt").read_text(errors="replace")[-6000:]

    def has_begun() -> bool:
        assert streams.poll() is None, output()
        return (tmp_path / "rows" / "0.json").exists()

    writer.start()
    try:
        wait_until(has_begun, "the stream begins")
        began, kinds = time.monotonic(), in_turn(FAULTS.keys(), scene.chance)
        while time.monotonic() - began < FAULT_SECONDS:
            kind = next(kinds)
            FAULTS[kind](scene)
            counts[kind] += 1
            assert streams.poll() is None, output()
            assert not writer.faults, writer.faults
            scene.wait(0, CALM_S)
    finally:
        writer.stop()
    writer.new_producer()  # the next instance aborts what the last one left open
    wait_until(lambda: is_nothing_open(cluster.bootstrap_servers, places(SOURCE)), "nothing is open")
    streams.communicate(timeout=PATIENCE_S)
    assert streams.returncode == 0, output()

    evidence = evidence_of(cluster.bootstrap_servers, writer, tmp_path / "rows")
    faults = broken_promises(evidence)
    sys.stdout.write(
        f"{time.monotonic() - began:.0f} s, {counts.total()} faults {dict(counts)}; transactions:"
        f" {len(writer.committed)} committed, {len(writer.aborted)} aborted; {len(evidence.copies)} records copied,"
        f" {len(list((tmp_path / 'rows').iterdir()))} batches of rows, {len(faults)} broken promises\n"
    )
    assert not faults, "\n".join(faults)


def evidence_of(servers: str, writer: NumberWriter, rows: Path) -> StreamEvidence:
    def values(transactions: Iterable[int]) -> frozenset[bytes]:
        return frozenset(b"%d" % value for number in transactions for value in numbers_of(number))

    return StreamEvidence(
        acknowledged=values(writer.committed),
        aborted=values(writer.aborted),
        committed={place.partition: committed_values(servers, place) for place in places(SOURCE)},
        rows=rows_by_partition(rows),
        copies=[value for place in places(TARGET) for value in committed_values(servers, place)],
    )
