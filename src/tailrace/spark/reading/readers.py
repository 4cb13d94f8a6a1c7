"""The reader of a batch that Spark calls, and its common part with the reader of a stream.

Readers plan with the planner and read with the client. Spark pickles readers and partitions to its workers, so they
hold plain values only. Connections are made at their use, and kept per process, since Spark reuses its workers.
"""

import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tailrace.client.blocking.ranged_fetch import RangedFetch
from tailrace.client.reader_settings import RangedFetchSettings
from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.avro.formats import check_fastavro
from tailrace.spark.avro.plan import Decoding
from tailrace.spark.given_options import parse_whole_number
from tailrace.spark.offsets import OffsetRange, by_key, cut, pack, ranges_between
from tailrace.spark.pickled_plan import PickledPlan
from tailrace.spark.reading.planning import Planner
from tailrace.spark.reading.source_options import SourceOptions
from tailrace.spark.worker import begin_task

if TYPE_CHECKING:
    from tailrace.spark.avro.batches import BatchDecoder

_log = logging.getLogger(__name__)

LEAST_RECORDS = 50_000
"""The least records of a task over small partitions: reading takes as long as Spark's cost of a task, 20 ms."""

_LOSSES = (
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)


class Work(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)


def _decoder(decoding: Decoding, expected: pa.Schema) -> "BatchDecoder":
    check_fastavro(f"in this worker ({sys.executable})")
    from tailrace.spark.avro.batches import BatchDecoder

    return BatchDecoder(decoding, expected)


class RangeReader(PickledPlan):
    """The common part of both readers: reads planned ranges on an executor."""

    def __init__(self, schema: StructType, options: SourceOptions, decoding: Decoding | None = None) -> None:
        self._schema = schema
        self.options = options
        self._decoding = decoding
        self._drivers_version = __version__

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        begin_task(self._drivers_version)
        # Spark compares the first batch's schema with exactly this schema.
        expected = to_arrow_schema(self._schema, timezone="UTC")
        decoder = None if self._decoding is None else _decoder(self._decoding, expected)
        columns = expected.names if decoder is None else decoder.raw_columns
        fetch = _worker_fetch(self.options)
        # For a plan without ranges Spark still runs one task, with a partition of its own.
        for piece in partition.value or ():
            for batch in self._read_range(fetch, piece, columns):
                if decoder is not None:
                    yield from decoder.decode(batch, str(piece.topic_partition))
                else:
                    yield batch if batch.schema.equals(expected) else batch.cast(expected)

    def _read_range(self, fetch: RangedFetch, piece: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The range; without failOnDataLoss, records that were deleted since the plan are left out."""
        start = piece.start
        while start < piece.end:
            try:
                yield from fetch.arrow(
                    piece.topic_partition,
                    start,
                    piece.end,
                    columns=columns,
                    topic_id=piece.topic_id,
                    key_ranges=piece.key_ranges,
                )
                return
            except KafkaError as fault:
                if fault.code == ErrorCode.REQUEST_TIMED_OUT:
                    raise KafkaError(fault.code, f"{fault.detail}; {self._way_to_brokers()}") from None
                if fault.code not in _LOSSES:
                    raise
                start = self._first_after_loss(piece, start, fault)

    def _way_to_brokers(self) -> str:
        servers = self.options.cluster.servers
        return (
            f"`tailrace doctor --spark --bootstrap-server {servers}` shows the brokers that each executor reaches; "
            "option kafkaConsumer.pollTimeoutMs is the time that a task waits"
        )

    def _first_after_loss(self, piece: OffsetRange, start: int, loss: KafkaError) -> int:
        planner = Planner(self.options)
        try:
            if loss.code == ErrorCode.INCONSISTENT_TOPIC_ID:
                first_left = piece.end
            else:
                first_left = _first_left(planner.span(piece.topic_partition), piece, start, loss)
            planner.report_loss(loss.detail)
        finally:
            planner.close()
        return first_left

    def plan(self, ranges: list[OffsetRange]) -> list[InputPartition]:
        """The ranges as the work of tasks."""
        options = self.options
        if options.key_ranges_per_partition > 1:
            # Not cut by offsets: a key stays in one task, in order.
            return [Work((piece,)) for piece in by_key(ranges, options.key_ranges_per_partition)]
        pieces = cut(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
        # Small partitions share tasks. The driver does not know the cores of its cluster, so that the number of tasks
        # depends on the records; a few tasks are always there, for the cores of this machine.
        records = sum(piece.size for piece in pieces)
        tasks = max(_slots(), options.min_partitions, records // LEAST_RECORDS)
        if options.max_records_per_partition:
            return [Work((piece,)) for piece in pieces]
        return [Work(work) for work in pack(pieces, tasks=tasks)]


def _first_left(span: tuple[int, int] | None, piece: OffsetRange, start: int, loss: KafkaError) -> int:
    """The next offset of the range, given the log's start and end now. Raises `loss` if the log has the offset after
    all."""
    if span is None:
        if loss.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise loss  # one answer without the partition is no proof
        return piece.end
    first, last = span
    # No record comes twice: the records read before the loss lie below the new log start.
    if first > start:
        return first
    # The topic was created again and is shorter: the new topic has no record of this range.
    if last < start:
        return piece.end
    raise loss


_TASKS = "TAILRACE_SPARK_TASKS"


def _slots() -> int:
    """The number of tasks that run at once on one machine, since the planner runs without a Spark context.

    Raises KafkaError(INVALID_CONFIG) for a TAILRACE_SPARK_TASKS that is no number.
    """
    given = os.environ.get(_TASKS, "").strip()  # empty: not set, as is usual for variables
    if not given:
        return os.cpu_count() or 1
    tasks = parse_whole_number(given)
    if not tasks:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{_TASKS} must be a whole number above 0, not {given!r}")
    return tasks


_without_rack: set[str] = set()
"""The variables of `client.rack.env` that this process does not have, and has reported."""


def _rack_here(options: SourceOptions) -> str:
    """The rack of this executor; empty, with a warning, if its environment does not have the variable: then the leaders
    serve."""
    if options.client_rack_env is None:
        return options.client_rack
    rack = os.environ.get(options.client_rack_env, "")
    if not rack and options.client_rack_env not in _without_rack:
        _without_rack.add(options.client_rack_env)
        _log.warning(
            "option client.rack.env: this executor has no %s and reads from the leaders; set it in its environment, or "
            "for all by spark.executorEnv.%s",
            options.client_rack_env,
            options.client_rack_env,
        )
    return rack


_fetches: dict[tuple[int, RangedFetchSettings], RangedFetch] = {}


def _worker_fetch(options: SourceOptions) -> RangedFetch:
    """This process's connections. The process id is in the key, since Spark forks its workers."""
    rack = _rack_here(options)
    on_corrupt = "skip" if options.on_corrupt == "skip" else "raise"
    settings = RangedFetchSettings.on(
        options.cluster.settings(),
        isolation=options.isolation,
        timeout_ms=options.fetch_timeout_ms,
        rack=rack,
        on_corrupt=on_corrupt,
    )
    key = os.getpid(), settings
    if key not in _fetches:
        _fetches[key] = RangedFetch.of(settings)
    return _fetches[key]


class TailraceReader(RangeReader, DataSourceReader):
    """A batch read."""

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self.options)
        try:
            partitions = planner.partitions()
            start = planner.resolve(self.options.starting, partitions, is_start=True)
            end = planner.resolve(self.options.ending, partitions, is_start=False)
            end = planner.check_batch(start, end)
            start = planner.check_loss(start, end)
            topic_ids = planner.topic_ids
        finally:
            planner.close()
        return self.plan(ranges_between(start, end, topic_ids))
