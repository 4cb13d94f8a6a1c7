"""The time from a record until Spark has finished the batch with the record: our source and Spark's own connector."""

import statistics
from contextlib import ExitStack
from typing import Final

from benchmarks.contests import CONNECTOR, connector_jars
from benchmarks.downloads.kafka_jars import CONNECTOR_VERSION
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target, percentile
from benchmarks.results.rounds import Rounds
from benchmarks.spark.program import CORES
from benchmarks.spark.reader import CONNECTORS, OURS, Read, whole
from benchmarks.spark.streams import PAUSE_S, WARM_UPS, SparkStreams
from benchmarks.spark.topics import VALUE_BYTES, VALUES, body, fill

NAME = "spark-latency"
DEFAULT = 30
"""The number of records of a round."""
PARTITIONS: Final = 4
MOST_TIMES = 0.5
_TEST = "one record at a time"

CONDITIONS = (
    f"One Spark session for both sources, local[{CORES}]: a query with the default trigger reads a topic of "
    f"{PARTITIONS} partitions on the same node of Tailrace into Spark's sink noop. A record with a value of "
    f"{VALUE_BYTES} B is written {PAUSE_S:g} to {1.5 * PAUSE_S:g} s after the record before; the first {WARM_UPS} "
    "records are not measured. Time: from the moment before the record is passed to the producer (librdkafka, no "
    "linger) to the end of the batch with the record, the batch's commit to the checkpoint included, by Spark's "
    "progress. The count and the sum of lengths, observed in the query (`observe`), must be those of the written "
    "records. The node acknowledges from the page cache, without a sync, and Spark keeps its checkpoint in a local "
    f"directory. Spark's connector: version {CONNECTOR_VERSION}."
)


def measure(rounds: Rounds, records: int) -> Section:
    jars = connector_jars(rounds)
    contestants = {TAILRACE: OURS, **({CONNECTOR: CONNECTORS} if jars else {})}
    with ExitStack() as stack:
        node = stack.enter_context(running(tailrace("page-cache")))
        spark = stack.enter_context(SparkStreams(jars))
        for number in rounds:
            for name in rounds.in_turn(list(contestants)):
                topic = f"latency-{number}-{list(contestants).index(name)}"
                _measure(rounds, spark, node, topic, name, contestants[name], records)
    columns = (
        Column("p50_ms", "p50 ms", beside=(CONNECTOR,), shows_rounds=True),
        Column("p95_ms", "p95 ms", beside=(CONNECTOR,)),
    )
    target = Target(test=_TEST, server=TAILRACE, quantity="p50_ms", limit=MOST_TIMES, beside=CONNECTOR, is_upper=True)
    return rounds.section(
        NAME,
        "Latency of a Spark query",
        CONDITIONS,
        columns,
        [target],
        chart=Chart("p50_ms", "p50 ms, median; points are rounds"),
    )


def _measure(rounds: Rounds, spark: SparkStreams, node: Peer, topic: str, name: str, kind: str, records: int) -> None:
    filled = fill(node, topic, PARTITIONS, 1)
    options = whole(node.address, filled)
    found = spark.arrivals(Read(kind, VALUES, options), filled.rows, records)
    node.delete_topics({topic: PARTITIONS})
    sent = WARM_UPS + records
    wanted = {"count": filled.rows + sent, "values": filled.sums(VALUES)["values"] + sent * len(body(0)[1])}
    if found.sums != wanted or len(found.seconds_each) != records:
        raise RuntimeError(f"{name} has read {found.sums} of {topic}, not {wanted}")
    p50, p95 = statistics.median(found.seconds_each), percentile(found.seconds_each, 95)
    rounds.record(_TEST, name, p50_ms=p50 * 1e3, p95_ms=p95 * 1e3)
