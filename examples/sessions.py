"""Sessions with state of our own: the duties of aircraft, from a topic of flights to a topic of duties.

    python examples/sessions.py SERVERS CHECKPOINT

A duty is a series of an aircraft's flights with less than twelve hours between two departures. A duty is written to the
topic `duties` when the next duty begins, exactly once. The open duty of each aircraft is Spark's state, of
transformWithState, in RocksDB: `local_session` sets that. Reads what is there, and goes on there the next time.
"""

import sys
from collections.abc import Iterator

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tailrace.spark.session import local_session

FLIGHT = "tailnum string, time_hour timestamp"
DUTY = "tailnum string, began_s bigint, ended_s bigint, flights int"
"""Times are seconds since 1970, which have no zone that Python and Spark could see in two ways."""
REST_S = 12 * 3600


class Duties(StatefulProcessor):
    """The open duty of each aircraft: its first and its last departure, and the number of its flights."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._open = handle.getValueState("open", "began_s bigint, ended_s bigint, flights int")

    def handleInputRows(self, key: tuple[str], rows: Iterator[Row], timerValues: object) -> Iterator[Row]:
        """The duties that have ended. Rows of a batch come in any order: that of the topic is by their offsets."""
        (tailnum,) = key
        began_s, ended_s, flights = self._open.get() or (None, None, 0)
        for row in sorted(rows, key=lambda row: row.offset):
            if ended_s is not None and row.departure_s - ended_s >= REST_S:
                yield Row(tailnum=tailnum, began_s=began_s, ended_s=ended_s, flights=flights)
                began_s, flights = None, 0
            began_s, ended_s, flights = began_s or row.departure_s, row.departure_s, flights + 1
        self._open.update((began_s, ended_s, flights))

    def close(self) -> None:
        """Nothing is held."""


def find_duties(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    """Start the query. It ends when everything that is there has been read."""
    return (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 50_000)
        .schema("value binary, offset bigint")
        .load()
        .select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("flight"), "offset")
        .select("flight.tailnum", F.unix_timestamp("flight.time_hour").alias("departure_s"), "offset")
        .where("tailnum <> 'NA'")
        .groupBy("tailnum")
        .transformWithState(Duties(), DUTY, outputMode="Append", timeMode="None")
        .select(F.col("tailnum").alias("key"), F.to_json(F.struct("began_s", "ended_s", "flights")).alias("value"))
        .writeStream.format("tailrace")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", "duties")
        .option("exactlyOnce", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    with local_session("duties") as session:
        find_duties(session, *sys.argv[1:]).awaitTermination()
