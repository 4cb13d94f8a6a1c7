"""The partition of a record: as the caller says, by a partitioner, by key, or the same for a while. Pure."""

from collections.abc import Callable, Sequence

from tailrace.client.cluster_view import TopicInfo
from tailrace.client.writer_settings import Partitioner
from tailrace.client.writing.outgoing import Unsent
from tailrace.model.key_hash import partition_for_key


class PartitionChoice:
    """The choices of one producer."""

    def __init__(self, partitioner: Partitioner | None, sticky: "StickyPartitioner") -> None:
        self._partitioner = partitioner
        self._sticky = sticky

    def partition_of(self, record: Unsent, info: TopicInfo) -> int:
        """The partition of this record. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION), and the errors of
        the partitioner."""
        if record.partition is not None:
            return existing(record.partition, info)
        count = len(info.partitions)
        if self._partitioner is not None:
            return existing(self._partitioner(record.topic, record.key, count), info)
        if record.key is not None:
            return partition_for_key(record.key, count)
        if count == 1:
            return 0
        available = [partition.partition for partition in info.partitions if partition.leader >= 0]
        return self._sticky.partition(record.topic, available or range(count), record.cost)


def existing(partition: int, info: TopicInfo) -> int:
    """The partition of this number. Raises KafkaError(UNKNOWN_TOPIC_OR_PARTITION) if the topic has no such
    partition."""
    info.check_number(partition)
    return partition


class StickyPartitioner:
    """Partitions for records without a key: the same partition until it got batch.size bytes, then another partition
    (KIP-794).

    `choose(n)` returns a random number in [0, n).
    """

    def __init__(self, choose: Callable[[int], int], sticky_bytes: int) -> None:
        self._choose = choose
        self._sticky_bytes = sticky_bytes
        self._current: dict[str, tuple[int, int]] = {}

    def partition(self, topic: str, available: Sequence[int], cost: int) -> int:
        """The partition for the next record, out of `available`, which is not empty."""
        current, sent = self._current.get(topic, (-1, 0))
        if current not in available or sent >= self._sticky_bytes:
            others = [partition for partition in available if partition != current] or list(available)
            current, sent = others[self._choose(len(others))], 0
        self._current[topic] = (current, sent + cost)
        return current
