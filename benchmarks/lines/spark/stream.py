"""Streams of large batches from Spark: our source and Spark's own connector."""

import os
import statistics
from contextlib import ExitStack
from typing import Final

from benchmarks.contests import CONNECTOR, connector_jars
from benchmarks.downloads.kafka_jars import CONNECTOR_VERSION
from benchmarks.peers.peer import TAILRACE, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.spark.program import CORES
from benchmarks.spark.reader import CONNECTORS, OURS, Read, whole
from benchmarks.spark.streams import SparkStreams
from benchmarks.spark.topics import BATCH_RECORDS, ROWS, VALUE_BYTES, VALUES, check, fill

NAME = "spark-stream"
DEFAULT = 1_000_000
"""The number of rows of a batch."""
BATCHES: Final = 4
PARTITIONS: Final = 4
LEAST_TIMES = 1.3

CONDITIONS = (
    f"One Spark session for both sources, local[{CORES}], reads a whole topic of {PARTITIONS} partitions on the same "
    f"node of Tailrace as a stream of {BATCHES} batches (availableNow, maxOffsetsPerTrigger); each batch is aggregated "
    f"(foreachBatch). The topic, uncompressed, has batches of {BATCH_RECORDS:,} records with a key and a value of "
    f'{VALUE_BYTES} B. Values: `.schema("value binary")`, which the connector does not take. Full rows: every column '
    "but headers. The aggregates, count and sum of lengths or numbers, must be the topic's. Rows/s: of the median "
    "batch, planning and its commit to the checkpoint included. Whole: with the query's start and end. The node reads "
    "from the page cache; the records were synced before, and a read syncs nothing. Spark keeps its checkpoint in a "
    f"local directory. Spark's connector: version {CONNECTOR_VERSION}."
)


def measure(rounds: Rounds, batch_rows: int) -> Section:
    jars = connector_jars(rounds)
    contestants = {TAILRACE: OURS, **({CONNECTOR: CONNECTORS} if jars else {})}
    with ExitStack() as stack:
        node = stack.enter_context(running(tailrace("page-cache")))
        spark = stack.enter_context(SparkStreams(jars))
        topic = fill(node, "stream", PARTITIONS, BATCHES * batch_rows)
        os.sync()
        options = {**whole(node.address, topic), "maxOffsetsPerTrigger": str(topic.rows // BATCHES)}
        for _ in rounds:
            for columns in (VALUES, ROWS):
                for name in rounds.in_turn(list(contestants)):
                    found = spark.drain(Read(contestants[name], columns, options))
                    check(name, found.sums, topic, columns)
                    per_s = topic.rows / BATCHES / statistics.median(found.seconds_each)
                    rounds.record(columns, name, rows_per_s=per_s, seconds=found.seconds)
    columns_shown = (
        Column("rows_per_s", "rows/s", beside=(CONNECTOR,), shows_rounds=True),
        Column("seconds", "s, whole", digits=2, beside=(CONNECTOR,)),
    )
    targets = [
        Target(test=columns, server=TAILRACE, quantity="rows_per_s", limit=LEAST_TIMES, beside=CONNECTOR)
        for columns in (VALUES, ROWS)
    ]
    return rounds.section(
        NAME,
        f"Streams from Spark, {batch_rows:,} rows a batch",
        CONDITIONS,
        columns_shown,
        targets,
        chart=Chart("rows_per_s", "rows/s, median; points are rounds"),
    )
