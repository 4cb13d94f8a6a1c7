"""Time from the sending of a record to its reading, from the leader and from a follower (KIP-392)."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.contests import clusters_of_both
from benchmarks.loads.pace import Reader, frames_of, send_paced
from benchmarks.peers.clusters import NODES, PeerCluster
from benchmarks.peers.coalesced import AT_ONCE_MS, NEVER_MS, coalesced
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE
from benchmarks.results.figures import Chart, Column, Section, percentile
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, batch
from tailrace.server.fetch.sessions import IDLE_ANSWER_MS

NAME = "end-to-end"
VALUE_BYTES = 100
CONFIGS = {"min.insync.replicas": "2"}
SETTLE_S = 2.0


class Pace(NamedTuple):
    """A number of records, and the seconds between two records."""

    interval_s: float
    records: int


PACES = (Pace(0.002, 3_000), Pace(0.010, 1_000), Pace(0.600, 50))
FROM_LEADER, FROM_FOLLOWER, LAG = "read from the leader", "read from a follower", "high watermark at the follower"

VARIANTS = {"each at once": AT_ONCE_MS, "none at once": NEVER_MS}
"""Variants of Tailrace with another minimum time between two answers that have only a high watermark
(`sessions.IDLE_ANSWER_MS`)."""

CONDITIONS = (
    f"Three nodes, one partition, replication factor 3, min.insync.replicas 2, page cache. Records of {VALUE_BYTES} B "
    "with acks=all, sent at a steady pace whether or not they are acknowledged; two consumers, at the leader and at "
    "one follower, wait with a Fetch v12 each. Time of a record: from the sending to the answer that has the record. "
    "High watermark at the follower: how much later than the leader the follower answers with the same record. "
    "Fetches: of followers at the leader, by the leader's own metrics, from before the first record until after the "
    "last; they are the cost of a follower that learns the high watermark at once. A follower of Tailrace learns it "
    f"at once, as KIP-392 says; answers without anything else leave at most every {IDLE_ANSWER_MS} ms. Two more "
    "clusters of Tailrace are measured: a cluster without this limit, and a cluster without such answers. Apache "
    "Kafka removed such answers (KAFKA-9952): its followers learn the high watermark with the next record, or after "
    "replica.fetch.wait.max.ms, 500."
)


def measure(rounds: Rounds, _: int) -> Section:
    with ExitStack() as stack:
        made = clusters_of_both(rounds, "page-cache")
        clusters = {name: stack.enter_context(make()) for name, make in made.items()}
        for variant, interval_ms in VARIANTS.items():
            with coalesced(interval_ms):
                clusters[f"{TAILRACE}, {variant}"] = stack.enter_context(made[TAILRACE]())
        for number in rounds:
            for pace in PACES:
                for name in rounds.in_turn(list(clusters)):
                    _round(rounds, name, clusters[name], pace, f"{NAME}-{number}-{round(pace.interval_s * 1000)}")
    columns = (
        Column("p50_ms", "p50 ms", digits=2, beside=(KAFKA,)),
        Column("p99_ms", "p99 ms", digits=2, beside=(KAFKA,), shows_rounds=True),
        Column("fetches_per_record", "followers' fetches per record", digits=2, beside=(KAFKA,)),
    )
    return rounds.section(
        NAME,
        "End to end, from the leader and from a follower",
        CONDITIONS,
        columns,
        chart=Chart("p50_ms", "p50 in milliseconds, median; points are rounds; logarithmic", is_logarithmic=True),
    )


def _round(rounds: Rounds, name: str, cluster: PeerCluster, pace: Pace, topic: str) -> None:
    cluster.create_topic(topic, 1, CONFIGS)
    leader = cluster.leader_of(topic)
    follower = next(node for node in NODES if node != leader)
    time.sleep(SETTLE_S)
    fetches = cluster.follower_fetches(leader)
    with (
        Wire(cluster.address(leader)) as producer,
        Wire(cluster.address(leader)) as near,
        Wire(cluster.address(follower)) as far,
    ):
        at_leader, at_follower = Reader(near, topic, 0, 0), Reader(far, topic, 0, 0)
        frames = frames_of(topic, 0, batch(1, VALUE_BYTES), pace.records)
        paced = send_paced(producer, (at_leader, at_follower), frames, interval_s=pace.interval_s)
    fetches = cluster.follower_fetches(leader) - fetches
    test = f"a record each {pace.interval_s * 1000:g} ms"
    _record(rounds, f"{test}, {FROM_LEADER}", name, paced.sent_at, at_leader.read_at)
    _record(rounds, f"{test}, {FROM_FOLLOWER}", name, paced.sent_at, at_follower.read_at)
    _record(
        rounds,
        f"{test}, {LAG}",
        name,
        at_leader.read_at,
        at_follower.read_at,
        fetches_per_record=fetches / pace.records,
    )


def _record(
    rounds: Rounds,
    test: str,
    server: str,
    from_s: Sequence[float],
    to_s: Sequence[float],
    **quantities: float,
) -> None:
    times_ms = [(end - begin) * 1000 for begin, end in zip(from_s, to_s, strict=True)]
    p50_ms, p99_ms = percentile(times_ms, 50), percentile(times_ms, 99)
    rounds.record(test, server, p50_ms=p50_ms, p99_ms=p99_ms, **quantities)
