"""The faults of a node's logs: a log is missing, does not open, cannot store, or goes offline while it is in use."""

import logging
from collections.abc import Callable
from typing import Protocol

from tailrace.model.errors import KafkaError, StorageError
from tailrace.model.partitions import TopicPartition
from tailrace.replication.partition import Partition
from tailrace.replication.watchers import Change
from tailrace.server.partitions.awake import AwakePartitions
from tailrace.server.partitions.offline_logs import OfflineLogs
from tailrace.server.partitions.partition_checkpoints import PartitionCheckpoints
from tailrace.server.ports import Clock
from tailrace.storage.checkpoints import RECOVERY_POINTS

_logger = logging.getLogger("tailrace.server")


class Failures(Protocol):
    """Receives the failures of this node's replicas: `server.replicas.failures.ReplicaFailures`."""

    def lost(self, topic_partition: TopicPartition, /) -> None:
        """A replica lacks, or may lack, records that it has acknowledged."""
        ...

    def stalled(self, topic_partition: TopicPartition, /) -> None:
        """A replica has all its records, and cannot store more for now."""
        ...

    def resumed(self, topic_partition: TopicPartition, /) -> None:
        """A replica can store again, if it could not."""
        ...


class LogFaults:
    """Watches the logs of one table, and passes their faults on."""

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
        """Notice from now on if the partition's log cannot be written, or goes offline."""
        partition.log.watch_writes(lambda fault: self._note_write_outcome(partition, fault))
        partition.log.when_offline(lambda: self._gone_offline(partition))

    def note_vanished(self, topic_partition: TopicPartition) -> None:
        """The directory of a log is gone although the last run had it."""
        self._offline.note_vanished(topic_partition)
        self.failures.lost(topic_partition)

    def note_not_opened(self, topic_partition: TopicPartition, fault: KafkaError) -> None:
        """A log could not be opened."""
        self._offline.note_not_opened(topic_partition, fault)
        if isinstance(fault, StorageError) and fault.is_shortage:
            self.failures.stalled(topic_partition)
        else:
            self.failures.lost(topic_partition)

    def _note_write_outcome(self, partition: Partition, fault: StorageError | None) -> None:
        topic_partition = partition.topic_partition
        if self._awake.by_name.get(topic_partition) is not partition:
            return  # it is deleted, and the name may belong to another topic
        if fault is None:
            self.failures.resumed(topic_partition)
        elif fault.is_disk_full:
            # This log is only the first to notice. Soon, not now: the callback changes which are fetched, and led.
            self._clock.call_soon(self.on_disk_full)
        else:
            self.failures.stalled(topic_partition)

    def _gone_offline(self, partition: Partition) -> None:
        topic_partition, log = partition.topic_partition, partition.log
        _logger.error(
            "event=log-offline partition=%s damaged=%s reason=%s", topic_partition, log.is_damaged, log.failure
        )
        partition.tell(Change.ERROR)
        if self._awake.by_name.get(topic_partition) is not partition:
            return  # it is deleted, and the name may belong to another topic
        if log.is_damaged:
            # Now: a start after a kill looks for the damage from the recovery point on.
            self._checkpoints.write(RECOVERY_POINTS, of=(partition,))
            self.failures.lost(topic_partition)
        else:
            self.failures.stalled(topic_partition)  # the flushed part is there when it is opened again
