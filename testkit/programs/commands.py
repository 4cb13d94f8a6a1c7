"""A command of `tailrace`, run in the test's own process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tailrace.cli.main import main


class CommandResult(NamedTuple):
    """The exit code of a command, and its output."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, str]]:
        """The table that was printed; a cell has no spaces."""
        head, *rows = [line.split() for line in self.out.splitlines()]
        return [dict(zip(head, row, strict=True)) for row in rows]


Run = Callable[..., CommandResult]
"""Runs a command with these words."""


def run_command(
    words: tuple[str, ...], capture: pytest.CaptureFixture[str] | pytest.CaptureFixture[bytes]
) -> CommandResult:
    with pytest.raises(SystemExit) as ended:
        main(words)
    sys.stdout.flush()
    out, err = (text.decode() if isinstance(text, bytes) else text for text in capture.readouterr())
    code = ended.value.code
    return CommandResult(code if isinstance(code, int) else 0, out, err)
