"""The partitions of a node that are in use: their logs are open."""

from collections.abc import Iterator

from tailrace.replication.outcomes import Traffic
from tailrace.replication.partition import Partition


class AwakePartitions:
    """The partitions in use, by name and by topic id."""

    def __init__(self) -> None:
        self.by_name: dict[tuple[str, int], Partition] = {}
        """To be read; `put` and `pop` change it."""
        self.by_id: dict[tuple[bytes, int], Partition] = {}
        """The same, by the topic's id."""
        self.departed_traffic = Traffic()
        """The traffic of partitions that were taken out."""

    def __iter__(self) -> Iterator[Partition]:
        """The partitions of this moment; others may be added or taken out meanwhile."""
        return iter(tuple(self.by_name.values()))

    def put(self, partition: Partition) -> None:
        """Add a partition."""
        self.by_name[partition.topic_partition] = partition
        self.by_id[partition.topic_id, partition.topic_partition.partition] = partition

    def pop(self, key: tuple[str, int]) -> Partition | None:
        """Take a partition out, and count its traffic as departed; None if it is not in use."""
        partition = self.by_name.pop(key, None)
        if partition is not None:
            del self.by_id[partition.topic_id, key[1]]
            self.departed_traffic = self.departed_traffic.plus(partition.traffic)
        return partition

    def clear(self) -> None:
        """Take all partitions out: their logs are closed."""
        self.by_name.clear()
        self.by_id.clear()
