"""The directory of a Spark checkpoint on this machine: the end of its last committed batch, and a change of that end.

1. Before anything is written, the files that change are copied, durably, to a directory beside the checkpoint.
2. Planned batches are removed first, from the last batch back: at each moment a query that starts finds whole files and
   either the old offsets or the new offsets, and never a plan that ends where the old offsets would have led.
3. A checksum is removed before its file changes. A file without a checksum is not checked.
"""

import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.checkpoint import BatchEnd, Batches, checksum_name, parse_query_id
from tailrace.storage import OsFiles
from tailrace.storage.checkpoints import replace_file

_LARGEST = 64 * 1024 * 1024
"""Bytes of a file: 100,000 partitions have about two million."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(.*)", re.DOTALL)


class StoredCheckpoint(NamedTuple):
    """A checkpoint at the time at which it was read."""

    directory: Path
    query_id: str
    batches: Batches
    contents: Mapping[str, bytes]
    """The files `offsets/N` of the last committed batch and of planned batches, by name."""

    @property
    def end(self) -> BatchEnd | None:
        """The end of the last committed batch; None if no batch is committed yet."""
        if self.batches.committed is None:
            return None
        name = str(self.batches.committed)
        return BatchEnd.parse(self.contents[name], path=str(self.directory / "offsets" / name))


def read_checkpoint(text: str) -> StoredCheckpoint:
    """The checkpoint in this directory, also `file:/...`. Raises KafkaError(INVALID_REQUEST) that names the place."""
    directory = _local(text)
    query_id = parse_query_id(_read(directory / "metadata"), path=str(directory / "metadata"))
    offsets = directory / "offsets"
    batches = Batches.of(_names(offsets), _names(directory / "commits"))
    numbers = batches.planned if batches.committed is None else (batches.committed, *batches.planned)
    return StoredCheckpoint(
        directory, query_id, batches, {str(number): _read(offsets / str(number)) for number in numbers}
    )


def _local(text: str) -> Path:
    directory, scheme = Path(text), _SCHEME.fullmatch(text)
    if scheme is not None and not directory.exists():
        if scheme[1].lower() != "file":
            way_out = "stop the query, copy its checkpoint here, and back after it was moved"
            raise _fault(text, f"is not on this machine: {way_out}")
        directory = Path("/" + scheme[2].lstrip("/"))
    if not directory.is_dir():
        raise _fault(text, "is no directory")
    directory = directory.resolve()
    if not (directory / "metadata").exists():
        raise _fault(text, "is no checkpoint of a Spark query: it has no `metadata`")
    return directory


def _names(directory: Path) -> list[str]:
    """The names in a directory of the checkpoint; empty if Spark has not made the directory yet."""
    try:
        mode = directory.lstat().st_mode
    except FileNotFoundError:
        return []
    if not stat.S_ISDIR(mode):
        raise _fault(str(directory), "is a link, or no directory: name the directory that has the files")
    return OsFiles().list_dir(str(directory))


def _read(path: Path) -> bytes:
    try:
        status = path.lstat()
    except FileNotFoundError:
        raise _fault(str(path), "is missing, and the query cannot start without it") from None
    if not stat.S_ISREG(status.st_mode):
        raise _fault(str(path), "is a link, or no plain file")
    if status.st_size > _LARGEST:
        raise _fault(str(path), f"has {status.st_size} bytes: no file of a checkpoint is that large")
    return OsFiles().read_bytes(str(path))


def move_checkpoint(stored: StoredCheckpoint, end: BatchEnd, *, time: str) -> Path:
    """Replace the end of the last committed batch by `end`, and drop the planned batches; durable on return.

    Returns the directory with the former files, whose name ends with `time`. Raises KafkaError(INVALID_REQUEST) if the
    files have changed since they were read, or a file has no copy of this name; OSError and StorageError.
    """
    assert stored.batches.committed is not None, "a checkpoint without a batch has no offsets to change"
    kept = str(stored.batches.committed)
    backup = _back_up(stored, time)
    if read_checkpoint(str(stored.directory)) != stored:
        raise _fault(str(stored.directory), "has changed meanwhile: a query runs on it; stop that first")
    files, offsets = OsFiles(), stored.directory / "offsets"
    for number in reversed(stored.batches.planned):
        for name in (str(number), checksum_name(str(number))):
            (offsets / name).unlink(missing_ok=True)
        files.sync_dir(str(offsets))
    (offsets / checksum_name(kept)).unlink(missing_ok=True)
    files.sync_dir(str(offsets))
    replace_file(files, str(offsets / kept), end.format())
    return backup


def _back_up(stored: StoredCheckpoint, time: str) -> Path:
    checksums = [stored.directory / "offsets" / checksum_name(name) for name in stored.contents]
    contents = {**stored.contents, **{path.name: _read(path) for path in checksums if path.exists()}}
    files = OsFiles()
    backup = stored.directory.with_name(f"{stored.directory.name}.backup-{time}")
    backup.mkdir()
    offsets = backup / "offsets"
    offsets.mkdir()
    for name, content in contents.items():
        files.write_durably(str(offsets / name), content)
    for directory in (offsets, backup, backup.parent):
        files.sync_dir(str(directory))
    return backup


def _fault(place: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"{place}: {why}")
