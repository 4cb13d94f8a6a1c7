"""The order in which tests begin, and the number of workers: both decide how long `make test` takes.

- One worker runs all tests of a file, so that its fixtures are made once. Two workers run everything that uses a
  session of Spark's, which costs ten seconds of a core and 0.5 GB.
- Files that take long begin first (long_files.txt): idle cores would wait for a long file that begins last.
- The lanes (lanes.py) have more than three workers for each core: for half of its time a test waits, for a node, an
  election or the timeout of a foreign client. No verdict depends on how long something takes: tests may share a core.
- Searches have a small budget in each test; `make soak` runs the large counts.
"""

import os
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

LONG_FILES = Path(__file__).with_name("long_files.txt")
SHARED = ("tests/spark", "tests/spark/connector")
"""Folders whose files share a worker."""
ALONE = ("tests/spark/test_connect.py", "tests/spark/test_pipelines.py")
"""Files in these folders that have a process of Spark's of their own."""
WITH_SPARK = ("tests/docs/test_pages.py",)
"""Files of other folders that use the Spark session of that worker."""
LONG_S = 20.0
"""A file that takes longer, in a run of all tests on an idle machine, belongs into the list."""


@cache
def long_files() -> tuple[str, ...]:
    """Files and folders, the longest first."""
    lines = (line.strip() for line in LONG_FILES.read_text().splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def unit(nodeid: str) -> str:
    """The file, or the folder, whose tests one worker runs."""
    file = nodeid.partition("::")[0]
    if file in WITH_SPARK:
        return "tests/spark"
    folders = [folder for folder in SHARED if file.startswith(f"{folder}/") and file not in ALONE]
    return max(folders, key=len, default=file)


def put_long_files_first(items: list[pytest.Item]) -> None:
    """Sort the tests by the list; the order of the rest stays (by chance)."""
    ranks = {name: rank for rank, name in enumerate(long_files())}
    items.sort(key=lambda item: ranks.get(unit(item.nodeid), len(ranks)))


def unlisted(reports: Iterable[pytest.TestReport]) -> list[tuple[str, float]]:
    """Files that took long and are not in the list, with their seconds."""
    seconds: Counter[str] = Counter()
    for report in reports:
        seconds[unit(report.nodeid)] += report.duration  # type: ignore[assignment]
    listed = long_files()
    return [(name, spent) for name, spent in seconds.most_common() if spent > LONG_S and name not in listed]


def cores() -> int:
    """The number of cores for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """The number of processes that run tests."""
    return cores() + 3


class InOrder(LoadFileScheduling):  # type: ignore[misc]
    """The next unit goes to the worker that is free, in the order in which the tests were sorted."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False  # else the files with few long tests would come last
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
