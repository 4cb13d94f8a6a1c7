"""The difference between two images without the records between them: when a snapshot replaced the first."""

from collections.abc import Iterator
from itertools import islice

from tailrace.metadata.derive import SLICE, Steps, finished
from tailrace.metadata.image import ChangedPartition, ClusterImage, ImageDelta, TopicImage, sorted_resources
from tailrace.model.partitions import TopicPartition


def difference(before: ClusterImage, after: ClusterImage) -> ImageDelta:
    """The delta from one image to the other, for components that act on changes."""
    return finished(difference_steps(before, after))


def difference_steps(before: ClusterImage, after: ClusterImage) -> Steps[ImageDelta]:
    """`difference`, in steps of about a millisecond."""
    created = tuple(_only_in(after, before))
    yield
    deleted = tuple(_only_in(before, after))
    changed: list[ChangedPartition] = []
    remaining = _compared(before, after)
    while part := tuple(islice(remaining, SLICE)):
        yield
        changed += (one for one in part if one is not None)
    resources = {*before.configs, *after.configs}
    brokers = {*before.brokers, *after.brokers}
    return ImageDelta(
        created_topics=created,
        deleted_topics=deleted,
        changed_partitions=tuple(changed),
        changed_configs=sorted_resources(one for one in resources if before.configs.get(one) != after.configs.get(one)),
        changed_brokers=tuple(sorted(one for one in brokers if before.brokers.get(one) != after.brokers.get(one))),
    )


def _only_in(image: ClusterImage, other: ClusterImage) -> Iterator[TopicImage]:
    return (topic for topic in image.topics.values() if topic.topic_id not in other.topic_names)


def _compared(before: ClusterImage, after: ClusterImage) -> Iterator[ChangedPartition | None]:
    """For each partition that both have: its state if that is another one, else None."""
    for topic in after.topics.values():
        name = before.topic_names.get(topic.topic_id)
        if name is None:
            continue
        known = before.topics[name].partitions
        for number, state in topic.partitions.items():
            is_same = known.get(number) == state
            yield None if is_same else ChangedPartition(TopicPartition(topic.name, number), state)
