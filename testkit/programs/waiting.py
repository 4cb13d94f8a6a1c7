"""Waits for what another process or thread does: the deadline is generous, and time alone decides nothing."""

import time
from collections.abc import Callable
from typing import Final

DEADLINE_S: Final = 120.0


def wait_until(
    holds: Callable[[], object], what: str | Callable[[], str] = "it", *, deadline_s: float = DEADLINE_S
) -> None:
    """Wait until the condition holds; fail with `what` if it does not hold within the deadline."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"never happened: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)
