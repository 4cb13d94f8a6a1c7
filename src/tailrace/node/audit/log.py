"""The thread that writes the audit log: the event loop never waits for it.

A queue is between the two. When the queue is full, or the disk takes no lines, lines are lost and requests go on; the
next line that can be written has the number of the lost lines.
"""

import logging
import threading
from collections import deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from tailrace.node.audit.files import AuditFiles, AuditLimits

MOST_WAITING: Final = 10_000
"""The most lines that wait for the disk: about 10 MB."""
_BATCH: Final = 500
"""The most lines between two syncs."""
_RETRY_SECONDS: Final = 1.0
_LOST: Final = "lines-lost"

_logger = logging.getLogger("tailrace.node")

Fields = Mapping[str, Any]


class AuditLog:
    """The audit log of one node: `start`, then `put` from one thread, then `stop`."""

    def __init__(self, directory: Path, limits: AuditLimits, *, node_id: int) -> None:
        self._directory = directory
        self._files = AuditFiles(directory, limits)
        self._node_id = node_id
        self._waiting: deque[Fields] = deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="tailrace-audit", daemon=True)
        self._untold = 0
        """The lost lines that no line tells of yet."""
        self.written = 0
        """The number of lines written since the start; for metrics, like the two numbers below."""
        self.lost = 0
        self.is_failing = False
        """Whether the last write has failed."""

    def start(self) -> None:
        """Open the files, and begin to write. Raises OSError."""
        self._files.open()
        self._thread.start()

    def put(self, fields: Fields) -> None:
        """Append a line, or count the line as lost. Never blocks for longer than a change of the queue."""
        with self._changed:
            if self._is_stopped or len(self._waiting) >= MOST_WAITING:
                self._lose(1)
                return
            self._waiting.append(fields)
            self._changed.notify()

    def stop(self) -> None:
        """Write the lines that wait, and end the thread."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._files.close()

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._is_stopped:
                    self._changed.wait()
                batch = list(islice(self._waiting, _BATCH))
                untold = self._untold
                if not batch:
                    return
            has_written = self._write(batch, untold)
            with self._changed:
                for _ in batch:
                    self._waiting.popleft()
                if has_written:
                    self._untold -= untold
                else:
                    self._lose(len(batch))
                    if not self._is_stopped:
                        self._changed.wait_for(lambda: self._is_stopped, _RETRY_SECONDS)

    def _write(self, batch: list[Fields], untold: int) -> bool:
        lines = [self._line(fields) for fields in batch]
        if untold:
            lines.insert(0, {"event": _LOST, "node": self._node_id, "count": untold})
        try:
            self._files.append(lines)
        except OSError as fault:
            if not self.is_failing:
                _logger.error(
                    "event=audit-not-written directory=%s reason=%s lines are lost until the disk takes them; requests"
                    " go on",
                    self._directory,
                    fault,
                )
            self.is_failing = True
            return False
        if self.is_failing:
            _logger.warning("event=audit-written-again directory=%s lost=%d", self._directory, untold)
        self.is_failing = False
        self.written += len(lines)
        return True

    def _line(self, fields: Fields) -> Fields:
        rest = {name: value for name, value in fields.items() if name != "time_ms"}
        from datetime import UTC, datetime  # half a megabyte, and few nodes have an audit log

        time = datetime.fromtimestamp(fields["time_ms"] / 1000, UTC).isoformat(timespec="milliseconds")
        return {"time": time, "node": self._node_id, **rest}
