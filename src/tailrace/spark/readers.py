"""The readers that Spark calls: they plan with the planner and read with the client.

Spark pickles readers and partitions to its workers, so they hold plain values only. Connections are made where they are
used, and kept per process, since Spark reuses its workers.
"""

import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tailrace.client.blocking import RangedFetch
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.offsets import (
    OffsetRange,
    cut,
    from_json_dict,
    limit_rows,
    pack,
    ranges_between,
    to_json_dict,
)
from tailrace.spark.planning import Planner
from tailrace.spark.source_options import SourceOptions

_log = logging.getLogger(__name__)

IDLE_POLL_S = 0.05
IDLE_WAIT_S = 0.25
"""An idle stream calls `latestOffset` without pause. Waiting in it, 250 ms at most, saves CPU time; a look every 50 ms
starts a batch soon after records have come."""


_LOSSES = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Work(InputPartition):
    """The ranges that one task reads."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)


class _RangeReader:
    """The common part of both readers: reads planned ranges on an executor."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark compares the first batch's schema with exactly this one.
        expected = to_arrow_schema(self._schema, timezone="UTC")
        fetch = _worker_fetch(self._options)
        # For a plan without ranges Spark still runs one task, with a partition of its own.
        for one in partition.value or ():
            for batch in self._read_range(fetch, one, expected.names):
                yield batch if batch.schema.equals(expected) else batch.cast(expected)

    def _read_range(self, fetch: RangedFetch, one: OffsetRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The range; without failOnDataLoss, records that were deleted since the plan are left out."""
        start = one.start
        while start < one.end:
            try:
                yield from fetch.arrow(one.topic_partition, start, one.end, columns=columns)
                return
            except KafkaError as fault:
                if fault.code not in _LOSSES:
                    raise
                start = self._first_after_loss(one, start, fault)

    def _first_after_loss(self, one: OffsetRange, start: int, loss: KafkaError) -> int:
        planner = Planner(self._options)
        try:
            first_left = _first_left(planner.span(one.topic_partition), one, start, loss)
            planner.report_loss(loss.detail)
        finally:
            planner.close()
        return first_left

    def _plan(self, ranges: list[OffsetRange]) -> list[InputPartition]:
        options = self._options
        pieces = cut(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition)
        # Small partitions share tasks up to the number of cores, unless the user asked for more tasks.
        tasks = max(_slots(), options.min_partitions)
        if options.max_records_per_partition:
            return [Work((piece,)) for piece in pieces]
        return [Work(work) for work in pack(pieces, tasks=tasks)]


def _first_left(span: tuple[int, int] | None, one: OffsetRange, start: int, loss: KafkaError) -> int:
    """The next offset of the range, given the log's start and end now. Raises the loss if the log has the offset."""
    if span is None:
        if loss.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise loss  # one answer without the partition is no proof
        return one.end
    first, last = span
    # No record comes twice: those read before the loss lie below the new log start.
    if first > start:
        return first
    # The topic was created again and is shorter: it has no record of this range.
    if last < start:
        return one.end
    raise loss


def _slots() -> int:
    """The number of tasks that run at once: an estimate, since the planner runs without a Spark context."""
    return int(os.environ.get("TAILRACE_SPARK_TASKS", "0")) or os.cpu_count() or 1


_fetches: dict[tuple[int, str, int, str, str], RangedFetch] = {}


def _worker_fetch(options: SourceOptions) -> RangedFetch:
    """This process's connections. The process id is in the key, since Spark forks its workers."""
    key = (os.getpid(), options.bootstrap_servers, options.fetch_timeout_ms, options.isolation, options.client_rack)
    if key not in _fetches:
        _fetches[key] = RangedFetch(
            options.bootstrap_servers,
            isolation=options.isolation,
            timeout_ms=options.fetch_timeout_ms,
            rack=options.client_rack,
        )
    return _fetches[key]


class TailraceReader(_RangeReader, DataSourceReader):
    """A batch read."""

    def partitions(self) -> list[InputPartition]:
        planner = Planner(self._options)
        try:
            partitions = planner.partitions()
            start = planner.resolve(self._options.starting, partitions, is_start=True)
            end = planner.resolve(self._options.ending, partitions, is_start=False)
            end = planner.check_batch(start, end)
            start = planner.check_loss(start, end)
        finally:
            planner.close()
        return self._plan(ranges_between(start, end))


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream that is not read: it raises the reason at Spark's first question.

    Spark 4.3 hides an exception of `streamReader` itself behind an UnboundLocalError of its own.
    """

    def __init__(self, refusal: KafkaError) -> None:
        self._refusal = refusal

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the reason."""
        raise self._refusal

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802
        """Raise the reason."""
        raise self._refusal

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the reason."""
        raise self._refusal

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:  # noqa: N802
        """Raise the reason."""
        raise self._refusal

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the reason."""
        raise self._refusal


class TailraceStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Spark keeps it for the life of the query on the driver and pickles it to the tasks."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        super().__init__(schema, options)
        self._planner: Planner | None = None
        self._initial: dict[TopicPartition, int] | None = None
        self._target: dict[TopicPartition, int] | None = None
        self._latest: dict[TopicPartition, int] = {}
        self._waiting_since = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    @property
    def _plan_with(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options)
        return self._planner

    def initialOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802
        # Spark calls this before every trigger until a batch has run: a later offset would leave out records.
        if self._initial is None:
            partitions = self._plan_with.partitions()
            self._initial = self._plan_with.resolve(self._options.starting, partitions, is_start=True)
        return to_json_dict(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadMaxRows(limit) if limit else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._plan_with.ends()

    def latestOffset(self, start: Mapping[str, Mapping[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:  # noqa: N802
        """The end of the next batch; `start` if there are no records."""
        at = from_json_dict(start, what="the checkpoint's offsets")
        end = self._wait_for_records(at)
        self._plan_with.check_end(at, end)
        # A deleted topic keeps its offset; a new partition begins at its first record, without rows.
        found = self._plan_with.earliest(tp for tp in end if tp not in at)
        end = {**at, **{tp: max(offset, at[tp]) for tp, offset in end.items() if tp in at}, **found}
        if not self._is_enough(at, end):
            return to_json_dict(at)
        self._waiting_since = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            end = limit_rows(at, end, limit.max_rows)
        return to_json_dict(end)

    def _wait_for_records(self, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if self._target is not None:
            return self._target
        deadline = time.monotonic() + IDLE_WAIT_S
        while True:
            self._latest = self._plan_with.ends()
            has_news = any(offset > at.get(tp, -1) for tp, offset in self._latest.items())
            if (has_news and self._is_enough(at, self._latest)) or time.monotonic() >= deadline:
                return self._latest
            time.sleep(IDLE_POLL_S)

    def _is_enough(self, at: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> bool:
        """Whether minOffsetsPerTrigger is met or maxTriggerDelay has passed since the last batch."""
        least = self._options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return True
        backlog = sum(max(0, end[tp] - at.get(tp, end[tp])) for tp in end)
        waited_ms = (time.monotonic() - self._waiting_since) * 1000
        return backlog >= least or waited_ms >= self._options.max_trigger_delay_ms

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        latest = self._target or self._latest
        return to_json_dict(latest) if latest else None

    def partitions(
        self, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
    ) -> list[InputPartition]:
        since, until = from_json_dict(start), from_json_dict(end)
        seen = self._target or self._latest
        if any(offset > max(seen.get(tp, -1), since.get(tp, offset)) for tp, offset in until.items()):
            # Spark repeats a batch after a restart: its topics may have been deleted or created again meanwhile.
            until = self._plan_with.check_plan(since, until)
        since = self._plan_with.check_loss(since, until)
        return self._plan(ranges_between(since, until))

    def commit(self, end: Mapping[str, Mapping[str, int]]) -> None:
        """Commit `end` for the group, for lag tools to show: Spark will not read the offsets before it again.

        Spark calls this one batch late, and never for the last batch of a query, so the offsets are for display only.
        """
        group = self._options.group_id
        if group is not None:
            try:
                self._plan_with.show_progress(group, from_json_dict(end))
            except KafkaError as fault:
                _log.warning("progress of group %s is not shown: %s", group, fault)

    def stop(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None
