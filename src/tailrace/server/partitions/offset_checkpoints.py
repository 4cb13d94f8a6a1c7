"""A checkpoint of a log directory: an offset per partition, in one file."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tailrace.model.errors import CorruptRecords, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.storage import FileSystem
from tailrace.storage.checkpoints import read_offsets, write_offsets

_logger = logging.getLogger("tailrace.server")


class OffsetCheckpoint:
    """An offset per partition. The offset 0 means no entry, and is not written."""

    __slots__ = ("_directory", "_files", "_is_stale", "_name", "_offsets")

    def __init__(self, name: str, *, files: FileSystem, directory: str) -> None:
        """Read the file; a damaged file has no offsets, as in Kafka: recovery scans whole logs then.

        Each log has its flushed offset in a file of its own, too. Raises StorageError.
        """
        self._name = name
        self._files = files
        self._directory = directory
        self._is_stale = False
        try:
            self._offsets = read_offsets(files, directory, name)
        except CorruptRecords as fault:
            self._offsets = {}
            self._is_stale = True
            _logger.error("event=checkpoint-damaged name=%s fault='%s' action=begin-anew", name, fault.detail)

    def get(self, partition: TopicPartition) -> int:
        """The offset of a partition, 0 without an entry."""
        return self._offsets.get(partition, 0)

    def __iter__(self) -> Iterator[TopicPartition]:
        """The partitions with entries."""
        return iter(self._offsets)

    def update(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Set these offsets. The offsets of other partitions stay."""
        known = self._offsets
        changed = [(partition, offset) for partition, offset in offsets if known.get(partition, 0) != offset]
        for partition, offset in changed:
            if offset:
                known[partition] = offset
            else:
                del known[partition]
        self._is_stale = self._is_stale or bool(changed)

    def forget(self, partition: TopicPartition) -> bool:
        """Remove a partition; returns whether it had an offset. With a stale offset, a new log of its name would count
        as damaged."""
        was_known = self._offsets.pop(partition, None) is not None
        self._is_stale = self._is_stale or was_known
        return was_known

    def write(self) -> None:
        """Write the file durably, if an offset has changed."""
        if self._is_stale:
            write_offsets(self._files, self._directory, self._name, self._offsets)
            self._is_stale = False

    def begin_write(self) -> "CheckpointWrite":
        """The write of the present offsets, to be run on another thread; call `finish_write` after it. No other write
        may begin before that."""
        if not self._is_stale:
            return CheckpointWrite(None)
        self._is_stale = False
        content = dict(self._offsets)  # the map itself may change meanwhile
        return CheckpointWrite(lambda: write_offsets(self._files, self._directory, self._name, content))

    def finish_write(self, write: "CheckpointWrite") -> KafkaError | None:
        """The fault of a write, None if it succeeded. After a fault the old file stays, and a later write tries
        again."""
        self._is_stale = self._is_stale or write.fault is not None
        return write.fault


class CheckpointWrite:
    """A replacement of a checkpoint file."""

    __slots__ = ("_write", "fault")

    def __init__(self, write: Callable[[], None] | None) -> None:
        self._write = write
        self.fault: KafkaError | None = None

    def run(self) -> None:
        """Replace the file. A fault is kept, not raised: no promise depends on a checkpoint."""
        if self._write is not None:
            try:
                self._write()
            except KafkaError as fault:
                self.fault = fault


NO_WRITE: Final = CheckpointWrite(None)
