"""A Spark program of a user, run by spark-submit with a packed environment; it imports nothing of these tests.

    packed_copier.py count SERVERS SOURCE           prints the number of rows and of different values, as JSON
    packed_copier.py copy SERVERS SOURCE TARGET CHECKPOINT BATCH     copies exactly once, and ends when all is copied

Each task reads from the rack of its executor, which the environment variable RACK names.
"""

import json
import sys

from pyspark.sql import SparkSession


def count(spark: SparkSession, servers: str, source: str) -> None:
    rows = (
        spark.read.format("tailrace")
        .option("kafka.bootstrap.servers", servers)
        .option("client.rack.env", "RACK")
        .option("subscribe", source)
        .option("minPartitions", "8")
        .schema("value binary")
        .load()
        .selectExpr("count(*)", "count(DISTINCT value)")
        .first()
    )
    assert rows is not None
    print("FOUND " + json.dumps(list(rows)))  # noqa: T201


def copy(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str, batch: str) -> None:
    (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", servers)
        .option("client.rack.env", "RACK")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
        .select("key", "value")
        .writeStream.format("tailrace")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", target)
        .option("exactlyOnce", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName(sys.argv[1]).getOrCreate()
    (count if sys.argv[1] == "count" else copy)(session, *sys.argv[2:])
    session.stop()
