"""Directories of partitions that were renamed, and are no partitions any more: deleted and damaged logs.

Names: `<topic>-<partition>.<32 hex digits>-delete` for a deleted log, as Kafka's, which is removed soon;
`<topic>-<partition>.<32 hex digits of the topic id>.<n>-damaged` for a damaged log, which only an administrator
removes. A partition in use has neither ending.
"""

from contextlib import suppress
from typing import Final, NamedTuple

from tailrace.model.errors import StorageError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition, topic_name_fault
from tailrace.storage import FileSystem
from tailrace.storage.file_system import join

DELETE_SUFFIX: Final = "-delete"
DAMAGED_SUFFIX: Final = "-damaged"
_MAX_NAME: Final = 255


class KeptLogs(NamedTuple):
    """Damaged logs that were renamed and kept."""

    directories: int = 0
    size_bytes: int = 0


class RenamedDirectories:
    """The renamed directories below one path."""

    def __init__(self, path: str, files: FileSystem) -> None:
        self.path = path
        self._files = files
        self.kept_logs = KeptLogs()
        """The damaged logs that are kept here, counted at the start and after each rename."""

    def finish_removals(self, names: set[str]) -> None:
        """Remove the directories of deleted logs among these names, and count the damaged logs: at the start."""
        for name in sorted(names):
            if name.endswith(DELETE_SUFFIX):
                self._files.remove_tree(join(self.path, name))
        if any(name.endswith(DAMAGED_SUFFIX) for name in names):
            self.measure_damaged()

    def rename_deleted(self, partition: TopicPartition, topic_id: TopicId) -> str:
        """Rename the partition's directory, so that it can be removed later; returns the new path. The rename is not
        durable yet."""
        number = int.from_bytes(topic_id)
        while self._files.exists(path := self._renamed_path(partition, f"{number:032x}{DELETE_SUFFIX}")):
            number = (number + 1) % 2**128  # the name is taken by an earlier replica whose removal is not complete
        self._files.rename(join(self.path, str(partition)), path)
        return path

    def _renamed_path(self, partition: TopicPartition, ending: str) -> str:
        suffix = f"-{partition.partition}.{ending}"
        return join(self.path, partition.topic[: _MAX_NAME - len(suffix)] + suffix)

    def rename_damaged(self, partition: TopicPartition, topic_id: TopicId) -> str:
        """Rename the directory of a damaged log, durably; returns the new path. May run on any thread. Raises
        StorageError.

        The checkpoints of the log must stay until the rename is done: otherwise the rest of the log could pass for a
        short healthy log.
        """
        path = self.damaged_path(partition, topic_id)
        self._files.rename(join(self.path, str(partition)), path)
        self._files.sync_dir(self.path)
        self.measure_damaged()
        return path

    def damaged_path(self, partition: TopicPartition, topic_id: TopicId) -> str:
        """A path for the log of a damaged replica, or for the records that a cut takes off the log."""
        number = 1
        while self._files.exists(path := self._renamed_path(partition, f"{topic_id.hex()}.{number}{DAMAGED_SUFFIX}")):
            number += 1
        return path

    def measure_damaged(self) -> None:
        """Count the damaged logs that are kept. Raises nothing: an administrator may be removing them now."""
        try:
            names = [name for name in self._files.list_dir(self.path) if name.endswith(DAMAGED_SUFFIX)]
        except StorageError:
            return  # keep the last counts
        sizes = [size for name in names if (size := self._size_of(join(self.path, name))) is not None]
        self.kept_logs = KeptLogs(len(sizes), sum(sizes))

    def _size_of(self, path: str) -> int | None:
        """The bytes of all files in a directory; None if there is no such directory."""
        try:
            names = self._files.list_dir(path)
        except StorageError:
            return None
        size_bytes = 0
        for name in names:
            with suppress(StorageError):
                size_bytes += self._files.size_of(join(path, name))
        return size_bytes

    def rename_if_there(self, partition: TopicPartition, topic_id: TopicId) -> None:
        """Rename the directory of this deleted partition if it still has its name, durably: the process may have
        stopped before `rename_deleted`. Raises StorageError."""
        if self._files.exists(join(self.path, str(partition))):
            self.rename_deleted(partition, topic_id)
            self._files.sync_dir(self.path)

    def remove(self, path: str) -> None:
        """Remove a renamed directory."""
        if self._files.exists(path):
            self._files.remove_tree(path)


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition in a directory of this name; None for another directory, and for the log of the metadata."""
    topic, dash, number = name.rpartition("-")
    if not dash or topic_name_fault(topic) is not None or not (number.isascii() and number.isdecimal()):
        return None
    partition = TopicPartition(topic, int(number))
    return partition if topic != METADATA_TOPIC and str(partition) == name else None
