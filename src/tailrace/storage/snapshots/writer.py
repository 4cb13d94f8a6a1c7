"""A snapshot that is being written or fetched: `<id>.checkpoint.part`, which becomes a snapshot by a rename, or is
removed.

The order of a publication makes it safe: checked to the last byte, synced, renamed, the directory synced. So a file
that is called a snapshot was whole when it got the name, whenever the power goes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError
from tailrace.model.partitions import OffsetAndEpoch
from tailrace.protocol.records.record import BatchBuilder, record_size_bound
from tailrace.storage.file_system import Buffer, File, FileSystem, append_all, join
from tailrace.storage.snapshots.format import (
    MAX_BATCH_BYTES,
    MAX_CHECKPOINT_BATCH_BYTES,
    PART_SUFFIX,
    SNAPSHOT_SUFFIX,
    CheckpointRecord,
    SnapshotBatch,
    SnapshotHeader,
    footer_batch,
    header_batch,
    read_snapshot_header,
    snapshot_name,
    walk,
)

_BATCH_BYTES: Final = 64 << 10
"""The size of a batch: a batch is written, and loaded, in one go, while other work waits."""
_HEADROOM: Final = 1 << 10
_CHECK_BYTES: Final = 8 << 20


class SnapshotPartFile:
    """Bytes on their way to being a snapshot. Made by `SnapshotStore`."""

    __slots__ = ("_check", "_checked_bytes", "_directory", "_file", "_files", "header", "id", "path", "size_bytes")

    def __init__(self, directory: str, snapshot_id: OffsetAndEpoch, *, files: FileSystem, infix: str = "") -> None:
        """Makes the file anew. `infix` makes the names of two parts with the same id differ. Raises StorageError."""
        self.id = snapshot_id
        self.path = join(directory, snapshot_name(snapshot_id) + infix + PART_SUFFIX)
        self.size_bytes = 0
        self.header: SnapshotHeader | None = None
        """The snapshot's header and footer; known once the part was checked."""
        self._directory = directory
        self._files = files
        self._file: File = files.open(self.path, create=True)
        self._file.pin()
        self._check: Iterator[SnapshotBatch] | None = None
        self._checked_bytes = 0

    @property
    def final_path(self) -> str:
        return join(self._directory, snapshot_name(self.id) + SNAPSHOT_SUFFIX)

    def append(self, data: Buffer) -> None:
        """Append these bytes. Raises StorageError; then the part is of no use any more."""
        append_all(self._file, data)
        self.size_bytes += len(data)

    def sync(self) -> None:
        """Make the batches written so far durable, on any thread: many small waits are better than a long wait at the
        end."""
        self._file.sync()

    def check(self, max_bytes: int) -> bool:
        """Check about this many bytes more; returns whether every byte is checked and right. Must only be called after
        the last write.

        On any thread. Raises CorruptRecords, once: no more calls then.
        """
        if self._check is None:
            self._check = walk(self._file.pread, size_bytes=self.size_bytes, leader_epoch=self.id.epoch, path=self.path)
        end = self._checked_bytes + max_bytes
        for batch in self._check:
            if batch.position == 0:
                self.header = read_snapshot_header(batch.content)
            self._checked_bytes = batch.position + batch.header.size_bytes
            if self._checked_bytes >= end:
                return False
        return True

    def publish(self) -> None:
        """Give a part that was checked the name of a snapshot, durably. On any thread. Raises StorageError."""
        self._file.sync()
        self._files.rename(self.path, self.final_path)
        self._files.sync_dir(self._directory)

    def close(self) -> None:
        """Give the descriptor back."""
        self._file.unpin()
        self._file.close()

    def discard(self) -> None:
        """Remove the file. A power cut may bring it back: the next start removes it again."""
        self.close()
        if self._files.exists(self.path):
            self._files.unlink(self.path)


class Publication:
    """The slow half of a part's publication: for a thread that waits for the disk. The store takes over the result.

    `carry_out` runs to the end; `step` checks some megabytes at a time, so that flushes of other logs may go between.
    """

    __slots__ = ("_after", "fault", "is_over", "part")

    def __init__(self, part: SnapshotPartFile, *, after: Callable[[], None] | None = None) -> None:
        """`after` runs when the name of the snapshot is durable, before any callback."""
        self.part = part
        self._after = after
        self.fault: CorruptRecords | None = None
        """The reason why the part is no snapshot."""
        self.is_over = False

    def step(self) -> None:
        """Check some more bytes; once all are checked, sync, rename, and sync the directory. Raises StorageError
        only."""
        try:
            if not self.part.check(_CHECK_BYTES):
                return
        except CorruptRecords as fault:
            self.fault = fault
        else:
            self.part.publish()
            if self._after is not None:
                self._after()
        self.is_over = True

    def carry_out(self) -> None:
        """Run every step. Raises only StorageError: if the part is no valid snapshot, `fault` is set, and the part does
        not become a snapshot."""
        while not self.is_over:
            self.step()


class SnapshotWriter:
    """Writes a snapshot of this node's own, in slices: between two calls the event loop does other things.

    `append` as often as there are records, `seal`, then a Publication. Any failure but a refused record ends the
    writer: the owner gives the part to `SnapshotStore.abandon`.
    """

    __slots__ = ("_builder", "_header", "_next_offset", "part", "records_count")

    def __init__(self, part: SnapshotPartFile, header: SnapshotHeader) -> None:
        self.part = part
        self.records_count = 0
        self._header = header
        self._next_offset = 0
        self._write(header_batch(header, leader_epoch=part.id.epoch), 1 + len(header.control))
        self._builder = self._new_builder(-1, -1)

    @property
    def size_bytes(self) -> int:
        """The bytes that are written and the bytes that wait for a full batch."""
        return self.part.size_bytes + (self._builder.size_bytes if self._builder.count else 0)

    def append(self, values: Iterable[bytes]) -> None:
        """Add records with these values, in order. A few hundred at a time take about a millisecond.

        Raises MESSAGE_TOO_LARGE for a record that no batch can hold, and StorageError.
        """
        self.append_records(CheckpointRecord(None, value) for value in values)

    def append_records(self, records: Iterable[CheckpointRecord]) -> None:
        """Add records with keys, in order, see `append`. A producer's records get batches of its transaction."""
        timestamp = self._header.last_contained_ms
        largest = MAX_BATCH_BYTES if self._header.log is None else MAX_CHECKPOINT_BATCH_BYTES
        limit = largest - _HEADROOM
        for key, value, producer_id, producer_epoch in records:
            size = record_size_bound(key, value)
            if size > limit:
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a record of {size} bytes for {self.part.path}")
            if self._builder.count and self._builder.size_bytes + size > _BATCH_BYTES:
                self._write_batch()
            builder = self._builder
            if producer_id != builder.producer_id or producer_epoch != builder.producer_epoch:
                if builder.count:
                    self._write_batch()
                builder = self._builder = self._new_builder(producer_id, producer_epoch)
            builder.append(timestamp, key, value)
            self.records_count += 1

    def seal(self) -> None:
        """Write the last batch and the footer: nothing can be added any more."""
        if self._builder.count:
            self._write_batch()
        footer = footer_batch(
            timestamp=self._header.last_contained_ms, base_offset=self._next_offset, leader_epoch=self.part.id.epoch
        )
        self._write(footer, 1)

    def _write_batch(self) -> None:
        builder = self._builder
        self._write(builder.build(), builder.count)
        self._builder = self._new_builder(builder.producer_id, builder.producer_epoch)

    def _write(self, batch: bytearray, count: int) -> None:
        self.part.append(batch)
        self._next_offset += count

    def _new_builder(self, producer_id: int, producer_epoch: int) -> BatchBuilder:
        return BatchBuilder(
            base_offset=self._next_offset,
            leader_epoch=self.part.id.epoch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            is_transactional=producer_id >= 0,
        )
