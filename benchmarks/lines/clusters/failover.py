"""The time without an acknowledged record after a leader is killed."""

import time

from benchmarks.contests import clusters_of_both
from benchmarks.peers.clusters import NODES, PeerCluster
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE, NotReady
from benchmarks.results.figures import Chart, Column, Section, Target, percentile
from benchmarks.results.rounds import Rounds
from benchmarks.wire import PRODUCE_VERSION, Wire, batch, produce_request
from tailrace.model.errors import ErrorCode

NAME = "failover"
DEFAULT = 50
KAFKAS_PART = 5
"""Kafka gets one kill for this number of kills of Tailrace: with its session timeout a kill takes longer."""
TOPIC, VALUE_BYTES = "failover", 100
CONFIGS = {"min.insync.replicas": "2"}
PAUSE_S = 0.005
LONGEST_S = 60.0
SETTLE_S = 1.0
MOST_S = 4.0
TEST = "a leader is killed"

CONDITIONS = (
    "Three nodes that are brokers and controllers, one partition, replication factor 3, min.insync.replicas 2, "
    "flushed durability for Tailrace, Kafka's default for Kafka; both have their default timeouts "
    "(broker.session.timeout.ms 2,500 for Tailrace, 9,000 for Kafka). The node that leads gets a SIGKILL. From then "
    f"on, every {PAUSE_S * 1000:g} ms, the other nodes are asked for metadata, and a node that names itself as the "
    "leader gets a Produce of one record with acks=all, until a record is acknowledged. Then the node is started "
    "again, and the next node is killed when all replicas are in sync. The last column has the times of single kills, "
    f"not of rounds; Kafka is killed a {KAFKAS_PART}th as often."
)


def measure(rounds: Rounds, kills: int) -> Section:
    for name, make in clusters_of_both(rounds, "flushed").items():
        times_s = []
        with make() as cluster:
            cluster.create_topic(TOPIC, 1, CONFIGS)
            for _ in range(kills if name == TAILRACE else max(kills // KAFKAS_PART, 1)):
                times_s.append(_kill(cluster))
                rounds.record(TEST, name, resumes_s=times_s[-1])
        rounds.samples.add(TEST, name, p99_s=percentile(times_s, 99), kills=len(times_s))
    columns = (
        Column("kills", "kills"),
        Column("resumes_s", "p50 s", digits=2, beside=(KAFKA,), shows_rounds=True),
        Column("p99_s", "p99 s", digits=2, beside=(KAFKA,)),
    )
    target = Target(test=TEST, server=TAILRACE, quantity="p99_s", limit=MOST_S, unit="s", is_upper=True)
    return rounds.section(
        NAME,
        "A leader is killed: produce resumes",
        CONDITIONS,
        columns,
        [target] if kills == DEFAULT else (),
        chart=Chart("resumes_s", "seconds from the kill to the next acknowledged record, median; points are kills"),
    )


def _kill(cluster: PeerCluster) -> float:
    """Kill the leader; returns the seconds until the next record is acknowledged. Afterwards all replicas are in sync
    again."""
    leader = cluster.leader_of(TOPIC)
    others = [node for node in NODES if node != leader]
    began = time.perf_counter()
    cluster.kill(leader)
    while not any(_is_acknowledged(cluster, node) for node in others):
        if time.perf_counter() - began > LONGEST_S:
            raise NotReady(f"{cluster.name} acknowledges nothing {LONGEST_S:g} s after a kill of node {leader}")
        time.sleep(PAUSE_S)
    seconds = time.perf_counter() - began
    cluster.start(leader)
    cluster.wait_until_in_sync(TOPIC, 1)
    time.sleep(SETTLE_S)
    return seconds


def _is_acknowledged(cluster: PeerCluster, node: int) -> bool:
    """Whether a record is acknowledged by this node, if it says that it leads."""
    try:
        (partition,) = cluster.partitions_of(TOPIC, node)
        if partition.leader_id != node:
            return False
        with Wire(cluster.address(node)) as wire:
            answer = wire.ask(produce_request(TOPIC, 0, batch(1, VALUE_BYTES)), PRODUCE_VERSION)
    except OSError:
        return False
    ((found,),) = (topic.partition_responses for topic in answer.responses)
    return bool(found.error_code == ErrorCode.NONE)
