"""The checkpoint beside a coordinator's log: what its records below one offset come to, in a file as KIP-630 has it.

1. It saves the time to read the log again, and nothing else: the log starts where it does without one.
2. All records from its end offset on are in the log. So a compaction ends there (`compaction_bound`): it removes
   tombstones and markers, and without them values of the checkpoint would stay that are gone.
3. It goes before the log is cut below its end. An opening drops one that its log contradicts: another program, which
   knows nothing of it, may have cut or compacted the log.
4. A new one takes the place of the old one when it is durable. If two are found, the older one is removed.

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
"""Of the records in a checkpoint: those of the log, with their keys. One of another version is not read."""


class CheckpointDraft:
    """A checkpoint that is being made of the records of its log."""

    __slots__ = ("bound", "is_void")

    def __init__(self, bound: int) -> None:
        self.bound: Final = bound
        """It is made of records from here on: so no compaction may go further."""
        self.is_void = False
        """Whether the log has been cut meanwhile: the checkpoint must not be used."""


class CheckpointReader:
    """Reads a checkpoint; until it is closed, no compaction goes beyond that. Made by `LogCheckpoint`."""

    __slots__ = ("_file", "_is_closed", "_owner", "_size_bytes", "id")

    def __init__(self, owner: "LogCheckpoint", checkpoint_id: OffsetAndEpoch, files: FileSystem) -> None:
        """Raises StorageError."""
        self.id: Final = checkpoint_id
        self._owner = owner
        self._size_bytes = files.size_of(owner.path_of(checkpoint_id))
        self._file = files.open(owner.path_of(checkpoint_id))
        self._file.pin()
        self._is_closed = False

    def batches(self, expected: CheckpointedLog) -> Iterator[SnapshotBatch]:
        """The batches of records, checked. Raises CorruptRecords for damage and for a checkpoint of another log.

        Records read before the fault are not to be used either: only a read to the end shows that it is whole.
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
        """Let the checkpoint go. Harmless if done twice."""
        if not self._is_closed:
            self._is_closed = True
            self._owner.release(self)
            self._file.unpin()
            self._file.close()


class LogCheckpoint:
    """The checkpoint of one log, or the place for one. Made by `LogCheckpoint.open`."""

    __slots__ = ("_directory", "_draft", "_files", "_readers", "id", "size_bytes")

    def __init__(self, directory: str, *, files: FileSystem, checkpoint_id: OffsetAndEpoch | None) -> None:
        self._directory = directory
        self._files = files
        self.id = checkpoint_id
        """Its end offset, and the leader epoch of the record before that; None: there is none."""
        self.size_bytes = 0 if checkpoint_id is None else files.size_of(self.path_of(checkpoint_id))
        self._draft: CheckpointDraft | None = None
        self._readers: set[CheckpointReader] = set()

    @classmethod
    def open(cls, directory: str, *, files: FileSystem) -> "LogCheckpoint":
        """The newest one in this directory; parts and older ones are removed. Nothing is read. Raises StorageError."""
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
        """Drop a checkpoint that cannot be one of a log like this; returns the reason, empty without one.

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
        """The log is about to end here: drop, durably, what stands for more. Raises StorageError."""
        if self._draft is not None:
            self._draft.is_void = True
        if self.id is not None and self.id.offset > end_offset:
            self.drop()

    def drop(self) -> None:
        """Remove it, durably. Raises StorageError."""
        if self.id is not None:
            self._remove(self.id)
            self.id, self.size_bytes = None, 0

    def _remove(self, checkpoint_id: OffsetAndEpoch) -> None:
        self.remove_file(checkpoint_id)
        self._files.sync_dir(self._directory)

    def remove_file(self, checkpoint_id: OffsetAndEpoch) -> None:
        """Remove the file of one that is not used any more, if it is there. On any thread. Raises StorageError."""
        path = self.path_of(checkpoint_id)
        if self._files.exists(path):
            self._files.unlink(path)

    def open_reader(self) -> CheckpointReader:
        """A reader of the one that is there. Raises StorageError."""
        assert self.id is not None, f"{self._directory} has no checkpoint"
        reader = CheckpointReader(self, self.id, self._files)
        self._readers.add(reader)
        return reader

    def release(self, reader: CheckpointReader) -> None:
        """A reader is done."""
        self._readers.discard(reader)

    def begin(self, bound: int) -> CheckpointDraft:
        """Begin another one, of records from `bound` on. One at a time."""
        assert self._draft is None, f"{self._directory}: another checkpoint is being made"
        self._draft = CheckpointDraft(bound)
        return self._draft

    def begin_writing(self, checkpoint_id: OffsetAndEpoch, header: SnapshotHeader) -> SnapshotWriter:
        """The writer of the one that was begun. Raises StorageError; then nothing was made."""
        part = SnapshotPartFile(self._directory, checkpoint_id, files=self._files)
        try:
            return SnapshotWriter(part, header)
        except BaseException:
            part.discard()
            raise

    def finish(self, draft: CheckpointDraft, part: SnapshotPartFile) -> OffsetAndEpoch | None:
        """Take over a part that was published; returns the one before, whose file is to be removed.

        If the log was cut meanwhile it is removed instead. Raises StorageError.
        """
        self._draft = None
        part.close()
        if draft.is_void:
            self._remove(part.id)
            return None
        former, self.id, self.size_bytes = self.id, part.id, part.size_bytes
        return None if former == part.id else former

    def abandon(self) -> None:
        """Give up the one that was begun."""
        self._draft = None
