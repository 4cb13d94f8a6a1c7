"""The replicas on the disk that this broker lost while its node was down: moved to other brokers, or deleted.

If a replica is moved or deleted while its node runs, that change of the metadata removes it. After a start no change
names the replica, so the first image that has caught up is compared with the disk. The directory of a replica is
removed
1. if the image has the topic with this id, but no replica on this broker: other brokers have the records;
2. if the image does not have the topic, and this node's own metadata prove its deletion (`removed_topics`).

Any other directory stays, and one line names the directory: the metadata of the cluster may have been lost, and the
directory may have the only records that are left.
"""

import logging
from collections.abc import Container, Sequence
from itertools import islice

from tailrace.metadata.image import ClusterImage
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.replicas.metadata_applier import MetadataApplier

_MOST_NAMED = 5

_logger = logging.getLogger("tailrace.server")


def remove_gone_replicas(
    partitions: PartitionTable,
    image: ClusterImage,
    applier: MetadataApplier,
    broker_id: BrokerId,
    removed: Container[TopicId],
) -> None:
    """Remove moved and deleted replicas. `image` covers this broker's present registration."""
    moved: list[TopicPartition] = []
    deleted: list[TopicPartition] = []
    unknown: list[TopicPartition] = []
    for topic_partition in sorted(partitions.directory.unclaimed):
        topic, index = topic_partition
        if topic_partition in partitions.offline or partitions.has(topic, index):
            continue
        topic_id = partitions.directory.unclaimed_id(topic_partition)
        if topic_id is not None and topic_id in removed and topic_id not in image.topic_names:
            kind = deleted
        elif (state := image.partition(topic, index)) is None or topic_id is None or state.topic_id != topic_id:
            unknown.append(topic_partition)
            continue
        elif broker_id in state.replicas:
            continue
        else:
            kind = moved
        kind.append(topic_partition)
        delay_ms = applier.config_of(image, topic).file_delete_delay_ms
        partitions.remove_unclaimed(topic_partition, topic_id, delay_ms=delay_ms)
    for kind, event, reason in (
        (moved, "moved-replicas-removed", "other brokers have them since this node was down"),
        (deleted, "deleted-replicas-removed", "their topics were deleted while this node was down"),
    ):
        if kind:
            _logger.warning("event=%s partitions=%d first=%s: %s", event, len(kind), _names(kind), reason)
    if unknown:
        _logger.warning(
            "event=directories-unclaimed partitions=%d first=%s path=%s action=keep: the metadata has no such topic,"
            " and no record of its deletion; remove them if it was deleted",
            len(unknown),
            _names(unknown),
            partitions.directory.path,
        )


def _names(found: Sequence[TopicPartition]) -> str:
    return ",".join(map(str, islice(found, _MOST_NAMED)))
