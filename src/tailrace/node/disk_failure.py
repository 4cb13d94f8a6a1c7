"""A node whose disk has failed gives itself up, and begins anew in the same process when the disk answers again.

After a failed sync nothing that the process believes of its files is sure, so no belief is kept: the process starts
afresh (`exec`), which closes every connection at once, so that other nodes take over. The process waits for the disk
before it takes any port, then starts as after a kill: recovery reads the bytes on the disk. A supervisor sees a
process that runs all the time, and no person has to do anything.

A process that gets a signal to stop does not come back. If its disk fails in the clean stop, it ends as failed, and the
next start recovers; while the process waits for the disk, it ends at once and well: there is nothing to close.
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
"""A node that has served for so long has left the failures before behind."""
_PROBE: Final = ".disk-probe"
_PROBE_BYTES: Final = 1 << 16
_STDIN: Final = 0

_logger = logging.getLogger("tailrace.node")


class FreshStart:
    """The fresh start of this process after a failure of its disk."""

    def __init__(self, command: Sequence[str], *, failures: int, must_stop: Callable[[], bool]) -> None:
        """`command` starts the process, and gets the number of failures as its last word; `failures`: in a row so far.

        `must_stop` reads the signals up to the moment of the call: `exec` would lose a signal that is not read.
        """
        self._command = command
        self._failures = failures
        self._must_stop = must_stop
        self._ready_at: float | None = None

    def note_ready(self) -> None:
        """The node serves."""
        self._ready_at = time.monotonic()

    def on_start_failure(self, fault: StorageError) -> None:
        """Begin anew if a failure of the disk led to this start; at a first start the operator has to act.

        Returns otherwise, and when the node has served and this is its clean stop.
        """
        if self._failures and self._ready_at is None:
            self.begin(fault)

    def begin(self, fault: StorageError) -> None:
        """Become a fresh process. Returns if that is not possible, or after a signal to stop.

        To be called where `signals_read` reads the signals to stop: a process inherits the signals that are ignored.
        """
        if self._must_stop():
            return
        is_well = self._ready_at is not None and time.monotonic() - self._ready_at > WELL_AFTER_S
        failures = 1 if is_well else self._failures + 1
        _logger.critical("event=node-failed action=wait-for-disk failures=%d fault=%s", failures, fault)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # the stream may go to a file on that very disk
                stream.flush()
        end_at_once()  # signals from now on end the process; the next line sees those before
        if self._must_stop():
            return
        try:
            os.execv(self._command[0], [*self._command, str(failures)])
        except OSError as refusal:
            _logger.critical("event=fresh-start-failed fault=%s", refusal)


def wait_for_disk(directory: Path, *, failures: int, until_stdin_closes: bool) -> bool:
    """Return True when the disk takes and syncs a small file, False after a signal to stop meanwhile.

    The end of standard input counts as a signal to stop. After several failures in a row the wait takes ever longer.
    A sync that hangs is waited for. For the main thread. Blocks: nothing else runs.
    """
    pause_s = min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S)
    heard = [_STDIN] if until_stdin_closes else []
    began = time.monotonic()
    try:
        with signals_raised():
            _listen(heard, pause_s)
            while _probe_beside(directory, heard) is not None:
                _listen(heard, FIRST_PAUSE_S)
    except StopSignal:
        _logger.info("event=node-stopped path=%s", directory)
        return False
    waited_s = time.monotonic() - began
    _logger.warning("event=disk-answers path=%s waited_seconds=%.1f action=start", directory, waited_s)
    return True


def _listen(descriptors: Sequence[int], timeout_s: float | None) -> list[int]:
    """Wait for a readable descriptor; returns the readable descriptors. Raises StopSignal at the end of stdin."""
    readable, _, _ = select.select(descriptors, [], [], timeout_s)
    if _STDIN in readable and not os.read(_STDIN, 4096):
        raise StopSignal
    return readable


def _probe_beside(directory: Path, heard: Sequence[int]) -> OSError | None:
    """`probe`, in a thread of its own: while a sync hangs, nothing else in its thread runs, no handler of a signal."""
    outcomes: list[OSError | None] = []
    reader, writer = os.pipe()

    def work() -> None:
        try:
            outcomes.append(probe(directory))
        finally:
            os.close(writer)

    threading.Thread(target=work, name="disk probe", daemon=True).start()
    while reader not in _listen([reader, *heard], None):
        pass
    os.close(reader)
    return outcomes[0]


def probe(directory: Path) -> OSError | None:
    """Write and sync a small file. Returns the reason why that is not possible, or None."""
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
