"""sarama's producer, as a program that Go builds once from the client's published module."""

import shutil
import subprocess
import sys
import tempfile
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from benchmarks.fetching import fetched, put_in_place
from benchmarks.franz_go import ENVIRONMENT

VERSION: Final = "v1.45.0"
"""The last one that states no largest time of a batch (-1)."""
MODULE: Final = f"github.com/IBM/sarama@{VERSION}"
SOURCE: Final = Path(__file__).parent / "go" / "sarama_producer.go"
HOME: Final = Path(sys.prefix) / f"sarama-producer-{VERSION}-{sha256(SOURCE.read_bytes()).hexdigest()[:8]}"
_PROGRAM: Final = "sarama-producer"
_BUILD_TIMEOUT_S: Final = 900


def absent() -> str | None:
    """The reason why the program cannot be run here, with the command that brings what is missing; None if it can."""
    if HOME.exists():
        return None
    if shutil.which("go") is None:
        return "sarama needs Go: apt-get install golang"
    return None if _build() else f"go cannot fetch and build {MODULE} here"


@cache
def _build() -> bool:
    go = ["env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), "go"]
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="go-program-") as work:
        source, made = Path(work, "source"), Path(work, "made")
        source.mkdir()
        made.mkdir()
        shutil.copy(SOURCE, source / "main.go")
        Path(source, "go.mod").write_text("module producer\n\ngo 1.22\n")
        if not fetched([*go, "get", MODULE], directory=source, timeout_s=_BUILD_TIMEOUT_S):
            return False
        build = [*go, "build", "-o", f"{made}/{_PROGRAM}", "."]
        return fetched(build, directory=source, timeout_s=_BUILD_TIMEOUT_S) and put_in_place(made, HOME)


def produce(address: str, topic: str) -> list[int]:
    """Produce three records; returns their offsets."""
    program = [str(HOME / _PROGRAM), address, topic]
    done = subprocess.run(program, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-5000:]}"
    return [int(line) for line in done.stdout.splitlines()]
