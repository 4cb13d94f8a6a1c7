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
    """Call `on_first`, which may raise KeyboardInterrupt, where the program happens to be. A later signal raises it.

    After the block, one that was interrupted ends by itself, and no signal changes how: they are ignored, without a
    moment in between. Any other handler goes before the interpreter does, and the default action would end the process.
    """
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
        for number, handler in before.items():
            signal.signal(number, handler if heard_at is None else signal.SIG_IGN)
