"""Answers to Metadata requests, for clients."""

from collections import defaultdict
from collections.abc import Mapping

from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


def metadata_of(leaders: Mapping[TopicPartition, int], *, topic_id: bytes = bytes(16)) -> MetadataResponse:
    """The answer of a cluster of nodes 1 and 2, both in sync for every given partition."""
    partitions: dict[str, list[MetadataResponsePartition]] = defaultdict(list)
    for (topic, number), leader in leaders.items():
        partitions[topic].append(
            MetadataResponsePartition(partition_index=number, leader_id=leader, replica_nodes=(1, 2), isr_nodes=(1, 2))
        )
    return MetadataResponse(
        brokers=tuple(MetadataResponseBroker(node_id=node, host="h", port=1) for node in (1, 2)),
        topics=tuple(
            MetadataResponseTopic(name=name, topic_id=topic_id, partitions=tuple(described))
            for name, described in partitions.items()
        ),
    )
