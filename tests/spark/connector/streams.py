"""Streaming reads of either format: runs that go on from one checkpoint, and what Spark notes in it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from spark.connector.formats import FAULTS, Format, Options, Outcome, Read, Refused, in_order
from tailrace.spark.reading.stream_reader import RefusedStreamReader
from tailrace.spark.source import TailraceDataSource

Json = dict[str, dict[str, int]]


def without_ids(offsets: Json) -> Json:
    """The offsets alone: the ids of topics are names that only we write."""
    return {name: partitions for name, partitions in offsets.items() if "#" not in name}


def _raise_refusal(source: TailraceDataSource) -> None:
    reader = source.streamReader(source.schema())
    if isinstance(reader, RefusedStreamReader):
        reader.initialOffset()


@dataclass(slots=True)
class Query:
    """A query that reads a topic, run after run; each run may have the other format."""

    checkpoint: Path
    batches: list[list[tuple[Any, ...]]] = field(default_factory=list)
    """The rows of each batch that had some."""
    schema: str = ""

    def _keep(self, frame: DataFrame, number: int) -> None:
        self.schema = frame.schema.simpleString()
        if rows := in_order(frame.collect()):
            self.batches.append(rows)

    def start(self, by: Format, given: Options, *, is_patient: bool = True, **trigger: Any) -> StreamingQuery:
        reader = by.spark.readStream.format(by.name).options(**by.options(given, is_patient=is_patient))
        writer = reader.load().writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start()

    def run(self, by: Format, given: Options, *, is_patient: bool = True) -> None:
        """Read all that is there. Raises Spark's exception."""
        self.start(by, given, is_patient=is_patient).awaitTermination()

    def outcome(self, by: Format, given: Options, *, is_patient: bool = True) -> Outcome:
        """The rows of all runs so far, after another run."""
        if refusal := by.refusal(given, _raise_refusal):
            return refusal
        try:
            self.run(by, given, is_patient=is_patient)
        except FAULTS as fault:
            return Refused.by(by.name, fault)
        return Read(self.schema, [row for rows in self.batches for row in rows])

    @property
    def offsets(self) -> list[Json]:
        """The end of each batch as Spark has noted it."""
        files = [path for path in (self.checkpoint / "offsets").glob("*") if path.name.isdigit()]
        return [json.loads(path.read_text().splitlines()[2]) for path in sorted(files, key=lambda path: int(path.name))]
