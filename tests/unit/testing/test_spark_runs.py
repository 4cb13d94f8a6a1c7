"""A query of the test kit whose Python worker is late is started again, and no other."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException

from tailrace.testing.spark import run_available_now

LATE = "[STREAM_FAILED] terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


class EndedQuery:
    """The double of a streaming query that ends with this failure, or well."""

    def __init__(self, failure: str | None, progress: tuple[object, ...]) -> None:
        self._failure = failure
        self.recentProgress = progress

    def awaitTermination(self, timeout_s: float) -> bool:  # Spark's name
        if self._failure is not None:
            raise StreamingQueryException(self._failure)
        return True

    def stop(self) -> None: ...


def attempts(checkpoint: Path, *failures: str | None, progress: tuple[object, ...] = ()) -> int:
    """The number of queries that a run has started, of which these failures are the ends, one after the other."""
    ends = iter(failures)
    started = []

    def pipeline(*, checkpoint: str) -> EndedQuery:
        started.append(checkpoint)
        return EndedQuery(next(ends), progress)

    try:
        run_available_now(pipeline, checkpoint=checkpoint)
    except StreamingQueryException:
        assert len(started) == len(failures), "the last failure is raised"
    return len(started)


def test_a_query_whose_worker_is_late_is_started_again(tmp_path: Path) -> None:
    assert attempts(tmp_path, LATE, None) == 2
    assert attempts(tmp_path, LATE, LATE, None) == 3


def test_a_worker_that_is_late_three_times_fails_the_run(tmp_path: Path) -> None:
    assert attempts(tmp_path, LATE, LATE, LATE) == 3
    with pytest.raises(StreamingQueryException, match="failed to connect back"):
        run_available_now(lambda *, checkpoint: EndedQuery(LATE, ()), checkpoint=tmp_path)


def test_other_failures_and_queries_with_batches_are_not_tried_again(tmp_path: Path) -> None:
    assert attempts(tmp_path, "a row is null") == 1
    assert attempts(tmp_path, LATE, progress=(object(),)) == 1
