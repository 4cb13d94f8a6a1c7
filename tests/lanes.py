"""`make test`: the lanes of the suite, side by side, each with folders of its own.

- Every worker of a run collects all files of the run, which takes ten seconds of a core for the whole suite. The
  workers of a lane collect what the lane runs.
- A lane has tests of one kind, so that the lanes fill the cores together: tests that compute, tests that wait for nodes
  and foreign programs, tests of Spark.
- With arguments there is one run of pytest, with all cases that they choose.

    python tests/lanes.py [PYTEST ARGUMENTS]
"""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from compiled import compile_tests
from spark_classes import make_spark_classes
from turns import fix_turn, turn
from work_order import cores, workers

ROOT: Final = Path(__file__).parents[1]
_NO_TESTS: Final = 5
"""pytest's exit code without a test to run. Right for a lane in the rest of a turn alone: any other run has the cases
that are always run."""
_COUNTS: Final = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$")
_KINDS: Final = ("passed", "failed", "skipped")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) ")


class Lane(NamedTuple):
    """Folders and files whose tests run beside the tests of other lanes."""

    name: str
    paths: tuple[str, ...]
    workers: int
    """Processes that run its tests."""
    second_runs: int
    """Failed tests with foreign programs that may run a second time: three of all lanes together (decision 0067)."""
    left_out: tuple[str, ...] = ()
    """Files below the folders that another lane has."""
    niceness: int = 0
    """The lane's processes give way to processes of a lower niceness."""

    @property
    def arguments(self) -> list[str]:
        """The arguments of pytest."""
        return [
            *("--numprocesses", str(self.workers), "--dist", "loadfile"),
            *("--max-suite-reruns", str(self.second_runs), "--rerun-show-tracebacks"),
            *(f"--ignore={path}" for path in self.left_out),
            *self.paths,
        ]


_PAGES: Final = "tests/docs/test_pages.py"
"""Runs the pages' programs for Spark."""


def lanes() -> tuple[Lane, ...]:
    """The lanes, with the workers for the cores of this machine."""
    return (
        Lane("spark", ("tests/spark", _PAGES), 2, 1),
        Lane("nodes", ("tests/interop", "tests/crash", "tests/scenarios"), cores(), 2),
        Lane(
            "pure",
            ("tests/unit", "tests/properties", "tests/simulation", "tests/architecture", "tests/docs"),
            cores() + 1,
            0,
            (_PAGES,),
            # Tests that compute take what is left. Programs of the other lanes have timeouts of their own, such as
            # Spark's ten seconds for the start of a process.
            5,
        ),
    )


class _Run:
    """A lane that runs: its lines are shown as they come, behind its name."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self._process = subprocess.Popen(
            ["nice", "-n", str(lane.niceness), sys.executable, "-m", "pytest", *lane.arguments],
            cwd=ROOT,
            env={**os.environ, "TEST_LANE": lane.name, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._show)
        self._reader.start()

    def _show(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:  # a closed pipe ends a lane whose lines cannot be printed
            for line in map(str.rstrip, lines):
                if counts := _COUNTS.match(line):  # the last line counts: a failed test may quote another run's line
                    self.counts = Counter(dict(zip(_KINDS, map(int, counts.groups()), strict=True)))
                if _FAILED.match(line):
                    self.failed.append(line)
                print(f"{self.lane.name:5} | {line}", flush=True)  # noqa: T201

    def wait(self) -> int:
        """The exit code of pytest."""
        code = self._process.wait()
        self._reader.join()
        return 0 if code == _NO_TESTS and not turn().has_always else code


def run_lanes() -> int:
    """Run all lanes; the exit code of a lane that failed, or 0.

    Ctrl-C reaches the lanes from the terminal. A second interrupt from here would end pytest in the midst of its
    clearing up.
    """
    fix_turn()
    print(f"{turn()}; TURN={os.environ.get('TURN', 'all')} repeats it", flush=True)  # noqa: T201
    compile_tests(cores())
    make_spark_classes()
    runs = [_Run(lane) for lane in lanes()]
    codes = [run.wait() for run in runs]
    counts = sum((run.counts for run in runs), Counter())
    for line in (line for run in runs for line in run.failed):
        print(line)  # noqa: T201
    for run, code in zip(runs, codes, strict=True):
        if code and not run.counts["failed"]:
            print(f"the lane {run.lane.name} ended with exit code {code}, perhaps before its last test")  # noqa: T201
    print(", ".join(f"{counts[kind]} {kind}" for kind in _KINDS), f"({turn()})")  # noqa: T201
    return max(codes, key=abs)


def main(arguments: Sequence[str]) -> int:
    """Run the suite, or what the arguments choose."""
    if arguments:
        # In a process without imports of ours: pytest refuses plugins that were imported before it.
        chosen = Lane("chosen", (), workers(), 3).arguments
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *chosen, *arguments])
    os.environ.setdefault("TURN", "own")
    return run_lanes()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
