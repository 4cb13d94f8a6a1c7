"""What differs between two images that no known records lead from one to the other: when a snapshot took its place."""

from collections.abc import Iterator

from tailrace.metadata.image import ChangedPartition, ClusterImage, ImageDelta, TopicImage, sorted_resources
from tailrace.model.partitions import TopicPartition


def difference(before: ClusterImage, after: ClusterImage) -> ImageDelta:
    """The delta by which whoever acts on changes gets from one image to the other."""
    resources = {*before.configs, *after.configs}
    brokers = {*before.brokers, *after.brokers}
    return ImageDelta(
        created_topics=tuple(_only_in(after, before)),
        deleted_topics=tuple(_only_in(before, after)),
        changed_partitions=tuple(_changed_partitions(before, after)),
        changed_configs=sorted_resources(one for one in resources if before.configs.get(one) != after.configs.get(one)),
        changed_brokers=tuple(sorted(one for one in brokers if before.brokers.get(one) != after.brokers.get(one))),
    )


def _only_in(image: ClusterImage, other: ClusterImage) -> Iterator[TopicImage]:
    return (topic for topic in image.topics.values() if topic.topic_id not in other.topic_names)


def _changed_partitions(before: ClusterImage, after: ClusterImage) -> Iterator[ChangedPartition]:
    for topic in after.topics.values():
        name = before.topic_names.get(topic.topic_id)
        if name is None:
            continue
        known = before.topics[name].partitions
        for number, state in topic.partitions.items():
            if known.get(number) != state:
                yield ChangedPartition(TopicPartition(topic.name, number), state)
