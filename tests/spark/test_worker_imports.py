"""A new worker of Spark's has loaded only what a read needs when its first task ends."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

# In a session of its own, since other tests leave workers that have loaded more; its classes go to workers by value.
PROGRAM = """
import gc
import sys
from pyspark.sql.datasource import InputPartition
from tailrace.spark.reading.readers import TailraceReader
from tailrace.spark.session import local_session
from tailrace.spark.source import TailraceDataSource
from tailrace.spark.reading.source_options import parse_source_options

class Watched(TailraceDataSource):
    @classmethod
    def name(cls):
        return "watched"

    def reader(self, schema):
        return WatchedReader(schema, parse_source_options(
            {name: value for name, value in self.options.items() if name != "seen"}, streaming=False
        ), self.options["seen"])

class WatchedReader(TailraceReader):
    def __init__(self, schema, options, seen):
        super().__init__(schema, options)
        self.seen = seen

    def read(self, partition):
        yield from super().read(partition)
        with open(self.seen, "a") as file:
            file.write(" ".join([str(gc.get_freeze_count()), *sorted(sys.modules)]) + chr(10))

bootstrap, topic, seen = sys.argv[1:]
spark = local_session("imports", brief=True)
spark.dataSource.register(Watched)
reader = spark.read.format("watched").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
print(reader.option("includeHeaders", "true").option("seen", seen).load().count())
spark.stop()
"""


def test_the_first_batch_of_a_new_worker_imports_no_pandas(
    spark: SparkSession, send: Callable[..., None], bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """Pandas is there for Spark's own sake, and takes 0.4 s; `spark`: the test is skipped where there is no Java."""
    send(range(5))
    seen = tmp_path / "seen"
    command = [sys.executable, "-c", PROGRAM, bootstrap, topic, str(seen)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert ended.stdout.strip() == "5", ended.stderr[-3000:]
    workers = [line.split() for line in seen.read_text().splitlines()]
    assert workers
    for frozen, *modules in workers:
        assert int(frozen) > 10_000, "PySpark collects garbage behind each task, and need not look at modules"
        assert {"pyarrow", "tailrace.spark.reading.readers"} <= set(modules)
        assert "pandas" not in modules
