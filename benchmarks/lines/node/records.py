"""Produce and consume with a whole client, librdkafka, in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks.contests import DURABILITIES, FLUSHED, PAGE_CACHE, page_cache_and_flushed
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import MOCK, TAILRACE, Peer
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds

NAME = "records"
TOPICS = 16
PARTITIONS = 4
SIZES = {100: 2_000_000, 1000: 280_000}
"""Record size in bytes -> records per round. The mock keeps 5 MB per partition: every record must fit."""

TESTS = ("produce", "consume")
_LOAD_TIMEOUT_S = 300

CONDITIONS = (
    f"Client: librdkafka (confluent-kafka) in its own process, {TOPICS} topics of {PARTITIONS} partitions, acks=all, "
    "linger 5 ms, no compression, and room for a whole round in its queues of sent and received records. "
    + " and ".join(f"{count:,} records of {size:,} B" for size, count in SIZES.items())
    + " a round; 1 MB is 1,000,000 B of values. Each round writes new topics and reads them from the page cache; the "
    "dirty pages of the peer before are written back, and new pages are touched, before the round. "
    f"{PAGE_CACHE} {FLUSHED} The mock is librdkafka's own broker in C: it keeps records in "
    "memory only and checks no checksum. CPU is that of the server's process, all threads."
)


def measure(rounds: Rounds, _: int) -> Section:
    with ExitStack() as stack:
        contests = page_cache_and_flushed(rounds, stack, mock=True)
        for size, count in SIZES.items():
            for number in rounds:
                for durability, peers in contests.items():
                    for peer in rounds.in_turn(peers):
                        _round(rounds, peer, f"bench-{durability}-{size}-{number}", durability, size, count)
    columns = (
        Column("MB_per_s", "MB/s", beside=(KAFKA, MOCK), shows_rounds=True),
        Column("CPU_us_per_MB", "CPU us/MB", beside=(KAFKA,)),
    )
    return rounds.section(
        NAME,
        "Records with librdkafka",
        CONDITIONS,
        columns,
        _targets(),
        chart=Chart("MB_per_s", "MB/s, median; points are rounds"),
    )


def _round(rounds: Rounds, peer: Peer, topic: str, durability: str, size: int, count: int) -> None:
    topics = {f"{topic}-{number}": PARTITIONS for number in range(TOPICS)}
    peer.create_topics(topics)
    # The previous peer's dirty pages are written back before this one begins, which would pay for them otherwise.
    os.sync()
    for test in TESTS:
        rate, cpu = _load(peer, test, topic, size, count)
        rounds.record(_test(test, size, durability), peer.name, MB_per_s=rate, CPU_us_per_MB=cpu)
    peer.delete_topics(topics)


def _load(peer: Peer, test: str, topic: str, size: int, count: int) -> tuple[float, float]:
    """MB/s of values, and the server's CPU microseconds per MB."""
    cpu = peer.process.cpu_seconds()
    command = [sys.executable, "-m", "benchmarks.loads.records", test, peer.address, topic]
    command += [str(number) for number in (size, count, TOPICS, PARTITIONS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LOAD_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{test} against {peer.name} failed: {done.stderr.strip()}")
    megabytes = size * count / 1e6
    return megabytes / float(done.stdout), (peer.process.cpu_seconds() - cpu) * 1e6 / megabytes


def _test(test: str, size: int, durability: str) -> str:
    return f"{test} {size} B, {durability}"


def _targets() -> Sequence[Target]:
    tests = [
        (_test(test, size, durability), durability) for durability in DURABILITIES for size in SIZES for test in TESTS
    ]
    targets = []
    for test, durability in tests:
        peers = (KAFKA, MOCK) if durability == DURABILITIES[0] else (KAFKA,)
        targets += [Target(test=test, server=TAILRACE, quantity="MB_per_s", limit=1.0, beside=peer) for peer in peers]
        targets.append(
            Target(test=test, server=TAILRACE, quantity="CPU_us_per_MB", limit=0.7, beside=KAFKA, is_upper=True)
        )
    return targets
