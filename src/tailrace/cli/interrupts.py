"""SIGINT and SIGTERM for commands that go on until somebody ends them: the first is heard, a later one ends at once."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_SAME_WISH_S: Final = 1.0
"""A signal that comes this soon after the first is that one again: `timeout` and others signal a process and then its
whole group."""


@contextmanager
def heard_once(on_first: Callable[[], None]) -> Iterator[None]:
    """Call `on_first`, which may raise KeyboardInterrupt, where the program happens to be. A later signal raises it."""
    heard_at: float | None = None

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard_at
        now = time.monotonic()
        if heard_at is None:
            heard_at = now
            on_first()
        elif now - heard_at >= _SAME_WISH_S:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if heard_at is None:  # else the process ends, and may hear it once more until then
            for number, handler in before.items():
                signal.signal(number, handler)
