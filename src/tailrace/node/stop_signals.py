"""The signals to stop a process, read from a descriptor; after the stop the signals are ignored.

SIGTERM, SIGINT and, unless `nohup` ignores the signal, SIGHUP. All functions are for the main thread. The end of
standard input also stops a process: its parent has the other end of the pipe.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError

TO_STOP: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """The signals to handle: without SIGHUP if `nohup` has made the process ignore SIGHUP."""
    return [
        number for number in numbers if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    ]


@contextmanager
def signals_read(others: frozenset[signal.Signals] = frozenset()) -> Iterator[int]:
    """A descriptor, never waiting, that gets the number of each signal to stop, and of `others`, as a byte.

    After the context the signals to stop are ignored, without a moment in between in which a signal would end the
    process. The process ends by itself, and a second signal, which `timeout` sends to the group of the process, must
    not change its exit code. asyncio's handlers of signals give the default action back when the loop is closed.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda *_: None) for number in not_ignored(TO_STOP | others)}
    earlier = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_IGN if number in TO_STOP else handler)
        signal.set_wakeup_fd(earlier)
        os.close(reader)
        os.close(writer)


def end_at_once() -> None:
    """Give the signals to stop their default action, for the program that `exec` is about to start.

    Only while `signals_read` reads the signals: after it SIGHUP is ignored, and would seem to be ignored by `nohup`.
    """
    for number in not_ignored(TO_STOP):
        signal.signal(number, signal.SIG_DFL)


class StopSignal(BaseException):
    """A signal to stop has come. Not an Exception: the interrupted code has no fault."""


@contextmanager
def signals_raised() -> Iterator[None]:
    """Raises StopSignal in the main thread at each signal to stop, for a process that does nothing but wait.

    After a StopSignal the signals to stop are ignored, as after `signals_read`; without a StopSignal the former
    handlers are restored.
    """
    numbers = not_ignored(TO_STOP)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise StopSignal

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    except StopSignal:
        before = dict.fromkeys(before, signal.SIG_IGN)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


CLUSTER_STOPS: Final = b"the cluster stops\n"
"""Sent to each node of a cluster before the signal to stop, when all nodes stop: no node has to hand its leaderships
over."""


def has_no_end() -> KafkaError:
    """The fault of a file as standard input: the system reports only the end of pipes, sockets and terminals."""
    return KafkaError(
        ErrorCode.INVALID_CONFIG,
        "--until-stdin-closes: standard input is a file or /dev/null, whose end is not reported;"
        " give it a pipe, or leave the option out",
    )
