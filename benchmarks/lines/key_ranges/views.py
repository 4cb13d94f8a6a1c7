"""Eight stock clients that read a view, beside eight partitions of a topic: the broker's CPU (KIP-X)."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import confluent_kafka

from benchmarks.lines.key_ranges.key_filter import SIZES
from benchmarks.loads.view_readers import READERS
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds

NAME = "views"
DEFAULT = 300
"""The number of megabytes of values in a topic: the partitions of a topic cost a millisecond for each."""
KEYS: Final = 1_000_003
SLOTS: Final = (8, 64)
MOST_TIMES_REAL: Final = 5.0
_STOP_S: Final = 30

CONDITIONS = (
    f"One node, page cache, default settings. {READERS} consumers of librdkafka with default settings read a backlog: "
    f"{READERS} partitions of a topic, or the view partitions of a topic with one partition. The same records in both "
    "topics, each with a key of its own. Each consumer has read all its records once before. CPU: of the node's "
    "process, all threads, per megabyte of values. Ratio: to the partitions of a topic in the same round."
)


class Readers:
    """A process with eight consumers."""

    def __init__(self, peer: Peer, process: "subprocess.Popen[str]", count: int) -> None:
        self._peer = peer
        self._process = process
        self._count = count

    def cost(self) -> float:
        """CPU milliseconds of the broker for a megabyte, while all records are read once."""
        assert self._process.stdin is not None, "stdin is a pipe"
        assert self._process.stdout is not None, "stdout is a pipe"
        began = self._peer.process.cpu_clock()
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found = json.loads(self._process.stdout.readline())
        spent = self._peer.process.cpu_clock() - began
        assert found["records"] == self._count, f"{found['records']} of {self._count} records"
        return float(spent * 1_000 / found["megabytes"])


@contextmanager
def reading(peer: Peer, topic: str, partitions: int, count: int) -> Iterator[Readers]:
    """Readers that have read all records once."""
    command = [sys.executable, "-m", "benchmarks.loads.view_readers", peer.address, topic, str(partitions), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        readers = Readers(peer, process, count)
        readers.cost()
        yield readers
    finally:
        assert process.stdin is not None, "stdin is a pipe"
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        finally:
            process.kill()


def measure(rounds: Rounds, megabytes: int) -> Section:
    with running(tailrace("page-cache")) as peer:
        for size, value_bytes in SIZES.items():
            count = megabytes * 1_000_000 // value_bytes
            whole, parts = f"whole-{value_bytes}", f"parts-{value_bytes}"
            _write(peer, {whole: 1, parts: READERS}, value_bytes, count)
            real = f"{size}, {READERS} partitions"
            kinds = {real: (parts, READERS), **{f"{size}, shared-{n}": (f"{whole}.shared-{n}", n) for n in SLOTS}}
            with ExitStack() as stack:
                readers = {
                    kind: stack.enter_context(reading(peer, topic, partitions, count))
                    for kind, (topic, partitions) in kinds.items()
                }
                for _ in rounds:
                    costs = {kind: readers[kind].cost() for kind in rounds.in_turn(list(kinds))}
                    for kind in kinds:
                        times = costs[kind] / costs[real]
                        rounds.record(kind, TAILRACE, ms_per_mb=costs[kind], times_real=times)
    target = Target(
        test=f"1 KB, shared-{SLOTS[-1]}",
        server=TAILRACE,
        quantity="times_real",
        limit=MOST_TIMES_REAL,
        unit=f"x {READERS} partitions",
        is_upper=True,
    )
    return rounds.section(
        NAME,
        f"Views, read by {READERS} clients",
        CONDITIONS,
        (
            Column("ms_per_mb", "CPU ms per MB", digits=2),
            Column("times_real", f"x {READERS} partitions", digits=2, shows_rounds=True),
        ),
        [target],
        chart=Chart("ms_per_mb", "CPU of the broker for a megabyte, ms, median; points are rounds"),
    )


def _write(peer: Peer, topics: dict[str, int], value_bytes: int, count: int) -> None:
    peer.create_topics(topics)
    peer.wait_for_leaders(topics)
    value = os.urandom(value_bytes)
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": peer.address, "linger.ms": 20, "batch.size": 64_000, "partitioner": "murmur2_random"}
    )
    for topic in topics:
        for number in range(count):
            while True:
                try:
                    producer.produce(topic, value, b"key-%d" % (number * 7_919 % KEYS))
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
        assert not producer.flush(60), f"{topic}: not all records are written"
