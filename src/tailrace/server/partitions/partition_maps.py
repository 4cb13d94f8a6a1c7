"""The partitions of a node by name and id: awake partitions with open logs, and dormant
partitions, which no request has named.

A node with 100,000 partitions uses few of them at a time. A dormant partition costs a few hundred bytes and no file
descriptor: its state is in memory, and its files stay closed until a request names the partition.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from tailrace.model.ids import TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.model.topic_config import TopicConfig
from tailrace.replication.outcomes import Traffic
from tailrace.replication.partition import Partition
from tailrace.storage import ClosedLog, ClosedTopic


class AwakePartitions:
    """The partitions in use, by name and by topic id."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, int], Partition] = {}
        """The partitions by name. For reading only: `put` and `pop` change the map."""
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        """The partitions by the topic's id. For reading only, too."""
        self.departed_traffic = Traffic()
        """The traffic of the removed partitions."""

    def __iter__(self) -> Iterator[Partition]:
        """The partitions at this moment; the maps may change during the iteration."""
        return iter(tuple(self.by_name.values()))

    def put(self, partition: Partition) -> None:
        """Add a partition."""
        self.by_name[partition.topic_partition] = partition
        self.by_id[partition.topic_id, partition.topic_partition.partition] = partition

    def pop(self, key: tuple[str, int]) -> Partition | None:
        """Remove a partition, and add its traffic to `departed_traffic`; None for a partition that is not in use."""
        partition = self.by_name.pop(key, None)
        if partition is not None:
            del self.by_id[partition.topic_id, key[1]]
            self.departed_traffic = self.departed_traffic.plus(partition.traffic)
        return partition

    def clear(self) -> None:
        """Remove all partitions: their logs are closed."""
        self.by_name.clear()
        self.by_id.clear()


EMPTY_LOG: Final = ClosedLog().to_line()


class Dormant(NamedTuple):
    """A dormant partition."""

    state: PartitionState
    config: TopicConfig
    line: str
    """The line of its closed log, in the form of `ClosedLog.to_line`."""

    @property
    def log(self) -> ClosedLog:
        """The closed log. Raises ValueError if the line is damaged."""
        return ClosedLog.from_line(self.line)

    @property
    def is_empty(self) -> bool:
        """Whether the log has never had a record, as its line states."""
        return self.line == EMPTY_LOG

    @property
    def size_bytes(self) -> int:
        """The bytes of all batches of its log."""
        return 0 if self.line == EMPTY_LOG else self.log.size_bytes

    @property
    def has_old_segments(self) -> bool:
        """Whether the log has inactive segments: only inactive segments are retired or compacted."""
        return self.line != EMPTY_LOG and len(self.log.segments) > 1


class DormantPartitions:
    """The dormant partitions of one node, by topic."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[int, Dormant]] = {}
        self._names: dict[TopicId, str] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, partition: TopicPartition, dormant: Dormant) -> None:
        """Add a partition, or replace its state or settings."""
        by_number = self._by_topic.get(partition.topic)
        if by_number is None:
            by_number = self._by_topic[partition.topic] = {}
            self._names[dormant.state.topic_id] = partition.topic
        self._count += partition.partition not in by_number
        by_number[partition.partition] = dormant

    def find(self, topic: str, partition: int) -> Dormant | None:
        """The partition; None for a partition that is not on this node, or is in use."""
        by_number = self._by_topic.get(topic)
        return None if by_number is None else by_number.get(partition)

    def topic_name(self, topic_id: TopicId) -> str | None:
        """The name of the topic with this id, if any of its partitions is dormant."""
        return self._names.get(topic_id)

    def pop(self, topic: str, partition: int) -> Dormant | None:
        """Remove and return the partition; None for a partition that is not dormant here."""
        by_number = self._by_topic.get(topic)
        dormant = None if by_number is None else by_number.pop(partition, None)
        if dormant is not None:
            self._count -= 1
            if not by_number:
                del self._by_topic[topic], self._names[dormant.state.topic_id]
        return dormant

    def of_topic(self, topic: str) -> Iterator[tuple[TopicPartition, Dormant]]:
        """The partitions of a topic. A change during the iteration is allowed."""
        for number, dormant in tuple(self._by_topic.get(topic, {}).items()):
            yield TopicPartition(topic, number), dormant

    def __iter__(self) -> Iterator[tuple[TopicPartition, Dormant]]:
        """Iterate over the partitions, which may change during the iteration."""
        for topic in tuple(self._by_topic):
            yield from self.of_topic(topic)

    def closed(self) -> dict[str, ClosedTopic]:
        """The closed logs of all partitions, for the lines of a clean stop."""
        return {
            topic: ClosedTopic(
                next(iter(by_number.values())).state.topic_id,
                {number: dormant.line for number, dormant in by_number.items()},
            )
            for topic, by_number in self._by_topic.items()
        }
