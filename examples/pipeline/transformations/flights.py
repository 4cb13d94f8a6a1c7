"""Flights from a topic: a table of all departures, the figures of each carrier and day, and late flights to a topic.

Tables and views are Spark's; the source of `departures` and the sink `late` are Tailrace's, as in any other query.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
SERVERS = spark.conf.get("flights.servers")
assert SERVERS is not None
FLIGHT = "day date, carrier string, flight string, origin string, dest string, dep_delay double"
LATE_MIN = 60


@dp.table
def departures() -> DataFrame:
    """Every flight of the topic, once: a run goes on where the last one stopped."""
    return (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .load()
        .select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight"), "partition", "offset")
        .select("flight.*", "partition", "offset")
    )


@dp.materialized_view
def delays() -> DataFrame:
    """The figures of each carrier and day, computed anew in each run."""
    return (
        spark.read.table("departures")
        .groupBy("carrier", "day")
        .agg(
            F.count(F.lit(1)).alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.mean("dep_delay").alias("mean_delay"),
        )
    )


dp.create_sink("late", "tailrace", {"kafka.bootstrap.servers": SERVERS, "topic": "late", "exactlyOnce": "true"})


@dp.append_flow(target="late")
def late_departures() -> DataFrame:
    """The flights that left an hour late or more, to the topic `late`: each once, whatever Spark repeats."""
    return (
        spark.readStream.table("departures")
        .where(F.col("dep_delay") >= LATE_MIN)
        .select(
            F.col("carrier").alias("key"),
            F.to_json(F.struct("day", "flight", "origin", "dest", "dep_delay")).alias("value"),
        )
    )
