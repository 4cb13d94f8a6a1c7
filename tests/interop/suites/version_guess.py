"""franz-go's guess of a broker's release, as a program that Go builds once from the client's published module."""

import subprocess
from pathlib import Path
from typing import Final

from benchmarks.downloads.franz_go import VERSION
from benchmarks.downloads.go_programs import GoProgram

PROGRAM: Final = GoProgram(
    "version-guess", f"github.com/twmb/franz-go@{VERSION}", Path(__file__).with_name("version_guess.go")
)


def absent() -> str | None:
    """The reason why the program cannot be run here, with the command that brings what is missing; None if it can."""
    return PROGRAM.absent()


def guess(address: str) -> str:
    done = subprocess.run([str(PROGRAM.path), address], capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-5000:]}"
    return done.stdout.strip()
