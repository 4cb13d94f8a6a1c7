"""CPU of a cluster that has partitions and no traffic (KIP-227)."""

import time

from benchmarks.contests import clusters_of_both
from benchmarks.peers.clusters import NODES, PeerCluster
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds

NAME = "idle-cores"
DEFAULT = 10_000
SETTLE_S, IDLE_S = 15.0, 30.0
MOST_CORES = 0.1

CONDITIONS = (
    "Three nodes and so many partitions with replication factor 3, which are created and then not used: for "
    f"{SETTLE_S:g} s, and then for {IDLE_S:g} s in which the CPU time of the three nodes together is measured. "
    "Fetches: of followers, by all three nodes' own metrics, in the same time. Flushed durability for Tailrace, "
    "Kafka's default for Kafka; a new cluster each round."
)


def measure(rounds: Rounds, partitions: int) -> Section:
    clusters = clusters_of_both(rounds, "flushed", {"max.partitions.per.node": str(partitions + 100)})
    for _ in rounds:
        for name in rounds.in_turn(list(clusters)):
            with clusters[name]() as cluster:
                _measure(rounds, cluster, 0)
                cluster.create_many("idle", partitions)
                _measure(rounds, cluster, partitions)
    columns = (
        Column("cores", "cores, all nodes", digits=3, beside=(KAFKA,), shows_rounds=True),
        Column("fetches_per_s", "followers' fetches/s, all nodes", digits=1, beside=(KAFKA,)),
    )
    target = Target(
        test=_test(partitions), server=TAILRACE, quantity="cores", limit=MOST_CORES, unit="cores in all", is_upper=True
    )
    return rounds.section(
        NAME,
        "An idle cluster",
        CONDITIONS,
        columns,
        [target] if partitions == DEFAULT else (),
        chart=Chart("cores", "cores of three nodes together, median; points are rounds"),
    )


def _test(partitions: int) -> str:
    return f"{partitions:,} partitions x 3 replicas, idle"


def _measure(rounds: Rounds, cluster: PeerCluster, partitions: int) -> None:
    time.sleep(SETTLE_S)
    fetches = sum(map(cluster.follower_fetches, NODES))
    cpu, began = cluster.cpu_seconds(), time.perf_counter()
    time.sleep(IDLE_S)
    seconds, used = time.perf_counter() - began, cluster.cpu_seconds() - cpu
    fetches = sum(map(cluster.follower_fetches, NODES)) - fetches
    rounds.record(_test(partitions), cluster.name, cores=used / seconds, fetches_per_s=fetches / seconds)
