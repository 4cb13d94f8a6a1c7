"""Faults planted in a copy of the repository, to see whether the suite's turns find the faults.

    python -m simulation.planted [NAME ...]

A planted fault is a file of TOML in `tests/planted`: its kind, the text of `src/tailrace` that becomes other text, and
the tests that can find the fault, the quickest first. The cases of a turn run in the copy up to the first case that
fails. The case must pass without the fault, and finds the fault in every turn that has the case. A fault of a kind that
is `always` breaks a promise: every single turn must find the fault.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from simulation.mutants import Patch

ROOT: Final = Path(__file__).parents[1]
FAULTS: Final = ROOT / "tests" / "planted"
TURNS: Final = range(8)
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_OF_MUTANTS: Final = "tests/simulation/test_mutants.py"
"""A file of tests that compares texts of the source: it would find each fault, but says nothing about behaviour."""
_NOT_COPIED: Final = (".git", ".venv*", "build", ".mypy_cache", ".ruff_cache")
_CASE_SECONDS: Final = 240
_PASSED, _HAS_FAILED, _NO_TESTS = 0, 1, 5


class PlantedFault(NamedTuple):
    """A fault, and the tests that can find it."""

    name: str
    kind: str
    what: str
    """In words."""
    is_always: bool
    """Whether every turn must find the fault."""
    tests: tuple[str, ...]
    patches: tuple[Patch, ...]

    @classmethod
    def read(cls, path: Path) -> "PlantedFault":
        """Raises KeyError or TypeError if something is missing."""
        content = tomllib.loads(path.read_text())
        patches = tuple(Patch(**patch) for patch in content["patch"])
        return cls(path.stem, content["kind"], content["what"], content["always"], tuple(content["tests"]), patches)


class FaultFinding(NamedTuple):
    """A case of each turn that finds a fault."""

    fault: PlantedFault
    cases: Mapping[int, str]

    @property
    def is_enough(self) -> bool:
        """Whether enough turns find the fault: all turns if `is_always`, else any turn."""
        return len(self.cases) == len(TURNS) if self.fault.is_always else bool(self.cases)

    def __str__(self) -> str:
        """A row of a table."""
        must = "always" if self.fault.is_always else "in turn"
        cases = ", ".join(dict.fromkeys(self.cases.values()))
        return f"| {self.fault.kind} | {self.fault.what} | {must} | {len(self.cases)} of {len(TURNS)} | {cases} |"


def planted_faults(directory: Path = FAULTS) -> list[PlantedFault]:
    """The faults of this directory, by name."""
    return [PlantedFault.read(path) for path in sorted(directory.glob("*.toml"))]


class Tree:
    """A copy of the repository, in which faults are planted."""

    def __init__(self, place: Path) -> None:
        self._place = place

    @classmethod
    def copied_to(cls, place: Path) -> "Tree":
        """A copy of this repository."""
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*_NOT_COPIED), dirs_exist_ok=True)
        return cls(place)

    @contextmanager
    def planted(self, fault: PlantedFault) -> Iterator[None]:
        """Plant the fault in the copy for the length of the block."""
        before = {patch.file: self._file(patch.file).read_text() for patch in fault.patches}
        try:
            for patch in fault.patches:
                source = self._file(patch.file).read_text()
                assert source.count(patch.old) == 1, f"{fault.name}: {patch.file} must have this text once: {patch.old}"
                self._write(patch.file, source.replace(patch.old, patch.new))
            yield
        finally:
            for name, source in before.items():
                self._write(name, source)

    def first_failure(self, tests: str, turn: str) -> str | None:
        """The first case of the turn that fails; None if all pass."""
        done = self._pytest(turn, "-x", "--tb=short", "-rfE", f"--timeout={_CASE_SECONDS}", tests)
        return failed_case(done.stdout) if done.returncode == _HAS_FAILED else None

    def has(self, turn: int, case: str) -> bool:
        """Whether the turn has the case."""
        return self._pytest(str(turn), "--collect-only", case).returncode == _PASSED

    def _pytest(self, turn: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", f"--ignore={_OF_MUTANTS}", *arguments],
            cwd=self._place,
            env={**os.environ, "TURN": turn, "PYTHONPATH": str(self._place / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (_PASSED, _HAS_FAILED, _NO_TESTS), done.stdout + done.stderr
        return done

    def _file(self, name: str) -> Path:
        return self._place / "src" / "tailrace" / name

    def _write(self, name: str, source: str) -> None:
        path = self._file(name)
        path.write_text(source)
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            compiled.unlink()  # a change of the same size within a second would not be seen


def failed_case(output: str) -> str:
    """The name of the case that failed, in pytest's summary."""
    *_, name = _FAILED.findall(output)
    return str(name)


def look_for(fault: PlantedFault, tree: Tree) -> FaultFinding:
    """Run the tests of the fault in the turns, until each turn has found the fault or has passed."""
    cases: dict[int, str] = {}
    for turn in TURNS:
        if turn in cases:
            continue
        with tree.planted(fault):
            found = (tree.first_failure(path, str(turn)) for path in fault.tests)
            case = next(filter(None, found), None)
        if case is None:
            continue
        assert tree.first_failure(case, "all") is None, f"{case} fails without a fault"
        is_always = tree.has((turn + 1) % len(TURNS), case)  # another case has one turn
        cases |= dict.fromkeys(TURNS, case) | cases if is_always else {turn: case}
    return FaultFinding(fault, cases)


def main() -> int:
    """Run; the exit code is 1 if too few turns find a fault."""
    parser = argparse.ArgumentParser(prog="python -m simulation.planted")
    parser.add_argument("names", nargs="*", help="all faults, if none is named")
    names = parser.parse_args().names
    is_enough = True
    with tempfile.TemporaryDirectory() as place:
        tree = Tree.copied_to(Path(place))
        for fault in planted_faults():
            if names and fault.name not in names:
                continue
            finding = look_for(fault, tree)
            is_enough = is_enough and finding.is_enough
            sys.stdout.write(f"{finding}{'' if finding.is_enough else ' TOO FEW'}\n")
            sys.stdout.flush()
    return 0 if is_enough else 1


if __name__ == "__main__":
    sys.exit(main())
