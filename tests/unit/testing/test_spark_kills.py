"""Kills of Spark's Python processes, without Spark: the number of kills, and the rows written before a kill."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from tailrace.testing.spark import kill_plan
from tailrace.testing.spark.dying_sink import DyingStreamWriter
from tailrace.testing.spark.kill_plan import KillPlan, claim, kill_count, leaves_out_abort, release


class RecordingWriter(DataSourceStreamArrowWriter):
    """A sink that keeps the rows, and the calls behind them."""

    def __init__(self, *, fails: bool = False) -> None:
        self.rows: list[int] = []
        self.calls: list[str] = []
        self._fails = fails

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for batch in iterator:
            self.rows += batch.column("value").to_pylist()
        if self._fails:
            raise OSError("the sink fails")
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.calls.append("commit")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.calls.append("abort")


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that were to be killed, and live on."""
    processes: list[int] = []

    def kill(process: int, number: int) -> None:
        assert number == signal.SIGKILL
        processes.append(process)

    monkeypatch.setattr(os, "kill", kill)
    return processes


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    """Batches of these sizes, with the numbers from 0 on."""
    first = 0
    for size in sizes:
        yield pa.record_batch({"value": list(range(first, first + size))}, schema=pa.schema({"value": pa.int64()}))
        first += size


def test_kills_are_claimed_once_each(tmp_path: Path) -> None:
    plan = KillPlan("write", times=2, after_rows=1)
    plan.save(tmp_path)
    assert KillPlan.load(tmp_path) == plan
    assert [claim(tmp_path, plan) for _ in range(4)] == [0, 1, None, None]
    release(tmp_path, 0)
    assert [claim(tmp_path, plan) for _ in range(2)] == [0, None]
    assert kill_count(tmp_path) == 0, "a claim is no kill yet"


def test_there_are_no_kills_behind_the_block(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert KillPlan.load(gone) is None
    assert claim(gone, KillPlan("write", times=1, after_rows=1)) is None
    sink = RecordingWriter()
    writer = DyingStreamWriter(sink, gone)
    writer.write(batches(2))
    writer.commit([], 0)
    writer.abort([], 0)
    assert (sink.rows, sink.calls) == ([0, 1], ["commit", "abort"])


def test_a_process_dies_by_sigkill_and_is_counted(tmp_path: Path) -> None:
    script = (
        f"from pathlib import Path; from tailrace.testing.spark.kill_plan import die; die(Path({str(tmp_path)!r}), 0"
    )
    run = subprocess.run(
        [sys.executable, "-c", f"{script}, as_driver=True)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert run.returncode == -signal.SIGKILL
    assert kill_count(tmp_path) == 1
    assert [leaves_out_abort(tmp_path) for _ in range(2)] == [True, False]


@pytest.mark.parametrize(("sizes", "rows"), [((9,), 5), ((2, 0, 2, 9), 5), ((5, 4), 5), ((3,), 3), ((0, 1), 1)])
def test_a_task_dies_when_its_first_rows_are_written(
    tmp_path: Path, killed: list[int], sizes: tuple[int, ...], rows: int
) -> None:
    KillPlan("write", times=1, after_rows=5).save(tmp_path)
    sink = RecordingWriter()
    with pytest.raises(AssertionError, match="survive"):
        DyingStreamWriter(sink, tmp_path).write(batches(*sizes))
    assert sink.rows == list(range(rows))
    assert (killed, kill_count(tmp_path)) == ([os.getpid()], 1)
    DyingStreamWriter(sink, tmp_path).write(batches(*sizes))
    assert sink.rows == [*range(rows), *range(sum(sizes))], "the next attempt lives, and writes all rows"


def test_a_task_without_rows_lives(tmp_path: Path, killed: list[int]) -> None:
    KillPlan("write", times=1, after_rows=1).save(tmp_path)
    DyingStreamWriter(RecordingWriter(), tmp_path).write(batches(0))
    assert (killed, kill_count(tmp_path)) == ([], 0)


def test_a_task_that_fails_by_itself_takes_no_kill(tmp_path: Path, killed: list[int]) -> None:
    plan = KillPlan("write", times=1, after_rows=1)
    plan.save(tmp_path)
    with pytest.raises(OSError, match="the sink fails"):
        DyingStreamWriter(RecordingWriter(fails=True), tmp_path).write(batches(3))
    assert (killed, kill_count(tmp_path), claim(tmp_path, plan)) == ([], 0, 0)


@pytest.mark.parametrize(("point", "before"), [("commit", []), ("committed", ["commit"])])
def test_a_driver_that_dies_at_a_commit_aborts_nothing(
    tmp_path: Path, killed: list[int], point: kill_plan.KillPoint, before: list[str]
) -> None:
    KillPlan(point, times=1, after_rows=1).save(tmp_path)
    sink = RecordingWriter()
    writer = DyingStreamWriter(sink, tmp_path)
    writer.write(batches(3))
    with pytest.raises(AssertionError, match="survive"):
        writer.commit([], 0)
    writer.abort([], 0)
    assert (sink.rows, sink.calls, killed) == ([0, 1, 2], before, [os.getpid()])
    writer.commit([], 0)
    writer.abort([], 1)
    assert sink.calls == [*before, "commit", "abort"]
