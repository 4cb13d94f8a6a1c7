"""Batch reads from Spark: our source, Spark's own connector, and the same rows from memory."""

import os
from contextlib import ExitStack
from typing import Final

from benchmarks.contests import CONNECTOR, connector_jars
from benchmarks.downloads.kafka_jars import CONNECTOR_VERSION
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.spark.program import CORES
from benchmarks.spark.reader import CONNECTORS, CONSTANT, OURS, Read, SparkReader, from_memory, whole
from benchmarks.spark.topics import BATCH_RECORDS, ROWS, VALUE_BYTES, VALUES, SparkTopic, check, fill
from tailrace.protocol.records.compression import Codec

NAME = "spark-read"
DEFAULT = 2_000_000
"""The number of rows of a topic."""
PARTITIONS: Final = 4
MEMORY = "from memory"
CODECS = {"uncompressed": Codec.NONE, "lz4": Codec.LZ4}
LEAST_TIMES_CONNECTOR = {VALUES: 3.0, ROWS: 2.0}
LEAST_TIMES_MEMORY = 0.8

CONDITIONS = (
    f"One Spark session for all sources, local[{CORES}], reads a whole topic of {PARTITIONS} partitions on the same "
    f"node of Tailrace, with batches of {BATCH_RECORDS:,} records with a key and a value of {VALUE_BYTES} B, text such "
    'as JSON. Values: `.schema("value binary")`, which the connector does not take. Full rows: every column but '
    "headers. Each read is an aggregate of its columns, count and sum of lengths or numbers, and fails if the "
    "aggregate is not the topic's. Time: of the whole read, planning included. From memory: a Python data source that "
    "yields the same rows in Arrow batches that a process makes once, uncompressed for both codecs. The node reads "
    "from the page cache; the records were synced before, and a read syncs nothing. Spark's connector: version "
    f"{CONNECTOR_VERSION}."
)


def measure(rounds: Rounds, rows: int) -> Section:
    jars = connector_jars(rounds)
    contestants = {TAILRACE: OURS, **({CONNECTOR: CONNECTORS} if jars else {}), MEMORY: CONSTANT}
    with ExitStack() as stack:
        node = stack.enter_context(running(tailrace("page-cache")))
        spark = stack.enter_context(SparkReader(jars))
        topics = {name: fill(node, name, PARTITIONS, rows, codec) for name, codec in CODECS.items()}
        os.sync()
        for _ in rounds:
            for codec, topic in topics.items():
                for columns in (VALUES, ROWS):
                    for name in rounds.in_turn(list(contestants)):
                        found = spark.read(_read(node, topic, contestants[name], columns))
                        check(name, found.sums, topic, columns)
                        per_s = topic.rows / found.seconds
                        rounds.record(_test(columns, codec), name, rows_per_s=per_s, seconds=found.seconds)
    columns_shown = (
        Column("rows_per_s", "rows/s", beside=(CONNECTOR, MEMORY), shows_rounds=True),
        Column("seconds", "s", digits=2),
    )
    return rounds.section(
        NAME,
        "Batch reads from Spark",
        CONDITIONS,
        columns_shown,
        _targets(),
        chart=Chart("rows_per_s", "rows/s, median; points are rounds"),
    )


def _read(node: Peer, topic: SparkTopic, kind: str, columns: str) -> Read:
    if kind == CONSTANT:
        return Read(kind, columns, from_memory(topic))
    return Read(kind, columns, whole(node.address, topic))


def _test(columns: str, codec: str) -> str:
    return f"{columns}, {codec}"


def _targets() -> list[Target]:
    targets = []
    for columns, least in LEAST_TIMES_CONNECTOR.items():
        for codec in CODECS:
            for beside, limit in ((CONNECTOR, least), (MEMORY, LEAST_TIMES_MEMORY)):
                test = _test(columns, codec)
                targets.append(Target(test=test, server=TAILRACE, quantity="rows_per_s", limit=limit, beside=beside))
    return targets
