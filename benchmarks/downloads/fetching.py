"""Foreign programs that a package manager brings, into a directory that is whole or not there."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TIMEOUT_S = 240
_TRIES = 2
"""A network fails at times."""


def fetched(command: Sequence[str], *, directory: Path, timeout_s: int = _TIMEOUT_S) -> bool:
    """Whether the command, run in the directory, has ended well; stderr says what was wrong."""
    for _ in range(_TRIES):
        try:
            subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as fault:
            sys.stderr.write(f"{fault}\n{fault.stdout!s}\n{fault.stderr!s}\n")
        else:
            return True
    return False


def put_in_place(made: Path, home: Path) -> bool:
    """Rename a whole directory, so that a run that is cut short leaves no half of a program. Returns whether the
    program is there."""
    try:
        os.replace(made, home)
    except OSError:  # another run was faster: a directory that is not empty is not replaced
        return home.exists()
    return True


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Prepare a program once, though several processes may ask for it at the same time."""
    home.mkdir(parents=True, exist_ok=True)
    directory = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
