"""Subscriptions and assignments as classic group members exchange them."""

from collections import defaultdict
from collections.abc import Iterable

from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_prefixed,
    encode_prefixed,
)

_WRITTEN = 1
"""The version we write: what eager rebalances need, and what clients of 2018 read."""


def encode_subscription(topics: Iterable[str], owned: Iterable[TopicPartition] = ()) -> bytes:
    """The metadata of a member that wants these topics."""
    subscription = ConsumerProtocolSubscription(topics=tuple(sorted(topics)), owned_partitions=_by_topic(owned))
    return encode_prefixed(subscription, _WRITTEN)


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """The topics a member wants. Raises MalformedMessage."""
    return decode_prefixed(ConsumerProtocolSubscription, data).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """The assignment of a member."""
    return encode_prefixed(ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)), _WRITTEN)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions a member was given; no bytes mean none. Raises MalformedMessage."""
    if not data:
        return ()
    assignment = decode_prefixed(ConsumerProtocolAssignment, data)
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[ConsumerTopicPartitions, ...]:
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        topics[partition.topic].append(partition.partition)
    return tuple(ConsumerTopicPartitions(topic=name, partitions=tuple(indexes)) for name, indexes in topics.items())
