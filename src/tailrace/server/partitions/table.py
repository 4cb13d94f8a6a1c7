"""The partitions that this node has a replica of: found by name or by topic id, created, deleted, written.

The metadata decides which partitions exist and which broker leads a partition, and this table follows the metadata.
Produce and Fetch find their partitions here.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId, format_topic_id
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.outcomes import Traffic, not_leader
from tailrace.replication.partition import Partition
from tailrace.replication.replica import PartitionContext
from tailrace.replication.staging import Staging
from tailrace.server.partitions.directory_work import DirectoryWork
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.log_faults import Failures, LogFaults, OfflineLogs
from tailrace.server.partitions.partition_checkpoints import PartitionCheckpoints
from tailrace.server.partitions.partition_logs import HeldHighWatermarks, PartitionLogs
from tailrace.server.partitions.partition_maps import EMPTY_LOG, AwakePartitions, Dormant, DormantPartitions
from tailrace.server.partitions.removals import DamagedLogs, Removals
from tailrace.server.partitions.segment_removal import SegmentRemoval, new_time_checks
from tailrace.server.ports import Clock, Disk
from tailrace.storage import Log

_logger = logging.getLogger("tailrace.server")


class KnownLeader(NamedTuple):
    """The leader of a partition, as far as this node knows."""

    leader: BrokerId
    leader_epoch: int


class Leaders(Protocol):
    """The cluster's metadata, for the errors about partitions that the table does not have."""

    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        """The leader of a partition, or None if there is no such partition."""
        ...

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The name of the topic with this id, or None if there is no such topic."""
        ...

    def view_refusal(self, topic: str, topic_id: bytes = b"") -> KafkaError | None:
        """The error if this is the name, or the id, of a view: a view has no partitions of its own."""
        ...


class PartitionTable:
    """The partitions of this node. `open` comes first, `close` last; in between everything runs on the event loop.

    Until a caller names a partition, the partition is dormant: its log is closed, and the partition costs a few hundred
    bytes.
    """

    def __init__(
        self,
        directory: LogDirectory,
        *,
        broker_id: BrokerId,
        disk: Disk,
        syncing_disk: Disk,
        clock: Clock,
        is_flushed: bool,
        leaders: Leaders,
        replica_lag_time_max_ms: int,
        failures: Failures,
    ) -> None:
        """`is_flushed`: log.durability=flushed, otherwise page-cache. `disk` flushes as log.durability says,
        `syncing_disk` always flushes."""
        self._work = DirectoryWork(directory, disk=syncing_disk, clock=clock, on_durable=self._made_durable)
        self.dormant: Final = DormantPartitions()
        """The partitions that no request has named yet."""
        self._awake = AwakePartitions()
        self._by_name = self._awake.by_name  # one attribute less to look up for each partition of each request
        self.leaders: Leaders = leaders
        self.directory: Final = directory
        """The directory of the logs."""
        self._broker_id = broker_id
        self._is_closed = False
        self._clock = clock
        self.offline: Final = OfflineLogs(directory, awake=self._awake, dormant=self.dormant)
        """The logs that cannot be used, and the ends of the good part of every log."""
        self.checkpoints: Final = PartitionCheckpoints(directory, self._work, awake=self._awake, clock=clock)
        """The checkpoints of the log directory."""
        self.faults: Final = LogFaults(self._awake, self.offline, self.checkpoints, failures=failures, clock=clock)
        """The faults of the logs, and the callbacks that they lead to."""
        self._removals = Removals(self._work, clock=clock, on_free=self._add_successor)
        self.damaged: Final = DamagedLogs(
            directory, self._removals, self.offline, awake=self._awake, dormant=self.dormant, clock=clock
        )
        """Renames, cuts and removes damaged logs."""
        self.time_checks: Final = new_time_checks(clock)
        """Examines the records of batches whose headers were not checked."""
        self.segment_removal: Final = SegmentRemoval(clock, self.time_checks)
        """Retires the segments that are not kept, and removes their files."""
        self._staged: list[Staging] = []
        self._held_back = HeldHighWatermarks(clock)
        context = PartitionContext(
            broker_id=broker_id,
            disk=disk,
            syncing_disk=syncing_disk,
            on_staged=self._staged.append,
            on_held_back=self._held_back.hold,
            is_flushed=is_flushed,
            monotonic_ms=clock.monotonic_ms,
            lag_ms=replica_lag_time_max_ms,
        )
        self._logs = PartitionLogs(
            directory,
            self._work,
            faults=self.faults,
            offline=self.offline,
            awake=self._awake,
            context=context,
            clock=clock,
        )

    def open(self) -> None:
        """List the logs on the disk; `add` and `create` open the logs that metadata names."""
        self.directory.scan()

    @property
    def departed_traffic(self) -> Traffic:
        """The traffic of partitions that were deleted."""
        return self._awake.departed_traffic

    def offline_replica(self, topic: str, partition: int) -> BrokerId | None:
        """This broker, if the partition has a replica here and its log cannot be used. Wakes no partition."""
        found = self._by_name.get((topic, partition))
        is_offline = (topic, partition) in self.offline if found is None else found.log.is_offline
        return self._broker_id if is_offline else None

    def __iter__(self) -> Iterator[Partition]:
        """The partitions in use."""
        return iter(self._awake)

    def get(self, topic: str, partition: int) -> Partition:
        """The partition. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION (3), NotLeader (6), KAFKA_STORAGE_ERROR (56), and
        INVALID_TOPIC_EXCEPTION (17) for a view."""
        found = self._by_name.get((topic, partition)) or self._woken(topic, partition)
        if found is None:
            raise self._absent(topic, partition)
        return found

    def get_by_id(self, topic_id: bytes, partition: int) -> Partition:
        """The partition, by the topic's id. Raises the errors of `get`, and UNKNOWN_TOPIC_ID (100) for an unknown
        id."""
        found = self._awake.by_id.get((topic_id, partition))
        if found is None:
            topic = self.dormant.topic_name(TopicId(topic_id)) or self.leaders.topic_name(TopicId(topic_id))
            if topic is None:
                raise self.leaders.view_refusal("", topic_id) or KafkaError(
                    ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {format_topic_id(topic_id)}"
                )
            found = self._woken(topic, partition)
            if found is None or found.topic_id != topic_id:
                # The partition is not on this node, or the one here still belongs to a deleted topic of this name.
                raise self._absent(topic, partition)
        return found

    def find(self, topic: str, partition: int) -> Partition | None:
        """The partition; None for a partition that is not on this node or cannot be used."""
        return self._by_name.get((topic, partition)) or self._woken(topic, partition)

    def awake(self, topic: str, partition: int) -> Partition | None:
        """The partition, if it is in use. Wakes no partition."""
        return self._by_name.get((topic, partition))

    def borrow_log(self, topic_partition: TopicPartition) -> Log | None:
        """The log of a dormant partition, see `PartitionLogs.borrow`; None for a partition that is not dormant, or has
        never had a record."""
        dormant = self.dormant.find(*topic_partition)
        return None if dormant is None or dormant.is_empty else self._logs.borrow(topic_partition, dormant)

    def has(self, topic: str, partition: int) -> bool:
        """Whether the partition is on this node. Wakes no partition."""
        return (topic, partition) in self._by_name or self.dormant.find(topic, partition) is not None

    def size_of(self, topic: str, partition: int) -> int | None:
        """The bytes of all batches of the partition's log; None if the partition is not on this node. Wakes no
        partition."""
        found = self._by_name.get((topic, partition)) or self.dormant.find(topic, partition)
        return None if found is None else found.size_bytes if isinstance(found, Dormant) else found.log.size_bytes

    def sizes(self) -> Iterator[tuple[TopicPartition, int]]:
        """The bytes of every partition's log."""
        for partition in self:
            yield partition.topic_partition, partition.log.size_bytes
        for topic_partition, dormant in self.dormant:
            yield topic_partition, dormant.size_bytes

    def add(self, topic_partition: TopicPartition, *, state: PartitionState, config: TopicConfig) -> None:
        """Add a partition. When a caller first names the partition, it takes the role that `state` gives this node.

        A new log is made soon: see `when_made`. A log that is known from a clean stop stays closed. Other logs are
        opened as by `create`, which may raise. After `close` the call does nothing.
        """
        if self._is_closed:
            return  # a new log would take the place of a closed one
        key = (topic_partition.topic, topic_partition.partition)
        if key in self._removals:
            self._removals.set_successor(key, (state, config))
            return
        known = self.dormant.find(*key)
        if known is not None and known.state.topic_id == state.topic_id:
            self.dormant.put(topic_partition, known._replace(state=state, config=config))
            return
        if known is not None or key in self._by_name:
            self.create(topic_partition, state=state, config=config)
            return
        if self.directory.has_vanished(topic_partition):
            self.faults.report_vanished(topic_partition)
        line = self.directory.take_closed(topic_partition, state.topic_id)
        if line is None and (key in self.offline or self.directory.is_found(topic_partition)):
            self.create(topic_partition, state=state, config=config)
            return
        self.dormant.put(topic_partition, Dormant(state, config, line or EMPTY_LOG))
        if line is None:
            self._work.make(topic_partition, state.topic_id)

    def _made_durable(self, topic_partition: TopicPartition) -> None:
        partition = self._by_name.get((topic_partition.topic, topic_partition.partition))
        if partition is not None:
            partition.log.flushes.note_made_durable()

    def is_made(self, topic: str, partition: int) -> bool:
        """Whether the log of this partition is durable, or is not new."""
        return self._work.is_made(TopicPartition(topic, partition))

    def when_made(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all partitions added so far are durable, perhaps at once."""
        self._work.when_made(callback)

    def create(
        self, topic_partition: TopicPartition, *, state: PartitionState, config: TopicConfig
    ) -> Partition | None:
        """Open the log of a partition, or begin a log, and take the role that `state` gives this node.

        For a partition that the table has already, the call is an `update`. Returns None if the name still belongs to a
        deleted partition: the partition is added when the name is free. Raises StorageError or CorruptRecords if the
        log cannot be opened; the partition is offline then, and requests for it get KAFKA_STORAGE_ERROR (56).
        """
        key = (topic_partition.topic, topic_partition.partition)
        partition = self.find(*key)
        if partition is not None and partition.topic_id != state.topic_id:
            self.delete(*key)  # deleted and created again, and both changes came together
            partition = None
        if key in self._removals:
            self._removals.set_successor(key, (state, config))
            return None
        if partition is None:
            partition = self._logs.open(topic_partition, state, config)
        self._take_role(partition, state)
        return partition

    def _woken(self, topic: str, number: int) -> Partition | None:
        """Wake a dormant partition. None if there is no such dormant partition, or if its log cannot be used."""
        dormant = self.dormant.pop(topic, number)
        if dormant is None:
            return None
        partition = self._logs.wake(TopicPartition(topic, number), dormant)
        if partition is not None:
            self._take_role(partition, dormant.state)
        return partition

    def update(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> None:
        """Take the role that a changed state gives this node, with the settings that belong to the state.

        State and settings change together: a new `min.insync.replicas` with the old state, or the old value with the
        new state, could commit records that must not be committed under either pair.
        """
        dormant = self.dormant.find(*topic_partition)
        if dormant is not None:
            if _must_note_gaps(dormant, config):  # `update_configs` opens such a log for the same reason
                config = replace(config, cleanup_policy=dormant.config.cleanup_policy)
            self.dormant.put(topic_partition, dormant._replace(state=state, config=config))
        else:
            partition = self.get(*topic_partition)
            if partition.state is not None and state.partition_epoch < partition.state.partition_epoch:
                state = partition.state  # `resign` got a newer state than the state in the image
            if config is not partition.config and config != partition.config:
                partition.take_config(config)
            self._take_role(partition, state)

    def resign(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Take the role of a state in which the controller has removed this replica; the image may get it later.

        Requests that wait for this leader, whose disk hangs, are answered at once with the new leader.
        """
        partition = self._by_name.get(topic_partition)
        known = None if partition is None else partition.state
        if partition is None or known is None or partition.topic_id != state.topic_id:
            return
        if state.leader != self._broker_id and state.partition_epoch > known.partition_epoch:
            partition.step_down(state)

    def update_configs(self, configs: Mapping[str, TopicConfig]) -> None:
        """Apply the changed settings of these topics."""
        for partition in self:
            config = configs.get(partition.topic_partition.topic)
            if config is not None:
                partition.update_config(config)
        for topic, config in configs.items():
            for topic_partition, dormant in self.dormant.of_topic(topic):
                if _must_note_gaps(dormant, config):
                    woken = self.find(*topic_partition)
                    if woken is not None:
                        woken.update_config(config)
                else:
                    self.dormant.put(topic_partition, dormant._replace(config=config))
        self._removals.update_configs(configs)

    def delete(self, topic: str, index: int) -> None:
        """Delete the partition: waiting requests are answered, and the files are removed when no flush uses them and
        the topic's file.delete.delay.ms is over."""
        key = (topic, index)
        if key in self._removals:
            self._removals.set_successor(key, None)
            return
        self.offline.forget(key)
        self.offline.forget_vanished(key)
        topic_partition = TopicPartition(topic, index)
        dormant = self.dormant.pop(topic, index)
        if dormant is not None:
            delay_ms = dormant.config.file_delete_delay_ms
            self._removals.begin(topic_partition, topic_id=dormant.state.topic_id, delay_ms=delay_ms)
            return
        partition = self._awake.pop(key)
        if partition is not None:
            delay_ms = partition.config.file_delete_delay_ms
            self._removals.begin(topic_partition, topic_id=partition.topic_id, delay_ms=delay_ms, partition=partition)

    def remove_unclaimed(self, topic_partition: TopicPartition, topic_id: TopicId, *, delay_ms: int) -> None:
        """Remove the directory of an unclaimed replica, which metadata has given to other brokers or deleted."""
        self.directory.claim(topic_partition)
        self._removals.begin(topic_partition, topic_id=topic_id, delay_ms=delay_ms)

    def is_leaving(self, topic_partition: TopicPartition) -> bool:
        """Whether the name of the partition is not free yet: it is deleted, or its log is being renamed or cut."""
        return topic_partition in self._removals

    def _add_successor(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> None:
        """Add the partition for which the name of a deleted partition is free now."""
        try:
            self.add(topic_partition, state=state, config=config)
        except KafkaError as fault:  # the partition is offline, and the other successors must still be added
            _logger.error("event=partition-failed partition=%s fault=%s", topic_partition, fault)

    def write_staged(self) -> None:
        """Write the batches staged since the last call. The dispatcher calls it once, at the end of each turn."""
        staged = self._staged
        while staged:  # an answer may lead to the next append, of a coordinator for example
            turn = staged.copy()
            staged.clear()
            for staging in turn:
                staging.write()

    def refuse_produce(self, reason: str | None) -> None:
        """Refuse the batches of producers, see `PartitionLogs.refuse_produce`."""
        self._logs.refuse_produce(reason)

    def set_short_of_space(self, is_short: bool) -> None:
        """Set whether the disk is short of space: then deleted files do not stay for file.delete.delay.ms."""
        self._removals.set_short(is_short)
        self.segment_removal.set_short(is_short)

    def close(self) -> None:
        """Close every log, so that the next start need not read the logs. The caller has stopped the disk before.

        Metadata may still change afterwards, as other brokers stop too: the next start applies these changes.
        """
        self._is_closed = True
        self._held_back.close()
        self.segment_removal.close()
        self._logs.close(dormant=self.dormant, checkpoints=self.checkpoints, removals=self._removals)

    @property
    def unclaimed(self) -> Collection[TopicPartition]:
        """Partitions on the disk that no metadata has named."""
        return self.directory.unclaimed

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        if state.leader == self._broker_id:
            partition.become_leader(state)
        else:
            partition.step_down(state)

    def _absent(self, topic: str, partition: int) -> KafkaError:
        if (topic, partition) in self.offline:
            reason = self.offline.why(TopicPartition(topic, partition))
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline: {reason}")
        known = self.leaders.leader_of(topic, partition)
        if known is None:
            return self.leaders.view_refusal(topic) or KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}"
            )
        return not_leader(
            TopicPartition(topic, partition),
            leader=known.leader,
            leader_epoch=known.leader_epoch,
            broker_id=self._broker_id,
        )


def _must_note_gaps(dormant: Dormant, config: TopicConfig) -> bool:
    """Whether the log must be opened to write its gap bound before it gets these settings: the topic was compacted
    until now."""
    return dormant.config.is_compacted and not config.is_compacted and dormant.line != EMPTY_LOG
