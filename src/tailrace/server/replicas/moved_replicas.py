"""The replicas on the disk that were moved to other brokers while this node was down.

A replica that moves while its node runs is removed with that change. After a start no change names it: the first image
that is caught up does. Its directory is removed if the image has the very topic, by its id, and this broker is none of
the replicas: the records are with others then. A directory whose topic the image does not have stays, and is named in
one line: the topic was deleted, or the metadata of the cluster was lost, and the directory may be all that is left.
"""

import logging

from tailrace.metadata.image import ClusterImage
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.server.partitions.table import PartitionTable
from tailrace.server.replicas.metadata_applier import MetadataApplier

_logger = logging.getLogger("tailrace.server")


def remove_moved_replicas(
    partitions: PartitionTable, image: ClusterImage, applier: MetadataApplier, broker_id: BrokerId
) -> None:
    """Remove what others have now. `image` must cover this broker's present registration."""
    moved: list[TopicPartition] = []
    unknown: list[TopicPartition] = []
    for topic_partition in sorted(partitions.directory.unclaimed):
        topic, index = topic_partition
        if topic_partition in partitions.offline or partitions.has(topic, index):
            continue
        state, topic_id = image.partition(topic, index), partitions.directory.unclaimed_id(topic_partition)
        if state is None or topic_id is None or state.topic_id != topic_id:
            unknown.append(topic_partition)
        elif broker_id not in state.replicas:
            moved.append(topic_partition)
            delay_ms = applier.config_of(image, topic).file_delete_delay_ms
            partitions.remove_moved(topic_partition, topic_id, delay_ms=delay_ms)
    if moved:
        _logger.warning(
            "event=moved-replicas-removed partitions=%d first=%s: other brokers have them since this node was down",
            len(moved),
            moved[0],
        )
    if unknown:
        _logger.warning(
            "event=directories-unclaimed partitions=%d first=%s path=%s action=keep: the metadata has no such topic;"
            " remove them if it was deleted",
            len(unknown),
            unknown[0],
            partitions.directory.path,
        )
