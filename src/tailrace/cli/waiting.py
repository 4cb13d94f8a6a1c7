"""Commands that wait: the fault behind the wait, printed once, and the signals that end the wait."""

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import Annotated, Final

import typer

from tailrace.cli.output import say
from tailrace.model.errors import KafkaError

_GRACE_SECONDS = 2.0
"""The time of a restart or an election, which needs no notice."""


class CorruptAction(StrEnum):
    """The actions of a command at a batch that cannot be decoded."""

    RAISE = "raise"
    SKIP = "skip"


OnCorrupt = Annotated[
    CorruptAction, typer.Option("--on-corrupt", help="End at a batch that cannot be decoded, or skip it and say so.")
]


class Isolation(StrEnum):
    """The records of transactions that a command reads."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


IsolationLevel = Annotated[
    Isolation, typer.Option("--isolation", help="Whether to leave out open and aborted transactions.")
]


class TroubleNotice:
    """Prints the fault that a client is retrying, for the person at the terminal."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._printed = ""

    def check(self, trouble: KafkaError | None) -> None:
        """Print the fault, once, if it lasts. Call it about once a second."""
        now = time.monotonic()
        if trouble is None:
            self._since = None
            return
        if self._since is None:
            self._since = now
        text = describe(trouble)
        if now - self._since >= _GRACE_SECONDS and text != self._printed:
            self._printed = text
            say(f"still trying: {text}")


def describe(trouble: KafkaError) -> str:
    """The fault with the name of its error code, to look up."""
    return f"{trouble.detail} ({trouble.code.name})" if trouble.detail else trouble.code.name


@contextmanager
def without_client_warnings() -> Iterator[None]:
    """Mute the log of the clients: the command itself prints their faults. Not the lines about skipped batches."""
    from tailrace.client.reading import corrupt_batches

    logging.getLogger(corrupt_batches.LOGGER).setLevel(logging.WARNING)
    logger = logging.getLogger("tailrace.client")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


_SAME_SIGNAL_S: Final = 1.0
"""A signal that comes this soon after the first counts as the same signal: `timeout` and similar tools signal a process
and then its whole group."""


@contextmanager
def on_first_signal(on_first: Callable[[], None]) -> Iterator[None]:
    """Call `on_first` at the first signal; it may raise KeyboardInterrupt. A later signal raises KeyboardInterrupt.

    After the block of an interrupted command, signals are ignored at once, so that its exit code stays as it is: Python
    removes other handlers before the interpreter ends, and the default action would end the process.
    """
    heard_at: float | None = None

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard_at
        now = time.monotonic()
        if heard_at is None:
            heard_at = now
            on_first()
        elif now - heard_at >= _SAME_SIGNAL_S:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if heard_at is None else signal.SIG_IGN)
