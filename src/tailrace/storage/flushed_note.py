"""The flushed offset of one log, noted in its directory after every flush: the line between damage and a torn tail.

Recovery has to distinguish bytes that were flushed and have changed (damage, never cut) from a write that was under way
at a power cut (a torn tail, cut). The recovery point of the whole node is written once a minute only; this note is as
new as the last acknowledged flush. The note is written after the sync of the batches and never before.

The note is written in place, without a sync of its own: it survives every crash of the process. A power cut may take it
back to an older note, which is true as well, or tear the line, which the checksum shows; then the checkpoints of the
node have the flushed offset. Every `SYNC_INTERVAL` flushes the note is synced with the batches.

One line of ours beside Kafka's files, always of the same length:

    1 00000000000000000500 1b2c3d4e 00000000000000000020 5f607182

The words are a version, the offset, the CRC-32C of `leader-epoch-checkpoint` at that time (Kafka's format has none),
the offset from which on the headers of the batches were checked (decision 0069), and the CRC-32C of the preceding
words. Version 0, of older releases, has no offset of checked headers; a number that is not known is written as dashes.
"""

from typing import Final, NamedTuple

from tailrace.model.checksum import crc32c
from tailrace.model.errors import StorageError
from tailrace.storage.file_system import FileSystem, Note, join

FLUSHED_OFFSET: Final = "flushed-offset-checkpoint"
SYNC_INTERVAL: Final = 128
"""The number of flushes of a log after which its note is synced too."""
_VERSION: Final = "1"
_VERSION_WITHOUT_CHECKED: Final = "0"
_UNKNOWN: Final = "--------"
_UNCHECKED: Final = "-" * 20
_LINE_BYTES: Final = {_VERSION_WITHOUT_CHECKED: 41, _VERSION: 62}


class FlushedEnd(NamedTuple):
    """The content of a note."""

    offset: int
    """Everything below this offset is durable."""
    epochs_crc: int | None
    """The checksum of the file of leader epochs at that time; None if it was not known."""
    checked_from: int | None = None
    """The headers of all batches from this offset on were checked; None if no header is known to have been checked."""


def format_note(end: FlushedEnd) -> bytes:
    """The line of a note."""
    epochs_crc = _UNKNOWN if end.epochs_crc is None else f"{end.epochs_crc:08x}"
    checked_from = _UNCHECKED if end.checked_from is None else f"{end.checked_from:020d}"
    content = f"{_VERSION} {end.offset:020d} {epochs_crc} {checked_from}".encode("ascii")
    return content + b" %08x\n" % crc32c(content)


def parse_note(line: bytes) -> FlushedEnd | None:
    """The content of a line; None for a line that is torn, damaged or of another version."""
    content, _, checksum = line.rpartition(b" ")
    try:
        version, offset, epochs_crc, *rest = content.decode("ascii").split(" ")
        if len(line) != _LINE_BYTES.get(version) or checksum != b"%08x\n" % crc32c(content):
            return None
        checked_from = rest[0] if rest else _UNCHECKED
        return FlushedEnd(
            int(offset),
            None if epochs_crc == _UNKNOWN else int(epochs_crc, 16),
            None if checked_from == _UNCHECKED else int(checked_from),
        )
    except ValueError:
        return None


def read_note(files: FileSystem, directory: str) -> FlushedEnd | None:
    """The note in a log's directory; None for a missing or invalid note. Raises StorageError."""
    path = join(directory, FLUSHED_OFFSET)
    return parse_note(files.read_bytes(path)) if files.exists(path) else None


class FlushedNote:
    """The note of one open log."""

    __slots__ = ("_count", "_directory", "_files", "_note", "_noted", "checked_from")

    def __init__(self, directory: str, *, files: FileSystem) -> None:
        self._directory = directory
        self._files = files
        self._note: Note | None = None
        self._noted: FlushedEnd | None = None
        self._count = 0
        self.checked_from: int | None = None
        """The `checked_from` of a `FlushedEnd`, for the notes that are written from now on."""

    def read_checked_from(self) -> int | None:
        """The offset that the note has, which this process has not written yet. Raises StorageError."""
        found = read_note(self._files, self._directory)
        return None if found is None else found.checked_from

    def doubt(self) -> None:
        """Note, durably, that no header is known to have been checked: an unchecked header is about to be appended.

        Does nothing without a note. Raises StorageError.
        """
        self.checked_from = None
        noted = self._noted or read_note(self._files, self._directory)
        if noted is not None and noted.checked_from is not None:
            self._overwrite(noted._replace(checked_from=None))
            self._files.sync_file(join(self._directory, FLUSHED_OFFSET))

    def write(self, offset: int, epochs_crc: int | None) -> None:
        """Note that everything below this offset is durable. If the write fails, the old note stays, still true."""
        end = FlushedEnd(offset, epochs_crc, self.checked_from)
        if end == self._noted:
            return
        try:
            self._overwrite(end)
        except StorageError:
            return
        self._count += 1

    def take_due(self) -> str | None:
        """The path of the note if the flush that begins now has to sync the note and its name; else None."""
        if self._count < SYNC_INTERVAL:
            return None
        self._count = 0
        return join(self._directory, FLUSHED_OFFSET)

    def lower(self, offset: int) -> None:
        """Lower the note to this offset, durably, before the log is cut. Raises StorageError.

        Everything below `offset` must be flushed: a note with this offset replaces an illegible note.
        """
        path = join(self._directory, FLUSHED_OFFSET)
        noted = self._noted
        if noted is not None and noted.offset <= offset:
            return
        if noted is None:
            if not self._files.exists(path):
                return
            found = read_note(self._files, self._directory)
            if found is not None and found.offset <= offset:
                return
        self._overwrite(FlushedEnd(offset, None, self.checked_from))
        self._files.sync_file(path)

    def _overwrite(self, end: FlushedEnd) -> None:
        note = self._note
        if note is None:
            note = self._note = self._files.open_note(join(self._directory, FLUSHED_OFFSET))
        note.overwrite(format_note(end))
        self._noted = end

    def close(self) -> None:
        """Give the descriptor back."""
        if self._note is not None:
            self._note.close()
