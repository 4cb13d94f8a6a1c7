"""The partitions that this node has a replica of: found by name or by topic id, created, deleted, written.

Metadata decides which partitions exist and who leads them; this table carries it out. Produce and fetch look here.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import CorruptRecords, ErrorCode, KafkaError, StorageError
from tailrace.model.ids import BrokerId, TopicId, format_topic_id
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.leadership import DEFAULT_LAG_MS
from tailrace.replication.outcomes import NotLeader, Traffic
from tailrace.replication.partition import Partition
from tailrace.replication.replica import PartitionContext
from tailrace.replication.staging import Staging
from tailrace.replication.watchers import Change
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.partitions.deletions import Departures
from tailrace.server.partitions.directory_work import DirectoryWork, OnWritten
from tailrace.server.partitions.dormant import EMPTY_LOG, Dormant, DormantPartitions
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.partition_checkpoints import PartitionCheckpoints
from tailrace.server.ports import Clock, Disk
from tailrace.storage import ClosedTopic, DamagedLog, Log
from tailrace.storage.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

_BOUNDS: Final = (HIGH_WATERMARKS, RECOVERY_POINTS)
"""The offsets that recovery holds against a log that ends too early."""

_UNKNOWN: Final = -1

_logger = logging.getLogger("tailrace.server")


class KnownLeader(NamedTuple):
    """Who leads a partition, as far as this node knows."""

    leader: BrokerId
    leader_epoch: int


class LogEnds(NamedTuple):
    """How far one log goes; -1 where that is not known."""

    good_end_offset: int
    """Where it ends; where it is damaged, up to where it is good, as far as is known."""
    acknowledged_end_offset: int
    """Up to here it was flushed or committed, as far as is noted."""
    fault: str
    """Why it cannot be used; empty if it can."""


class Leaders(Protocol):
    """What the table asks the cluster's metadata about partitions that it does not have."""

    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        """Who leads it, or None if there is no such partition."""
        ...

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The topic with this id, or None if there is none."""
        ...


class Failures(Protocol):
    """Hears which replicas of this node have failed: `server.replicas.failures.ReplicaFailures`."""

    def lost(self, topic_partition: TopicPartition, /) -> None:
        """It lacks, or may lack, something that it has acknowledged."""
        ...

    def stalled(self, topic_partition: TopicPartition, /) -> None:
        """It has everything, and cannot store more for now."""
        ...

    def resumed(self, topic_partition: TopicPartition, /) -> None:
        """It can store again, if it could not."""
        ...


class PartitionTable:
    """All partitions of this node. `open` comes first, `close` last; in between everything runs on the event loop.

    A partition sleeps until somebody asks for it by name or id: its log is not open, and it costs next to nothing.
    """

    def __init__(
        self,
        directory: LogDirectory,
        *,
        broker_id: BrokerId,
        disk: Disk,
        clock: Clock,
        syncing_disk: Disk | None = None,
        is_flushed: bool = True,
        leaders: Leaders,
        replica_lag_time_max_ms: int = DEFAULT_LAG_MS,
        failures: Failures,
    ) -> None:
        """`is_flushed`: log.durability=flushed, otherwise page-cache: then `syncing_disk` is the one that flushes."""
        self._work = DirectoryWork(directory, disk=syncing_disk or disk, clock=clock)
        self._dormant = DormantPartitions()
        self.leaders: Leaders = leaders
        self.failures: Failures = failures
        self._vanished: list[TopicPartition] = []
        self._directory = directory
        self._broker_id = broker_id
        self._refusal: str | None = None
        self._clock = clock
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._offline: dict[tuple[str, int], str] = {}  # why the log cannot be used
        self._offline_ends: dict[tuple[str, int], LogEnds] = {}  # of those, as far as they are known
        self._unmoved: dict[tuple[str, int], TopicId] = {}  # of those, to be set aside before anything else
        self._vanished_ends: dict[tuple[str, int], int] = {}
        self._checkpoints = PartitionCheckpoints(directory, self._work, awake=lambda: self, clock=clock)
        self._leaving = Departures(self._work, clock=clock, on_free=self._succeed)
        self.departed_traffic = Traffic()
        """What had gone in and out of partitions that were deleted."""
        self._staged: list[Staging] = []
        self._context = PartitionContext(
            broker_id=broker_id,
            disk=disk,
            syncing_disk=disk if syncing_disk is None else syncing_disk,
            on_staged=self._staged.append,
            is_flushed=is_flushed,
            monotonic_ms=clock.monotonic_ms,
            lag_ms=replica_lag_time_max_ms,
        )
        self.on_disk_full: Callable[[], None] = lambda: None
        """Called when something could not be appended since there was no room."""

    def open(self) -> None:
        """See what is on disk. Logs are opened one by one, when metadata asks for their partitions with `create`."""
        self._directory.scan()

    @property
    def directory(self) -> LogDirectory:
        """Where the logs are."""
        return self._directory

    def __len__(self) -> int:
        return len(self._by_name) + len(self._dormant)

    @property
    def dormant(self) -> DormantPartitions:
        """The partitions that nobody has asked for yet."""
        return self._dormant

    @property
    def offline_count(self) -> int:
        """How many partitions of this node cannot be used, since their log cannot."""
        return len(self._offline)

    def offline_replica(self, topic: str, partition: int) -> BrokerId | None:
        """This broker, if it has a replica of the partition and cannot use its log. Wakes nobody."""
        found = self._by_name.get((topic, partition))
        is_offline = (topic, partition) in self._offline if found is None else found.log.is_offline
        return self._broker_id if is_offline else None

    def __iter__(self) -> Iterator[Partition]:
        """Those that are awake."""
        return iter(tuple(self._by_name.values()))

    def get(self, topic: str, partition: int) -> Partition:
        """The partition. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION (3), NotLeader (6), KAFKA_STORAGE_ERROR (56)."""
        found = self._by_name.get((topic, partition)) or self._woken(topic, partition)
        if found is None:
            raise self._absent(topic, partition)
        return found

    def get_by_id(self, topic_id: bytes, partition: int) -> Partition:
        """As `get`, by the topic's id. Raises KafkaError UNKNOWN_TOPIC_ID (100) for an id that nobody knows."""
        found = self._by_id.get((topic_id, partition))
        if found is None:
            topic = self._dormant.topic_name(TopicId(topic_id)) or self.leaders.topic_name(TopicId(topic_id))
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {format_topic_id(topic_id)}")
            found = self._woken(topic, partition)
            if found is None or found.topic_id != topic_id:
                # Not here, or still of the topic that had the name before: metadata is known before it is acted on.
                raise self._absent(topic, partition)
        return found

    def find(self, topic: str, partition: int) -> Partition | None:
        """The partition, or None if it is not on this node or cannot be used."""
        return self._by_name.get((topic, partition)) or self._woken(topic, partition)

    def awake(self, topic: str, partition: int) -> Partition | None:
        """The partition if it is in use. Wakes none."""
        return self._by_name.get((topic, partition))

    def borrow_log(self, topic_partition: TopicPartition) -> Log | None:
        """The log of a partition that sleeps, to be read and closed without a clean close; None for any other.

        Raises KafkaError if it is not as it was closed.
        """
        dormant = self._dormant.find(*topic_partition)
        if dormant is None or dormant.is_empty:
            return None
        try:
            return self._directory.reopen(topic_partition, dormant.log, config=dormant.config)
        except ValueError as fault:
            raise CorruptRecords(f"the note of its clean stop: {fault}") from fault

    def has(self, topic: str, partition: int) -> bool:
        """Whether the partition is on this node. Wakes nobody."""
        return (topic, partition) in self._by_name or self._dormant.find(topic, partition) is not None

    def size_of(self, topic: str, partition: int) -> int | None:
        """The bytes of all batches of its log; None if the partition is not on this node. Wakes nobody."""
        found = self._by_name.get((topic, partition)) or self._dormant.find(topic, partition)
        return None if found is None else found.size_bytes if isinstance(found, Dormant) else found.log.size_bytes

    def sizes(self) -> Iterator[tuple[TopicPartition, int]]:
        """The bytes of every partition's log."""
        for partition in self:
            yield partition.topic_partition, partition.log.size_bytes
        for topic_partition, dormant in self._dormant:
            yield topic_partition, dormant.size_bytes

    def add(self, topic_partition: TopicPartition, *, state: PartitionState, config: TopicConfig) -> None:
        """Have a partition here, in the role that `state` gives this node, which it takes when somebody asks for it.

        A new one is made soon: see `when_made`. One that is known from a clean stop sleeps on. Others are opened, as
        `create` does, and raise what it raises.
        """
        key = (topic_partition.topic, topic_partition.partition)
        if key in self._leaving:
            self._leaving.set_successor(key, (state, config))
            return
        known = self._dormant.find(*key)
        if known is not None and known.state.topic_id == state.topic_id:
            self._dormant.put(topic_partition, known._replace(state=state, config=config))
            return
        if known is not None or key in self._by_name:
            self.create(topic_partition, state=state, config=config)
            return
        if self._directory.has_vanished(topic_partition):
            self._vanished.append(topic_partition)
            self._vanished_ends[key] = self._directory.vanished_end_of(topic_partition)
            self.failures.lost(topic_partition)
        line = self._directory.take_closed(topic_partition, state.topic_id)
        if line is None and (key in self._offline or self._directory.is_found(topic_partition)):
            self.create(topic_partition, state=state, config=config)
            return
        self._dormant.put(topic_partition, Dormant(state, config, line or EMPTY_LOG))
        if line is None:
            self._work.make(topic_partition, state.topic_id)

    def take_vanished(self) -> list[TopicPartition]:
        """The partitions that were added and whose directories had vanished: empty now, as new replicas are. Once."""
        vanished, self._vanished = self._vanished, []
        return vanished

    def when_made(self, callback: Callable[[], None]) -> None:
        """Call `callback` when all partitions added so far are durable; at once if they are."""
        self._work.when_made(callback)

    def create(
        self, topic_partition: TopicPartition, *, state: PartitionState, config: TopicConfig
    ) -> Partition | None:
        """Open the log of a partition, or begin one, and take the role that `state` gives this node.

        For a partition that is here already it is the same as `update`. None if the name of a deleted partition is not
        free yet: it is added when it is. Raises StorageError or CorruptRecords if the log cannot be opened; the
        partition is offline then, and whoever asks for it gets KAFKA_STORAGE_ERROR (56).
        """
        key = (topic_partition.topic, topic_partition.partition)
        partition = self.find(*key)
        if partition is not None and partition.topic_id != state.topic_id:
            self.delete(*key)  # deleted and made again, and we have heard of both at once
            partition = None
        if key in self._leaving:
            self._leaving.set_successor(key, (state, config))
            return None
        if partition is None:
            partition = self._open(topic_partition, state, config)
        self._take_role(partition, state)
        return partition

    def _woken(self, topic: str, number: int) -> Partition | None:
        """The partition if it has slept until now. None if it is not here, or turns out to be unusable."""
        dormant = self._dormant.pop(topic, number)
        if dormant is None:
            return None
        topic_partition = TopicPartition(topic, number)
        state = dormant.state
        try:
            partition = self._put(topic_partition, state, dormant.config, self._reopened(topic_partition, dormant))
        except KafkaError as fault:
            self._not_opened(topic_partition, fault)
            _logger.error("event=partition-failed partition=%s fault=%s", topic_partition, fault)
            return None
        self._take_role(partition, state)
        return partition

    def _reopened(self, topic_partition: TopicPartition, dormant: Dormant) -> Log:
        is_durable = self._work.ensure_made(topic_partition)
        try:
            return self._directory.reopen(topic_partition, dormant.log, config=dormant.config, is_durable=is_durable)
        except (KafkaError, ValueError) as fault:
            _logger.warning("event=closed-log-ignored partition=%s fault=%s action=open", topic_partition, fault)
        return self._directory.open_log(
            topic_partition,
            topic_id=dormant.state.topic_id,
            config=dormant.config,
            now_ms=self._clock.now_ms(),
            leader_epoch=dormant.state.leader_epoch,
        )

    def _open(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> Partition:
        key = (topic_partition.topic, topic_partition.partition)
        if self._unmoved.get(key) == state.topic_id:
            raise StorageError(self._offline[key])
        self._forget_offline(key)
        try:
            log = self._directory.open_log(
                topic_partition,
                topic_id=state.topic_id,
                config=config,
                now_ms=self._clock.now_ms(),
                leader_epoch=state.leader_epoch,
            )
        except KafkaError as fault:
            self._not_opened(topic_partition, fault)
            raise
        return self._put(topic_partition, state, config, log)

    def _not_opened(self, topic_partition: TopicPartition, fault: KafkaError) -> None:
        self._offline[topic_partition] = fault.detail
        self._offline_ends.pop(topic_partition, None)
        if isinstance(fault, DamagedLog):
            damage = fault.damage
            ends = LogEnds(damage.good_end_offset, damage.flushed_end_offset, fault.detail)
            self._offline_ends[topic_partition] = ends
        if isinstance(fault, StorageError) and fault.is_shortage:
            self.failures.stalled(topic_partition)
        else:
            self.failures.lost(topic_partition)

    def _note_write_outcome(self, partition: Partition, fault: StorageError | None) -> None:
        topic_partition = partition.topic_partition
        if self._by_name.get(topic_partition) is not partition:
            return  # it is deleted, and the name may belong to another topic
        if fault is None:
            self.failures.resumed(topic_partition)
        elif fault.is_disk_full:
            # This log is only the first to notice. Soon, not now: what follows changes which are fetched, and led.
            self._clock.call_soon(self._tell_disk_full)
        else:
            self.failures.stalled(topic_partition)

    def _tell_disk_full(self) -> None:
        self.on_disk_full()

    def _gone_offline(self, partition: Partition) -> None:
        topic_partition, log = partition.topic_partition, partition.log
        _logger.error(
            "event=log-offline partition=%s damaged=%s reason=%s", topic_partition, log.is_damaged, log.failure
        )
        partition.tell(Change.ERROR)
        if self._by_name.get(topic_partition) is not partition:
            return  # it is deleted, and the name may belong to another topic
        if log.is_damaged:
            # Now: a start after a kill looks for the damage from the recovery point on.
            self._checkpoints.write(RECOVERY_POINTS, of=(partition,))
            self.failures.lost(topic_partition)
        else:
            self.failures.stalled(topic_partition)  # what is flushed is there when it is opened again

    def _put(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig, log: Log) -> Partition:
        partition = Partition(
            topic_partition,
            topic_id=state.topic_id,
            log=log,
            config=config,
            context=self._context,
            high_watermark=self._directory.high_watermark_of(topic_partition),
        )
        log.watch_writes(lambda fault: self._note_write_outcome(partition, fault))
        log.when_offline(lambda: self._gone_offline(partition))
        if self._refusal is not None:
            partition.refuse_produce(self._refusal)
        self._by_name[topic_partition] = partition
        self._by_id[state.topic_id, topic_partition.partition] = partition
        return partition

    def update(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig | None = None) -> None:
        """Take the role that a changed state gives this node, under the settings that belong to it.

        Both at once: a new `min.insync.replicas` with the state before it, or the other way round, could commit what
        neither of them lets commit. Who keeps settings that are not new calls `update_configs` too.
        """
        dormant = self._dormant.find(*topic_partition)
        if dormant is not None:
            if config is None:
                config = dormant.config
            elif _must_note_gaps(dormant, config):  # as `update_configs` does for what is compacted till then
                config = replace(config, cleanup_policy=dormant.config.cleanup_policy)
            self._dormant.put(topic_partition, dormant._replace(state=state, config=config))
        else:
            partition = self.get(*topic_partition)
            if partition.state is not None and state.partition_epoch < partition.state.partition_epoch:
                state = partition.state  # `resign` was told more than the image knows yet
            if config is not None and config is not partition.config and config != partition.config:
                partition.take_config(config)
            self._take_role(partition, state)

    def resign(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Take the role that the controller has given this node when the replica left; the image may be late with it.

        Requests that wait for a leader whose disk stands still are told at once where the new one is.
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
            for topic_partition, dormant in self._dormant.of_topic(topic):
                if _must_note_gaps(dormant, config):
                    woken = self.find(*topic_partition)
                    if woken is not None:
                        woken.update_config(config)
                else:
                    self._dormant.put(topic_partition, dormant._replace(config=config))
        self._leaving.update_configs(configs)

    def delete(self, topic: str, index: int) -> None:
        """Drop the partition: whoever waits is told, the files go once nothing uses them and their delay is over.

        The delay is the topic's file.delete.delay.ms.
        """
        key = (topic, index)
        if key in self._leaving:
            self._leaving.set_successor(key, None)
            return
        self._forget_offline(key)
        self._vanished_ends.pop(key, None)
        topic_partition = TopicPartition(topic, index)
        dormant = self._dormant.pop(topic, index)
        if dormant is not None:
            delay_ms = dormant.config.file_delete_delay_ms
            self._leaving.begin(topic_partition, topic_id=dormant.state.topic_id, delay_ms=delay_ms)
            return
        partition = self._by_name.pop(key, None)
        if partition is None:
            return
        topic_id = partition.topic_id
        del self._by_id[topic_id, index]
        self.departed_traffic = self.departed_traffic.plus(partition.traffic)
        delay_ms = partition.config.file_delete_delay_ms
        self._leaving.begin(topic_partition, topic_id=topic_id, delay_ms=delay_ms, partition=partition)

    def set_aside_damaged(
        self,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        on_set_aside: Callable[[str | None], None],
    ) -> None:
        """Set the damaged log of a partition aside, whether it could be opened or not.

        `on_set_aside` is given the path where it is kept; the partition can be added again, and is empty then. None: it
        cannot be moved, and stays offline until it is set aside, cut or discarded. Nothing may count on this replica
        any more.
        """
        key = (topic_partition.topic, topic_partition.partition)
        partition = self._take_damaged(topic_partition)

        def set_aside(path: str | None) -> None:
            if path is None:
                self._unmoved[key] = topic_id
                self._directory.distrust(topic_partition)
            else:
                self._forget_offline(key)
                self._directory.take_set_aside(topic_partition)
            on_set_aside(path)

        self._leaving.set_aside(
            topic_partition,
            topic_id=topic_id,
            partition=partition,
            on_set_aside=set_aside,
        )

    def cut_damaged(
        self,
        topic_partition: TopicPartition,
        state: PartitionState,
        config: TopicConfig,
        on_cut: Callable[[DamageCut], None],
    ) -> None:
        """Copy what of a damaged log is lost, and cut the log, whether it could be opened or not.

        `on_cut` is given the cut, with its fault if the log is what it was; the partition can be added again then. Only
        for a leader whose election accepts the loss.
        """
        assert state.accepts_loss, f"what {topic_partition} lacks was not given up"
        key = (topic_partition.topic, topic_partition.partition)
        ends = self.log_ends(topic_partition)
        cut = self._directory.damage_cut(
            topic_partition,
            topic_id=state.topic_id,
            good_end_offset=0 if ends is None else max(ends.good_end_offset, 0),
            config=config,
            now_ms=self._clock.now_ms(),
            leader_epoch=state.leader_epoch,
        )

        def done(_: str | None) -> None:
            self._forget_offline(key)
            self._directory.distrust(topic_partition)
            on_cut(cut)

        self._leaving.set_aside(
            topic_partition,
            topic_id=state.topic_id,
            partition=self._take_damaged(topic_partition),
            on_set_aside=done,
            cut=cut,
        )

    def discard(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Remove the directory of a partition that was deleted while its log was being cut, or set aside in vain."""
        if not self.has(*topic_partition) and topic_partition not in self._leaving:
            self._forget_offline((topic_partition.topic, topic_partition.partition))
            self._directory.take_set_aside(topic_partition)
            self._leaving.begin(topic_partition, topic_id=topic_id, delay_ms=0)

    def _take_damaged(self, topic_partition: TopicPartition) -> Partition | None:
        """Have nothing use the log of a partition any more; the partition if it was open."""
        key = (topic_partition.topic, topic_partition.partition)
        assert key not in self._leaving, f"{topic_partition} is gone"
        ends = self.log_ends(topic_partition)
        partition = self._by_name.pop(key, None)
        if partition is not None:
            assert ends is not None
            self._offline_ends[key] = ends
            del self._by_id[partition.topic_id, topic_partition.partition]
            self.departed_traffic = self.departed_traffic.plus(partition.traffic)
            self._offline[key] = partition.log.failure
        return partition

    def _forget_offline(self, key: tuple[str, int]) -> None:
        """The log of this partition, which could not be used, is another one from now on, or gone."""
        self._offline.pop(key, None)
        self._offline_ends.pop(key, None)
        self._unmoved.pop(key, None)

    def log_ends(self, topic_partition: TopicPartition) -> LogEnds | None:
        """Up to where the log of this partition is good, also if it cannot be used; None if it is not here.

        Wakes none.
        """
        key = (topic_partition.topic, topic_partition.partition)
        vanished_end = self._vanished_ends.get(key, 0)
        partition, dormant = self._by_name.get(key), self._dormant.find(*key)
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
        reason = self._offline.get(key)
        if reason is None:
            return None
        unknown = LogEnds(_UNKNOWN, self._directory.high_watermark_of(topic_partition) or _UNKNOWN, reason)
        return self._offline_ends.get(key, unknown)

    @property
    def offline(self) -> Collection[tuple[str, int]]:
        """The partitions of this node whose logs could not be opened."""
        return self._offline.keys()

    def is_leaving(self, topic_partition: TopicPartition) -> bool:
        """Whether it was deleted, or its log is being set aside, and its name is not free yet."""
        return topic_partition in self._leaving

    def why_offline(self, topic_partition: TopicPartition) -> str:
        """Why the log of a partition cannot be used; empty if it can. Wakes none."""
        found = self._by_name.get(topic_partition)
        return self._offline.get(topic_partition, "") if found is None else found.log.failure

    def _succeed(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> None:
        """The name of a deleted partition is free for another one."""
        try:
            self.add(topic_partition, state=state, config=config)
        except KafkaError as fault:  # it is offline; others wait for their turn
            _logger.error("event=partition-failed partition=%s fault=%s", topic_partition, fault)

    def write_staged(self) -> None:
        """Write all that was staged since the last call. The dispatcher calls it once, at the end of each turn."""
        staged = self._staged
        while staged:  # an answer may lead to the next append: a coordinator's next step
            turn = staged.copy()
            staged.clear()
            for staging in turn:
                staging.write()

    def refuse_produce(self, reason: str | None) -> None:
        """Refuse what producers send to any partition, also to those that come, with this reason; None: take it."""
        self._refusal = reason
        for partition in self._by_name.values():
            partition.refuse_produce(reason)

    def write_high_watermarks(self) -> None:
        """Checkpoint the high watermarks: a follower's is known from nowhere else after a restart."""
        self._checkpoints.write_all(HIGH_WATERMARKS)

    def write_recovery_points(self) -> None:
        """Checkpoint what is known to be on disk: recovery after a crash starts there."""
        self._checkpoints.write_all(RECOVERY_POINTS)

    def lower_recovery_point(self, partition: Partition, offset: int, on_lowered: OnWritten) -> None:
        """Have it durable that the log need not reach beyond this offset: it is about to be cut. Then `on_lowered`.

        From then on until it is cut, or gets another role, no recovery point and no high watermark on the disk is above
        that: recovery takes a log that ends below one of them for damaged.
        """
        partition.following.recovery_bound = offset
        if offset >= partition.log.log_start_offset:
            self._lower_recovery_point(partition, on_lowered)
            return

        def start_is_lowered(fault: KafkaError | None) -> None:
            if fault is None:
                self._lower_recovery_point(partition, on_lowered)
            else:
                on_lowered(fault)

        self._checkpoints.write(LOG_STARTS, start_is_lowered, of=(partition,))  # recovery drops what ends below it

    def _lower_recovery_point(self, partition: Partition, on_lowered: OnWritten) -> None:
        outcomes: list[KafkaError | None] = []

        def one_is_lowered(fault: KafkaError | None) -> None:
            outcomes.append(fault)
            if len(outcomes) == len(_BOUNDS):
                on_lowered(next((fault for fault in outcomes if fault is not None), None))

        for name in _BOUNDS:  # written in one go
            self._checkpoints.write(name, one_is_lowered, of=(partition,))

    def write_log_starts(self, on_written: OnWritten | None = None, *, of: Iterable[Partition] | None = None) -> None:
        """Checkpoint the first readable offsets, which may lie within a segment; then call `on_written`.

        `of`: whose have changed, if that is known.
        """
        if of is None:
            self._checkpoints.write_all(LOG_STARTS, on_written)
        else:
            self._checkpoints.write(LOG_STARTS, on_written, of=of)

    def write_cleaner_offsets(self) -> None:
        """Checkpoint how far the logs are compacted."""
        self._checkpoints.write_all(CLEANER_OFFSETS)

    def close(self) -> None:
        """Close every log cleanly, so that the next start need not look through them. The disk has been stopped before.

        If a log cannot be closed, or could not be opened, the others are, and the next start recovers all of them.
        """
        # A log that was found damaged, or has failed, must be looked through again.
        is_clean = not self._offline and not any(partition.log.is_offline for partition in self)
        unmade = self._work.close()
        closed = self._dormant.closed()
        for topic, number in unmade:
            if topic in closed:
                closed[topic].lines.pop(number, None)
        self._checkpoints.note(HIGH_WATERMARKS)
        for partition in self:
            try:
                partition.close()
                _note_closed(closed, partition)
            except KafkaError as fault:
                is_clean = False
                _logger.error("event=close-failed partition=%s fault=%s", partition.topic_partition, fault)
        for name in (RECOVERY_POINTS, LOG_STARTS, CLEANER_OFFSETS):
            self._checkpoints.note(name)
        for topic_partition, leaving in self._leaving.items():
            if leaving.partition is not None:
                leaving.partition.log.close(clean=False)
            if leaving.on_set_aside is not None:
                is_clean = False  # it is damaged, and stands where it was
                continue
            try:
                self._directory.set_aside_if_there(topic_partition, leaving.topic_id)
            except KafkaError as fault:  # the next start finds it, and nobody who asks for it
                _logger.error("event=partition-delete-failed partition=%s fault=%s", topic_partition, fault)
        self._directory.write_checkpoints()
        if is_clean:
            self._directory.mark_clean(closed)
        self._by_name.clear()
        self._by_id.clear()

    @property
    def unclaimed(self) -> Collection[TopicPartition]:
        """Partitions on disk that no metadata has asked for."""
        return self._directory.unclaimed

    def _take_role(self, partition: Partition, state: PartitionState) -> None:
        if state.leader == self._broker_id:
            partition.become_leader(state)
        else:
            partition.step_down(state)

    def _absent(self, topic: str, partition: int) -> KafkaError:
        if (topic, partition) in self._offline:
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic}-{partition} is offline: {self._offline[topic, partition]}"
            )
        known = self.leaders.leader_of(topic, partition)
        if known is None:
            return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}")
        return NotLeader(
            f"{topic}-{partition} is led by broker {known.leader}, not by this one",
            leader=known.leader,
            leader_epoch=known.leader_epoch,
        )


def _note_closed(closed: dict[str, ClosedTopic], partition: Partition) -> None:
    log = partition.log.closed
    if log is not None:
        topic, number = partition.topic_partition
        closed.setdefault(topic, ClosedTopic(partition.topic_id, {})).lines[number] = log.to_line()


def _must_note_gaps(dormant: Dormant, config: TopicConfig) -> bool:
    """Whether its log has to note where offsets may be missing when it takes these settings, and is opened for that."""
    return dormant.config.is_compacted and not config.is_compacted and dormant.line != EMPTY_LOG
