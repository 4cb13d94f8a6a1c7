"""The checkpoint beside a coordinator's log: the state of its records below an offset, in a file of KIP-630.

1. A checkpoint saves the time to read the log again, and nothing else: the log start does not depend on checkpoints.
2. Every record from the checkpoint's end offset on is in the log. So a compaction ends at this offset
   (`compaction_bound`): a compaction removes tombstones and markers, and without the tombstones deleted values of the
   checkpoint would stay.
3. A checkpoint goes before the log is cut below its end. Opening drops a contradicted checkpoint: another program,
   which knows nothing of checkpoints, may have cut or compacted the log.
4. A new checkpoint replaces the old when the new is durable. If two checkpoints are found, the older checkpoint is
   removed.

Not thread-safe, except what a `Publication` does with a part.
"""

from collections.abc import Iterator
from typing import Final

from tailrace.model.errors import CorruptRecords
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.control import CheckpointedLog
from tailrace.storage.epoch_cache import LAST_OFFSET, EpochCache
from tailrace.storage.file_system import FileSystem, join
from tailrace.storage.snapshots.format import (
    PART_SUFFIX,
    SNAPSHOT_SUFFIX,
    SnapshotBatch,
    SnapshotHeader,
    parse_snapshot_name,
    read_snapshot_header,
    snapshot_name,
    walk,
)
from tailrace.storage.snapshots.writer import SnapshotPartFile, SnapshotWriter

FORMAT_VERSION: Final = 0
"""The format of records in a checkpoint: the log's records, with their keys. Other versions are not read."""


class CheckpointDraft:
    """A checkpoint that is being made of the records of its log."""

    __slots__ = ("bound", "is_void")

    def __init__(self, bound: int) -> None:
        self.bound: Final = bound
        """The first offset of the checkpoint's records: no compaction may go further."""
        self.is_void = False
        """Whether the log has been cut meanwhile: the checkpoint must not be used."""


class CheckpointReader:
    """Reads a checkpoint; until the reader is closed, no compaction goes beyond the end. Made by `LogCheckpoint`."""

    __slots__ = ("_file", "_is_closed", "_owner", "_size_bytes", "id")

    def __init__(self, owner: "LogCheckpoint", checkpoint_id: OffsetAndEpoch, files: FileSystem) -> None:
        """Open the file. Raises StorageError."""
        self.id: Final = checkpoint_id
        self._owner = owner
        self._size_bytes = files.size_of(owner.path_of(checkpoint_id))
        self._file = files.open(owner.path_of(checkpoint_id))
        self._file.pin()
        self._is_closed = False

    def batches(self, expected: CheckpointedLog) -> Iterator[SnapshotBatch]:
        """The batches of records, checked. Raises CorruptRecords for damage and for a checkpoint of another log.

        Records read before the fault are not to be used either: only a read to the end shows that the file is whole.
        """
        size_bytes, path = self._size_bytes, self._file.path
        for batch in walk(self._file.pread, size_bytes=size_bytes, leader_epoch=self.id.epoch, path=path):
            if batch.position == 0:
                found = read_snapshot_header(batch.content).log
                if found != expected:
                    raise CorruptRecords(f"{path} is a checkpoint of {found}, not of {expected}")
            elif not batch.header.is_control:
                yield batch

    def close(self) -> None:
        """Give the checkpoint back. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._owner.release(self)
            self._file.unpin()
            self._file.close()


class LogCheckpoint:
    """The checkpoint of a log, or the place of a future checkpoint. Made by `LogCheckpoint.open`."""

    __slots__ = ("_directory", "_draft", "_files", "_readers", "id", "size_bytes")

    def __init__(self, directory: str, *, files: FileSystem, checkpoint_id: OffsetAndEpoch | None) -> None:
        self._directory = directory
        self._files = files
        self.id = checkpoint_id
        """The checkpoint's end offset, and the leader epoch of the record before; None: there is no checkpoint."""
        self.size_bytes = 0 if checkpoint_id is None else files.size_of(self.path_of(checkpoint_id))
        self._draft: CheckpointDraft | None = None
        self._readers: set[CheckpointReader] = set()

    @classmethod
    def open(cls, directory: str, *, files: FileSystem) -> "LogCheckpoint":
        """Opens the newest checkpoint in this directory; removes parts and older files. Raises StorageError."""
        names = files.list_dir(directory)
        found = {checkpoint_id: name for name in names if (checkpoint_id := parse_snapshot_name(name)) is not None}
        newest = max(found, default=None)
        for name in names:
            is_older = name.endswith(SNAPSHOT_SUFFIX) and newest is not None and name != found[newest]
            if name.endswith(PART_SUFFIX) or is_older:
                files.unlink(join(directory, name))
        return cls(directory, files=files, checkpoint_id=newest)

    def path_of(self, checkpoint_id: OffsetAndEpoch) -> str:
        """The path of a checkpoint, which need not exist."""
        return join(self._directory, snapshot_name(checkpoint_id) + SNAPSHOT_SUFFIX)

    def drop_if_contradicted(
        self, epochs: EpochCache, *, log_start_offset: int, log_end_offset: int, first_dirty_offset: int
    ) -> str:
        """Drop the checkpoint if it contradicts a log with these offsets and epochs; returns the reason, empty if
        nothing was dropped.

        Raises StorageError.
        """
        if self.id is None:
            return ""
        (end_offset, epoch), reason = self.id, ""
        if not log_start_offset < end_offset <= log_end_offset:
            reason = f"it ends at {end_offset}, and the log has the offsets {log_start_offset} to {log_end_offset}"
        elif epochs.epoch_of(end_offset - 1) != epoch:
            reason = f"the record before {end_offset} is of epoch {epochs.epoch_of(end_offset - 1)}, not {epoch}"
        elif first_dirty_offset > end_offset:
            reason = f"the log was compacted up to {first_dirty_offset}, beyond its end at {end_offset}"
        if reason:
            self.drop()
        return reason

    @property
    def compaction_bound(self) -> int:
        """The offset from which on the log must not be compacted."""
        bounds = [reader.id.offset for reader in self._readers]
        if self.id is not None:
            bounds.append(self.id.offset)
        if self._draft is not None:
            bounds.append(self._draft.bound)
        return min(bounds, default=LAST_OFFSET)

    def cut(self, end_offset: int) -> None:
        """Prepare for a cut of the log at this offset: drop, durably, a checkpoint that reaches beyond. Raises
        StorageError."""
        if self._draft is not None:
            self._draft.is_void = True
        if self.id is not None and self.id.offset > end_offset:
            self.drop()

    def drop(self) -> None:
        """Remove the checkpoint, durably. Raises StorageError."""
        if self.id is not None:
            self._remove(self.id)
            self.id, self.size_bytes = None, 0

    def _remove(self, checkpoint_id: OffsetAndEpoch) -> None:
        self.remove_file(checkpoint_id)
        self._files.sync_dir(self._directory)

    def remove_file(self, checkpoint_id: OffsetAndEpoch) -> None:
        """Remove the file of an unused checkpoint; a missing file is fine. On any thread. Raises StorageError."""
        path = self.path_of(checkpoint_id)
        if self._files.exists(path):
            self._files.unlink(path)

    def open_reader(self) -> CheckpointReader:
        """Open a reader of the present checkpoint. Raises StorageError."""
        assert self.id is not None, f"{self._directory} has no checkpoint"
        reader = CheckpointReader(self, self.id, self._files)
        self._readers.add(reader)
        return reader

    def release(self, reader: CheckpointReader) -> None:
        """Note that this reader is done."""
        self._readers.discard(reader)

    def begin(self, bound: int) -> CheckpointDraft:
        """Begin another checkpoint, of records from `bound` on; there is at most one draft."""
        assert self._draft is None, f"{self._directory}: another checkpoint is being made"
        self._draft = CheckpointDraft(bound)
        return self._draft

    def begin_writing(self, checkpoint_id: OffsetAndEpoch, header: SnapshotHeader) -> SnapshotWriter:
        """Create the writer of the checkpoint that was begun. Raises StorageError; then nothing was made."""
        part = SnapshotPartFile(self._directory, checkpoint_id, files=self._files)
        try:
            return SnapshotWriter(part, header)
        except BaseException:
            part.discard()
            raise

    def finish(self, draft: CheckpointDraft, part: SnapshotPartFile) -> OffsetAndEpoch | None:
        """Take over a part that was published. Returns the replaced checkpoint; the caller removes its file.

        If the log was cut meanwhile the part is removed instead. Raises StorageError.
        """
        self._draft = None
        part.close()
        if draft.is_void:
            self._remove(part.id)
            return None
        former, self.id, self.size_bytes = self.id, part.id, part.size_bytes
        return None if former == part.id else former

    def abandon(self) -> None:
        """Give up the draft."""
        self._draft = None
