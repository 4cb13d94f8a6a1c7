"""franz-go's default producer, as a program that Go builds once from the client's published module."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.downloads.go_programs import GoProgram

VERSION: Final = "v1.22.2"
PROGRAM: Final = GoProgram(
    "franz-go", f"github.com/twmb/franz-go@{VERSION}", Path(__file__).parent / "franz_producer" / "main.go"
)


class Produced(NamedTuple):
    """A round of the producer."""

    seconds: float
    acked: int
    errors: Mapping[str, int]
    """The number of failed records, by the client's message."""
    requests: int
    """The number of sent Produce requests."""
    broken: int
    """The number of Produce requests without an answer: the connection was closed, or hung."""
    largest_bytes: int
    """The size of the largest request."""
    warnings: int
    """The number of lines that the client has logged at the level of warnings or above."""

    @property
    def is_troubled(self) -> bool:
        """Whether a record failed, or the client had a fault after which it tries again."""
        return bool(self.errors or self.broken or self.warnings)


def absent() -> str | None:
    """The reason why the program cannot run here, with the command that installs the missing part; None if it can
    run."""
    return PROGRAM.absent()


def produce(
    address: str, topic: str, *, partitions: int, records: int, size: int, rounds: int = 1
) -> Sequence[Produced]:
    """Write so many values of `size` bytes, `rounds` times with one client.

    Raises RuntimeError if the program fails.
    """
    numbers = (partitions, records, size, rounds)
    done = subprocess.run(
        [str(PROGRAM.path), address, topic, *map(str, numbers)],
        capture_output=True,
        encoding="utf-8",
        timeout=60 + 60 * rounds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"franz-go's producer failed: {done.stdout[-2000:]}{done.stderr[-5000:]}")
    return [Produced(**json.loads(line)) for line in done.stdout.splitlines()]
