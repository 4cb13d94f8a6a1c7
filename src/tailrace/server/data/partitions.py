"""The partitions that this node has a replica of: found by name or by topic id, created, deleted, written.

Metadata decides which partitions exist and who leads them; this table carries it out. Produce and fetch look here.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId, TopicId, format_topic_id
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.outcomes import NotLeader, Traffic
from tailrace.replication.partition import Partition
from tailrace.server.data.log_directory import LogDirectory
from tailrace.server.ports import Clock, Disk
from tailrace.storage.checkpoints import CLEANER_OFFSETS, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS

_NEVER: Final = 2**63 - 1

_logger = logging.getLogger("tailrace.server")


class KnownLeader(NamedTuple):
    """Who leads a partition, as far as this node knows."""

    leader: BrokerId
    leader_epoch: int


class Leaders(Protocol):
    """What the table asks the cluster's metadata about partitions that it does not have."""

    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        """Who leads it, or None if there is no such partition."""
        ...

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The topic with this id, or None if there is none."""
        ...


class NoLeaders:
    """The metadata of a node that is alone: every partition that exists is here."""

    def leader_of(self, topic: str, partition: int) -> KnownLeader | None:
        return None

    def topic_name(self, topic_id: TopicId) -> str | None:
        return None


class _Leaving:
    """A partition that has been deleted while a flush of it was under way."""

    __slots__ = ("partition", "successor")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.successor: tuple[PartitionState, TopicConfig] | None = None
        """Another partition with its name, to be created when it is gone."""


class PartitionTable:
    """All partitions of this node. `open` comes first, `close` last; in between everything runs on the event loop."""

    def __init__(
        self,
        directory: LogDirectory,
        *,
        broker_id: BrokerId,
        disk: Disk,
        clock: Clock,
        syncing_disk: Disk | None = None,
        is_flushed: bool = True,
        leaders: Leaders | None = None,
    ) -> None:
        """`is_flushed`: log.durability=flushed, otherwise page-cache: then `syncing_disk` is the one that flushes."""
        self.leaders: Leaders = NoLeaders() if leaders is None else leaders
        self._directory = directory
        self._broker_id = broker_id
        self._disk = disk
        self._syncing_disk = syncing_disk
        self._refusal: str | None = None
        self._unflushed_since_ms: dict[Partition, int] = {}
        self._clock = clock
        self._is_flushed = is_flushed
        self._by_name: dict[tuple[str, int], Partition] = {}
        self._by_id: dict[tuple[bytes, int], Partition] = {}
        self._offline: dict[tuple[str, int], str] = {}  # why the log cannot be used
        self._leaving: dict[tuple[str, int], _Leaving] = {}
        self.departed_traffic = Traffic()
        """What had gone in and out of partitions that were deleted."""
        self._staged: list[Partition] = []
        self.stage: Callable[[Partition], None] = self._staged.append
        """Have the partition written when this turn ends."""

    def open(self) -> None:
        """See what is on disk. Logs are opened one by one, when metadata asks for their partitions with `create`."""
        self._directory.scan()

    @property
    def directory(self) -> LogDirectory:
        """Where the logs are."""
        return self._directory

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def offline_count(self) -> int:
        """How many partitions of this node cannot be used, since their log cannot."""
        return len(self._offline)

    def __iter__(self) -> Iterator[Partition]:
        return iter(tuple(self._by_name.values()))

    def get(self, topic: str, partition: int) -> Partition:
        """The partition. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION (3), NotLeader (6), KAFKA_STORAGE_ERROR (56)."""
        found = self._by_name.get((topic, partition))
        if found is None:
            raise self._absent(topic, partition)
        return found

    def get_by_id(self, topic_id: bytes, partition: int) -> Partition:
        """As `get`, by the topic's id. Raises KafkaError UNKNOWN_TOPIC_ID (100) for an id that nobody knows."""
        found = self._by_id.get((topic_id, partition))
        if found is None:
            topic = self.leaders.topic_name(TopicId(topic_id))
            if topic is None:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {format_topic_id(topic_id)}")
            raise self._absent(topic, partition)
        return found

    def find(self, topic: str, partition: int) -> Partition | None:
        """The partition, or None if it is not on this node."""
        return self._by_name.get((topic, partition))

    def create(
        self, topic_partition: TopicPartition, *, state: PartitionState, config: TopicConfig
    ) -> Partition | None:
        """Open the log of a partition, or begin one, and take the role that `state` gives this node.

        For a partition that is here already it is the same as `update`. None if a deleted partition of the same name
        still has a flush under way: it is created when that is done. Raises StorageError or CorruptRecords if the log
        cannot be opened; the partition is offline then, and whoever asks for it gets KAFKA_STORAGE_ERROR (56).
        """
        key = (topic_partition.topic, topic_partition.partition)
        partition = self._by_name.get(key)
        if partition is not None and partition.topic_id != state.topic_id:
            self.delete(*key)  # deleted and made again, and we have heard of both at once
            partition = None
        if key in self._leaving:
            self._leaving[key].successor = (state, config)
            return None
        if partition is None:
            partition = self._open(topic_partition, state, config)
        self._take_role(partition, state)
        return partition

    def _open(self, topic_partition: TopicPartition, state: PartitionState, config: TopicConfig) -> Partition:
        key = (topic_partition.topic, topic_partition.partition)
        self._offline.pop(key, None)
        try:
            log = self._directory.open_log(
                topic_partition, topic_id=state.topic_id, config=config, now_ms=self._clock.now_ms()
            )
        except KafkaError as fault:
            self._offline[key] = fault.detail
            raise
        partition = Partition(
            topic_partition,
            topic_id=state.topic_id,
            log=log,
            broker_id=self._broker_id,
            config=config,
            disk=self._disk,
            on_staged=self.stage,
            syncing_disk=self._syncing_disk,
            is_flushed=self._is_flushed,
            high_watermark=self._directory.high_watermark_of(topic_partition),
        )
        if self._refusal is not None:
            partition.refuse_produce(self._refusal)
        self._by_name[key] = partition
        self._by_id[state.topic_id, topic_partition.partition] = partition
        return partition

    def update(self, topic_partition: TopicPartition, state: PartitionState) -> None:
        """Take the role that a changed state gives this node."""
        self._take_role(self.get(*topic_partition), state)

    def update_configs(self, configs: Mapping[str, TopicConfig]) -> None:
        """Apply the changed settings of these topics."""
        for partition in self:
            config = configs.get(partition.topic_partition.topic)
            if config is not None:
                partition.update_config(config)

    def delete(self, topic: str, index: int) -> None:
        """Drop the partition: whoever waits is told, the files go once nothing uses them and their delay is over.

        The delay is the topic's file.delete.delay.ms.
        """
        key = (topic, index)
        if key in self._leaving:
            self._leaving[key].successor = None
            return
        self._offline.pop(key, None)
        partition = self._by_name.pop(key, None)
        if partition is None:
            return
        del self._by_id[partition.topic_id, index]
        self.departed_traffic = self.departed_traffic.plus(partition.traffic)
        self._leaving[key] = _Leaving(partition)
        partition.abandon(lambda: self._abandoned(key))

    def _abandoned(self, key: tuple[str, int]) -> None:
        """No flush of a deleted partition is under way any more: its directory can be moved, its name used again."""
        leaving = self._leaving.pop(key)
        partition = leaving.partition
        set_aside = self._directory.set_aside(partition.topic_partition, partition.topic_id)
        due_ms = self._clock.monotonic_ms() + partition.config.file_delete_delay_ms
        self._clock.call_at(due_ms, lambda: self._directory.remove(set_aside))
        if leaving.successor is not None:
            state, config = leaving.successor
            self.create(partition.topic_partition, state=state, config=config)

    def write_staged(self) -> None:
        """Write all that was staged since the last call. The dispatcher calls it once, at the end of each turn."""
        staged = self._staged
        while staged:  # an answer may lead to the next append: a coordinator's next step
            turn = staged.copy()
            staged.clear()
            for partition in turn:
                partition.write_staged()

    def apply_retention(self) -> None:
        """Let old segments go, in every partition that this node leads."""
        now_ms = self._clock.now_ms()
        for partition in self:
            try:
                partition.apply_retention(now_ms)
            except KafkaError as fault:
                _logger.warning("event=retention-failed partition=%s fault=%s", partition.topic_partition, fault)

    def flush_by_age(self) -> None:
        """Flush the logs that have waited for flush.ms. For page-cache durability: otherwise nothing waits."""
        now_ms = self._clock.monotonic_ms()
        waiting: dict[Partition, int] = {}
        for partition in self._by_name.values():
            log, flush_ms = partition.log, partition.config.flush_ms
            if log.flushed_offset == log.log_end_offset or flush_ms == _NEVER or log.is_offline:
                continue
            since_ms = self._unflushed_since_ms.get(partition, now_ms)
            if now_ms - since_ms >= flush_ms:
                partition.sync(lambda: None)
            else:
                waiting[partition] = since_ms
        self._unflushed_since_ms = waiting

    def refuse_produce(self, reason: str | None) -> None:
        """Refuse what producers send to any partition, also to those that come, with this reason; None: take it."""
        self._refusal = reason
        for partition in self._by_name.values():
            partition.refuse_produce(reason)

    def expire_producers(self, expiration_ms: int) -> None:
        """Forget idempotent producers that have been silent this long."""
        now_ms = self._clock.now_ms()
        for partition in self:
            partition.log.producers.expire(now_ms, expiration_ms=expiration_ms)

    def write_high_watermarks(self) -> None:
        """Checkpoint the high watermarks: a follower's is known from nowhere else after a restart."""
        self._directory.write_checkpoint(
            HIGH_WATERMARKS, ((partition.topic_partition, partition.high_watermark) for partition in self)
        )

    def write_recovery_points(self) -> None:
        """Checkpoint what is known to be on disk: recovery after a crash starts there."""
        self._directory.write_checkpoint(
            RECOVERY_POINTS, ((partition.topic_partition, partition.log.flushed_offset) for partition in self)
        )

    def write_log_starts(self) -> None:
        """Checkpoint the first readable offsets, which may lie within a segment."""
        self._directory.write_checkpoint(
            LOG_STARTS,
            (
                (partition.topic_partition, partition.log.log_start_offset)
                for partition in self
                if partition.log.log_start_offset > 0
            ),
        )

    def write_cleaner_offsets(self) -> None:
        """Checkpoint how far the logs are compacted."""
        self._directory.write_checkpoint(
            CLEANER_OFFSETS,
            (
                (partition.topic_partition, partition.log.first_dirty_offset)
                for partition in self
                if partition.log.first_dirty_offset > partition.log.log_start_offset
            ),
        )

    def close(self) -> None:
        """Close every log cleanly, so that the next start need not look through them. The disk has been stopped before.

        If a log cannot be closed, or could not be opened, the others are, and the next start recovers all of them.
        """
        is_clean = not self._offline  # a log that was found damaged must be looked through again
        high_watermarks = [(partition.topic_partition, partition.high_watermark) for partition in self]
        for partition in self:
            try:
                partition.close()
            except KafkaError as fault:
                is_clean = False
                _logger.error("event=close-failed partition=%s fault=%s", partition.topic_partition, fault)
        self._directory.write_checkpoint(HIGH_WATERMARKS, high_watermarks)
        self.write_recovery_points()
        self.write_log_starts()
        for leaving in self._leaving.values():
            leaving.partition.log.close(clean=False)
            self._directory.set_aside(leaving.partition.topic_partition, leaving.partition.topic_id)
        if is_clean:
            self._directory.mark_clean()
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
