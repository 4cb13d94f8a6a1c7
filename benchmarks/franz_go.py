"""franz-go's default producer, as a program that Go builds once from the client's published module."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.fetching import fetched, put_in_place

SOURCE: Final = Path(__file__).parent / "franz_producer" / "main.go"
VERSION: Final = "v1.22.2"
MODULE: Final = f"github.com/twmb/franz-go@{VERSION}"
CACHE: Final = Path(sys.prefix) / "go"
"""Go's own: the modules that it fetches, and what it compiles."""
ENVIRONMENT: Final = {
    "GOPATH": f"{CACHE}/path",
    "GOCACHE": f"{CACHE}/build",
    "GOFLAGS": "-mod=mod -modcacherw -buildvcs=false",  # read-only modules could neither be changed nor removed
    "GOTOOLCHAIN": "local",  # no other Go is fetched
    "CGO_ENABLED": "0",
}
HOME: Final = Path(sys.prefix) / f"franz-producer-{VERSION}-{sha256(SOURCE.read_bytes()).hexdigest()[:8]}"
_PROGRAM: Final = "franz-producer"
_BUILD_TIMEOUT_S: Final = 900
"""A minute on two idle cores, all of Go's own packages included."""


class Produced(NamedTuple):
    """One round of the producer."""

    seconds: float
    acked: int
    errors: Mapping[str, int]
    """The number of failed records, by the client's message."""
    requests: int
    """Produce requests that were sent."""
    broken: int
    """Produce requests whose answer did not come: the connection was closed, or hung."""
    largest_bytes: int
    """The largest request."""
    warnings: int
    """Lines that the client logged, at the level of warnings or above."""

    @property
    def is_troubled(self) -> bool:
        """Whether a record failed, or the client met anything that it tries again."""
        return bool(self.errors or self.broken or self.warnings)


def absent() -> str | None:
    """The reason why the program cannot be run here, with the command that brings what is missing; None if it can."""
    if HOME.exists():
        return None
    if shutil.which("go") is None:
        return "franz-go needs Go: apt-get install golang"
    return None if _build() else f"go cannot fetch and build {MODULE} here"


@cache
def _build() -> bool:
    go = ["env", *(f"{name}={value}" for name, value in ENVIRONMENT.items()), "go"]
    with tempfile.TemporaryDirectory(dir=sys.prefix, prefix="go-program-") as work:
        source, made = Path(work, "source"), Path(work, "made")
        source.mkdir()
        made.mkdir()
        shutil.copy(SOURCE, source)
        Path(source, "go.mod").write_text("module producer\n\ngo 1.22\n")
        if not fetched([*go, "get", MODULE], directory=source, timeout_s=_BUILD_TIMEOUT_S):
            return False
        build = [*go, "build", "-o", f"{made}/{_PROGRAM}", "."]
        return fetched(build, directory=source, timeout_s=_BUILD_TIMEOUT_S) and put_in_place(made, HOME)


def produce(
    address: str, topic: str, *, partitions: int, records: int, size: int, rounds: int = 1
) -> Sequence[Produced]:
    """Write so many values of `size` bytes, `rounds` times with one client.

    Raises RuntimeError if the program fails.
    """
    numbers = (partitions, records, size, rounds)
    done = subprocess.run(
        [str(HOME / _PROGRAM), address, topic, *map(str, numbers)],
        capture_output=True,
        encoding="utf-8",
        timeout=60 + 60 * rounds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"franz-go's producer failed: {done.stdout[-2000:]}{done.stderr[-5000:]}")
    return [Produced(**json.loads(line)) for line in done.stdout.splitlines()]
