"""The directory in which a node keeps its partitions, each in a directory of its own: `orders-3`.

1. `partition.metadata` names the topic by id. A directory that holds another topic of the same name (deleted while this
   node was down) is set aside, never opened.
2. A directory to be removed is renamed first, to Kafka's `<topic>-<partition>.<32 hex digits>-delete`: whatever happens
   then, it is not taken for a partition again, and `scan` removes it.
3. A directory that no metadata speaks of is left alone: it is somebody's data.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition, topic_name_fault
from tailrace.model.topic_config import TopicConfig
from tailrace.storage import FileSystem, Log
from tailrace.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
    read_offsets,
    read_partition_metadata,
    take_clean_shutdown,
    write_clean_shutdown,
    write_offsets,
    write_partition_metadata,
)
from tailrace.storage.files import join, parent

DELETE_SUFFIX: Final = "-delete"
_MAX_NAME: Final = 255

_logger = logging.getLogger("tailrace.server")


class LogDirectory:
    """The logs below one path, and the checkpoints of their offsets."""

    def __init__(self, path: str, *, files: FileSystem, flush_on_roll: bool = True) -> None:
        """`flush_on_roll`: under flushed durability a segment is durable before the next one begins."""
        self.path = path
        self._flush_on_roll = flush_on_roll
        self._files = files
        self._checkpoints: dict[str, Mapping[TopicPartition, int]] = {}
        self._found: set[TopicPartition] = set()
        self.was_clean = False
        """Whether the last stop was clean: then logs are opened without looking through them."""

    def scan(self) -> None:
        """Read the checkpoints and see what is there. Finishes removals that a crash has cut short."""
        if not self._files.exists(self.path):
            self._files.make_dirs(self.path)
        self.was_clean = take_clean_shutdown(self._files, self.path) is not None
        if not self.was_clean:
            # A process that was killed may have left names that no sync has covered: this directory and the partitions
            # in it, a checkpoint it replaced, the clean mark it took away. What is acknowledged from now on needs them.
            self._files.sync_dir(self.path)
            self._files.sync_dir(parent(self.path))
        for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS):
            self._checkpoints[name] = read_offsets(self._files, self.path, name)
        for name in self._files.list_dir(self.path):
            if name.endswith(DELETE_SUFFIX):
                self._files.remove_tree(join(self.path, name))
            elif (found := parse_directory_name(name)) is not None:
                self._found.add(found)

    @property
    def free_bytes(self) -> int:
        """The space left for us on its disk. Raises StorageError."""
        return self._files.free_bytes(self.path)

    @property
    def total_bytes(self) -> int:
        """The size of its disk. Raises StorageError."""
        return self._files.total_bytes(self.path)

    @property
    def unclaimed(self) -> frozenset[TopicPartition]:
        """Directories that `scan` found and nobody has opened."""
        return frozenset(self._found)

    def open_log(self, partition: TopicPartition, *, topic_id: TopicId, config: TopicConfig, now_ms: int) -> Log:
        """The log of a partition, recovered if the last stop was not clean; a new one if there is none."""
        directory = join(self.path, str(partition))
        if partition in self._found:
            self._found.discard(partition)
            stored_id = read_partition_metadata(self._files, directory)
            if stored_id is not None and stored_id != topic_id:
                _logger.warning("event=directory-of-another-topic partition=%s action=set-aside", partition)
                self._files.remove_tree(self.set_aside(partition, stored_id))
            elif stored_id is None:
                write_partition_metadata(self._files, directory, topic_id)
        if not self._files.exists(directory):
            self._forget(partition)
            self._files.make_dirs(directory)
            write_partition_metadata(self._files, directory, topic_id)
            self._files.sync_dir(self.path)
        try:
            log = Log.open(
                directory,
                files=self._files,
                config=config,
                now_ms=now_ms,
                recovery_point=self._checkpoints[RECOVERY_POINTS].get(partition, 0),
                log_start_offset=self._checkpoints[LOG_STARTS].get(partition, 0),
                first_dirty_offset=self._checkpoints[CLEANER_OFFSETS].get(partition, 0),
                clean=self.was_clean,
                flush_on_roll=self._flush_on_roll,
            )
        except KafkaError:
            # Its checkpoints must stay: without them, the damage would be a torn end next time, and be cut.
            self._found.add(partition)
            raise
        if log.recovery.bytes_cut or log.recovery.segments_removed:
            _logger.warning(
                "event=log-cut partition=%s end_offset=%d bytes=%d segments=%d reason=%s",
                partition,
                log.log_end_offset,
                log.recovery.bytes_cut,
                log.recovery.segments_removed,
                log.recovery.cut_reason,
            )
        return log

    def high_watermark_of(self, partition: TopicPartition) -> int:
        """The high watermark as last written down, 0 if it never was."""
        return self._checkpoints[HIGH_WATERMARKS].get(partition, 0)

    def set_aside(self, partition: TopicPartition, topic_id: TopicId) -> str:
        """Rename the partition's directory, so that it can be removed later; returns its path now."""
        suffix = f".{topic_id.hex()}{DELETE_SUFFIX}"
        path = join(self.path, str(partition)[: _MAX_NAME - len(suffix)] + suffix)
        if self._files.exists(path):
            self._files.remove_tree(path)
        self._files.rename(join(self.path, str(partition)), path)
        self._files.sync_dir(self.path)
        return path

    def remove(self, path: str) -> None:
        """Remove what was set aside."""
        if self._files.exists(path):
            self._files.remove_tree(path)

    def write_checkpoint(self, name: str, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Write down one offset per partition, if any has changed. Partitions not opened yet keep theirs."""
        known = self._checkpoints[name]
        changed = {partition: known[partition] for partition in self._found if partition in known} | dict(offsets)
        if changed != known:
            write_offsets(self._files, self.path, name, changed)
            self._checkpoints[name] = changed

    def mark_clean(self) -> None:
        """Say that every log was closed cleanly."""
        write_clean_shutdown(self._files, self.path, broker_epoch=-1)

    def _forget(self, partition: TopicPartition) -> None:
        """Take a deleted log's offsets out of the checkpoints: for a new log of its name they would be damage."""
        for name, offsets in self._checkpoints.items():
            if partition in offsets:
                kept = {key: value for key, value in offsets.items() if key != partition}
                write_offsets(self._files, self.path, name, kept)
                self._checkpoints[name] = kept


def parse_directory_name(name: str) -> TopicPartition | None:
    """The partition in a directory of this name, or None if there is none: `__cluster_metadata-0` is not ours."""
    topic, dash, number = name.rpartition("-")
    if not dash or topic_name_fault(topic) is not None or not (number.isascii() and number.isdecimal()):
        return None
    partition = TopicPartition(topic, int(number))
    return partition if topic != METADATA_TOPIC and str(partition) == name else None
