"""A Spark session that reads topics as streams: `python -m benchmarks.spark.streams JAR...` answers requests.

Large batches are aggregated (foreachBatch). Small batches go to Spark's own sink that drops all rows (noop); their sums
are computed on the way, which takes 0.2 us for each row.
"""

import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.spark.program import SparkProgram, serve
from benchmarks.spark.reader import CONNECTORS, Read, aggregates
from benchmarks.spark.topics import SCHEMAS, SparkTopic, body, check

KEPT_PROGRESS: Final = 100_000
"""The number of batches that a query remembers: more than the batches of a run."""
WARM_UPS: Final = 5
"""The number of records before the measured records."""
PAUSE_S: Final = 1.0
_DRIFT_S: Final = 0.037
"""The shift of the sending time from record to record: a source that polls at fixed times must not get every record at
the same point between two polls."""
_TIMEOUT_S: Final = 120
_LOOK_S: Final = 0.1
_OBSERVED = "observed"


class Batches(NamedTuple):
    """A stream that has ended: seconds of each batch and of the whole as Spark says, and the sums of the rows."""

    seconds_each: Sequence[float]
    seconds: float
    sums: Mapping[str, int]


class Arrivals(NamedTuple):
    """Seconds from the sending of each record to the end of the batch with this record, and the sums of the rows."""

    seconds_each: Sequence[float]
    sums: Mapping[str, int]


class Ended(NamedTuple):
    """A batch with rows: the time of its end, by the clock of the machine, and the number of its rows."""

    at_s: float
    rows: int


class SparkStreams(SparkProgram):
    """The process, from the side of its user. Each request raises RuntimeError if it fails."""

    def __init__(self, jars: Sequence[Path]) -> None:
        super().__init__("benchmarks.spark.streams", jars)

    def drain(self, read: Read) -> Batches:
        """Read a whole topic (availableNow)."""
        return Batches(*self.ask(["drain", read]))

    def arrivals(self, read: Read, rows: int, records: int) -> Arrivals:
        """Send so many records, record by record, to a query that has read the `rows` of the topic."""
        return Arrivals(*self.ask(["arrivals", read, rows, records]))

    @contextmanager
    def idle(self, read: Read, topic: SparkTopic) -> Iterator[None]:
        """Measure a running query that has read the topic. Raises RuntimeError also if the query has read anything
        else."""
        self.ask(["start", read, topic.rows])
        yield
        check(read.format, self.ask(["stop"]), topic, read.columns)


def latencies(sent_s: Sequence[float], ended: Sequence[Ended], before: int) -> list[float]:
    """Seconds from each sending, in order, to the end of the first batch with the record. `before`: earlier rows."""
    found, rows = [], -before
    rest = iter(sent_s)
    for batch in ended:
        new = min(batch.rows, max(rows + batch.rows, 0))
        found += [batch.at_s - sent for _, sent in zip(range(new), rest, strict=False)]
        rows += batch.rows
    return found


class Session:
    """The requests, from the side of the session."""

    def __init__(self) -> None:
        self._query: StreamingQuery | None = None
        self._checkpoint = ""

    def answer(self, spark: SparkSession, request: list[Any]) -> object:
        kind, *rest = request
        if kind == "stop":
            sums = self._sums()
            self._stop()
            return sums
        read = Read(*rest[0])
        if kind == "drain":
            return self._drain(spark, read)
        observed = streamed(spark, read).observe(_OBSERVED, *aggregates(read.columns))
        self._start(observed.writeStream.format("noop"))
        self._wait_for(rest[1])
        return self._arrivals(read, *rest[1:]) if kind == "arrivals" else None

    def _start(self, writer: DataStreamWriter) -> StreamingQuery:
        self._checkpoint = tempfile.mkdtemp(prefix="tailrace-bench-")
        self._query = writer.option("checkpointLocation", self._checkpoint).start()
        return self._query

    def _stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._query = None
        self.remove_checkpoint()

    def remove_checkpoint(self) -> None:
        """Remove the last query's checkpoint, if any."""
        shutil.rmtree(self._checkpoint, ignore_errors=True)

    def _drain(self, spark: SparkSession, read: Read) -> Batches:
        found: list[dict[str, int]] = []

        def aggregate(batch: DataFrame, _: int) -> None:
            found.append(batch.agg(*aggregates(read.columns)).collect()[0].asDict())

        began = time.perf_counter()
        writer = streamed(spark, read).writeStream.foreachBatch(aggregate).trigger(availableNow=True)
        query = self._start(writer)
        query.awaitTermination()
        seconds = time.perf_counter() - began
        durations = [each["durationMs"] for each in map(_as_dict, query.recentProgress)]
        self._stop()
        seconds_each = [each["triggerExecution"] / 1_000 for each in durations if "addBatch" in each]
        return Batches(seconds_each, seconds, total(found))

    def _arrivals(self, read: Read, rows: int, records: int) -> Arrivals:
        sent_s = []
        producer = Producer({"bootstrap.servers": read.options["kafka.bootstrap.servers"], "linger.ms": 0})
        for number in range(WARM_UPS + records):
            time.sleep(PAUSE_S + number * _DRIFT_S % (PAUSE_S / 2))
            sent_s.append(time.time())
            key, value = body(number)
            producer.produce(read.options["subscribe"], value, key, partition=0)
            if producer.flush(_TIMEOUT_S):
                raise RuntimeError(f"a record to {read.options['subscribe']} was not acknowledged")
        self._wait_for(rows + len(sent_s))
        ended = [Ended(ended_s(each), each["observedMetrics"][_OBSERVED]["count"]) for each in self._progress()]
        sums = self._sums()
        self._stop()
        return Arrivals(latencies(sent_s, ended, rows)[WARM_UPS:], sums)

    def _progress(self) -> list[dict[str, Any]]:
        """The progress of the batches with rows."""
        assert self._query is not None, "a query has been started"
        return [
            each for each in map(_as_dict, self._query.recentProgress) if _OBSERVED in each.get("observedMetrics", {})
        ]

    def _sums(self) -> dict[str, int]:
        return total(each["observedMetrics"][_OBSERVED] for each in self._progress())

    def _wait_for(self, rows: int) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while (seen := self._sums().get("count", 0)) < rows:
            assert self._query is not None, "a query has been started"
            if fault := self._query.exception():
                raise fault
            if time.monotonic() > deadline:
                raise RuntimeError(f"the query has read {seen} rows in {_TIMEOUT_S} s, not {rows}")
            time.sleep(_LOOK_S)


def total(sums: Iterable[Mapping[str, int | None]]) -> dict[str, int]:
    """The sums of the aggregates of batches. A sum without rows is null."""
    found: Counter[str] = Counter()
    for each in sums:
        found.update({name: value or 0 for name, value in each.items()})
    return dict(found)


def _as_dict(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(progress.json)
    return found


def ended_s(progress: Mapping[str, Any]) -> float:
    """The end of a batch in seconds since 1970, from its log of commits."""
    began = datetime.fromisoformat(progress["timestamp"])
    return began.timestamp() + float(progress["durationMs"]["triggerExecution"]) / 1_000


def streamed(spark: SparkSession, read: Read) -> DataFrame:
    """The frame of a read. The connector takes no schema: its frame always has every column."""
    reader = spark.readStream.format(read.format).options(**read.options)
    schema = SCHEMAS[read.columns]
    return (reader.schema(schema) if schema and read.format != CONNECTORS else reader).load()


if __name__ == "__main__":
    settings = {"spark.sql.streaming.numRecentProgressUpdates": str(KEPT_PROGRESS)}
    session = Session()
    try:
        serve(sys.argv[1:], session.answer, **settings)
    finally:
        session.remove_checkpoint()  # of a query that has failed, or that was not stopped
