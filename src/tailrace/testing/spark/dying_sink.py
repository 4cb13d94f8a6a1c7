"""The sink of the queries in a `kill_at` block: the product's sink, in processes that are killed.

Spark runs this module in its Python processes. The writers here stand before and behind the product's writers, which do
all work and are not changed.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NoReturn, Protocol

import pyarrow as pa
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tailrace.spark.source import TailraceDataSource
from tailrace.testing.spark.kill_plan import KillPlan, KillPoint, claim, die, leaves_out_abort, release

DIRECTORY = "killDirectory"
"""The option with the directory of the plan."""

Messages = list[WriterCommitMessage | None]


class DyingDataSource(TailraceDataSource):
    """`format("tailrace")` while something is to be killed."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = CaseInsensitiveDict(options)
        self._directory = Path(given[DIRECTORY])
        del given[DIRECTORY]
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "tailrace-dying"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return DyingWriter(super().writer(schema, overwrite), self._directory)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return DyingStreamWriter(super().streamWriter(schema, overwrite), self._directory)


class _WritesTask(Protocol):
    """The product's writer, as used by a task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage: ...


class _Dying:
    """The common part of both writers, pickled to the tasks."""

    _directory: Path

    @property
    @abstractmethod
    def _task_writer(self) -> _WritesTask: ...

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows, or some rows and die: the cluster has acknowledged the rows, and the driver does not learn of
        the rows."""
        plan = KillPlan.load(self._directory)
        if plan is None or plan.point != "write":
            return self._task_writer.write(iterator)
        begun, rows = _first_rows(iterator, plan.after_rows)
        number = claim(self._directory, plan) if rows else None
        if number is None:
            return self._task_writer.write(chain(begun, iterator))
        return self._write_and_die(_cut(begun, plan.after_rows), number)

    def _write_and_die(self, rows: Iterator[pa.RecordBatch], number: int) -> NoReturn:
        try:
            self._task_writer.write(rows)
        except BaseException:
            release(self._directory, number)
            raise
        die(self._directory, number, as_driver=False)

    def _commit(self, commit: Callable[[], None]) -> None:
        self._die_at("commit")
        commit()
        self._die_at("committed")

    def _die_at(self, point: KillPoint) -> None:
        plan = KillPlan.load(self._directory)
        if plan is not None and plan.point == point:
            number = claim(self._directory, plan)
            if number is not None:
                die(self._directory, number, as_driver=True)

    def _abort(self, abort: Callable[[], None]) -> None:
        if not leaves_out_abort(self._directory):
            abort()


def _first_rows(batches: Iterator[pa.RecordBatch], rows: int) -> tuple[list[pa.RecordBatch], int]:
    """The first batches, up to the batch with this row or the last batch, and the number of their rows."""
    taken: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        taken.append(batch)
        count += batch.num_rows
        if count >= rows:
            break
    return taken, count


def _cut(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The first `rows` rows of the batches."""
    for batch in batches:
        yield batch.slice(0, rows)
        rows -= min(rows, batch.num_rows)


class DyingWriter(_Dying, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, writer: DataSourceArrowWriter, directory: Path) -> None:
        self._writer = writer
        self._directory = directory

    @property
    def _task_writer(self) -> DataSourceArrowWriter:
        return self._writer

    def commit(self, messages: Messages) -> None:
        self._commit(lambda: self._writer.commit(messages))

    def abort(self, messages: Messages) -> None:
        self._abort(lambda: self._writer.abort(messages))


class DyingStreamWriter(_Dying, DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, writer: DataSourceStreamArrowWriter, directory: Path) -> None:
        self._writer = writer
        self._directory = directory

    @property
    def _task_writer(self) -> DataSourceStreamArrowWriter:
        return self._writer

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803  # Spark's name
        self._commit(lambda: self._writer.commit(messages, batchId))

    def abort(self, messages: Messages, batchId: int) -> None:  # noqa: N803
        self._abort(lambda: self._writer.abort(messages, batchId))
