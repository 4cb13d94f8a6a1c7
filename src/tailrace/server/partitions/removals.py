"""Partitions that go out of use: deleted partitions, and damaged logs that are renamed, cut or removed.

The directory is renamed when no flush of its log is under way any more; then another log may take the name. The
directory of a deleted partition is removed when the topic's file.delete.delay.ms is over; the directory of a damaged
log is never removed.
"""

from collections.abc import Callable, Mapping

from tailrace.model.ids import TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.partition import Partition
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.partitions.directory_work import DirectoryWork
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.log_faults import OfflineLogs
from tailrace.server.partitions.partition_maps import AwakePartitions, DormantPartitions
from tailrace.server.ports import Clock, Timer

OnRenamed = Callable[[str | None], None]
OnFree = Callable[[TopicPartition, PartitionState, TopicConfig], None]


class PendingRemoval:
    """A partition that is being taken out of use."""

    __slots__ = ("cut", "delay_ms", "on_renamed", "partition", "successor", "topic_id")

    def __init__(
        self,
        partition: Partition | None,
        topic_id: TopicId,
        *,
        delay_ms: int = 0,
        on_renamed: OnRenamed | None = None,
        cut: DamageCut | None = None,
    ) -> None:
        self.cut = cut
        """The cut of a damaged log; None: its directory is renamed as a whole."""
        self.partition = partition
        """The partition; None if its log is not open."""
        self.topic_id = topic_id
        self.delay_ms = delay_ms
        self.on_renamed = on_renamed
        """Called with the new path of a damaged log, None if it could not be renamed; None: the partition is
        deleted."""
        self.successor: tuple[PartitionState, TopicConfig] | None = None
        """Another partition with the same name, which is added when the name is free."""


class Removals:
    """The partitions of one table that go out of use."""

    def __init__(self, work: DirectoryWork, *, clock: Clock, on_free: OnFree) -> None:
        """`on_free` gets each successor whose name has become free."""
        self._work = work
        self._clock = clock
        self._on_free = on_free
        self._is_short = False
        self._delayed: dict[str, Timer] = {}
        """The renamed directories that are to be removed later, by path."""
        self._pending: dict[tuple[str, int], PendingRemoval] = {}

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._pending

    def items(self) -> list[tuple[TopicPartition, PendingRemoval]]:
        """The removals that are under way."""
        return [(TopicPartition(*key), removal) for key, removal in self._pending.items()]

    def begin(
        self, topic_partition: TopicPartition, *, topic_id: TopicId, delay_ms: int, partition: Partition | None = None
    ) -> None:
        """Begin to delete a partition. `partition` is given if its log is open."""
        self._begin(topic_partition, PendingRemoval(partition, topic_id, delay_ms=delay_ms))

    def rename(
        self,
        topic_partition: TopicPartition,
        *,
        topic_id: TopicId,
        partition: Partition | None,
        on_renamed: OnRenamed,
        cut: DamageCut | None = None,
    ) -> None:
        """Begin to rename the directory of a damaged log, or to cut the log. `partition` is given if the log is
        open."""
        self._begin(topic_partition, PendingRemoval(partition, topic_id, on_renamed=on_renamed, cut=cut))

    def _begin(self, topic_partition: TopicPartition, removal: PendingRemoval) -> None:
        self._pending[topic_partition] = removal
        partition = removal.partition
        if partition is None:
            self._abandoned(topic_partition)
        else:
            partition.abandon(lambda: self._abandoned(topic_partition))

    def set_successor(self, key: tuple[str, int], successor: tuple[PartitionState, TopicConfig] | None) -> None:
        """Set the successor that `on_free` gets when the name is free; None: no successor."""
        self._pending[key].successor = successor

    def update_configs(self, configs: Mapping[str, TopicConfig]) -> None:
        """Set the changed settings of the successors' topics."""
        for (topic, _), removal in self._pending.items():
            if removal.successor is not None and topic in configs:
                removal.successor = (removal.successor[0], configs[topic])

    def _abandoned(self, topic_partition: TopicPartition) -> None:
        """Rename the directory: no flush of the partition is under way any more."""
        removal = self._pending[topic_partition]
        if removal.cut is not None:
            self._work.cut_damaged(topic_partition, removal.cut, lambda path: self._gone(topic_partition, path))
            return
        move = self._work.delete if removal.on_renamed is None else self._work.rename_damaged
        move(topic_partition, removal.topic_id, lambda path: self._gone(topic_partition, path))

    def _gone(self, topic_partition: TopicPartition, path: str | None) -> None:
        """End a removal: the directory is renamed, and the partition's name is free."""
        removal = self._pending.pop(topic_partition)
        if removal.on_renamed is not None:
            removal.on_renamed(path)
        elif path is not None:
            self._remove_later(path, removal.delay_ms)
        if removal.successor is not None:
            self._on_free(topic_partition, *removal.successor)

    def _remove_later(self, path: str, delay_ms: int) -> None:
        if self._is_short or delay_ms <= 0:
            self._work.remove(path)
            return
        due_ms = self._clock.monotonic_ms() + delay_ms
        self._delayed[path] = self._clock.call_at(due_ms, lambda: self._remove(path))

    def _remove(self, path: str) -> None:
        self._delayed.pop(path).cancel()
        self._work.remove(path)

    def set_short(self, is_short: bool) -> None:
        """Set whether the disk is short of space: then renamed directories are removed at once, and the delayed
        removals are made now."""
        self._is_short = is_short
        for path in tuple(self._delayed) if is_short else ():
            self._remove(path)


class DamagedLogs:
    """Takes damaged logs out of use, whether they could be opened or not."""

    def __init__(
        self,
        directory: LogDirectory,
        removals: Removals,
        offline: OfflineLogs,
        *,
        awake: AwakePartitions,
        dormant: DormantPartitions,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._removals = removals
        self._offline = offline
        self._awake = awake
        self._dormant = dormant
        self._clock = clock

    def rename(
        self, topic_partition: TopicPartition, topic_id: TopicId, on_renamed: Callable[[str | None], None]
    ) -> None:
        """Rename the directory of a damaged log, so that the partition can be added again with an empty log.

        `on_renamed` gets the new path. None: the directory cannot be renamed, and the partition stays offline until its
        log is renamed, cut or removed. Before the call, the image must not count on this replica any more.
        """
        key = (topic_partition.topic, topic_partition.partition)

        def renamed(path: str | None) -> None:
            if path is None:
                self._offline.add_unmoved(key, topic_id)
                self._directory.distrust(topic_partition)
            else:
                self._offline.forget(key)
                self._directory.forget_renamed(topic_partition)
            on_renamed(path)

        partition = self._take(topic_partition)
        self._removals.rename(topic_partition, topic_id=topic_id, partition=partition, on_renamed=renamed)

    def cut(
        self,
        topic_partition: TopicPartition,
        state: PartitionState,
        config: TopicConfig,
        on_cut: Callable[[DamageCut], None],
    ) -> None:
        """Copy the part of a damaged log that is lost, and cut the log there.

        `on_cut` gets the cut, with its fault if the log is unchanged. After that the partition can be added again. Only
        for a leader whose election accepts the loss.
        """
        assert state.accepts_loss, f"the loss of {topic_partition} was not accepted"
        key = (topic_partition.topic, topic_partition.partition)
        ends = self._offline.log_ends(topic_partition)
        cut = self._directory.damage_cut(
            topic_partition,
            topic_id=state.topic_id,
            good_end_offset=0 if ends is None else max(ends.good_end_offset, 0),
            config=config,
            now_ms=self._clock.now_ms(),
            leader_epoch=state.leader_epoch,
        )

        def done(_: str | None) -> None:
            self._offline.forget(key)
            self._directory.distrust(topic_partition)
            on_cut(cut)

        partition = self._take(topic_partition)
        self._removals.rename(topic_partition, topic_id=state.topic_id, partition=partition, on_renamed=done, cut=cut)

    def discard(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Remove the directory of a partition that was deleted while its log was being cut, or could not be renamed."""
        key = (topic_partition.topic, topic_partition.partition)
        is_here = key in self._awake.by_name or self._dormant.find(*key) is not None
        if not is_here and key not in self._removals:
            self._offline.forget(key)
            self._directory.forget_renamed(topic_partition)
            self._removals.begin(topic_partition, topic_id=topic_id, delay_ms=0)

    def _take(self, topic_partition: TopicPartition) -> Partition | None:
        assert topic_partition not in self._removals, f"{topic_partition} is gone"
        return self._offline.take_out(topic_partition)
