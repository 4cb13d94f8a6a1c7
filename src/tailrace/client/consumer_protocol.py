"""Subscriptions and assignments as classic group members exchange them."""

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

from tailrace.model.errors import MalformedMessage
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
)
from tailrace.protocol.schema import decode_from, encode_bytes

T = TypeVar("T")

PROTOCOL_TYPE = "consumer"

_VERSION = struct.Struct(">h")
_NEWEST = 3
_WRITTEN = 1
"""The version we write: what eager rebalances need, and what clients of 2018 read."""


def encode_subscription(topics: Iterable[str], owned: Iterable[TopicPartition] = ()) -> bytes:
    """The metadata of a member that wants these topics."""
    subscription = ConsumerProtocolSubscription(topics=tuple(sorted(topics)), owned_partitions=_by_topic(owned))
    return _VERSION.pack(_WRITTEN) + encode_bytes(subscription, _WRITTEN)


def decode_subscription(data: bytes) -> tuple[str, ...]:
    """The topics a member wants. Raises MalformedMessage."""
    return _decode(ConsumerProtocolSubscription, data).topics


def encode_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """What a member is given to read."""
    return _VERSION.pack(_WRITTEN) + encode_bytes(
        ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions)), _WRITTEN
    )


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions a member was given; no bytes mean none. Raises MalformedMessage."""
    if not data:
        return ()
    assignment = _decode(ConsumerProtocolAssignment, data)
    return tuple(
        TopicPartition(topic.topic, partition)
        for topic in assignment.assigned_partitions
        for partition in topic.partitions
    )


def _decode(kind: type[T], data: bytes) -> T:
    if len(data) < 2:
        raise MalformedMessage(f"{len(data)} bytes are too few for a consumer protocol message")
    (version,) = _VERSION.unpack_from(data)
    if version < 0:
        raise MalformedMessage(f"consumer protocol version {version}")
    value, _ = decode_from(kind, min(version, _NEWEST), data, 2)
    return value


def _by_topic(partitions: Iterable[TopicPartition]) -> tuple[ConsumerTopicPartitions, ...]:
    topics: dict[str, list[int]] = defaultdict(list)
    for partition in sorted(partitions):
        topics[partition.topic].append(partition.partition)
    return tuple(ConsumerTopicPartitions(topic=name, partitions=tuple(indexes)) for name, indexes in topics.items())
