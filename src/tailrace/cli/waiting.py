"""Commands that wait: the reason why nothing comes, said once, and the signals that end the command."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from tailrace.cli.output import say
from tailrace.model.errors import KafkaError

_PATIENCE_SECONDS = 2.0
"""A restart or an election: not worth a word."""


class TroubleNotice:
    """Looks at what a client is retrying now, and tells the person at the terminal."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._said = ""

    def look(self, trouble: KafkaError | None) -> None:
        """Call it about once a second."""
        now = time.monotonic()
        if trouble is None:
            self._since = None
            return
        if self._since is None:
            self._since = now
        text = describe(trouble)
        if now - self._since >= _PATIENCE_SECONDS and text != self._said:
            self._said = text
            say(f"still trying: {text}")


def describe(trouble: KafkaError) -> str:
    """The fault with Kafka's name of it, which is what one can look up."""
    return f"{trouble.detail} ({trouble.code.name})" if trouble.detail else trouble.code.name


@contextmanager
def told_by_command() -> Iterator[None]:
    """The command itself says what its clients would warn of in the log: once is enough."""
    logger = logging.getLogger("tailrace.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


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
