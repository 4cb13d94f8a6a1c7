"""A Spark driver of two queries over committed records, which run until a file ends them.

    python -m crash.endless_streams SERVERS SOURCE TARGET DIRECTORY

The first writes each batch into DIRECTORY/rows/BATCH.json, the second copies to TARGET exactly once. Both process what
there is and stop when DIRECTORY/end exists. A query that ends before ends the driver with its exception.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

from tailrace.spark.session import local_session

TRIGGER = "500 milliseconds"


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
    while not (place / "end").exists():
        for query in queries:
            if not query.isActive:
                raise query.exception() or RuntimeError(f"{query.id} has ended")
        time.sleep(0.2)
    for query in queries:
        query.processAllAvailable()
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
