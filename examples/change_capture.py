"""Change capture: the last value of each key of a topic, in a Delta table.

    python examples/change_capture.py SERVERS TOPIC TABLE CHECKPOINT

Reads what is there, and goes on there the next time. A record sets its key's value, a record without a value (a
tombstone) removes the key. Each batch is one commit of the table, which carries the batch's number: a batch that Spark
repeats changes nothing, whatever was between. The last record of a key decides, by its offset: all records of a key are
in one partition, in order. Needs `pip install 'tailrace[spark]' deltalake`.
"""

import sys
from threading import Event

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tailrace.spark.session import local_session

COLUMNS = pa.schema([("key", pa.string()), ("value", pa.string()), ("offset", pa.int64())])
MOST_RECORDS = 100_000
"""The records of one batch: its changes pass through the driver's memory."""


class Table:
    """A Delta table of keys and their values, written by one query."""

    def __init__(self, path: str) -> None:
        """Creates the table unless the path has a table."""
        if not DeltaTable.is_deltatable(path):
            DeltaTable.create(path, schema=COLUMNS)
        self._path = path
        self._query = ""
        self._is_known = Event()

    def written_by(self, query: StreamingQuery) -> None:
        """Name the query: its id is in its checkpoint. A new checkpoint begins with batch 0 again."""
        self._query = query.id
        self._is_known.set()

    def apply(self, batch: DataFrame, number: int) -> None:
        """Commit the changes of a batch, unless the table has this batch."""
        self._is_known.wait()
        table = DeltaTable(self._path)
        last = table.transaction_version(self._query)
        if last is not None and last >= number:
            return
        changes = batch.groupBy("key").agg(F.max_by("value", "offset").alias("value"), F.max("offset").alias("offset"))
        (
            table.merge(
                changes.toArrow().cast(COLUMNS),
                predicate="t.key = s.key",
                source_alias="s",
                target_alias="t",
                commit_properties=CommitProperties(app_transactions=[Transaction(self._query, number)]),
            )
            .when_matched_delete(predicate="s.value IS NULL")
            .when_matched_update_all()
            .when_not_matched_insert_all(predicate="s.value IS NOT NULL")
            .execute()
        )


def capture(spark: SparkSession, servers: str, topic: str, path: str, checkpoint: str) -> StreamingQuery:
    """Start the query. It ends when everything that is there has been read."""
    table = Table(path)
    query = (
        spark.readStream.format("tailrace")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", MOST_RECORDS)
        .schema("key binary, value binary, offset bigint")
        .load()
        .selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value", "offset")
        .writeStream.foreachBatch(table.apply)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    table.written_by(query)
    return query


if __name__ == "__main__":
    with local_session("change-capture") as session:
        capture(session, *sys.argv[1:]).awaitTermination()
