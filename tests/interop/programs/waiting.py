"""Waits for programs that take their time."""

import time
from collections.abc import Callable
from pathlib import Path

_PATIENCE_S = 300
"""The start of a worker takes half a minute of an idle core, and its periodic work comes on top."""


def wait_for(condition: Callable[[], bool], what: str, log: Path) -> None:
    """Ask twice a second until the condition holds; else fail with `what` and the end of the log."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}\n{log.read_text(errors='replace')[-3000:]}"
        time.sleep(0.5)
