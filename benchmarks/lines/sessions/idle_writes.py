"""Cost of one acknowledged write among idle partitions: the followers' fetches that it wakes (KIP-227)."""

import time

from benchmarks.contests import clusters_of_both
from benchmarks.peers.clusters import PeerCluster
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE
from benchmarks.results.figures import Chart, Column, Section, Target, percentile
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, batch, end_offsets, produce_frame

NAME = "idle-writes"
DEFAULT = 3_000
WRITES, WARM_UP_WRITES, VALUE_BYTES = 1_000, 3_000, 100
SETTLE_S = 5.0
BUSY, IDLE = "busy", "idle"
CONFIGS = {"min.insync.replicas": "2"}
MOST_TIMES_ALONE = 1.3

CONDITIONS = (
    "Three nodes, replication factor 3, min.insync.replicas 2, page cache. One connection to the leader of one "
    f"partition, one Produce of {VALUE_BYTES} B with acks=all in flight, {WRITES:,} a round after {WARM_UP_WRITES:,} "
    "to warm up; so many other partitions have no traffic. CPU: of the three nodes together, divided by the writes; "
    "it includes the CPU that an idle cluster takes in the same time. A new cluster each round. Alone: without idle "
    "partitions, in the same round."
)


def measure(rounds: Rounds, most: int) -> Section:
    clusters = clusters_of_both(rounds, "page-cache", {"max.partitions.per.node": str(most + 100)})
    steps = (0, most // 10, most)
    for _ in rounds:
        for name in rounds.in_turn(list(clusters)):
            with clusters[name]() as cluster:
                _round(rounds, cluster, steps)
    columns = (
        Column("cpu_us", "CPU us per write", beside=(KAFKA,), shows_rounds=True),
        Column("times_alone", "x alone", digits=2),
        Column("p50_ms", "p50 ms", digits=2, beside=(KAFKA,)),
        Column("p99_ms", "p99 ms", digits=2),
    )
    target = Target(
        test=_test(most),
        server=TAILRACE,
        quantity="times_alone",
        limit=MOST_TIMES_ALONE,
        unit="x the CPU of a write alone",
        is_upper=True,
    )
    return rounds.section(
        NAME,
        "One write among idle partitions",
        CONDITIONS,
        columns,
        [target] if most == DEFAULT else (),
        chart=Chart(
            "cpu_us",
            "CPU microseconds of three nodes per acknowledged write, median; points are rounds; logarithmic",
            is_logarithmic=True,
        ),
    )


def _test(idle: int) -> str:
    return f"one write among {idle:,} idle partitions"


def _round(rounds: Rounds, cluster: PeerCluster, steps: tuple[int, ...]) -> None:
    cluster.create_topic(BUSY, 1, CONFIGS)
    _write(cluster, WARM_UP_WRITES)
    alone_us, there = 0.0, 0
    for idle in steps:
        if idle > there:
            cluster.create_many(f"{IDLE}-{idle}", idle - there, CONFIGS)
            there = idle
        time.sleep(SETTLE_S)
        before = cluster.cpu_seconds()
        times_ms = _write(cluster, WRITES)
        cpu_us = (cluster.cpu_seconds() - before) / WRITES * 1e6
        alone_us = alone_us or cpu_us
        rounds.record(
            _test(idle),
            cluster.name,
            cpu_us=cpu_us,
            times_alone=cpu_us / alone_us,
            p50_ms=percentile(times_ms, 50),
            p99_ms=percentile(times_ms, 99),
        )


def _write(cluster: PeerCluster, count: int) -> list[float]:
    """The milliseconds that each write takes."""
    frame = produce_frame(BUSY, 0, batch(1, VALUE_BYTES))
    times_ms = []
    with Wire(cluster.address(cluster.leader_of(BUSY))) as wire:
        before = end_offsets(wire, BUSY, 1)[0]
        for _ in range(count):
            began = time.perf_counter()
            wire.socket.sendall(frame)
            wire.receive()
            times_ms.append((time.perf_counter() - began) * 1000)
        assert end_offsets(wire, BUSY, 1)[0] == before + count, "every record must have been appended"
    return times_ms
