"""A streaming query that reads a topic, and the clock of its reader."""

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from spark.reading import positions
from tailrace.spark.source import ROW

SCHEMA = StructType([field for field in ROW.fields if field.name in ("partition", "offset", "value")])


class Stream:
    """AvailableNow runs of one query: each reads what is there and ends."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, directory: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.topic = topic
        self.directory = directory

    def run(self, **options: object) -> list[dict[str, Any]]:
        """Run to the present end; return the progress of each batch."""
        reader = self.spark.readStream.format("tailrace").option("kafka.bootstrap.servers", self.bootstrap)
        reader = reader.option("subscribe", self.topic).option("startingOffsets", "earliest")
        for name, value in options.items():
            reader = reader.option(name, str(value))
        query = (
            reader.load()
            .writeStream.format("parquet")
            .option("path", str(self.directory / "rows"))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return [json.loads(progress.json) for progress in query.recentProgress]

    def rows(self) -> list[tuple[int, int, str]]:
        return positions(self.spark.read.parquet(str(self.directory / "rows")))

    def offsets(self) -> list[dict[str, dict[str, int]]]:
        """The progress that Spark notes for each batch."""
        files = [path for path in (self.directory / "checkpoint" / "offsets").iterdir() if path.name.isdigit()]
        return [json.loads(path.read_text().splitlines()[2]) for path in sorted(files, key=lambda p: int(p.name))]


class Clock:
    """A clock on which only pauses take time."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds
