"""Keyed consumers on three brokers, with kill -9 of brokers and of workers: progress by key is kept (KIP-X).

KEYED_FAULT_SECONDS in the environment says for how long; `make soak` takes a quarter of an hour by each protocol of
groups. SEED=n chooses the same faults again. After each run anomalies are planted into what it has gathered: each must
be found.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from crash.groups.keyed_worker import SESSION_MS
from crash.judge import Judge
from crash.program import IMPORT_PATH
from tailrace.client.blocking import Admin, NewTopic, Producer
from tailrace.client.writing.outgoing import RecordMetadata
from tailrace.model.committed_progress import Rectangle
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from testkit.verdicts.keyed_verdict import (
    Acknowledgement,
    Completion,
    Delivery,
    KeyedEvidence,
    broken_promises,
)
from testkit.verdicts.planted_keyed import KEYED_PLANTS

FAULT_SECONDS = float(os.environ.get("KEYED_FAULT_SECONDS", "12"))
QUIET_SECONDS = 30.0 if "KEYED_FAULT_SECONDS" in os.environ else 120.0
"""So long after the last fault the group has done everything. The short run may share its machine with other tests: a
group that has not ended its work within two minutes never will."""
TOPIC, GROUP, PARTITIONS = "orders", "workers", 4
WORKERS = 3
PAUSE_S = (0.5, 2.0)
KEYS = 200
CONFIG = {"min.insync.replicas": "2", "group.consumer.session.timeout.ms": str(SESSION_MS)}
PRODUCE_PAUSE_S = 0.004


class ProducerThread:
    """Writes until it is stopped; knows the records that were acknowledged."""

    def __init__(self, servers: str, chance: random.Random) -> None:
        self._producer = Producer(servers, acks=-1, linger_ms=2, delivery_timeout_ms=60_000)
        self._chance = chance
        self._sent: list[tuple[bytes | None, Future[RecordMetadata]]] = []
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending.wait(PRODUCE_PAUSE_S):
            key = None if self._chance.random() < 0.1 else b"key-%d" % self._chance.randrange(KEYS)
            with suppress(KafkaError):
                self._sent.append((key, self._producer.send(TOPIC, b"value", key=key)))

    def stop(self) -> Mapping[TopicPartition, Mapping[int, bytes | None]]:
        """Stop; the keys of acknowledged records by partition and offset."""
        self._is_ending.set()
        self._thread.join()
        self._producer.close()
        produced: dict[TopicPartition, dict[int, bytes | None]] = defaultdict(dict)
        for key, future in self._sent:
            if future.done() and future.exception() is None:
                stored = future.result()
                produced[TopicPartition(stored.topic, stored.partition)][stored.offset] = key
        return produced


class WorkerProcess:
    """A worker that is killed and started again, with a file of its own for each life."""

    def __init__(self, number: int, servers: str, protocol: str, directory: Path) -> None:
        self._number = number
        self._servers = servers
        self._protocol = protocol
        self._directory = directory
        self._lives = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self._lives += 1
        name = f"worker-{self._number}-{self._lives}"
        with (self._directory / f"{name}.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "crash.groups.keyed_worker",
                    self._servers,
                    self._protocol,
                    GROUP,
                    TOPIC,
                    str(self._directory / f"{name}.jsonl"),
                ],
                stderr=errors,
                env={**os.environ, "PYTHONPATH": IMPORT_PATH},
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()


def run(directory: Path, protocol: str, chance: random.Random) -> tuple[KeyedEvidence, dict[str, int]]:
    """Let workers and brokers be killed for so long, then let the group finish."""
    counts: dict[str, int] = defaultdict(int)
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(brokers=3, config=CONFIG))
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(name=TOPIC, partitions=PARTITIONS, replication_factor=3)])
        producer = ProducerThread(servers, chance)
        workers = [WorkerProcess(number, servers, protocol, directory) for number in range(WORKERS)]
        for worker in workers:
            stack.callback(worker.kill)
        began_s = time.monotonic()
        while time.monotonic() - began_s < FAULT_SECONDS or counts["broker kills"] < 2 or counts["worker kills"] < 2:
            time.sleep(chance.uniform(*PAUSE_S))
            if chance.random() < 0.4:
                broker = chance.choice(cluster.broker_ids)
                cluster.kill(broker)
                time.sleep(chance.uniform(0, 1))
                cluster.start(broker)
                counts["broker kills"] += 1
            else:
                worker = chance.choice(workers)
                assert worker.is_running, "a worker ended by itself"
                worker.kill()
                worker.start()
                counts["worker kills"] += 1
        produced = producer.stop()
        stable_offsets, ends = _finish(servers)
    return _evidence(directory, produced, stable_offsets, ends), counts


def _finish(servers: str) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The stable offsets and the ends, when these are equal, or when the group has had its time for that."""
    deadline_s = time.monotonic() + QUIET_SECONDS
    with Admin(servers) as admin:
        while True:
            lag = admin.group_lag(GROUP)
            stable = {name: committed.offset for name, (committed, _) in lag.items()}
            ends = {name: end for name, (_, end) in lag.items()}
            if (len(ends) == PARTITIONS and stable == ends) or time.monotonic() > deadline_s:
                return stable, ends
            time.sleep(0.2)


def _evidence(
    directory: Path,
    produced: Mapping[TopicPartition, Mapping[int, bytes | None]],
    stable_offsets: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> KeyedEvidence:
    deliveries: list[Delivery] = []
    completions: list[Completion] = []
    acknowledged: list[Acknowledgement] = []
    for path in sorted(directory.glob("*.jsonl")):
        for line in path.read_bytes().splitlines():
            entry = json.loads(line)
            if "commit" in entry:
                rectangles = [Rectangle(*fields) for fields in entry["rectangles"]]
                name = TopicPartition(*entry["commit"])
                acknowledged.append(Acknowledgement(entry["at"], entry["sent"], name, rectangles))
            elif "done" in entry:
                completions.append(Completion(entry["at"], TopicPartition(*entry["done"]), entry["offset"]))
            else:
                key = None if entry["key"] is None else entry["key"].encode()
                deliveries.append(Delivery(entry["at"], TopicPartition(*entry["place"]), entry["offset"], key))
    return KeyedEvidence(
        produced=produced,
        deliveries=deliveries,
        completions=completions,
        acknowledged=acknowledged,
        stable_offsets=stable_offsets,
        ends=ends,
    )


@pytest.mark.crash
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_progress_by_key_survives_kills_of_brokers_and_workers(
    tmp_path: Path, protocol: str, chance: random.Random, judge: Judge
) -> None:
    evidence, counts = run(tmp_path, protocol, chance)
    faults = broken_promises(evidence)
    places = {(delivery.partition, delivery.offset) for delivery in evidence.deliveries}
    figures = (
        f"{protocol}: {dict(counts)}, {sum(map(len, evidence.produced.values()))} records acknowledged, "
        f"{len(evidence.deliveries)} deliveries of {len(places)} records, {len(evidence.acknowledged)} commits of "
        f"ranges, {len(faults)} broken promises"
    )
    judge(faults, figures)
    assert evidence.acknowledged
    assert len(places) >= sum(map(len, evidence.produced.values())) > 0
    for kind, plant in KEYED_PLANTS.items():
        found = {fault.partition(":")[0] for fault in broken_promises(plant(evidence))}
        assert kind in found, f"the planted anomaly of {kind!r} is not found: {found}"
