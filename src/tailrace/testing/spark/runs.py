"""Runs of a streaming query to the end of the records that are there, one after another on one checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from tailrace.testing.spark.kills import kills_so_far

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


_WORKER_IS_LATE = "Python worker failed to connect back"
"""Spark's message after the ten seconds that a new Python process of a source has, a constant of Spark 4.3."""
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class QueryRun:
    """A run that has ended, by itself or by a kill of `kill_at`."""

    checkpoint: str
    progress: tuple["StreamingQueryProgress", ...]
    """Progress of the query's batches that are done; Spark keeps the last 100
    (spark.sql.streaming.numRecentProgressUpdates)."""
    kills: int
    """The processes that `kill_at` has killed during the run."""
    error: StreamingQueryException | None
    """The failure of a query that has not survived the kills."""
    _again: Callable[[], "QueryRun"] = field(repr=False)

    @property
    def batches(self) -> int:
        """The number of batches that are done."""
        return len({each.batchId for each in self.progress if "addBatch" in each.durationMs})

    @property
    def rows(self) -> int:
        """The number of rows that the sources have given to these batches."""
        return sum(each.numInputRows for each in self.progress)

    def restart(self) -> "QueryRun":
        """Run the pipeline again on the same checkpoint, as `run_available_now` did, and with its limit of time."""
        return self._again()


def run_available_now(
    pipeline: Callable[..., Any], *arguments: object, checkpoint: str | Path, timeout_s: float = 120.0
) -> QueryRun:
    """Run a streaming query up to the end of the records that are there now.

    `pipeline(*arguments, checkpoint=...)` gives a DataStreamWriter, of which the kit starts a query on this checkpoint
    with the trigger availableNow; or a StreamingQuery that the pipeline has started itself and that ends by itself. The
    checkpoint is a directory of this machine, which may have progress of earlier runs.

    A query whose Python worker was late, so that the query has read nothing, is started again: Spark gives the process
    of a source ten seconds, which are few on a busy machine, and has no setting for the time.

    Raises the query's own StreamingQueryException if the query fails, unless `kill_at` has killed a process of the
    query: then the run has it as `error`. Raises TimeoutError after `timeout_s` seconds, when the query has been
    stopped; TypeError if the pipeline gives something else, ValueError if its query has not used the checkpoint.
    """
    kills_before = kills_so_far()
    for attempt in range(1, _ATTEMPTS + 1):
        query = _start(pipeline(*arguments, checkpoint=str(checkpoint)), str(checkpoint))
        error = None
        try:
            if not query.awaitTermination(timeout_s):
                raise _overdue(query, timeout_s)
        except StreamingQueryException as fault:
            if kills_so_far() == kills_before:
                if _WORKER_IS_LATE in str(fault) and not query.recentProgress and attempt < _ATTEMPTS:
                    continue
                raise
            error = fault
        finally:
            query.stop()
        break
    if not Path(checkpoint).is_dir():
        raise ValueError(
            f"the query has ended and there is no directory {checkpoint}: give its writeStream the option"
            " checkpointLocation with the pipeline's parameter `checkpoint`"
        )
    return QueryRun(
        checkpoint=str(checkpoint),
        progress=tuple(query.recentProgress),
        kills=kills_so_far() - kills_before,
        error=error,
        _again=lambda: run_available_now(pipeline, *arguments, checkpoint=checkpoint, timeout_s=timeout_s),
    )


def _start(made: Any, checkpoint: str) -> Any:
    """The query of a writer, or the query itself. Classic sessions and Connect have different classes of both."""
    if hasattr(made, "awaitTermination"):
        return made
    if not (hasattr(made, "trigger") and hasattr(made, "start")):
        raise TypeError(
            f"the pipeline gives {made!r}, neither a DataStreamWriter (df.writeStream...) nor a StreamingQuery"
        )
    return made.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def _overdue(query: Any, timeout_s: float) -> TimeoutError:
    last = query.lastProgress
    progress = "no batch is done" if last is None else f"batch {last.batchId} was the last batch that was done"
    return TimeoutError(
        f"the query has not ended within {timeout_s} s: {progress}, status {query.status['message']!r}. A query that"
        " the pipeline starts itself needs trigger(availableNow=True); a slow one a larger timeout_s"
    )
