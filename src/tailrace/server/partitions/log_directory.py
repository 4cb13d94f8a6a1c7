"""The directory in which a node keeps its partitions, a directory per partition: `orders-3`.

1. `partition.metadata` has the id of the topic. A directory of another topic with the same name (deleted while this
   node was down) is renamed, never opened.
2. A directory to be removed is renamed first (`renamed_directories`): after a crash no start takes the directory for
   a partition, and `scan` removes the directory.
3. A directory without metadata is kept: an administrator may need its data. The log of a damaged replica that was
   fetched again is kept, too.
4. When a new log with the name of a deleted log begins, the checkpoints have no entry of the deleted log.
5. A directory that is missing at the start is reported as an error. An empty log takes its place, as in Kafka: this
   node has lost its records, and other replicas may have these records.
"""

import logging
from collections.abc import Collection, Mapping
from typing import Final

from tailrace.model.errors import CorruptRecords, KafkaError, StorageError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import METADATA_TOPIC, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.partitions.offset_checkpoints import OffsetCheckpoint
from tailrace.server.partitions.renamed_directories import RenamedDirectories, parse_directory_name
from tailrace.storage import ClosedLog, ClosedLogs, ClosedTopic, FileSystem, Log
from tailrace.storage.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    begin_partition_metadata,
    read_partition_metadata,
    take_clean_shutdown,
    write_clean_shutdown,
    write_partition_metadata,
)
from tailrace.storage.file_system import join, parent
from tailrace.storage.recovery.closed_logs import read_closed_logs, write_closed_logs
from tailrace.storage.segment_files.file_names import LOG_SUFFIX, segment_name

_NO_BROKER_EPOCH: Final = -1
_BITS_PER_CHARACTER: Final = 6
"""The number of bits that a character of a topic's id encodes in files."""
_PROBE: Final = "room.tmp"
"""The file that `can_write` writes and removes."""
_MANY: Final = 17
"""From this many new logs on, one sync of the whole file system is used in place of two syncs per log, which take 0.13
s for 16 logs where a sync takes 4 ms. The sync of the file system waits for the writes of all programs on that disk,
without a bound."""

_logger = logging.getLogger("tailrace.server")


class LogDirectory:
    """The logs below one path, and the checkpoints of their offsets."""

    def __init__(self, path: str, *, files: FileSystem, is_durable: bool) -> None:
        """`is_durable`: log.durability=flushed. Then recovery after a crash also checks whether a failed sync has lost
        records."""
        self.path = path
        self._is_durable = is_durable
        self._files = files
        self._checkpoints: dict[str, OffsetCheckpoint] = {}
        self._found: set[TopicPartition] = set()
        self._distrusted: set[TopicPartition] = set()
        self._closed: ClosedLogs = {}
        self._vanished: dict[TopicPartition, int] = {}
        """Logs whose directories are missing, with their flushed offsets; `has_vanished` reports them."""
        self.was_clean = False
        """Whether the last stop was clean: then logs are opened without a scan of their batches."""
        self.renamed: Final = RenamedDirectories(path, files)
        """The directories of deleted and of damaged logs."""

    def scan(self) -> None:
        """Read the checkpoints and list the directories. Finishes removals that a crash has interrupted."""
        if not self._files.exists(self.path):
            self._files.make_dirs(self.path)
        closed_in_epoch = take_clean_shutdown(self._files, self.path)
        self.was_clean = closed_in_epoch is not None
        if not self.was_clean:
            # A killed process may have left directory entries that were never synced: of this directory, its
            # partitions, a replaced checkpoint, the removed clean mark. Acknowledgements from now on depend on these
            # entries.
            self._files.sync_dir(self.path)
            self._files.sync_dir(parent(self.path))
        for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS, CLEANER_OFFSETS):
            self._checkpoints[name] = OffsetCheckpoint(name, files=self._files, directory=self.path)
        names = set(self._files.list_dir(self.path))
        if closed_in_epoch is not None:
            names -= self._take_closed_logs(names, closed_in_epoch)
        self.renamed.finish_removals(names)
        self._found.update(found for name in names if (found := parse_directory_name(name)) is not None)
        self._note_vanished()

    def _note_vanished(self) -> None:
        """Note the logs whose directories are gone, and remove their entries from the checkpoints.

        At the start only: later the disk's thread writes the checkpoints.
        """
        here = self.unclaimed
        known = {partition for checkpoint in self._checkpoints.values() for partition in checkpoint}
        for partition in known - here:
            if partition.topic == METADATA_TOPIC:
                continue  # the metadata log is elsewhere
            self._vanished[partition] = self._checkpoints[RECOVERY_POINTS].get(partition)
            self.forget(partition)
        self.write_checkpoints()

    def _take_closed_logs(self, names: set[str], epoch: int) -> set[str]:
        """Read the closed logs of the clean stop that still exist; returns the names of their directories."""
        try:
            noted = read_closed_logs(self._files, self.path, broker_epoch=epoch)
        except KafkaError as fault:
            _logger.warning("event=closed-logs-ignored fault=%s action=open-all", fault)
            return set()
        taken: set[str] = set()
        for topic, (_, lines) in noted.items():
            here = {number: name for number in lines if (name := f"{topic}-{number}") in names}
            for number in lines.keys() - here.keys():
                vanished = TopicPartition(topic, number)
                self._vanished[vanished] = self._checkpoints[RECOVERY_POINTS].get(vanished)
                del lines[number]
            taken.update(here.values())
        self._closed = noted
        return taken

    def has_vanished(self, partition: TopicPartition) -> bool:
        """Whether the log had flushed records, and `scan` has not found its directory."""
        return bool(self._vanished.get(partition))

    def forget_vanished(self, *, but: Collection[TopicPartition]) -> None:
        """Expect only the directories of these partitions from now on."""
        self._vanished = {partition: self._vanished[partition] for partition in but if partition in self._vanished}

    @property
    def free_bytes(self) -> int:
        """The free space for this process on the directory's disk. Raises StorageError."""
        return self._files.free_bytes(self.path)

    def can_write(self, size_bytes: int) -> bool:
        """Whether so many bytes can be written; the check writes and removes a file.

        A quota may be full on a disk that has `free_bytes`.
        """
        path = join(self.path, _PROBE)
        try:
            file = self._files.open(path, create=True)
            try:
                return file.writev((bytes(size_bytes),)) == size_bytes
            finally:
                file.close()
                self._files.unlink(path)
        except StorageError:
            return False

    @property
    def total_bytes(self) -> int:
        """The size of the directory's disk. Raises StorageError."""
        return self._files.total_bytes(self.path)

    @property
    def unclaimed(self) -> frozenset[TopicPartition]:
        """The partitions whose directories `scan` has found, and whose logs are not open."""
        closed = (TopicPartition(name, number) for name, topic in self._closed.items() for number in topic.lines)
        return frozenset((*self._found, *closed))

    def unclaimed_id(self, partition: TopicPartition) -> TopicId | None:
        """The topic id of an unclaimed directory; None if it cannot be read."""
        topic = self._closed.get(partition.topic)
        if topic is not None and partition.partition in topic.lines:
            return topic.topic_id
        try:
            return read_partition_metadata(self._files, join(self.path, str(partition)))
        except KafkaError:
            return None

    def claim(self, partition: TopicPartition) -> None:
        """Note that the directory is about to be renamed."""
        self.forget_renamed(partition)
        topic = self._closed.get(partition.topic)
        if topic is not None:
            topic.lines.pop(partition.partition, None)

    def is_found(self, partition: TopicPartition) -> bool:
        """Whether `scan` has found the directory, and its log must be opened from its files."""
        return partition in self._found

    def take_closed(self, partition: TopicPartition, topic_id: TopicId) -> str | None:
        """The line that `reopen` needs for a log of this topic that was closed cleanly; None for any other log."""
        topic = self._closed.get(partition.topic)
        line = None if topic is None else topic.lines.pop(partition.partition, None)
        if line is None:
            return None
        assert topic is not None
        if topic.topic_id != topic_id:
            self._found.add(partition)  # the log belongs to another topic of this name, and so does the directory
            return None
        return line

    def open_log(
        self,
        partition: TopicPartition,
        *,
        topic_id: TopicId,
        config: TopicConfig,
        now_ms: int,
        leader_epoch: int | None,
    ) -> Log:
        """The log of a partition from its files, recovered if the last stop was not clean; a new log if there are no
        files.

        `leader_epoch` is the partition's leader epoch in the metadata, None if unknown: no record may have a later
        epoch. `Log.recovery` tells whether acknowledged records are gone (`lost_acknowledged`). Raises DamagedLog if
        the log is damaged. The call syncs its changes, so it is for the start of a node, not for a running event loop.
        """
        directory = join(self.path, str(partition))
        if partition in self._found:
            self._check_topic(partition, directory, topic_id)
            self._found.discard(partition)
        if not self._files.exists(directory):
            self.make(partition, topic_id)
            self.sync_made((partition,))
        try:
            log = Log.open(
                directory,
                files=self._files,
                config=config,
                now_ms=now_ms,
                recovery_point=self._checkpoints[RECOVERY_POINTS].get(partition),
                high_watermark=self._checkpoints[HIGH_WATERMARKS].get(partition),
                leader_epoch=leader_epoch,
                log_start_offset=self._checkpoints[LOG_STARTS].get(partition),
                first_dirty_offset=self._checkpoints[CLEANER_OFFSETS].get(partition),
                clean=self.was_clean and partition not in self._distrusted,
                is_durable=self._is_durable,
            )
        except KafkaError:
            # The checkpoints must stay: otherwise the next start would take the damage for a torn end, and cut the log.
            self._found.add(partition)
            raise
        _report_recovery(partition, log)
        return log

    def _check_topic(self, partition: TopicPartition, directory: str, topic_id: TopicId) -> None:
        try:
            stored_id = read_partition_metadata(self._files, directory)
        except CorruptRecords:
            if self.was_clean or self._checkpoints[RECOVERY_POINTS].get(partition):
                raise
            stored_id = None  # the power failed before the file was synced, and so before any acknowledgement
        if stored_id is None:
            write_partition_metadata(self._files, directory, topic_id)
        elif stored_id != topic_id and _is_damaged_id(stored_id, topic_id):
            _logger.error("event=partition-metadata-damaged partition=%s action=write-anew", partition)
            write_partition_metadata(self._files, directory, topic_id)
        elif stored_id != topic_id:
            _logger.warning("event=directory-of-another-topic partition=%s action=remove", partition)
            path = self.renamed.rename_deleted(partition, stored_id)
            self._found.discard(partition)  # even if a step from here on fails
            self._files.sync_dir(self.path)
            self._files.remove_tree(path)
        elif not self.was_clean:
            # A killed process may have written the file without a sync, and acknowledged records depend on the file.
            self._files.sync_file(join(directory, PARTITION_METADATA))

    def _name_topic(self, directory: str, topic_id: TopicId) -> None:
        """Write the topic's id for a log whose id cannot be read: an administrator has chosen the log for the topic."""
        try:
            read_partition_metadata(self._files, directory)
        except CorruptRecords:
            write_partition_metadata(self._files, directory, topic_id)

    def make(self, partition: TopicPartition, topic_id: TopicId) -> None:
        """Make an empty log, which is not durable before `sync_made`."""
        known_end = self._vanished.pop(partition, None)
        if known_end is not None:
            _report_vanished(partition, known_end)
        if self.forget(partition):  # entries of another topic, whose directory was renamed
            self.write_checkpoints()
        directory = join(self.path, str(partition))
        self._files.make_dirs(directory)
        begin_partition_metadata(self._files, directory, topic_id)
        self._files.open(join(directory, segment_name(0) + LOG_SUFFIX), create=True).close()

    def sync_made(self, partitions: Collection[TopicPartition]) -> None:
        """Sync new logs, with their names. May run on any thread."""
        if len(partitions) >= _MANY and self._files.sync_all(self.path):
            return
        for partition in partitions:
            directory = join(self.path, str(partition))
            self._files.sync_file(join(directory, PARTITION_METADATA))
            self._files.sync_dir(directory)
        self._files.sync_dir(self.path)

    def reopen(
        self, partition: TopicPartition, closed: ClosedLog, *, config: TopicConfig, is_durable: bool = True
    ) -> Log:
        """Open a log that was closed cleanly, or was just made. `is_durable`: whether a new log is synced already."""
        directory = join(self.path, str(partition))
        unsynced = () if is_durable else (self._files.open(join(directory, PARTITION_METADATA)),)
        return Log.reopen(
            directory, closed, files=self._files, config=config, is_new=not is_durable, unsynced_files=unsynced
        )

    def distrust(self, partition: TopicPartition) -> None:
        """Let the next `open_log` scan this log, even after a clean stop: since the stop the log was used, or cut."""
        self._found.add(partition)
        self._distrusted.add(partition)

    def keep_deleted(self, partition: TopicPartition) -> None:
        """Let the next `open_log` try the failed rename of a deleted log's directory again, if it still exists."""
        if self._files.exists(join(self.path, str(partition))):
            self.distrust(partition)

    def vanished_end_of(self, partition: TopicPartition) -> int:
        """The flushed offset of a log whose directory is gone; 0 for other logs."""
        return self._vanished.get(partition, 0)

    def high_watermark_of(self, partition: TopicPartition) -> int:
        """The high watermark in the checkpoint, 0 without an entry."""
        return self._checkpoints[HIGH_WATERMARKS].get(partition)

    def damage_cut(
        self,
        partition: TopicPartition,
        *,
        topic_id: TopicId,
        good_end_offset: int,
        config: TopicConfig,
        now_ms: int,
        leader_epoch: int,
    ) -> DamageCut:
        """The cut of a damaged log that is out of use, by the present checkpoints. Call `finish_cut` after the cut."""
        directory, path = join(self.path, str(partition)), self.renamed.damaged_path(partition, topic_id)
        recovery_point = self._checkpoints[RECOVERY_POINTS].get(partition)
        high_watermark = self._checkpoints[HIGH_WATERMARKS].get(partition)

        def open_cut() -> Log:
            self._name_topic(directory, topic_id)
            return Log.open(
                directory,
                files=self._files,
                config=config,
                now_ms=now_ms,
                recovery_point=recovery_point,
                high_watermark=high_watermark,
                leader_epoch=leader_epoch,
                log_start_offset=self._checkpoints[LOG_STARTS].get(partition),
                cuts_damage=True,
                check_from=good_end_offset,
                is_durable=self._is_durable,
            )

        return DamageCut(directory, path, files=self._files, check_from=good_end_offset, open_cut=open_cut)

    def finish_cut(self, partition: TopicPartition, end_offset: int) -> list[str]:
        """Lower the checkpoints of a cut log to its end; returns the names of the checkpoints to be written."""
        self.renamed.measure_damaged()
        names = [RECOVERY_POINTS, HIGH_WATERMARKS]
        for name in names:
            checkpoint = self._checkpoints[name]
            checkpoint.update([(partition, min(checkpoint.get(partition), end_offset))])
        return names

    def forget_renamed(self, partition: TopicPartition) -> None:
        """Note that the directory of the partition has been renamed, and need not be opened any more."""
        self._found.discard(partition)
        self._distrusted.discard(partition)

    def sync_names(self) -> None:
        """Sync the names of the partitions' directories. On any thread."""
        self._files.sync_dir(self.path)

    def checkpoint(self, name: str) -> OffsetCheckpoint:
        """The checkpoint with this name."""
        return self._checkpoints[name]

    def forget(self, partition: TopicPartition) -> list[str]:
        """Remove a deleted log from the checkpoints; returns the names of the checkpoints to be written."""
        return [name for name, checkpoint in self._checkpoints.items() if checkpoint.forget(partition)]

    def write_checkpoints(self) -> None:
        """Write the checkpoints that have changed, durably."""
        for checkpoint in self._checkpoints.values():
            checkpoint.write()

    def mark_clean(self, closed: Mapping[str, ClosedTopic]) -> None:
        """Write the clean mark, and a line for each closed log. Logs without a line are opened from their files."""
        logs = dict(closed)
        for name, (topic_id, lines) in self._closed.items():
            if name not in logs or logs[name].topic_id == topic_id:
                logs[name] = ClosedTopic(topic_id, lines | logs[name].lines if name in logs else lines)
        write_closed_logs(self._files, self.path, logs, broker_epoch=_NO_BROKER_EPOCH)
        write_clean_shutdown(self._files, self.path, broker_epoch=_NO_BROKER_EPOCH)


def _is_damaged_id(stored_id: TopicId, topic_id: TopicId) -> bool:
    """Whether the stored id differs from the topic's id in a single character, as after a flipped bit in the file.

    Ids are random: the ids of two topics differ in many characters. The directory of another topic's log is renamed.
    """
    difference = int.from_bytes(stored_id) ^ int.from_bytes(topic_id)
    lowest_bit = difference & -difference
    return difference // lowest_bit < 1 << _BITS_PER_CHARACTER


def _report_vanished(partition: TopicPartition, known_end: int) -> None:
    """Log that records have vanished without a deletion, and what an administrator can do."""
    _logger.error(
        "event=partition-vanished partition=%s flushed_up_to=%d action=begin-empty "
        "hint='stop the node and put the directory back, if there is a copy of it'",
        partition,
        known_end,
    )


def _report_recovery(partition: TopicPartition, log: Log) -> None:
    """Log the changes that the recovery has made, if any."""
    recovery = log.recovery
    if recovery.bytes_cut or recovery.segments_removed or recovery.lost_acknowledged:
        _logger.log(
            logging.ERROR if recovery.lost_acknowledged else logging.WARNING,
            "event=log-cut partition=%s end_offset=%d bytes=%d segments=%d acknowledged_up_to=%d reason=%s",
            partition,
            log.log_end_offset,
            recovery.bytes_cut,
            recovery.segments_removed,
            recovery.acknowledged_end_offset,
            recovery.cut_reason,
        )
    if (noted := recovery.ignored_log_start) is not None:
        _logger.warning(
            "event=log-start-ignored partition=%s noted=%d end_offset=%d", partition, noted, log.log_end_offset
        )
