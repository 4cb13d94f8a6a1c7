"""CPU of a Spark query that has nothing to read: our source and Spark's own connector."""

import time
from contextlib import ExitStack
from typing import Final

from benchmarks.contests import CONNECTOR, connector_jars
from benchmarks.downloads.kafka_jars import CONNECTOR_VERSION
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.spark.program import CORES
from benchmarks.spark.reader import CONNECTORS, OURS, Read, whole
from benchmarks.spark.streams import SparkStreams
from benchmarks.spark.topics import VALUES, fill

NAME = "spark-idle"
DEFAULT = 30
"""The number of measured seconds."""
SETTLE_S: Final = 10.0
PARTITIONS: Final = 4
MOST_TIMES = 0.3
_TEST = "an idle query"

CONDITIONS = (
    f"One Spark session for both sources, local[{CORES}]: a query with the default trigger has read a topic of "
    f"{PARTITIONS} partitions on the same node of Tailrace into Spark's sink noop, and no more records are written to "
    f"the topic. After {SETTLE_S:g} s the CPU time is measured for so many seconds: of the driver with its JVM and all "
    "Python processes of Spark, and of the node. The count and the sum of lengths of all rows that were read must be "
    f"the topic's. Nothing is read from a disk or synced meanwhile. Spark's connector: version {CONNECTOR_VERSION}."
)


def measure(rounds: Rounds, seconds: int) -> Section:
    jars = connector_jars(rounds)
    contestants = {TAILRACE: OURS, **({CONNECTOR: CONNECTORS} if jars else {})}
    with ExitStack() as stack:
        node = stack.enter_context(running(tailrace("page-cache")))
        spark = stack.enter_context(SparkStreams(jars))
        topic = fill(node, "idle", PARTITIONS, 1)
        options = whole(node.address, topic)
        for _ in rounds:
            for name in rounds.in_turn(list(contestants)):
                with spark.idle(Read(contestants[name], VALUES, options), topic):
                    _measure(rounds, spark, node, name, seconds)
    columns = (
        Column("cores", "cores, both", digits=3, beside=(CONNECTOR,), shows_rounds=True),
        Column("driver_cores", "cores, driver", digits=3, beside=(CONNECTOR,)),
        Column("broker_cores", "cores, broker", digits=3, beside=(CONNECTOR,)),
    )
    target = Target(test=_TEST, server=TAILRACE, quantity="cores", limit=MOST_TIMES, beside=CONNECTOR, is_upper=True)
    return rounds.section(
        NAME,
        f"An idle Spark query, {seconds} s",
        CONDITIONS,
        columns,
        [target],
        chart=Chart("cores", "cores of driver and broker, median; points are rounds"),
    )


def _measure(rounds: Rounds, spark: SparkStreams, node: Peer, name: str, seconds: int) -> None:
    time.sleep(SETTLE_S)
    driver, broker, began = spark.cpu_seconds(), node.process.cpu_seconds(), time.perf_counter()
    time.sleep(seconds)
    driver, broker = spark.cpu_seconds() - driver, node.process.cpu_seconds() - broker
    passed = time.perf_counter() - began
    rounds.record(
        _TEST,
        name,
        cores=(driver + broker) / passed,
        driver_cores=driver / passed,
        broker_cores=broker / passed,
    )
