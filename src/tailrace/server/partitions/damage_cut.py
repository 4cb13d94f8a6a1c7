"""The cut of a damaged log at its damage, by an administrator's choice, with a copy of the records that are cut off.

The segment with the damage, all later segments, and the epochs are copied to the directory in which damaged logs are
kept; when the copy is durable the log is cut. Segments before the damage stay. Until the cut is durable the log stays
damaged: after a crash it does not open, and the administrator has to choose again. If more of the log is damaged than
was known when the copy began, the log is not cut.
"""

from collections.abc import Callable
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.storage import FileSystem, Log
from tailrace.storage.checkpoints import GAP_BOUND, LEADER_EPOCHS, PARTITION_METADATA
from tailrace.storage.file_system import join, parent
from tailrace.storage.flushed_note import FLUSHED_OFFSET
from tailrace.storage.segment_files.file_names import LOG_SUFFIX, offset_in_name

_SLICE_BYTES: Final = 4 << 20
"""The bytes that one `copy_some` copies; flushes run between two calls."""
_SMALL_FILES: Final = (LEADER_EPOCHS, PARTITION_METADATA, FLUSHED_OFFSET, GAP_BOUND)


class DamageCut:
    """The cut of one unused log: `copy_some` until `is_copied`, then `cut`. A fault ends the cut, and is in `fault`."""

    def __init__(
        self, directory: str, copy_path: str, *, files: FileSystem, check_from: int, open_cut: Callable[[], Log]
    ) -> None:
        """`open_cut` opens the log without the damaged part behind `check_from`; it raises an error if another part is
        damaged."""
        self._directory = directory
        self._files = files
        self._check_from = check_from
        self._open_cut = open_cut
        self._names: list[str] | None = None
        self._position = 0
        self.copy_path = copy_path
        """The path of the copy."""
        self.is_copied = False
        self.fault: KafkaError | None = None
        self.end_offset = 0
        """The end of the log after the cut."""
        self.acknowledged_end_offset = 0
        """The end of the part that was flushed or committed."""

    def copy_some(self) -> None:
        """Copy a few megabytes. May run on any thread; raises nothing."""
        try:
            self._copy_some()
        except KafkaError as fault:
            self.fault = fault

    def _copy_some(self) -> None:
        files = self._files
        if self._names is None:
            self._names = self._to_copy()
            files.make_dirs(self.copy_path)
        if self._names:
            name = self._names[-1]
            target = join(self.copy_path, name)
            copied = files.copy_part(join(self._directory, name), target, self._position, _SLICE_BYTES)
            self._position += copied
            if copied < _SLICE_BYTES:
                files.sync_file(target)
                self._names.pop()
                self._position = 0
        if not self._names:
            files.sync_dir(self.copy_path)
            files.sync_dir(parent(self.copy_path))
            self.is_copied = True

    def _to_copy(self) -> list[str]:
        names = self._files.list_dir(self._directory)
        bases = {name: base for name in names if (base := offset_in_name(name, LOG_SUFFIX)) is not None}
        first = max((base for base in bases.values() if base <= self._check_from), default=0)
        others = [name for name in names if name in _SMALL_FILES]
        return [*others, *(name for name, base in bases.items() if base >= first)]

    def cut(self) -> None:
        """Cut the log, durably. Raises nothing. Runs on the event loop, like the opening of a log."""
        assert self.is_copied, "the records that are cut off would be gone"
        try:
            log = self._open_cut()
            self.end_offset = log.log_end_offset
            self.acknowledged_end_offset = log.recovery.acknowledged_end_offset
            log.close(clean=False)
            note = join(self._directory, FLUSHED_OFFSET)
            if self._files.exists(note):
                self._files.sync_file(note)  # with the older note, the log would count as damaged after a power cut
        except KafkaError as fault:
            self.fault = fault
