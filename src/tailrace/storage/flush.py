"""Flushes of one log: the files to sync, and one flush on its way from the log's owner to the disk and back."""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from crc32c import crc32c

from tailrace.storage.checkpoints import LEADER_EPOCHS, replace_file
from tailrace.storage.epoch_cache import EpochCache
from tailrace.storage.file_system import File, FileSystem, join, parent
from tailrace.storage.segment import Segment
from tailrace.storage.segments import Segments

_MANY: Final = 17
"""As many directories are cheaper to sync with the whole file system."""


class FlushTicket:
    """The files and names to sync for a log to be flushed up to `end_offset`.

    Begun and finished by the log's owner (`Log.begin_flush`, `Log.finish_flush`), carried out by `sync`, on any thread.
    """

    __slots__ = (
        "_epoch_checkpoint",
        "_note",
        "_system",
        "directories",
        "end_offset",
        "files",
        "finished_files",
        "generation",
        "segments",
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
        generation: int,
        finished_files: tuple[File, ...],
        note: str | None,
    ) -> None:
        self._system = system
        self._epoch_checkpoint = epoch_checkpoint
        self._note = note
        self.segments = segments
        """Rolled segments that this flush covers."""
        self.files = files
        """All files to sync, pinned meanwhile."""
        self.finished_files = finished_files
        """The files among them that are complete, to be closed afterwards."""
        self.directories = directories
        """Directories whose new names are to become durable."""
        self.end_offset = end_offset
        self.generation = generation
        """The number of truncations of the log when the flush began."""

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
        """The checksum of the file of leader epochs that this flush has written; None if it has written none."""
        return None if self._epoch_checkpoint is None else crc32c(self._epoch_checkpoint[1])


def sync_together(tickets: Collection[FlushTicket], on_synced: Callable[[], None] = lambda: None) -> None:
    """`FlushTicket.sync` of logs on one file system: each directory that they share is synced once, and many at once.

    After a crash thousands of logs are opened whose names may not be durable, all in one directory. `on_synced` is
    called after each sync, so that the caller can tell many of them from one that hangs.
    """
    directories: dict[str, None] = {}
    for ticket in tickets:
        ticket.sync_content(on_synced)
        directories.update(dict.fromkeys(ticket.directories))
    if directories:
        next(iter(tickets)).sync_names(directories, on_synced)


class Flushes:
    """The flushes of one log, one at a time, and the other files and names that the next one syncs."""

    __slots__ = ("_files", "_generation", "_ticket", "epochs_crc", "unsynced_directories", "unsynced_files")

    def __init__(
        self,
        files: FileSystem,
        *,
        epochs_crc: int | None,
        unsynced_directories: tuple[str, ...],
        unsynced_files: tuple[File, ...],
    ) -> None:
        self._files = files
        self.epochs_crc = epochs_crc
        """The checksum of the file of leader epochs; None if it is not known."""
        self._generation = 0
        self._ticket: FlushTicket | None = None
        self.unsynced_directories = unsynced_directories
        """Directories with names that may not be durable."""
        self.unsynced_files = unsynced_files
        """Files that are whole and may not be durable, beside those of the segments."""

    @property
    def is_under_way(self) -> bool:
        """Whether one has begun and is not finished."""
        return self._ticket is not None

    @property
    def generation(self) -> int:
        """The number of truncations of the log."""
        return self._generation

    @property
    def has_unsynced_names(self) -> bool:
        """Whether there are new names that no finished flush has synced."""
        return bool(self.unsynced_directories or (self._ticket is not None and self._ticket.directories))

    @property
    def has_other_work(self) -> bool:
        """Whether there is anything to sync but batches."""
        return bool(self.unsynced_directories or self.unsynced_files)

    def note_new(self, file: File, directory: str) -> None:
        """Add a new file, perhaps one of several, to be synced with the names in this directory."""
        self.unsynced_files += (file,)
        self.unsynced_directories = self.unsynced_directories or (directory,)

    def forget_new_names(self) -> None:
        """The names of a new log, and its first file, are durable: another has synced them."""
        assert self._ticket is None, "a flush of them is under way"
        for file in self.unsynced_files:
            file.close()
        self.unsynced_directories = self.unsynced_files = ()

    def note_truncation(self) -> None:
        """Have the result of a flush that is under way ignored: its records may be gone."""
        self._generation += 1

    def forget_removed_files(self) -> None:
        """Close and forget files that were removed."""
        unsynced = self.unsynced_files
        self.unsynced_files = tuple(file for file in unsynced if self._files.exists(file.path))
        for file in unsynced:
            if file not in self.unsynced_files:
                file.close()

    def begin(
        self,
        directory: str,
        segments: Segments,
        epochs: EpochCache,
        *,
        end_offset: int,
        has_new_batches: bool,
        others: Iterable[File],
        note: str | None,
    ) -> FlushTicket:
        """The files and names to sync so that the log as it is now, which ends at `end_offset`, is durable."""
        assert self._ticket is None, f"{directory}: a flush is under way"
        rolled = tuple(segment for segment in segments.all if segment.unsynced_files)
        files = [*self.unsynced_files, *(file for segment in rolled for file in segment.unsynced_files)]
        if has_new_batches:
            files.append(segments.active.file)
        files += others
        for file in files:
            file.pin()
        epoch_checkpoint = None
        if epochs.is_dirty:
            epoch_checkpoint = (join(directory, LEADER_EPOCHS), epochs.to_bytes())
            epochs.is_dirty = False
        self._ticket = FlushTicket(
            self._files,
            segments=rolled,
            files=tuple(files),
            directories=self.unsynced_directories,
            epoch_checkpoint=epoch_checkpoint,
            end_offset=end_offset,
            generation=self._generation,
            finished_files=self.unsynced_files,
            note=note,
        )
        self.unsynced_directories = self.unsynced_files = ()
        return self._ticket

    def finish(self, ticket: FlushTicket, epochs: EpochCache) -> bool:
        """Take the result of `ticket.sync`; False, and ignored, if the log was truncated meanwhile."""
        assert ticket is self._ticket, "not the flush that is under way"
        self._ticket = None
        for file in ticket.files:
            file.unpin()
        for file in ticket.finished_files:
            file.close()
        if ticket.epochs_crc is not None:
            self.epochs_crc = ticket.epochs_crc
        if ticket.generation == self._generation:
            synced = frozenset(ticket.files)
            for segment in ticket.segments:
                segment.mark_synced(synced)
            return True
        epochs.is_dirty = True
        # Since the flush began, a roll may have made names that it has not covered.
        self.unsynced_directories = tuple(dict.fromkeys((*ticket.directories, *self.unsynced_directories)))
        return False
