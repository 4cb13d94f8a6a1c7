"""One flush on its way from the log's owner to the disk and back."""

from tailrace.storage.checkpoints import replace_file
from tailrace.storage.files import File, FileSystem
from tailrace.storage.segment import Segment


class FlushTicket:
    """What has to be synced for a log to be flushed up to `end_offset`.

    Begun and finished by the log's owner (`Log.begin_flush`, `Log.finish_flush`), carried out by `sync`, on any thread.
    """

    __slots__ = (
        "_epoch_checkpoint",
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
        finished_files: tuple[File, ...] = (),
    ) -> None:
        self._system = system
        self._epoch_checkpoint = epoch_checkpoint
        self.segments = segments
        """Rolled segments that this flush covers."""
        self.files = files
        """All files to sync, pinned meanwhile."""
        self.finished_files = finished_files
        """Those of them that are not written to any more."""
        self.directories = directories
        """Directories whose new names are to become durable."""
        self.end_offset = end_offset
        self.generation = generation
        """How often the log had been truncated when the flush began."""

    def sync(self) -> None:
        """Return when everything is durable. A StorageError is final for the disk: a second try would prove nothing."""
        for file in self.files:
            file.sync()
        if self._epoch_checkpoint is not None:
            replace_file(self._system, *self._epoch_checkpoint)
        for directory in self.directories:
            self._system.sync_dir(directory)
