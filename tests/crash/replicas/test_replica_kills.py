"""kill -9 of leaders under load, three replicas each: acknowledged records are there, once, in order, on each leader.

KILLS in the environment says how often; `make soak` runs more.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from crash.librdkafka_offsets import is_there
from tailrace.testing import Cluster

KILLS = int(os.environ.get("KILLS", "4"))
TOPIC, PARTITIONS = "copied", 3
RESUMES_WITHIN_S = 60
"""A deadline for a busy machine; the usual figure is a second or two."""


@contextmanager
def producing(cluster: Cluster, history: Path, *, pause_s: float = 0.001, answer_s: int = 60) -> Iterator[None]:
    command = [sys.executable, "-m", "crash.replicas.producer", cluster.bootstrap_servers, TOPIC, str(PARTITIONS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["src", "tests"])}
    command += [str(history), str(pause_s), str(answer_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as program:
        yield
        assert program.stdin is not None
        program.stdin.close()
        assert program.wait(150) == 0


def acknowledged(history: Path, *, must_be_all: bool = False) -> list[tuple[float, int, int, str]]:
    *lines, end = [json.loads(line) for line in history.read_text().splitlines()]
    assert not must_be_all or len(lines) == end[1], f"{end[1] - len(lines)} of {end[1]} records were not acknowledged"
    assert end[0] == "end"
    assert end[2] == 0, f"{end[2]} records were neither acknowledged nor refused"
    return [(at, partition, offset, value) for at, partition, offset, value in lines]


def read_all(servers: str) -> dict[int, dict[int, str]]:
    """Every record of every partition, by offset."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False}
    )
    ends: dict[int, int] = {}
    for number in range(PARTITIONS):
        _, ends[number] = consumer.get_watermark_offsets(
            confluent_kafka.TopicPartition(TOPIC, number), timeout=RESUMES_WITHIN_S
        )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    found: dict[int, dict[int, str]] = {number: {} for number in range(PARTITIONS)}
    deadline = time.monotonic() + 120
    while any(max(found[number], default=-1) + 1 < end for number, end in ends.items()):
        assert time.monotonic() < deadline, f"{[len(values) for values in found.values()]} of {ends}"
        for message in consumer.consume(10_000, 1):
            assert message.error() is None, message.error()
            found[message.partition()][message.offset()] = message.value().decode()
    consumer.close()
    return found


def leader_of(admin: AdminClient, partition: int) -> int:
    deadline = time.monotonic() + RESUMES_WITHIN_S
    while time.monotonic() < deadline:
        leader = admin.list_topics(TOPIC, timeout=RESUMES_WITHIN_S).topics[TOPIC].partitions[partition].leader
        if leader > 0:
            return int(leader)
        time.sleep(0.05)
    raise AssertionError(f"{TOPIC}-{partition} has no leader")


def until_something_is_acknowledged(history: Path) -> None:
    deadline = time.monotonic() + RESUMES_WITHIN_S
    while not (history.exists() and history.stat().st_size):
        assert time.monotonic() < deadline, "nothing was acknowledged"
        time.sleep(0.05)


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_nothing_acknowledged_is_lost_when_leaders_are_killed(tmp_path: Path) -> None:
    chance = random.Random(int(os.environ.get("SEED", random.randrange(2**32))))
    history = tmp_path / "history"
    kills: list[tuple[float, int]] = []
    with Cluster(brokers=3, directory=tmp_path / "cluster") as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
        new = NewTopic(TOPIC, PARTITIONS, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([new])[TOPIC].result(RESUMES_WITHIN_S)
        with producing(cluster, history):
            until_something_is_acknowledged(history)
            for _ in range(KILLS):
                partition = chance.randrange(PARTITIONS)
                leader = leader_of(admin, partition)
                cluster.kill(leader)
                kills.append((time.monotonic(), partition))
                time.sleep(chance.uniform(0.2, 4))
                cluster.start(leader)
                time.sleep(chance.uniform(0.5, 3))
        acked = acknowledged(history)
        found = read_all(cluster.bootstrap_servers)
    lost = [record for record in acked if not is_there(found[record[1]], *record[2:])]
    assert not lost, f"{len(lost)} of {len(acked)} are lost or changed: {lost[:5]}"
    for number, values in found.items():
        sequence = [int(values[offset]) for offset in sorted(values)]
        assert sequence == sorted(set(sequence)), f"partition {number} is out of order, or has something twice"
    for kill, led in kills:
        times = [at for at, partition, *_ in acked if partition == led]
        assert any(kill + RESUMES_WITHIN_S > at > kill for at in times), "nothing was acknowledged after a kill"
    print(f"{len(acked)} acknowledged through {KILLS} kills")  # noqa: T201
