"""Kills of Spark's Python processes in the middle of a write.

Spark writes and commits in processes that know nothing of the test. So in a `kill_at` block the writers of PySpark take
`format("tailrace")` for another data source (`dying_sink`) that hands all work to the product's sink and kills its
process as planned. The product has no part in the kills, and nothing of the block remains behind its end.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tailrace.testing.spark.kill_plan import KillPlan, KillPoint, kill_count

_POINTS: tuple[KillPoint, ...] = ("write", "commit", "committed")
_WRITERS = (
    ("pyspark.sql.readwriter", "DataFrameWriter"),
    ("pyspark.sql.streaming.readwriter", "DataStreamWriter"),
    ("pyspark.sql.connect.readwriter", "DataFrameWriter"),
    ("pyspark.sql.connect.streaming.readwriter", "DataStreamWriter"),
)


class Kills:
    """The kills of a block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._final_count: int | None = None

    @property
    def count(self) -> int:
        """The number of processes that have been killed so far; after the block, the total."""
        return kill_count(self._directory) if self._final_count is None else self._final_count

    def _end(self) -> None:
        self._final_count = self.count


_current: Kills | None = None


def kills_so_far() -> int:
    """The kills of the block that runs now; 0 outside of a block."""
    return 0 if _current is None else _current.count


@contextmanager
def kill_at(point: KillPoint, *, times: int = 1, after_rows: int = 1) -> Iterator[Kills]:
    """Kill processes that write by `format("tailrace")` in this block, with SIGKILL, `times` of them at most.

    - `"write"`: the Python worker of the next task with rows, when `after_rows` of its rows (or fewer, if the task has
      fewer) are acknowledged. The driver does not learn of the rows.
    - `"commit"`: the process that commits a batch or a batch write for the driver, before the sink has committed it.
    - `"committed"`: the same process, when the sink has committed and Spark has not noted the commit.

    A query fails by a kill (`run_available_now` returns), unless Spark tries a task again: in local mode with a master
    such as `local[2,3]`, three times. The session lives on. Raises AssertionError at the end of the block if nothing
    was killed: a query whose format was given before the block, or in another process, is out of reach, and so is SQL.
    Raises ValueError for another point, and for `times` or `after_rows` below 1; RuntimeError inside of another block.
    """
    global _current
    if point not in _POINTS:
        raise ValueError(f"kill_at: the point is 'write', 'commit' or 'committed', not {point!r}")
    for name, number in (("times", times), ("after_rows", after_rows)):
        if number < 1:
            raise ValueError(f"kill_at: {name} is {number}; say 1 or more")
    if _current is not None:
        raise RuntimeError("kill_at: another block of kill_at runs already: end that block first")
    with tempfile.TemporaryDirectory(prefix="tailrace-kills-") as name, ExitStack() as patches:
        directory = Path(name)
        KillPlan(point, times, after_rows).save(directory)
        for writer in _writers():
            patches.enter_context(mock.patch.object(writer, "format", _dying_format(writer.format, directory)))
        _current = kills = Kills(directory)
        try:
            yield kills
        finally:
            _current = None
            kills._end()
    if not kills.count:
        raise AssertionError(
            f"kill_at({point!r}) has killed nothing: no query whose format('tailrace') was given in the block"
            f" {'wrote a row' if point == 'write' else 'committed a batch'}"
        )


def _writers() -> list[Any]:
    """The classes with `format`. Connect's classes are there if the test has a session of Connect: their import is
    slow."""
    import pyspark.sql  # noqa: F401  # loads the classic ones

    return [getattr(sys.modules[module], name) for module, name in _WRITERS if module in sys.modules]


def _dying_format(original: Callable[[Any, str], Any], directory: Path) -> Callable[[Any, str], Any]:
    """The method `format` of a writer that takes the dying sink for the product's."""

    def choose_format(self: Any, source: str) -> Any:
        from tailrace.spark.source import TailraceDataSource
        from tailrace.testing.spark.dying_sink import DIRECTORY, DyingDataSource

        if source.lower() != TailraceDataSource.name():
            return original(self, source)
        session = self._spark if hasattr(self, "_spark") else self._session
        session.dataSource.register(DyingDataSource)
        return original(self, DyingDataSource.name()).option(DIRECTORY, str(directory))

    return choose_format
