"""A Spark session that writes to topics, in a process of its own, so that its JVM goes when its line is over.

`python -m benchmarks.spark_writer JAR...` reads writes, a JSON array a line, and answers each with its seconds.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from pyspark.sql import DataFrame, SparkSession

from tailrace.spark.session import local_session

CORES = 2
TASKS = 4
VALUE_BYTES = 100
BATCHES = 4
"""Of a stream."""
_STOP_TIMEOUT_S = 60


class Write(NamedTuple):
    """One write: rows that Spark makes, or the rows of a topic as a stream that ends."""

    format: str
    address: str
    topic: str
    rows: int
    is_exactly_once: bool = False
    source: str | None = None


class SparkWriter:
    """The process, from the side of its user."""

    def __init__(self, jars: Sequence[Path]) -> None:
        self._jars = jars

    def __enter__(self) -> Self:
        self._errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "benchmarks.spark_writer", *map(str, self._jars)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        return self

    def seconds(self, write: Write) -> float:
        """Do it. Raises RuntimeError with the last lines of the process if it fails."""
        assert self._process.stdin is not None, "stdin is a pipe"
        assert self._process.stdout is not None, "stdout is a pipe"
        self._process.stdin.write(json.dumps(write) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._process.wait(_STOP_TIMEOUT_S)
            self._errors.seek(0)
            raise RuntimeError(f"{write} failed\n{self._errors.read()[-3000:]}")
        return float(answer)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def _write(spark: SparkSession, write: Write) -> None:
    options = {"kafka.bootstrap.servers": write.address, "topic": write.topic}
    if write.is_exactly_once:
        options["exactlyOnce"] = "true"
    if write.source is None:
        # The same value in each row: making rows is not what is measured.
        columns = ("CAST(id AS STRING) AS key", f"repeat('x', {VALUE_BYTES}) AS value")
        frame = spark.range(0, write.rows, 1, TASKS).selectExpr(*columns)
        frame.write.format(write.format).options(**options).mode("append").save()
    else:
        _copy(_stream(spark, write, write.source), write.format, options)


def _stream(spark: SparkSession, write: Write, source: str) -> DataFrame:
    reader = spark.readStream.format(write.format).option("kafka.bootstrap.servers", write.address)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest")
    return reader.option("maxOffsetsPerTrigger", str(write.rows // BATCHES)).load().select("key", "value")


def _copy(frame: DataFrame, kind: str, options: dict[str, str]) -> None:
    checkpoint = tempfile.mkdtemp(prefix="tailrace-bench-")
    try:
        writer = frame.writeStream.format(kind).options(**options).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def main(jars: Sequence[str]) -> None:
    settings: dict[str, Any] = {"spark.jars": ",".join(jars)}
    spark = local_session("bench", cores=CORES, **settings)
    for line in sys.stdin:
        write = Write(*json.loads(line))
        began = time.perf_counter()
        _write(spark, write)
        print(time.perf_counter() - began, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
