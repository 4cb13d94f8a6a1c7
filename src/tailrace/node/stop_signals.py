"""The signals that tell a process to stop, read from a descriptor, and without a word once it has stopped.

SIGTERM, SIGINT and, unless `nohup` has it ignored, SIGHUP.
"""

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

TO_STOP: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP))


def not_ignored(numbers: Iterable[signal.Signals]) -> list[signal.Signals]:
    """Those to be heard. SIGHUP is not where it is ignored: `nohup` did that."""
    return [one for one in numbers if one is not signal.SIGHUP or signal.getsignal(one) is not signal.SIG_IGN]


@contextmanager
def signals_read(others: frozenset[signal.Signals] = frozenset()) -> Iterator[int]:
    """A descriptor, never waiting, that gets the number of each signal to stop, and of each of `others`, as a byte.

    For the main thread. After it the signals to stop are ignored, without a moment in between in which they would end
    the process: it ends by itself, and being told twice, as `timeout` tells a process and then its group, must not
    change how. asyncio's handlers of signals give the default action back when the loop is closed.
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
