"""A load of acks=all on a topic of three replicas (`crash.replicas.producer`), its acknowledgements and its records."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient

from crash.access import client_settings
from crash.librdkafka_offsets import is_there
from crash.program import IMPORT_PATH
from testkit.programs.waiting import wait_until

TOPIC, PARTITIONS = "copied", 3
RESUMES_WITHIN_S = 60
"""A deadline for a busy machine; the usual figure is a second or two, five seconds with a bad disk."""
WHOLE_WITHIN_S = 240


class ReplicatedLoad:
    """A program that produces with acks=all to every partition, and its acknowledgements."""

    def __init__(self, servers: str, history: Path, *waits_s: float) -> None:
        """`waits_s` are the pause between two records and the wait for an answer."""
        self._servers = servers
        self._history = history
        words = [servers, TOPIC, str(PARTITIONS), str(history), *map(str, waits_s)]
        self._command = [sys.executable, "-m", "crash.replicas.producer", *words]
        self._read_to = 0
        self._times = dict.fromkeys(range(PARTITIONS), 0.0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """The program runs as long as the block lasts; its first record is acknowledged before the block begins."""
        environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
        with subprocess.Popen(self._command, stdin=subprocess.PIPE, env=environment) as program:
            wait_until(
                lambda: program.poll() is not None or (self._history.exists() and self._history.stat().st_size),
                "a record is acknowledged",
                deadline_s=RESUMES_WITHIN_S,
            )
            assert program.poll() is None
            yield
            assert program.stdin is not None
            program.stdin.close()
            assert program.wait(150) == 0

    def last_times(self) -> dict[int, float]:
        """When something was last acknowledged of each partition."""
        with self._history.open() as file:
            file.seek(self._read_to)
            *lines, rest = file.read().split("\n")
            self._read_to = file.tell() - len(rest)
        for line in lines:
            at, partition, *_ = json.loads(line)
            self._times[partition] = at
        return self._times

    def wait_for_each(self, after: float) -> None:
        """Wait until a record of each partition was acknowledged after this time."""
        wait_until(
            lambda: min(self.last_times().values()) >= after,
            f"a record of each partition is acknowledged after {after}",
            deadline_s=RESUMES_WITHIN_S,
        )

    def acknowledged(self, *, must_be_all: bool = False) -> list[tuple[float, int, int, str]]:
        """The time, partition, offset and value of each acknowledged record, when the program has ended."""
        *lines, end = [json.loads(line) for line in self._history.read_text().splitlines()]
        left = end[1] - len(lines)
        assert not must_be_all or not left, f"{left} of {end[1]} records were not acknowledged"
        assert end[0] == "end"
        assert end[2] == 0, f"{end[2]} records were neither acknowledged nor refused"
        return [(at, partition, offset, value) for at, partition, offset, value in lines]

    def read_all(self, acked: list[tuple[float, int, int, str]]) -> dict[int, dict[int, str]]:
        """Every record of every partition, by offset; the acknowledged records must be among the records."""
        consumer = confluent_kafka.Consumer(
            {**client_settings(self._servers), "group.id": "reader", "enable.auto.commit": False}
        )
        places = [confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=RESUMES_WITHIN_S)[1] for place in places}
        consumer.assign(places)
        found: dict[int, dict[int, str]] = {number: {} for number in range(PARTITIONS)}
        deadline = time.monotonic() + 120
        while any(max(found[number], default=-1) + 1 < end for number, end in ends.items()):
            assert time.monotonic() < deadline, f"{[len(values) for values in found.values()]} of {ends}"
            for message in consumer.consume(10_000, 1):
                assert message.error() is None, message.error()
                found[message.partition()][message.offset()] = message.value().decode()
        consumer.close()
        lost = [record for record in acked if not is_there(found[record[1]], *record[2:])]
        assert not lost, f"{len(lost)} of {len(acked)} are lost or changed: {lost[:5]}"
        return found


def wait_until_whole(servers: str, topic: str = TOPIC) -> None:
    """Until all replicas of all partitions are in sync, as every broker knows.

    The metadata of a node whose disk has just hung or been full stands where it did before the fault.
    """
    not_whole: dict[str, str] = {}

    def is_whole() -> bool:
        not_whole.clear()
        not_whole.update((server, found) for server in servers.split(",") if (found := _not_whole(server, topic)))
        return not not_whole

    wait_until(is_whole, lambda: f"all replicas are in sync, but for {not_whole}", deadline_s=WHOLE_WITHIN_S)


def _not_whole(server: str, topic: str) -> str:
    """The in-sync replicas of each partition by this broker, or its error; empty if all replicas are in sync."""
    admin = AdminClient(client_settings(server))
    try:
        partitions = admin.list_topics(topic, timeout=10).topics[topic].partitions
    except confluent_kafka.KafkaException as fault:
        return str(fault)
    in_sync = {number: sorted(partition.isrs) for number, partition in partitions.items()}
    return (
        "" if in_sync and all(members == [1, 2, 3] for members in in_sync.values()) else str(in_sync or "unknown topic")
    )
