"""Writes from Spark: our sink at least once and exactly once, and Spark's own connector."""

import os
from contextlib import ExitStack
from typing import Final

from benchmarks.contests import CONNECTOR, DURABILITIES, PAGE_CACHE, connector_jars
from benchmarks.downloads.kafka_jars import CONNECTOR_VERSION
from benchmarks.peers.peer import Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.spark.program import CORES
from benchmarks.spark.writer import BATCHES, TASKS, VALUE_BYTES, SparkWriter, Write
from benchmarks.wire import Wire, end_offsets

NAME = "exactly-once-write"
DEFAULT = 2_000_000
"""The number of rows of a write."""
PARTITIONS: Final = 4
AT_LEAST_ONCE, EXACTLY_ONCE = "at least once", "exactly once"
MOST_TIMES, LEAST_TIMES_CONNECTOR = 1.3, 2.0
SOURCE: Final = "rows"

CONDITIONS = (
    f"One Spark session for all servers, local[{CORES}], writes rows with a key and a constant value of {VALUE_BYTES} "
    f"B to a new topic of {PARTITIONS} partitions; the topics are on the same node of Tailrace. Batch: {TASKS} tasks "
    f"write rows that they make. Stream: a stream of {BATCHES} batches (availableNow) writes the rows of a topic, "
    "which the source of the same format reads; a stream has no target. Time: of the whole write, planning and commit "
    f"included. {PAGE_CACHE} Flushed: nothing is acknowledged before it is synced, the default. Spark's connector, "
    f"version {CONNECTOR_VERSION}, is at least once."
)


def measure(rounds: Rounds, rows: int) -> Section:
    writers = {AT_LEAST_ONCE: ("tailrace", False), EXACTLY_ONCE: ("tailrace", True)}
    if jars := connector_jars(rounds):
        writers[CONNECTOR] = ("kafka", False)
    with SparkWriter(jars) as spark:
        for durability in DURABILITIES:
            with ExitStack() as stack:
                node = stack.enter_context(running(tailrace(durability)))
                node.create_topics({SOURCE: PARTITIONS})
                spark.seconds(Write("tailrace", node.address, SOURCE, rows))
                for number in rounds:
                    for name in rounds.in_turn(list(writers)):
                        kind, is_exactly_once = writers[name]
                        for source in (None, SOURCE):
                            topic = f"{'stream' if source else 'batch'}-{number}-{list(writers).index(name)}"
                            write = Write(kind, node.address, topic, rows, is_exactly_once, source)
                            _round(rounds, spark, node, name, durability, write)
    columns = (
        Column("rows_per_s", "rows/s", beside=(CONNECTOR,), shows_rounds=True),
        Column("seconds", "s", digits=2, beside=(AT_LEAST_ONCE,)),
    )
    return rounds.section(
        NAME,
        "Writes from Spark",
        CONDITIONS,
        columns,
        _targets(),
        chart=Chart("rows_per_s", "rows/s, median; points are rounds"),
    )


def _targets() -> list[Target]:
    targets = []
    for durability in DURABILITIES:
        test = _test(None, durability)
        targets.append(
            Target(
                test=test,
                server=EXACTLY_ONCE,
                quantity="seconds",
                limit=MOST_TIMES,
                beside=AT_LEAST_ONCE,
                is_upper=True,
            )
        )
        targets += [
            Target(test=test, server=name, quantity="rows_per_s", limit=LEAST_TIMES_CONNECTOR, beside=CONNECTOR)
            for name in (AT_LEAST_ONCE, EXACTLY_ONCE)
        ]
    return targets


def _test(source: str | None, durability: str) -> str:
    return f"{'batch' if source is None else 'stream'}, {durability}"


def _round(rounds: Rounds, spark: SparkWriter, node: Peer, name: str, durability: str, write: Write) -> None:
    topics = {write.topic: PARTITIONS}
    node.create_topics(topics)
    os.sync()
    seconds = spark.seconds(write)
    _check(node, write)
    rounds.record(_test(write.source, durability), name, rows_per_s=write.rows / seconds, seconds=seconds)
    node.delete_topics(topics)


def _check(node: Peer, write: Write) -> None:
    """Check that the topic has each row, and after a transaction also a marker in each partition of the transaction."""
    with Wire(node.address) as wire:
        found = sum(end_offsets(wire, write.topic, PARTITIONS))
    most = write.rows + (TASKS * PARTITIONS * BATCHES if write.is_exactly_once else 0)
    if not write.rows <= found <= most:
        raise RuntimeError(f"{write.topic} has {found} records and markers, not {write.rows} to {most}")
