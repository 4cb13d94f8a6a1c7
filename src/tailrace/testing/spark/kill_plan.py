"""The kills that a test asks for, as files of one directory: Spark's processes share nothing else with the test.

1. A process claims a kill by creating a file that no other process can create. Just before its death the process makes
   a second file: the second files count the kills that have happened.
2. Without the directory there is no plan: a query that outlives its `kill_at` block writes as ever.
3. A driver that dies at a commit aborts nothing. Spark's driver lives on and asks for an abort, which has to be left
   out: the kill leaves a file as a sign to leave the abort out.
"""

import json
import os
import signal
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NoReturn, Self, TypeAlias

KillPoint: TypeAlias = Literal["write", "commit", "committed"]

_PLAN, _CLAIM, _KILL, _ABORT_IS_DUE = "plan.json", "claim", "kill", "abort-is-due"


@dataclass(frozen=True, slots=True)
class KillPlan:
    """The processes that are to die: `times` of them at most, each at the same point."""

    point: KillPoint
    times: int
    after_rows: int
    """The rows that a task writes before it dies."""

    def save(self, directory: Path) -> None:
        """Arm the kills."""
        (directory / _PLAN).write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """The plan of this directory; None if its block is over."""
        try:
            return cls(**json.loads((directory / _PLAN).read_text()))
        except FileNotFoundError:
            return None


def claim(directory: Path, plan: KillPlan) -> int | None:
    """Claim a kill for this process alone. Returns the kill's number; None if every kill is taken, or the block is
    over."""
    for number in range(plan.times):
        try:
            (directory / f"{_CLAIM}-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        except FileNotFoundError:
            return None
        return number
    return None


def release(directory: Path, number: int) -> None:
    """Give a claimed kill back: this process has failed by itself."""
    (directory / f"{_CLAIM}-{number}").unlink(missing_ok=True)


def die(directory: Path, number: int, *, as_driver: bool) -> NoReturn:
    """Carry out a claimed kill: SIGKILL of this process."""
    with suppress(FileNotFoundError):  # the block is over: the process dies nevertheless, as it has begun to
        if as_driver:
            (directory / _ABORT_IS_DUE).touch()
        (directory / f"{_KILL}-{number}").touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process does not survive SIGKILL")


def leaves_out_abort(directory: Path) -> bool:
    """Whether an abort that Spark asks for has to be left out: the driver would have died before it."""
    try:
        (directory / _ABORT_IS_DUE).unlink()
    except FileNotFoundError:
        return False
    return True


def kill_count(directory: Path) -> int:
    """The number of processes that have died."""
    return sum(1 for _ in directory.glob(f"{_KILL}-*"))
