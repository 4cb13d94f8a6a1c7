"""Bytes between racks: consumers that read from leaders, and from the closest replica (KIP-392)."""

import json
import subprocess
import sys

import confluent_kafka

from benchmarks.contests import clusters_of_both
from benchmarks.peers.clusters import NODES, RACK_SELECTOR, RACKS, PeerCluster
from benchmarks.results.figures import Chart, Column, Section
from benchmarks.results.rounds import Rounds

NAME = "racks"
DEFAULT = 100
PARTITIONS, VALUE_BYTES = 12, 1_000
CONSUME_TIMEOUT_S = 300
TOPIC = "racks"
LEADER_ONLY, CLOSEST = "from leaders", "from the closest"

CONDITIONS = (
    f"Three nodes in three racks, {PARTITIONS} partitions, replication factor 3, records of {VALUE_BYTES:,} B that are "
    "written and in sync before. One consumer (librdkafka) in each rack reads all records, one consumer after the "
    f"other: {LEADER_ONLY} (without client.rack), and {CLOSEST} replica (with client.rack; the brokers have Kafka's "
    "rack-aware selector). Bytes: of all answers that a consumer has received, by librdkafka's statistics of each "
    "broker; they are between racks if the broker is in another rack than the consumer. By the reckoning of KIP-392, "
    "two thirds of all bytes from leaders in three racks are between racks. Fetches of followers are between racks in "
    "either case, and are not counted."
)
SELECTOR = {"replica.selector.class": RACK_SELECTOR}


def measure(rounds: Rounds, megabytes: int) -> Section:
    clusters = clusters_of_both(rounds, "page-cache", SELECTOR, SELECTOR)
    count = megabytes * 1_000_000 // VALUE_BYTES
    for _ in rounds:
        for name in rounds.in_turn(list(clusters)):
            with clusters[name]() as cluster:
                cluster.create_topic(TOPIC, PARTITIONS)
                _fill(cluster, count)
                for mode in (LEADER_ONLY, CLOSEST):
                    _measure(rounds, cluster, mode, count)
    columns = (
        Column("cross_rack_MB", "MB between racks", digits=1, shows_rounds=True),
        Column("received_MB", "MB received", digits=1),
        Column("cross_rack_percent", "% between racks", digits=2),
    )
    return rounds.section(
        NAME,
        "Bytes between racks",
        CONDITIONS,
        columns,
        chart=Chart(
            "cross_rack_MB",
            f"MB between racks for {megabytes} MB read by each of three consumers, median; points are rounds",
        ),
    )


def _fill(cluster: PeerCluster, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "queue.buffering.max.messages": 1_000_000}
    )
    value = bytes(VALUE_BYTES)
    for number in range(count):
        producer.produce(TOPIC, value, partition=number % PARTITIONS)
        if number % 1_000 == 0:
            producer.poll(0)
    assert producer.flush(CONSUME_TIMEOUT_S) == 0, "everything must be acknowledged"
    cluster.wait_until_in_sync(TOPIC, PARTITIONS)


def _measure(rounds: Rounds, cluster: PeerCluster, mode: str, count: int) -> None:
    received = crossing = 0
    for rack in RACKS:
        by_broker = _consume(cluster, count, rack if mode == CLOSEST else "")
        received += sum(by_broker.values())
        crossing += sum(size for node, size in by_broker.items() if RACKS[node - NODES[0]] != rack or node < NODES[0])
    rounds.record(
        f"3 consumers in 3 racks, {mode}",
        cluster.name,
        cross_rack_MB=crossing / 1e6,
        received_MB=received / 1e6,
        cross_rack_percent=100 * crossing / received,
    )


def _consume(cluster: PeerCluster, count: int, rack: str) -> dict[int, int]:
    command = [sys.executable, "-m", "benchmarks.loads.racks", cluster.bootstrap_servers, TOPIC]
    command += [str(PARTITIONS), str(count), rack]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CONSUME_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"a consumer in rack {rack!r} of {cluster.name} failed\n{done.stderr[-2000:]}")
    return {int(node): size for node, size in json.loads(done.stdout).items()}
