"""sarama's producer, as a program that Go builds once from the client's published module."""

import subprocess
from pathlib import Path
from typing import Final

from benchmarks.downloads.go_programs import GoProgram

PROGRAM: Final = GoProgram("sarama", "github.com/IBM/sarama@v1.45.0", Path(__file__).with_name("sarama_producer.go"))
"""The last version that states no largest time of a batch (-1)."""


def absent() -> str | None:
    """The reason why the program cannot be run here, with the command that brings what is missing; None if it can."""
    return PROGRAM.absent()


def produce(address: str, topic: str) -> list[int]:
    """Produce three records; returns their offsets."""
    done = subprocess.run(
        [str(PROGRAM.path), address, topic], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-5000:]}"
    return [int(line) for line in done.stdout.splitlines()]
