"""The fresh start of a node whose disk has failed: the node stops, and starts again in the same process when the disk
answers again.

After a failed sync the process's knowledge of its files may be wrong, so all state is dropped: the process replaces
itself (`exec`), which closes every connection at once, so that other nodes take over. The new program waits for the
disk before it takes a port, and then starts as after a kill: recovery reads the bytes on the disk. A supervisor sees
one process that runs all the time, and no person has to act.

A process that gets a signal to stop does not come back. If its disk fails during the clean stop, the process ends with
a failure, and the next start recovers. While a process waits for the disk, a signal ends it at once and without a
failure: there is nothing to close.
"""

import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tailrace.model.errors import StorageError
from tailrace.node.stop_signals import StopSignal, end_at_once, signals_raised

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
WELL_AFTER_S: Final = 60.0
"""The time of service after which earlier failures do not count any more."""
_PROBE: Final = ".disk-probe"
_PROBE_BYTES: Final = 1 << 16
_STDIN: Final = 0

_logger = logging.getLogger("tailrace.node")


class FreshStart:
    """The fresh start of this process after a failure of its disk."""

    def __init__(self, command: Sequence[str], *, failures: int, must_stop: Callable[[], bool]) -> None:
        """`command` starts the process; the number of failures is appended as its last argument. `failures`: the
        failures in a row so far.

        `must_stop` returns whether a signal to stop has come, and reads all signals so far: `exec` would lose an unread
        signal.
        """
        self._command = command
        self._failures = failures
        self._must_stop = must_stop
        self._ready_at: float | None = None

    def note_ready(self) -> None:
        """Note that the node serves from now on."""
        self._ready_at = time.monotonic()

    def on_start_failure(self, fault: StorageError) -> None:
        """Begin anew if this start followed a failure of the disk. At a first start the operator has to act.

        In any other case the call returns, also in the clean stop of a node that has served.
        """
        if self._failures and self._ready_at is None:
            self.begin(fault)

    def begin(self, fault: StorageError) -> None:
        """Replace this process by a fresh process. Returns if that is not possible, or after a signal to stop.

        Only while `signals_read` reads the signals to stop: after it signals are ignored, and a new program inherits
        ignored signals.
        """
        if self._must_stop():
            return
        is_well = self._ready_at is not None and time.monotonic() - self._ready_at > WELL_AFTER_S
        failures = 1 if is_well else self._failures + 1
        _logger.critical("event=node-failed action=wait-for-disk failures=%d fault=%s", failures, fault)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the stream may go to a file on the failed disk
                stream.flush()
        end_at_once()  # later signals end the process; the next line sees earlier signals
        if self._must_stop():
            return
        try:
            os.execv(self._command[0], [*self._command, str(failures)])
        except OSError as refusal:
            _logger.critical("event=fresh-start-failed fault=%s", refusal)


def wait_for_disk(directory: Path, *, failures: int, take: Callable[[bytes], None] | None) -> bool:
    """Wait until a small file can be written and synced on the disk, and return True. Returns False after a signal to
    stop.

    With `take`, the end of standard input counts as a signal to stop, and `take` gets the bytes before the end, and no
    bytes at the end. With each failure in a row the first pause is longer. The function also waits for a sync that
    hangs. Only for the main thread, which it blocks.
    """
    pause_s = min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S)
    began = time.monotonic()
    try:
        with signals_raised():
            _listen((), pause_s, take)
            while _probe_beside(directory, take) is not None:
                _listen((), FIRST_PAUSE_S, take)
    except StopSignal:
        _logger.info("event=node-stopped path=%s", directory)
        return False
    waited_s = time.monotonic() - began
    _logger.warning("event=disk-answers path=%s waited_seconds=%.1f action=start", directory, waited_s)
    return True


def _listen(descriptors: Sequence[int], timeout_s: float | None, take: Callable[[bytes], None] | None) -> list[int]:
    """Wait for a readable descriptor; returns the readable descriptors. Raises StopSignal at the end of stdin."""
    heard = descriptors if take is None else [_STDIN, *descriptors]
    readable, _, _ = select.select(heard, [], [], timeout_s)
    if take is not None and _STDIN in readable:
        received = os.read(_STDIN, 4096)
        take(received)
        if not received:
            raise StopSignal
    return readable


def _probe_beside(directory: Path, take: Callable[[bytes], None] | None) -> OSError | None:
    """Run `probe` in a thread of its own: a sync that hangs blocks its thread, and in the main thread also the handlers
    of signals."""
    outcomes: list[OSError | None] = []
    reader, writer = os.pipe()

    def work() -> None:
        try:
            outcomes.append(probe(directory))
        finally:
            os.close(writer)

    threading.Thread(target=work, name="disk probe", daemon=True).start()
    while reader not in _listen([reader], None, take):
        pass
    os.close(reader)
    return outcomes[0]


def probe(directory: Path) -> OSError | None:
    """Write and sync a small file. Returns None, or the reason why this has failed."""
    path = directory / _PROBE
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            written = os.write(descriptor, bytes(_PROBE_BYTES))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
            path.unlink()
        if written < _PROBE_BYTES:
            return OSError(f"only {written} bytes were written")
        parent = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)
    except OSError as fault:
        return fault
    return None
