"""Flushes of one log: the files to sync, and one flush on its way from the log's owner to the disk and back."""

from collections.abc import Callable, Collection
from typing import Final

from tailrace.model.checksum import crc32c
from tailrace.model.errors import StorageError
from tailrace.storage.checkpoints import LEADER_EPOCHS, replace_file
from tailrace.storage.compaction.compactions import Compactions
from tailrace.storage.file_system import File, FileSystem, join, parent
from tailrace.storage.flushed_note import FlushedNote
from tailrace.storage.log_times import LogTimes
from tailrace.storage.readable_log import ReadableLog
from tailrace.storage.segment_files.segment import Segment

_MANY: Final = 17
"""From this number of directories on, a sync of the whole file system is cheaper."""


class FlushTicket:
    """The files and names to sync for a log to be flushed up to `end_offset`.

    Made by `Flushes.begin`, on the thread of the log; `sync` carries it out, on any thread.
    """

    __slots__ = (
        "_epoch_checkpoint",
        "_note",
        "_system",
        "directories",
        "end_offset",
        "files",
        "finished_files",
        "segments",
        "truncations",
    )

    def __init__(
        self,
        system: FileSystem,
        *,
        segments: tuple[Segment, ...],
        files: tuple[File, ...],
        directories: tuple[str, ...],
        epoch_checkpoint: tuple[str, bytes] | None,
        end_offset: int,
        truncations: int,
        finished_files: tuple[File, ...],
        note: str | None,
    ) -> None:
        self._system = system
        self._epoch_checkpoint = epoch_checkpoint
        self._note = note
        self.segments = segments
        """Rolled segments that this flush covers."""
        self.files = files
        """Files to sync, pinned meanwhile."""
        self.finished_files = finished_files
        """The complete files of the flush, to be closed afterwards."""
        self.directories = directories
        """Directories whose new names are to become durable."""
        self.end_offset = end_offset
        self.truncations = truncations
        """Truncations of the log when the flush began."""

    def sync(self) -> None:
        """Return when everything is durable. A StorageError is final for the disk: a second try would prove nothing."""
        sync_together((self,))

    def sync_content(self, on_synced: Callable[[], None]) -> None:
        """Sync everything but new names in `directories`. `on_synced` is called after each sync."""
        for file in self.files:
            file.sync()
            on_synced()
        if self._epoch_checkpoint is not None:
            replace_file(self._system, *self._epoch_checkpoint)
            on_synced()
        if self._note is not None:
            self._system.sync_file(self._note)
            self._system.sync_dir(parent(self._note))
            on_synced()

    def sync_names(self, directories: Collection[str], on_synced: Callable[[], None]) -> None:
        """Make the new names in these directories of the same file system durable."""
        if len(directories) < _MANY or not self._system.sync_all(next(iter(directories))):
            for directory in directories:
                self._system.sync_dir(directory)
                on_synced()

    @property
    def epochs_crc(self) -> int | None:
        """The checksum of the file of leader epochs that this flush has written; None if it has not written the
        file."""
        return None if self._epoch_checkpoint is None else crc32c(self._epoch_checkpoint[1])


def sync_together(tickets: Collection[FlushTicket], on_synced: Callable[[], None] = lambda: None) -> None:
    """`FlushTicket.sync` of logs on one file system: a shared directory is synced once, and many syncs run at once.

    After a crash thousands of logs are opened whose names may not be durable, in one directory. `on_synced` is
    called after each sync, so that the caller can tell many syncs from a sync that hangs.
    """
    directories: dict[str, None] = {}
    for ticket in tickets:
        ticket.sync_content(on_synced)
        directories.update(dict.fromkeys(ticket.directories))
    if directories:
        next(iter(tickets)).sync_names(directories, on_synced)


class Flushes:
    """Flushes of a log, at most one flush at a time, and the other files and names that the next flush syncs."""

    __slots__ = (
        "_compactions",
        "_files",
        "_log",
        "_note",
        "_ticket",
        "_times",
        "epochs_crc",
        "unsynced_directories",
        "unsynced_files",
    )

    def __init__(
        self,
        log: ReadableLog,
        *,
        files: FileSystem,
        note: FlushedNote,
        times: LogTimes,
        compactions: Compactions,
        epochs_crc: int | None,
        unsynced_directories: tuple[str, ...],
        unsynced_files: tuple[File, ...],
    ) -> None:
        self._log = log
        self._files = files
        self._note = note
        self._times = times
        self._compactions = compactions
        self.epochs_crc = epochs_crc
        """The checksum of the file of leader epochs; None: not known."""
        self._ticket: FlushTicket | None = None
        self.unsynced_directories = unsynced_directories
        """Directories with names that may not be durable."""
        self.unsynced_files = unsynced_files
        """Files that are whole and may not be durable, beside the segments' files."""

    @property
    def is_under_way(self) -> bool:
        """Whether a flush has begun and is not finished."""
        return self._ticket is not None

    @property
    def has_unsynced_names(self) -> bool:
        """Whether there are new names that no finished flush has synced."""
        return bool(self.unsynced_directories or (self._ticket is not None and self._ticket.directories))

    @property
    def has_work(self) -> bool:
        """Whether a flush now would change anything."""
        log = self._log
        has_other_work = bool(self.unsynced_directories or self.unsynced_files)
        return log.flushed_offset < log.log_end_offset or has_other_work or log.epochs.is_dirty

    def note_new(self, file: File, directory: str) -> None:
        """Add a new file and the directory of its name: the next flush syncs the file and the directory."""
        self.unsynced_files += (file,)
        self.unsynced_directories = self.unsynced_directories or (directory,)

    def note_made_durable(self) -> None:
        """Note that the owner has made this new log durable with other new logs, after the opening. After a write or a
        flush of this log the note changes nothing.
        """
        log = self._log
        is_untouched = log.log_end_offset == log.log_start_offset and not log.is_changed
        if is_untouched and not self.is_under_way and not log.failure:
            self.close()
            self.unsynced_directories = ()

    def close(self) -> None:
        """Give the descriptors of unsynced files back."""
        for file in self.unsynced_files:
            file.close()
        self.unsynced_files = ()

    def forget_removed_files(self) -> None:
        """Close and forget files that were removed."""
        unsynced = self.unsynced_files
        self.unsynced_files = tuple(file for file in unsynced if self._files.exists(file.path))
        for file in unsynced:
            if file not in self.unsynced_files:
                file.close()

    def begin(self) -> FlushTicket:
        """The files and names to sync so that all appended batches are durable. One flush at a time."""
        log = self._log
        log.check_online()
        assert self._ticket is None, f"{log.directory}: a flush is under way"
        note = self._note.take_due()
        rolled = tuple(segment for segment in log.segments.all if segment.unsynced_files)
        files = [*self.unsynced_files, *(file for segment in rolled for file in segment.unsynced_files)]
        if log.flushed_offset < log.log_end_offset:
            files.append(log.segments.active.file)
        files += self._compactions.unsynced_files
        for file in files:
            file.pin()
        epochs, epoch_checkpoint = log.epochs, None
        if epochs.is_dirty:
            epoch_checkpoint = (join(log.directory, LEADER_EPOCHS), epochs.to_bytes())
            epochs.is_dirty = False
        self._ticket = FlushTicket(
            self._files,
            segments=rolled,
            files=tuple(files),
            directories=self.unsynced_directories,
            epoch_checkpoint=epoch_checkpoint,
            end_offset=log.log_end_offset,
            truncations=log.truncations,
            finished_files=self.unsynced_files,
            note=note,
        )
        self.unsynced_directories = self.unsynced_files = ()
        return self._ticket

    def finish(self, ticket: FlushTicket) -> None:
        """Take the result of `FlushTicket.sync`; ignored if the log was truncated meanwhile."""
        log = self._log
        assert ticket is self._ticket, "not the flush that is under way"
        self._ticket = None
        for file in ticket.files:
            file.unpin()
        for file in ticket.finished_files:
            file.close()
        if ticket.epochs_crc is not None:
            self.epochs_crc = ticket.epochs_crc
        synced = frozenset(ticket.files)
        if ticket.truncations == log.truncations:
            for segment in ticket.segments:
                segment.mark_synced(synced)
            log.flushed_offset = max(log.flushed_offset, ticket.end_offset)
            self._times.read_note()
            self._note.write(log.flushed_offset, self.epochs_crc)  # after the sync, and before any callback
        else:
            log.epochs.is_dirty = True
            # Since the flush began, a roll may have made names that the flush has not covered.
            self.unsynced_directories = tuple(dict.fromkeys((*ticket.directories, *self.unsynced_directories)))
        self._compactions.mark_synced(synced)

    def run(self) -> None:
        """Begin, sync and finish in one go, for owners without a flush thread."""
        ticket = self.begin()
        try:
            ticket.sync()
        except StorageError as fault:
            self._log.fail(f"a flush failed: {fault.detail}")
            raise
        self.finish(ticket)
