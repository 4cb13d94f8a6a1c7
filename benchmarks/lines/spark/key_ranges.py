"""A Spark job that works on each row in Python: one task for a partition, and eight tasks by key ranges."""

import os
from contextlib import ExitStack
from typing import Final

from benchmarks.peers.peer import running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.spark.program import CORES
from benchmarks.spark.reader import CONSTANT, OURS, Read, SparkReader, from_memory, whole
from benchmarks.spark.topics import BATCH_RECORDS, DISTINCT_BATCHES, KEYED, VALUE_BYTES, check, fill

NAME = "spark-key-ranges"
DEFAULT = 1_000_000
"""The number of rows of the partition."""
PYTHON_US: Final = 5
TASKS: Final = 8
ONE = "one task"
RANGES = f"{TASKS} tasks by key ranges"
MEMORY_ONE, MEMORY = "one task, from memory", f"{TASKS} tasks, from memory"
"""The same rows from a Python source that keeps the rows in memory: they show the gain of more tasks within Spark
itself."""
LEAST_TIMES_ONE = 1.6
_TEST = f"{PYTHON_US} us of Python a row"

CONDITIONS = (
    f"One Spark session, local[{CORES}], reads keys and values of {VALUE_BYTES} B of one partition, uncompressed, with "
    f"{DISTINCT_BATCHES * BATCH_RECORDS:,} keys, and spends {PYTHON_US} us of CPU time in Python on each row "
    f"(mapInArrow). {RANGES}: keyRangesPerPartition={TASKS}. The count and the sum of lengths that the job computes in "
    "its tasks must be the partition's. Time: of the whole job, planning included. Spark and the node share the "
    "cores. The node reads from the page cache; the records were synced before, and a read syncs nothing. From "
    f"memory: a Python data source of the same rows, in one task and in {TASKS} tasks; it shows how far Spark itself "
    "limits any source."
)


def measure(rounds: Rounds, rows: int) -> Section:
    with ExitStack() as stack:
        node = stack.enter_context(running(tailrace("page-cache")))
        spark = stack.enter_context(SparkReader([]))
        topic = fill(node, "keyed", 1, rows)
        os.sync()
        options = whole(node.address, topic)
        in_tasks = topic._replace(partitions=TASKS, rows_each=topic.rows // TASKS)
        reads = {
            ONE: Read(OURS, KEYED, options, PYTHON_US),
            RANGES: Read(OURS, KEYED, {**options, "keyRangesPerPartition": str(TASKS)}, PYTHON_US),
            MEMORY_ONE: Read(CONSTANT, KEYED, from_memory(topic), PYTHON_US),
            MEMORY: Read(CONSTANT, KEYED, from_memory(in_tasks), PYTHON_US),
        }
        for _ in rounds:
            for name in rounds.in_turn(list(reads)):
                found = spark.read(reads[name])
                check(name, found.sums, topic, KEYED)
                rounds.record(_TEST, name, rows_per_s=topic.rows / found.seconds, seconds=found.seconds)
    columns = (
        Column("rows_per_s", "rows/s", beside=(ONE, MEMORY_ONE), shows_rounds=True),
        Column("seconds", "s", digits=2),
    )
    target = Target(test=_TEST, server=RANGES, quantity="rows_per_s", limit=LEAST_TIMES_ONE, beside=ONE)
    return rounds.section(
        NAME,
        "A partition in several tasks of Spark",
        CONDITIONS,
        columns,
        [target],
        chart=Chart("rows_per_s", "rows/s, median; points are rounds"),
    )
