"""A node whose disk has failed gives itself up, and begins anew in the same process when the disk answers again.

After a failed sync nothing that the process believes of its files is sure, so nothing of it is kept: the process
becomes a fresh one (`exec`), which closes every connection at once, so that others take over. It waits for the disk
before it takes any port, then starts as after a kill: recovery reads what is really there. A supervisor sees a
process that runs all the time, and no person has to do anything.
"""

import logging
import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tailrace.model.errors import StorageError

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
WELL_AFTER_S: Final = 60.0
"""A node that has served for so long has left the failures before behind."""
_PROBE: Final = ".disk-probe"
_PROBE_BYTES: Final = 1 << 16
_STDIN: Final = 0

_logger = logging.getLogger("tailrace.node")


class FreshStart:
    """How this process begins anew after a failure of its disk."""

    def __init__(self, command: Sequence[str], *, failures: int) -> None:
        """`command` starts it, but for the number of failures, which comes last; `failures`: in a row, before now."""
        self._command = command
        self._failures = failures
        self._ready_at: float | None = None

    def note_ready(self) -> None:
        """The node serves."""
        self._ready_at = time.monotonic()

    def begin(self, fault: StorageError) -> None:
        """Become a fresh process. Returns only if that is not possible."""
        is_well = self._ready_at is not None and time.monotonic() - self._ready_at > WELL_AFTER_S
        failures = 1 if is_well else self._failures + 1
        _logger.critical("event=node-failed action=wait-for-disk failures=%d fault=%s", failures, fault)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # it may be a file on that very disk
                stream.flush()
        try:
            os.execv(self._command[0], [*self._command, str(failures)])
        except OSError as refusal:
            _logger.critical("event=fresh-start-failed fault=%s", refusal)


def wait_for_disk(directory: Path, *, failures: int, until_stdin_closes: bool) -> bool:
    """Return True when the disk takes and syncs a small file, False if standard input has ended meanwhile.

    After several failures in a row it takes ever longer. A sync that hangs is waited for. Blocks: nothing else runs.
    """
    pause_s = min(FIRST_PAUSE_S * 2 ** min(failures - 1, 16), LONGEST_PAUSE_S)
    began = time.monotonic()
    while True:
        if until_stdin_closes:
            readable, _, _ = select.select([_STDIN], [], [], pause_s)
            if readable and not os.read(_STDIN, 4096):
                return False
        else:
            time.sleep(pause_s)
        fault = probe(directory)
        if fault is None:
            waited_s = time.monotonic() - began
            _logger.warning("event=disk-answers path=%s waited_seconds=%.1f action=start", directory, waited_s)
            return True
        pause_s = FIRST_PAUSE_S


def probe(directory: Path) -> OSError | None:
    """Write a small file, and have it durable; why that is not possible, if it is not."""
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
