"""The cases of a run: cases that are *always* run, and of cases that are *in turn* the cases of the run's turn.

- A test function without parameters is always run, and so is the first case of a function with parameters. The
  function's other cases are in turn. turns.txt names the files whose cases are all in turn; `@pytest.mark.in_turn`
  says so of a function, and `pytest.mark.always` makes a case an exception.
- Every run has, beside the first cases, an exchange of records with each foreign client, a story of faults for each
  promise (kills and power cuts of a node, of replicas, of a quorum, of transactions, of workers by key, of a copy by
  Spark), and the mutants of files that the latest commit changed.
- Four long stories of operations under load have a turn each: a rolling restart (0), moves of replicas (1), a rolling
  upgrade (2), flipped bits (3).
- A case has one of eight turns, by the hash of its name. `in_turn(n)` chooses it for cases of equal weight, turns.txt
  for files whose cases share what takes long to set up, so that no run has many of these files. A run has the turn
  that the hash of the sources gives: runs of the same sources have the same cases on every machine, and each change
  moves the turn. `make test` prints the turn.
- TURN in the environment chooses: `own` for the turn of the sources, a number from 0 to 7, `rest-of-N` for what the run
  of turn N does not have, `rest` for what the own turn does not have, `all` for everything. `make test` runs the own
  turn, `.ci/run` the rest too. pytest alone runs everything that is asked for.
- Seeds of simulations move with the turn too (`budgets.blocks`).
"""

import os
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import pytest

TURNS: Final = 8
ROOT: Final = Path(__file__).parents[1]
LIST: Final = Path(__file__).with_name("turns.txt")
_SOURCES: Final = ("src", "tests", "testkit", "simulation")
_SUFFIXES: Final = {".py", ".pyx", ".pxi", ".toml"}


class SuiteTurn(NamedTuple):
    """The choice of one run."""

    numbers: frozenset[int]
    """The turns whose cases run."""
    has_always: bool = True
    """Whether the cases that are always run are among the run's cases."""

    def has(self, number: int, *, is_always: bool) -> bool:
        """Whether the run has a case of this turn."""
        return self.has_always if is_always else number in self.numbers

    def __str__(self) -> str:
        numbers = ", ".join(map(str, sorted(self.numbers)))
        if not self.has_always:
            return f"the cases in turn of {numbers}, and no other"
        return "all cases" if len(self.numbers) == TURNS else f"turn {numbers} of {TURNS}"


def turn_named(name: str, root: Path = ROOT) -> SuiteTurn:
    """The turn by its name in the environment. Raises pytest.UsageError for an unknown name."""
    all_turns = frozenset(range(TURNS))
    numbers = {str(number): frozenset({number}) for number in all_turns}
    base, separator, of = name.partition("-of-")
    if base in ("own", "rest") and not separator:
        of = str(turn_of_sources(root))
    match base:
        case "all" | "" if not separator:
            return SuiteTurn(all_turns)
        case "own" if of in numbers:
            return SuiteTurn(numbers[of])
        case "rest" if of in numbers:
            return SuiteTurn(all_turns - numbers[of], has_always=False)
        case _ if name in numbers:
            return SuiteTurn(numbers[name])
    raise pytest.UsageError(f"TURN={name}: own, a number from 0 to {TURNS - 1}, rest, rest-of-N, or all")


def turn_of_sources(root: Path) -> int:
    """The turn that the names and contents of all sources give."""
    found = 0
    paths = (path for folder in _SOURCES for path in (root / folder).rglob("*") if path.suffix in _SUFFIXES)
    for path in sorted(paths):
        found = crc32(path.read_bytes(), crc32(str(path.relative_to(root)).encode(), found))
    return found % TURNS


@cache
def changed_files(root: Path = ROOT) -> frozenset[str]:
    """Paths below the root that the latest commit changed, or that have changed since. Empty without git."""
    command = ["git", "-C", str(root), "diff", "--name-only", "--relative", "HEAD~1"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return frozenset()  # no git, no repository, or no earlier commit
    return frozenset(found.stdout.splitlines())


@cache
def turn() -> SuiteTurn:
    """The turn of this run."""
    return turn_named(os.environ.get("TURN", ""))


def fix_turn() -> None:
    """Name the turn by its number, so that every process of the run has the same turn, and reads no source again."""
    name = os.environ.get("TURN", "")
    if name == "own":
        os.environ["TURN"] = str(turn_of_sources(ROOT))
    elif name == "rest":
        os.environ["TURN"] = f"rest-of-{turn_of_sources(ROOT)}"


@cache
def listed() -> Mapping[str, str]:
    """The files of turns.txt: `cases`, or the number of a turn."""
    lines = (line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {path: mode for mode, path in lines}


def is_always(item: pytest.Item) -> bool:
    """Whether the case is always run: by its mark, the list, or as the first case of its function."""
    if item.get_closest_marker("always") is not None:
        return True
    if item.get_closest_marker("in_turn") is not None or _file(item) in listed():
        return False
    case = getattr(item, "callspec", None)
    return case is None or not any(case.indices.values())


def turn_of(item: pytest.Item) -> int:
    """The turn of a case that is in turn."""
    mark = item.get_closest_marker("in_turn")
    if mark is not None and mark.args:
        return int(mark.args[0])
    mode = listed().get(_file(item), "cases")
    return crc32(item.nodeid.encode()) % TURNS if mode == "cases" else int(mode)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def in_this_run(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The cases of this run."""
    this = turn()
    return [item for item in items if this.has(turn_of(item), is_always=is_always(item))]
