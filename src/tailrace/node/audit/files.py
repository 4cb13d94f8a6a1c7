"""The files of an audit log: appends, rotation, and the bound of the disk."""

import fcntl
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from tailrace.node.audit.chain import (
    HEAD,
    REMOVED,
    Link,
    audit_files,
    encode_head,
    encode_line,
    file_name,
    first_of,
    link_of,
    read_head,
)

_LOCK: Final = "audit.lock"


class AuditLimits(NamedTuple):
    """Sizes in bytes."""

    segment_bytes: int
    """A file of this size gets no more lines."""
    retention_bytes: int
    """The most bytes of all files; the oldest files are removed. The newest file stays."""


class AuditFiles:
    """The writer of one directory: `open`, `append` many times, then `close`. For one thread."""

    def __init__(self, directory: Path, limits: AuditLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._lock = self._file = -1
        self._size_bytes = 0
        """The bytes of whole lines in the file."""
        self._last = Link()

    def open(self) -> None:
        """Take the directory, and find the end of the chain. An unfinished line is cut off. Raises OSError, also if
        another process writes there."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(self._directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise OSError(fault.errno, "another process writes this audit log", str(self._directory)) from None
        files = audit_files(self._directory)
        if not files and not (self._directory / HEAD).exists():
            self._write_head()  # so that a log without a line differs from a log without its files
        head = read_head(self._directory) or Link()
        if files:
            self._last = _end_of(files[-1])
            self._open_file(files[-1])
        if head.number > self._last.number:
            self._last = head  # lines are missing: the chain goes on behind them, and a check tells so

    def _open_file(self, path: Path) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        content = os.pread(self._file, os.fstat(self._file).st_size, 0)
        self._size_bytes = content.rfind(b"\n") + 1
        os.ftruncate(self._file, self._size_bytes)
        os.lseek(self._file, self._size_bytes, os.SEEK_SET)

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Append lines, and sync them. Raises OSError; then no line of these is in the log."""
        if self._file < 0 or self._size_bytes >= self._limits.segment_bytes:
            self._open_file(self._directory / file_name(self._last.number + 1))
            self._write(lines)
            self._sync_directory()
            self._remove_oldest()
        else:
            self._write(lines)

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        last, content = self._last, bytearray()
        for fields in lines:
            line = encode_line(last, fields)
            last = link_of(last.number + 1, line)
            content += line
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, self._size_bytes)
            os.lseek(self._file, self._size_bytes, os.SEEK_SET)
            raise
        self._size_bytes += len(content)
        self._last = last
        self._write_head()

    def _write_head(self) -> None:
        draft = self._directory / f"{HEAD}.new"
        written = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(written, encode_head(self._last))
            os.fsync(written)
        finally:
            os.close(written)
        draft.replace(self._directory / HEAD)

    def _remove_oldest(self) -> None:
        """Remove old files, after a line that tells of them."""
        files = audit_files(self._directory)
        sizes = [path.stat().st_size for path in files]
        removed = 0
        while removed < len(files) - 1 and sum(sizes[removed:]) > self._limits.retention_bytes:
            removed += 1
        if removed:
            end = _end_of(files[removed - 1])
            self._write([{"event": REMOVED, "through": end.number, "hash": end.hash}])
            for path in files[:removed]:
                path.unlink()

    def _sync_directory(self) -> None:
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def close(self) -> None:
        """Close the files, and leave the directory to others."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1


def _end_of(path: Path) -> Link:
    """The place behind the last whole line of a file: counted from the number in the name of the file, whatever the
    lines say."""
    lines = path.read_bytes().split(b"\n")[:-1]
    number = first_of(path) + len(lines) - 1
    return link_of(number, lines[-1]) if lines else Link(number)
