"""What a command that waits says about it: why nothing comes, once it has lasted, and not again."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.cli.output import say
from tailrace.model.errors import KafkaError

_PATIENCE_SECONDS = 2.0
"""A restart or an election: not worth a word."""


class Patience:
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
