"""A Spark driver of two queries over committed records, which run until its stdin is closed.

    python -m crash.spark.endless_streams SERVERS SOURCE TARGET DIRECTORY

The first writes each batch into DIRECTORY/rows/BATCH.json, the second copies to TARGET exactly once. At the end both
process what there is and stop. A query that ends before ends the driver with its exception.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from tailrace.spark.session import local_session

TRIGGER = "500 milliseconds"


is_ending = threading.Event()


def end(queries: list[StreamingQuery]) -> None:
    """Stop the queries behind the last record, when stdin is closed."""
    sys.stdin.read()
    for query in queries:
        query.processAllAvailable()
    is_ending.set()
    for query in queries:
        query.stop()


def main(servers: str, source: str, target: str, directory: str) -> None:
    place = Path(directory)
    settings: dict[str, Any] = {"spark.master": "local[2,8]"}  # a task may fail seven times
    spark = local_session("streams", brief=True, **settings)

    def reader() -> DataStreamReader:
        reading = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", servers)
        reading = reading.option("subscribe", source).option("startingOffsets", "earliest")
        return reading.option("kafka.isolation.level", "read_committed")

    rows = place / "rows"
    rows.mkdir(exist_ok=True)

    def write(batch: DataFrame, number: int) -> None:
        lines = [json.dumps(list(row)) for row in batch.collect()]
        new = rows / f"{number}.new"
        new.write_text("".join(f"{line}\n" for line in lines))
        new.rename(rows / f"{number}.json")  # a batch that comes again replaces it

    written = reader().load().selectExpr("partition", "offset", "CAST(value AS STRING)").writeStream.foreachBatch(write)
    copied = reader().load().select("key", "value").writeStream.format("tailrace")
    copied = copied.option("kafka.bootstrap.servers", servers).option("topic", target).option("exactlyOnce", "true")
    queries: list[StreamingQuery] = [
        query.option("checkpointLocation", str(place / name)).trigger(processingTime=TRIGGER).start()
        for name, query in (("written", written), ("copied", copied))
    ]
    ending = threading.Thread(target=end, args=[queries], daemon=True)
    ending.start()
    spark.streams.awaitAnyTermination()  # raises the exception of a query that has failed
    if not is_ending.is_set():
        raise RuntimeError("a query has ended")
    ending.join()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
