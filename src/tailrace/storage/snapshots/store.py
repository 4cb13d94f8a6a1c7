"""The snapshots of one replicated log, as files beside its segments (KIP-630): list, read, write, publish, delete.

1. A file with the name of a snapshot was whole and durable at the rename (`snapshots.writer`). Parts, and files that
   were being deleted, are removed when the store is opened.
2. A snapshot that is being read stays on the disk until the last reader is done, though it is not listed any more.
3. Reading, listing and parts are for the owner's thread. Work that waits for the disk (`Publication`, `Removal`) may
   run on another thread, one piece at a time and in the order in which the pieces were made.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.storage.file_system import Buffer, File, FileSystem, join
from tailrace.storage.snapshots.format import (
    DELETED_SUFFIX,
    PART_SUFFIX,
    SNAPSHOT_SUFFIX,
    SnapshotHeader,
    parse_snapshot_name,
    read_snapshot_header,
    snapshot_name,
    walk,
)
from tailrace.storage.snapshots.writer import Publication, SnapshotPartFile, SnapshotWriter

DAMAGED_SUFFIX = ".damaged"
"""Suffix of a damaged snapshot. Only an administrator removes the file."""
_OWN = "-own"

Removal = Callable[[], None]
"""Removes files. On any thread; raises StorageError."""


class StoredSnapshot(NamedTuple):
    """A whole snapshot."""

    id: OffsetAndEpoch
    size_bytes: int
    header: SnapshotHeader


class SnapshotReader:
    """Reads a snapshot from begin to end, and checks every byte again: disks rot. Must be closed."""

    def __init__(self, file: File, snapshot: StoredSnapshot, on_close: Callable[[], None]) -> None:
        self.snapshot = snapshot
        self._file = file
        self._on_close: Callable[[], None] | None = on_close
        file.pin()

    def batches(self) -> Iterator[memoryview]:
        """The batches of data, 64 KiB each as we write them, 8 MiB at most. Raises CorruptRecords.

        Values read before the fault must not be used either: only a read that reaches the end shows that the snapshot
        is whole.
        """
        found = walk(
            self._file.pread,
            size_bytes=self.snapshot.size_bytes,
            leader_epoch=self.snapshot.id.epoch,
            path=self._file.path,
        )
        return (batch.content for batch in found if not batch.header.is_control)

    def close(self) -> None:
        """Give the snapshot back. A second call does nothing."""
        if self._on_close is not None:
            self._file.unpin()
            self._on_close()
            self._on_close = None


class SnapshotStore:
    """The snapshots in one directory. Made by `SnapshotStore.open`."""

    def __init__(self, directory: str, *, files: FileSystem) -> None:
        self.directory = directory
        self.snapshots: tuple[StoredSnapshot, ...] = ()
        """The snapshots by ascending id."""
        self.damaged: dict[OffsetAndEpoch, CorruptRecords] = {}
        """The snapshots that `open` has found damaged, which are not in `snapshots`."""
        self._files = files
        self._open: dict[OffsetAndEpoch, File] = {}
        self._fetched: dict[OffsetAndEpoch, SnapshotPartFile] = {}
        self._written: list[SnapshotPartFile] = []
        self._readers: dict[OffsetAndEpoch, int] = {}
        self._going: set[OffsetAndEpoch] = set()

    @classmethod
    def open(cls, directory: str, *, files: FileSystem, keeps_damaged: bool = False) -> "SnapshotStore":
        """Opens the store in this existing directory; removes leftovers of a crash.

        Every snapshot is read and checked. Raises CorruptRecords that names the file, or notes the error in `damaged`
        (`keeps_damaged`): a snapshot is durable before anything relies on it, so damage is damage of the disk.
        """
        store = cls(directory, files=files)
        names = files.list_dir(directory)
        for name in names:
            if name.endswith((PART_SUFFIX, DELETED_SUFFIX)):
                files.unlink(join(directory, name))
        whole: list[StoredSnapshot] = []
        for snapshot_id in filter(None, map(parse_snapshot_name, names)):
            try:
                whole.append(store._checked(snapshot_id))
            except CorruptRecords as fault:
                if not keeps_damaged:
                    raise
                store.damaged[snapshot_id] = fault
        store.snapshots = tuple(sorted(whole))
        return store

    def rename_damaged(self, snapshot_id: OffsetAndEpoch) -> str:
        """Rename a damaged snapshot, which is of no use; returns its path. Not durable before the directory is synced.
        Raises StorageError."""
        del self.damaged[snapshot_id]
        self._open.pop(snapshot_id).close()
        path = self.path_of(snapshot_id)
        self._files.rename(path, path + DAMAGED_SUFFIX)
        return path + DAMAGED_SUFFIX

    def _checked(self, snapshot_id: OffsetAndEpoch) -> StoredSnapshot:
        path = self.path_of(snapshot_id)
        size_bytes = self._files.size_of(path)
        file = self._open[snapshot_id] = self._files.open(path)
        header = None
        try:
            for batch in walk(file.pread, size_bytes=size_bytes, leader_epoch=snapshot_id.epoch, path=path):
                header = header or read_snapshot_header(batch.content)
        except CorruptRecords as fault:
            raise CorruptRecords(
                f"the snapshot is damaged: {fault.detail}. Remove the file if the log still has its records, or "
                "restore it from another node"
            ) from None
        assert header is not None, "a whole snapshot begins with a header"
        return StoredSnapshot(snapshot_id, size_bytes, header)

    def path_of(self, snapshot_id: OffsetAndEpoch) -> str:
        """The path of the snapshot, which need not exist."""
        return join(self.directory, snapshot_name(snapshot_id) + SNAPSHOT_SUFFIX)

    @property
    def newest(self) -> StoredSnapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    def find(self, snapshot_id: OffsetAndEpoch) -> StoredSnapshot:
        """The snapshot of this id. Raises SNAPSHOT_NOT_FOUND."""
        for snapshot in self.snapshots:
            if snapshot.id == snapshot_id:
                return snapshot
        raise KafkaError(
            ErrorCode.SNAPSHOT_NOT_FOUND,
            f"there is no snapshot of end offset {snapshot_id.offset} and epoch {snapshot_id.epoch}",
        )

    def read(self, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int) -> Buffer:
        """Bytes of a snapshot for FetchSnapshot: up to `max_bytes` from this position on; empty at the end.

        Raises SNAPSHOT_NOT_FOUND, and POSITION_OUT_OF_RANGE behind the end.
        """
        snapshot = self.find(snapshot_id)
        if not 0 <= position <= snapshot.size_bytes:
            raise KafkaError(
                ErrorCode.POSITION_OUT_OF_RANGE,
                f"position {position} is outside of the {snapshot.size_bytes} bytes of {self.path_of(snapshot_id)}",
            )
        wanted = min(max_bytes, snapshot.size_bytes - position)
        if wanted <= 0:
            return b""
        data = self._open[snapshot_id].lend(wanted, position)
        if len(data) != wanted:
            raise CorruptRecords(f"{self.path_of(snapshot_id)} is shorter than the {snapshot.size_bytes} bytes it had")
        return data

    def open_reader(self, snapshot_id: OffsetAndEpoch) -> SnapshotReader:
        """A reader of the whole snapshot, which stays on the disk until the reader is closed."""
        snapshot = self.find(snapshot_id)
        self._readers[snapshot_id] = self._readers.get(snapshot_id, 0) + 1
        return SnapshotReader(self._open[snapshot_id], snapshot, partial(self._reader_closed, snapshot_id))

    def _reader_closed(self, snapshot_id: OffsetAndEpoch) -> None:
        self._readers[snapshot_id] -= 1
        if not self._readers[snapshot_id]:
            del self._readers[snapshot_id]

    def begin_writing(self, snapshot_id: OffsetAndEpoch, header: SnapshotHeader) -> SnapshotWriter:
        """A writer of a snapshot of this node's own. Raises StorageError."""
        # Not the name of a fetched part: the leader may have a snapshot of this id for us while we write ours.
        part = SnapshotPartFile(self.directory, snapshot_id, files=self._files, infix=_OWN)
        self._written.append(part)
        try:
            return SnapshotWriter(part, header)
        except StorageError:
            self.abandon(part)
            raise

    def write_part(self, snapshot_id: OffsetAndEpoch, position: int, data: Buffer) -> int:
        """Write fetched bytes at the end of the part, which is begun anew at position 0. Returns the size of the part.

        Raises StorageError; then the part is gone.
        """
        if position == 0:
            self.discard_part(snapshot_id)
            self._fetched[snapshot_id] = SnapshotPartFile(self.directory, snapshot_id, files=self._files)
        part = self._fetched[snapshot_id]
        assert position == part.size_bytes, f"{part.path} has {part.size_bytes} bytes; {position} is not its end"
        try:
            part.append(data)
        except StorageError:
            self.abandon(part)
            raise
        return part.size_bytes

    def part(self, snapshot_id: OffsetAndEpoch) -> SnapshotPartFile | None:
        """The part of this id that is being fetched."""
        return self._fetched.get(snapshot_id)

    def discard_part(self, snapshot_id: OffsetAndEpoch) -> None:
        """Remove an unused fetched part, if there is such a part."""
        part = self._fetched.get(snapshot_id)
        if part is not None:
            self.abandon(part)

    def abandon(self, part: SnapshotPartFile) -> None:
        """Remove a written or fetched part; a missing part is fine. There are no more writes to the part."""
        if self._forget(part):
            part.discard()

    def _forget(self, part: SnapshotPartFile) -> bool:
        if self._fetched.get(part.id) is part:
            del self._fetched[part.id]
        elif part in self._written:
            self._written.remove(part)
        else:
            return False
        return True

    def finish(self, publication: Publication) -> StoredSnapshot:
        """Take over the result of a publication. Raises CorruptRecords and removes a part that is no snapshot."""
        part = publication.part
        assert publication.is_over, f"{part.path} is still being published"
        if publication.fault is not None:
            self.abandon(part)
            raise publication.fault
        assert part.header is not None, f"{part.path} was not published"
        self._forget(part)
        part.close()
        opened = self._files.open(part.final_path)  # a snapshot that is listed can be read
        snapshot = StoredSnapshot(part.id, part.size_bytes, part.header)
        others = (snapshot for snapshot in self.snapshots if snapshot.id != part.id)
        self.snapshots = tuple(sorted((*others, snapshot)))
        self._going.discard(part.id)
        if part.id in self._open:
            self._open[part.id].close()
        self._open[part.id] = opened
        return snapshot

    def delete(self, snapshot_ids: Iterable[OffsetAndEpoch]) -> None:
        """Take snapshots off the list. Their files go with `take_removal`; ids that are not there do no harm."""
        going = set(snapshot_ids) & {snapshot.id for snapshot in self.snapshots}
        self.snapshots = tuple(snapshot for snapshot in self.snapshots if snapshot.id not in going)
        self._going |= going

    def take_removal(self) -> Removal | None:
        """The removal of the deleted files without readers, or None: for `server.ports.Disk.carry_out`.

        If the removal is not carried out, or the power goes, the snapshots are listed again after the next start.
        """
        ready = sorted(going for going in self._going if going not in self._readers)
        if not ready:
            return None
        self._going.difference_update(ready)
        for snapshot_id in ready:
            self._open.pop(snapshot_id).close()
        return partial(_remove, self._files, tuple(map(self.path_of, ready)))

    def close(self) -> None:
        """Give all descriptors back; parts go, and readers must be closed."""
        for part in (*self._fetched.values(), *self._written):
            self.abandon(part)
        for file in self._open.values():
            file.close()


def _remove(files: FileSystem, paths: Iterable[str]) -> None:
    for path in paths:
        files.unlink(path)
