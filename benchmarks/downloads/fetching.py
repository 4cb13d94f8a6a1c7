"""Fetches programs of other projects with a package manager, into a directory that is complete or absent."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_TIMEOUT_S = 240
_TRIES = 2
"""The number of tries: a network fails at times."""


def fetched(command: Sequence[str], *, directory: Path, timeout_s: int = _TIMEOUT_S) -> bool:
    """Run the command in the directory; returns whether it has succeeded. The fault is on stderr."""
    for _ in range(_TRIES):
        try:
            subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=timeout_s, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as fault:
            sys.stderr.write(f"{fault}\n{fault.stdout!s}\n{fault.stderr!s}\n")
        else:
            return True
    return False


def put_in_place(made: Path, home: Path) -> bool:
    """Rename a complete directory, so that an interrupted run leaves no part of a program. Returns whether the program
    is there."""
    try:
        os.replace(made, home)
    except OSError:  # another run was faster: a directory that is not empty is not replaced
        return home.exists()
    return True


@contextmanager
def alone(home: Path) -> Iterator[None]:
    """Hold the lock under which one process at a time prepares a program."""
    home.mkdir(parents=True, exist_ok=True)
    directory = os.open(home, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
