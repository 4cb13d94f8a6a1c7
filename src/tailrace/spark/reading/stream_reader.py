"""The reader of a stream that Spark calls: it plans batch after batch on the driver, and its copies read in tasks."""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from math import inf
from types import TracebackType
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark.avro.plan import Decoding
from tailrace.spark.offsets import Offsets, Positions, bytes_between, limit_bytes, limit_rows, ranges_between
from tailrace.spark.reading.look_pace import IdleWait, LookPace
from tailrace.spark.reading.planning import Planner
from tailrace.spark.reading.readers import RangeReader
from tailrace.spark.reading.record_weights import RecordWeights
from tailrace.spark.reading.source_options import SourceOptions

_log = logging.getLogger(__name__)

REST_S = 30.0
"""The pause after a failed commit of progress: no batch waits for such a commit during the pause."""

LARGE_BATCH_BYTES = 1_000_000_000
_FEW_RECORDS = 1_000
"""A batch with at most this number of records is not measured: the largest records that a topic takes by default have 1
MB."""

Json = Mapping[str, Mapping[str, int]]
"""Positions in Spark's form."""


def say_nothing_of_a_closed_socket() -> None:
    """Let this process end without a traceback if Spark has closed its socket. Spark ends the runner of a query like
    this.

    The runner waits for Spark's next call or sends an answer, and takes the closed socket for a failure. To report that
    failure the runner writes to the socket once more, twice in vain: a chain of three tracebacks for each query that
    ends, without anything that a user could do. A fault of the reader itself goes to Spark as an answer, and Spark
    shows it.

    `stop` calls this while the exception that has ended the runner is on its way; without an exception nothing is done.
    """
    if isinstance(sys.exception(), EOFError | ConnectionError):
        before = sys.excepthook

        def hook(kind: type[BaseException], fault: BaseException, trace: TracebackType | None) -> None:
            if not isinstance(fault, ConnectionError | EOFError):
                before(kind, fault, trace)

        sys.excepthook = hook


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a stream that is not read: it raises the reason at Spark's first call.

    Spark 4.3 hides an exception of `streamReader` itself behind an UnboundLocalError of its own.
    """

    def __init__(self, refusal: KafkaError) -> None:
        self._refusal = refusal

    def prepareForTriggerAvailableNow(self) -> None:
        """Raise the reason."""
        raise self._refusal

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """Raise the reason."""
        raise self._refusal

    def getDefaultReadLimit(self) -> ReadLimit:
        """Raise the reason."""
        raise self._refusal

    def latestOffset(self, start: Json, limit: ReadLimit) -> dict[str, dict[str, int]]:
        """Raise the reason."""
        raise self._refusal

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the reason."""
        raise self._refusal


class TailraceStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Spark keeps it for the life of the query on the driver and pickles it to the tasks."""

    def __init__(self, schema: StructType, options: SourceOptions, decoding: Decoding | None = None) -> None:
        super().__init__(schema, options, decoding)
        self._planner: Planner | None = None
        self._initial: Positions | None = None
        self._target: Positions | None = None
        self._latest = Positions({}, {})
        self._waiting_since = -inf
        """The time since which a batch waits for minOffsetsPerTrigger. The first batch of a run does not wait, as with
        the connector."""
        self._pace = LookPace(time.monotonic())
        self._idle = IdleWait()
        self._weights: RecordWeights | None = None
        self._is_first = True
        self._shown: Offsets = {}
        self._shows_from = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None, "_weights": None}

    @property
    def _plan_with(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self.options)
        return self._planner

    @property
    def _weigh_with(self) -> RecordWeights:
        if self._weights is None:
            self._weights = RecordWeights(self.options)
        return self._weights

    def initialOffset(self) -> dict[str, dict[str, int]]:
        # Spark calls this before every trigger until a batch has run: a later offset would leave out records.
        if self._initial is None:
            partitions = self._plan_with.partitions()
            start = self._plan_with.resolve(self.options.starting, partitions, is_start=True)
            self._initial = Positions(start, self._plan_with.topic_ids)
        return self._initial.to_json_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        rows, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        if rows:
            return ReadMaxRows(rows)  # Spark has no limit of both; the limit of bytes holds too
        return ReadMaxBytes(size) if size else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._plan_with.ends()

    def latestOffset(self, start: Json, limit: ReadLimit) -> dict[str, dict[str, int]]:
        """The end of the next batch; `start` if there are no records."""
        longest_wait_s = self._idle.begin(time.monotonic())
        before = Positions.from_json_dict(start)
        self._show_progress(before.offsets)
        now, has_waited = self._wait_for_records(before.offsets, longest_wait_s)
        end = self._next_end(before, now, limit)
        if has_waited:  # noted last: the requests after the wait are no wait of another source
            self._idle.ended(time.monotonic())
        return end.to_json_dict()

    def _next_end(self, before: Positions, now: Positions, limit: ReadLimit) -> Positions:
        """The end of the next batch by the ends of the logs. Without records: `before`, or its place in logs that were
        made anew."""
        at = self._plan_with.check_topics(before, now)
        if at is None:
            return before
        at = at._replace(offsets=self._plan_with.check_end(at.offsets, now.offsets))
        end = self._end_of_batch(at.offsets, now.offsets)
        if not self._is_enough(at.offsets, end):
            return at
        self._waiting_since = time.monotonic()
        end = self._limited(at.offsets, end, limit)
        # New ids without records are no reason for a batch.
        topic_ids = at.topic_ids if end == at.offsets else {**at.topic_ids, **now.topic_ids}
        return Positions(end, topic_ids)

    def _limited(self, at: Offsets, end: dict[TopicPartition, int], limit: ReadLimit) -> dict[TopicPartition, int]:
        """The end of the batch within the limits; without a limit, a large first batch is logged as a warning."""
        size = self.options.max_bytes_per_trigger
        if isinstance(limit, ReadAllAvailable):
            if self._is_first and sum(end[tp] - at.get(tp, end[tp]) for tp in end) > _FEW_RECORDS:
                self._warn_of_size(at, end)
        elif size is not None:
            end = limit_bytes(at, end, self._weigh_with.of(at, end), size)
        self._is_first = self._is_first and end == at
        return limit_rows(at, end, limit.max_rows) if isinstance(limit, ReadMaxRows) else end

    def _warn_of_size(self, at: Offsets, end: Offsets) -> None:
        weights = self._weigh_with.of(at, end)
        size = bytes_between(at, end, weights)
        if size > LARGE_BATCH_BYTES:
            _log.warning(
                "the first batch has about %.1f GB in %d records: limit batches by maxBytesPerTrigger or "
                "maxOffsetsPerTrigger if the executors have less memory",
                size / 1e9,
                sum(end[tp] - at[tp] for tp in weights),
            )

    def _end_of_batch(self, at: Offsets, now: Offsets) -> dict[TopicPartition, int]:
        # A deleted topic keeps its offset; a new partition begins at its first record, without rows.
        found = self._plan_with.first_of_new(tp for tp in now if tp not in at)
        return {**at, **{tp: max(offset, at[tp]) for tp, offset in now.items() if tp in at}, **found}

    def _wait_for_records(self, at: Offsets, longest_s: float) -> tuple[Positions, bool]:
        """The ends of the logs, and whether the whole wait has passed without records."""
        if self._target is not None:
            return self._target, False
        deadline = time.monotonic() + longest_s
        while (look := self._pace.next_look) <= deadline:
            time.sleep(max(0.0, look - time.monotonic()))
            self._latest = self._plan_with.ends()
            latest = self._latest.offsets
            is_ahead = any(offset > at.get(tp, -1) for tp, offset in latest.items())
            has_news = is_ahead and self._is_enough(at, latest)
            self._pace.looked(time.monotonic(), has_news=has_news)
            if has_news:
                return self._latest, False
        time.sleep(max(0.0, deadline - time.monotonic()))
        return self._latest, longest_s > 0

    def _is_enough(self, at: Offsets, end: Offsets) -> bool:
        """Whether minOffsetsPerTrigger is met, or maxTriggerDelay has passed since the last batch of this run."""
        least = self.options.min_offsets_per_trigger
        if least is None or self._target is not None:
            return True
        backlog = sum(max(0, end[tp] - at.get(tp, end[tp])) for tp in end)
        waited_ms = (time.monotonic() - self._waiting_since) * 1000
        return backlog >= least or waited_ms >= self.options.max_trigger_delay_ms

    def _show_progress(self, offsets: Offsets) -> None:
        """Commit for the group the offsets that the query has finished, for lag tools to show.

        Spark asks for the end of the next batch from the end of the finished batch, also at the start of a run and
        after the last batch of a triggered run. Its own call `commit` comes one batch late, and never for the last
        batch of a query. After a fault nothing is committed for REST_S, except for the end of a triggered run.
        """
        group = self.options.group_id
        if group is None or offsets == self._shown:
            return
        if time.monotonic() < self._shows_from and not self._is_at_target(offsets):
            return
        try:
            self._plan_with.show_progress(group, offsets)
            self._shown = offsets
        except KafkaError as fault:
            _log.warning("progress of group %s is not shown for %d s: %s", group, REST_S, fault)
            self._shows_from = time.monotonic() + REST_S

    def _is_at_target(self, offsets: Offsets) -> bool:
        """Whether a triggered run at these offsets has no batch left."""
        return self._target is not None and all(offsets.get(tp, -1) >= at for tp, at in self._target.offsets.items())

    def commit(self, end: Json) -> None:
        """Note that Spark plans a batch; Spark calls this for every source of the query, with or without records."""
        self._idle.batch_was_planned()

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        latest = self._target or self._latest
        return latest.to_json_dict() if latest.offsets else None

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        before, until = Positions.from_json_dict(start), Positions.from_json_dict(end)
        since = before.moved_to(until).offsets
        ends = until.offsets
        if not self._has_seen(since, until):
            # Spark repeats a batch after a restart: its topics may have been deleted or created again meanwhile.
            ends = self._plan_with.check_plan(since, until)
        since = self._plan_with.check_loss(since, ends)
        return self.plan(ranges_between(since, ends, until.topic_ids))

    def _has_seen(self, since: Offsets, until: Positions) -> bool:
        """Whether the last look at the cluster has found these ends."""
        seen = self._target or self._latest
        if until.made_anew(seen.topic_ids):
            return False
        return all(
            offset <= max(seen.offsets.get(tp, -1), since.get(tp, offset)) for tp, offset in until.offsets.items()
        )

    def stop(self) -> None:
        say_nothing_of_a_closed_socket()
        if self._planner is not None:
            self._planner.close()
            self._planner = None
        if self._weights is not None:
            self._weights.close()
            self._weights = None
