"""The damaged logs of a node: each is renamed as a whole, cut to its good part, or removed."""

from collections.abc import Callable

from tailrace.model.ids import TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.partition import Partition
from tailrace.server.partitions.awake import AwakePartitions
from tailrace.server.partitions.damage_cut import DamageCut
from tailrace.server.partitions.deletions import Departures
from tailrace.server.partitions.dormant import DormantPartitions
from tailrace.server.partitions.log_directory import LogDirectory
from tailrace.server.partitions.offline_logs import OfflineLogs
from tailrace.server.ports import Clock


class DamagedLogs:
    """Takes damaged logs out of use, whether they could be opened or not."""

    def __init__(
        self,
        directory: LogDirectory,
        leaving: Departures,
        offline: OfflineLogs,
        *,
        awake: AwakePartitions,
        dormant: DormantPartitions,
        clock: Clock,
    ) -> None:
        self._directory = directory
        self._leaving = leaving
        self._offline = offline
        self._awake = awake
        self._dormant = dormant
        self._clock = clock

    def rename(
        self, topic_partition: TopicPartition, topic_id: TopicId, on_renamed: Callable[[str | None], None]
    ) -> None:
        """Rename the directory of a damaged log, so that the partition can be added again and is empty then.

        `on_renamed` is given the new path. None: it cannot be renamed, and the partition stays offline until its log is
        renamed, cut or removed. Nothing may count on this replica any more.
        """
        key = (topic_partition.topic, topic_partition.partition)

        def renamed(path: str | None) -> None:
            if path is None:
                self._offline.note_unmoved(key, topic_id)
                self._directory.distrust(topic_partition)
            else:
                self._offline.forget(key)
                self._directory.take_set_aside(topic_partition)
            on_renamed(path)

        partition = self._take(topic_partition)
        self._leaving.set_aside(topic_partition, topic_id=topic_id, partition=partition, on_set_aside=renamed)

    def cut(
        self,
        topic_partition: TopicPartition,
        state: PartitionState,
        config: TopicConfig,
        on_cut: Callable[[DamageCut], None],
    ) -> None:
        """Copy the part of a damaged log that is lost, and cut the log there.

        `on_cut` is given the cut, with its fault if the log is unchanged; the partition can be added again then. Only
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
        self._leaving.set_aside(
            topic_partition, topic_id=state.topic_id, partition=partition, on_set_aside=done, cut=cut
        )

    def discard(self, topic_partition: TopicPartition, topic_id: TopicId) -> None:
        """Remove the directory of a partition that was deleted while its log was being cut, or could not be renamed."""
        key = (topic_partition.topic, topic_partition.partition)
        is_here = key in self._awake.by_name or self._dormant.find(*key) is not None
        if not is_here and key not in self._leaving:
            self._offline.forget(key)
            self._directory.take_set_aside(topic_partition)
            self._leaving.begin(topic_partition, topic_id=topic_id, delay_ms=0)

    def _take(self, topic_partition: TopicPartition) -> Partition | None:
        assert topic_partition not in self._leaving, f"{topic_partition} is gone"
        return self._offline.take(topic_partition)
