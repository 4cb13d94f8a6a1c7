"""The home of a coordinator: the internal topic of each kind, and the partition of it that keeps a given key."""

from enum import IntEnum

from tailrace.model.key_hash import coordinator_partition
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition


class CoordinatorType(IntEnum):
    """The kind of key in FindCoordinator, as it stands on the wire."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


TOPIC_OF = {
    CoordinatorType.GROUP: GROUP_OFFSETS_TOPIC,
    CoordinatorType.TRANSACTION: TRANSACTION_STATE_TOPIC,
}
"""The internal topics that exist today. Share groups (KIP-932) are not served."""


def partition_of_group(group_id: str, partition_count: int) -> TopicPartition:
    """The partition of `__consumer_offsets` whose leader coordinates this group."""
    return TopicPartition(GROUP_OFFSETS_TOPIC, coordinator_partition(group_id, partition_count))
