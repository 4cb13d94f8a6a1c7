"""The faults of a node's logs: a log is missing, does not open, cannot store, or goes offline while in use.

`OfflineLogs` has the logs that cannot be used, with their reasons and the end of each log's good part; `LogFaults`
passes each fault on.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import KafkaError, StorageError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.partition_checkpoints import PartitionCheckpoints
from tailrace.server.partitions.partition_maps import AwakePartitions, DormantPartitions
from tailrace.server.ports import Clock
from tailrace.storage import DamagedLog
from tailrace.storage.checkpoints import RECOVERY_POINTS

_UNKNOWN: Final = -1


class LogEnds(NamedTuple):
    """The ends of one log; -1 for an offset that is not known."""

    good_end_offset: int
    """The end of the log; for a damaged log, the end of its good part if that is known."""
    acknowledged_end_offset: int
    """The end of the part that was flushed or committed, as far as checkpoints say."""
    fault: str
    """The reason why the log cannot be used; empty if the log can be used."""


class OfflineLogs:
    """The partitions whose logs could not be opened, or are being renamed or cut, by name."""

    def __init__(self, directory: LogDirectory, *, awake: AwakePartitions, dormant: DormantPartitions) -> None:
        self._directory = directory
        self._awake = awake
        self._dormant = dormant
        self._reasons: dict[tuple[str, int], str] = {}
        self._ends: dict[tuple[str, int], LogEnds] = {}  # the known ends of these logs
        self._unmoved: dict[tuple[str, int], TopicId] = {}  # damaged logs that could not be renamed
        self._vanished: list[TopicPartition] = []
        self._vanished_ends: dict[tuple[str, int], int] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return iter(self._reasons)

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._reasons

    def why(self, topic_partition: TopicPartition) -> str:
        """The reason why the log of a partition cannot be used; empty if the log can be used. The call does not wake a
        dormant partition."""
        found = self._awake.by_name.get(topic_partition)
        return self._reasons.get(topic_partition, "") if found is None else found.log.failure

    def log_ends(self, topic_partition: TopicPartition) -> LogEnds | None:
        """The ends of a partition's log; None for a partition that is not on this node.

        The call does not wake a dormant partition.
        """
        key = (topic_partition.topic, topic_partition.partition)
        vanished_end = self._vanished_ends.get(key, 0)
        partition, dormant = self._awake.by_name.get(key), self._dormant.find(*key)
        if partition is not None:
            log = partition.log
            acknowledged = max(log.flushed_offset, partition.high_watermark, vanished_end)
            good_end = log.good_end_offset if log.is_damaged else log.log_end_offset
            return LogEnds(good_end, acknowledged, log.failure)
        if dormant is not None:
            try:
                end_offset = 0 if dormant.is_empty else dormant.log.log_end_offset
            except ValueError as fault:
                return LogEnds(_UNKNOWN, _UNKNOWN, f"the note of its clean stop: {fault}")
            return LogEnds(end_offset, max(end_offset, vanished_end), "")
        reason = self._reasons.get(key)
        if reason is None:
            return None
        unknown = LogEnds(_UNKNOWN, self._directory.high_watermark_of(topic_partition) or _UNKNOWN, reason)
        return self._ends.get(key, unknown)

    def add_not_opened(self, topic_partition: TopicPartition, fault: KafkaError) -> None:
        """Add a log that could not be opened."""
        self._reasons[topic_partition] = fault.detail
        self._ends.pop(topic_partition, None)
        if isinstance(fault, DamagedLog):
            damage = fault.damage
            self._ends[topic_partition] = LogEnds(damage.good_end_offset, damage.flushed_end_offset, fault.detail)

    def take_out(self, topic_partition: TopicPartition) -> Partition | None:
        """Take the log of a partition out of use; returns the partition if the log was in use."""
        key = (topic_partition.topic, topic_partition.partition)
        ends = self.log_ends(topic_partition)
        partition = self._awake.pop(key)
        if partition is not None:
            assert ends is not None
            self._ends[key] = ends
            self._reasons[key] = partition.log.failure
        return partition

    def add_unmoved(self, key: tuple[str, int], topic_id: TopicId) -> None:
        """Add a damaged log that could not be renamed: the log must be renamed, cut or removed before it can be opened
        again."""
        self._unmoved[key] = topic_id

    def is_unmoved(self, key: tuple[str, int], topic_id: TopicId) -> bool:
        """Whether the damaged log of this topic's partition still has to be renamed."""
        return self._unmoved.get(key) == topic_id

    def forget(self, key: tuple[str, int]) -> None:
        """Remove the log of a partition: another log replaces it, or the partition is deleted."""
        self._reasons.pop(key, None)
        self._ends.pop(key, None)
        self._unmoved.pop(key, None)

    def add_vanished(self, topic_partition: TopicPartition) -> None:
        """Add a log whose directory is gone since the last run, with its flushed offset."""
        self._vanished.append(topic_partition)
        self._vanished_ends[topic_partition] = self._directory.vanished_end_of(topic_partition)

    def forget_vanished(self, key: tuple[str, int]) -> None:
        """Forget the missing directory of a partition that was deleted."""
        self._vanished_ends.pop(key, None)

    def take_vanished(self) -> list[TopicPartition]:
        """Return and clear the partitions whose directories were gone; their logs are empty, as the logs of new
        replicas.

        This ends the start: if no metadata has named the partition of a missing directory, the directory was removed in
        the last run, and only its entries in the checkpoints were left.
        """
        vanished, self._vanished = self._vanished, []
        self._directory.forget_vanished(but=vanished)
        return vanished


_logger = logging.getLogger("tailrace.server")


class Failures(Protocol):
    """Receives the failures of this node's replicas: `server.replicas.failures.ReplicaFailures`."""

    def lost(self, topic_partition: TopicPartition, /) -> None:
        """Report a replica that has lost, or may have lost, acknowledged records."""
        ...

    def stalled(self, topic_partition: TopicPartition, /) -> None:
        """Report a replica that has all its records, and cannot store more for now."""
        ...

    def resumed(self, topic_partition: TopicPartition, /) -> None:
        """Report that a replica can store again. Does nothing for a replica that could store."""
        ...


class LogFaults:
    """Watches the logs of one table, and reports their faults to `failures`."""

    def __init__(
        self,
        awake: AwakePartitions,
        offline: OfflineLogs,
        checkpoints: PartitionCheckpoints,
        *,
        failures: Failures,
        clock: Clock,
    ) -> None:
        self._awake = awake
        self._offline = offline
        self._checkpoints = checkpoints
        self._clock = clock
        self.failures: Failures = failures
        self.on_disk_full: Callable[[], None] = lambda: None
        """Called when an append fails for lack of space."""

    def watch(self, partition: Partition) -> None:
        """Watch the partition's log for failed writes, and for going offline."""
        partition.log.watch_writes(lambda fault: self._on_write_outcome(partition, fault))
        partition.log.when_offline(lambda: self._gone_offline(partition))

    def report_vanished(self, topic_partition: TopicPartition) -> None:
        """Report a log whose directory is gone since the last run."""
        self._offline.add_vanished(topic_partition)
        self.failures.lost(topic_partition)

    def report_not_opened(self, topic_partition: TopicPartition, fault: KafkaError) -> None:
        """Report a log that could not be opened."""
        self._offline.add_not_opened(topic_partition, fault)
        if isinstance(fault, StorageError) and fault.is_shortage:
            self.failures.stalled(topic_partition)
        else:
            self.failures.lost(topic_partition)

    def _on_write_outcome(self, partition: Partition, fault: StorageError | None) -> None:
        topic_partition = partition.topic_partition
        if self._awake.by_name.get(topic_partition) is not partition:
            return  # the partition is deleted, and another topic may have its name
        if fault is None:
            self.failures.resumed(topic_partition)
        elif fault.is_disk_full:
            # Other logs have the same disk. The callback runs in a later turn, as it changes the fetched and the led
            # partitions.
            self._clock.call_soon(self.on_disk_full)
        else:
            self.failures.stalled(topic_partition)

    def _gone_offline(self, partition: Partition) -> None:
        topic_partition, log = partition.topic_partition, partition.log
        _logger.error(
            "event=log-offline partition=%s damaged=%s reason=%s", topic_partition, log.is_damaged, log.failure
        )
        partition.notify(Change.ERROR)
        if self._awake.by_name.get(topic_partition) is not partition:
            return  # the partition is deleted, and another topic may have its name
        if log.is_damaged:
            # Written at once: after a kill, recovery looks for damage only from the recovery point on.
            self._checkpoints.write(RECOVERY_POINTS, of=(partition,))
            self.failures.lost(topic_partition)
        else:
            self.failures.stalled(topic_partition)  # the next start opens the log with its flushed part
