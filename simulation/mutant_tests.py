"""Finds the unit tests that notice a mutant: `python -m simulation.mutant_tests MUTANT.toml TESTS...`

Prints the names of the tests that fail, one name a line. A process of its own, so that every module is the mutant's.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from simulation.mutants import Mutant, mutate_this_process

_MOST = 3
"""The most tests that are named."""
_TESTS_OF = {
    "fetch_session": "tests/unit/fetch_session",
    "raft": "tests/unit/raft",
    "metadata": "tests/unit/metadata",
    "replication": "tests/unit/replication",
    "coordinators": "tests/unit/coordinators",
    "client": "tests/unit/client",
    "storage": "tests/unit/storage",
    "server": "tests/unit/server",
}


class _Noticed:
    """A pytest plugin that puts the mutant in place before any test is read, and remembers what fails."""

    def __init__(self, mutant: Mutant) -> None:
        self.names: list[str] = []
        self._mutant = mutant

    def pytest_sessionstart(self) -> None:
        mutate_this_process(self._mutant)  # behind pytest's own import hook it would have no effect

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False):
            self.names.append(str(getattr(report, "nodeid", "")))

    def pytest_collectreport(self, report: object) -> None:
        self.pytest_runtest_logreport(report)


def unit_tests_of(mutant: Mutant) -> list[str]:
    """The directories with the unit tests of the packages that the mutant patches."""
    return sorted({_TESTS_OF[patch.file.split("/")[0]] for patch in mutant.patches})


def noticed_by(path: Path, tests: Sequence[str], root: Path = Path()) -> list[str]:
    """The first few of these tests that fail with the mutant of this file. `root` is where the tests are."""
    command = [sys.executable, "-m", "simulation.mutant_tests", str(path.absolute()), *tests]
    # All cases: the mutant's may not be in the turn of this run.
    environment = {**os.environ, "TURN": "all"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


def main() -> int:
    """Print the tests that fail. The exit code is 0 whether tests fail or not."""
    import pytest

    path, *tests = sys.argv[1:]
    noticed, out = _Noticed(Mutant.read(Path(path))), sys.stdout
    sys.stdout = sys.stderr
    for name in [module for module in sys.modules if module.startswith("tailrace")]:
        del sys.modules[name]  # pytest wants to be the first to load the package, which is a plugin of its own
    options = ["-q", "--tb=no", "-p", "no:cacheprovider", f"--maxfail={_MOST}"]
    code = pytest.main([*options, *tests], plugins=[noticed])
    sys.stdout = out
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED), code
    sys.stdout.write("".join(f"{name.replace(' ', '_')}\n" for name in noticed.names[:_MOST]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
