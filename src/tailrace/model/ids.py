"""Identities that must not be mixed up, as distinct types over plain ints and bytes (free at run time)."""

import base64
from typing import Final, NewType

BrokerId = NewType("BrokerId", int)
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)

TopicId = NewType("TopicId", bytes)
"""16 bytes, and not a `uuid.UUID`: making that object costs more than the look-up, and a fetch does one per topic."""

ZERO_TOPIC_ID = TopicId(bytes(16))
"""Means "no id" on the wire (KIP-516)."""

METADATA_TOPIC_ID = TopicId(bytes(15) + b"\x01")
"""The id of `__cluster_metadata`, fixed by Kafka."""

NO_PRODUCER_ID = ProducerId(-1)
EPOCH_PER_TRANSACTION: Final = 2
"""The transaction.version from which each transaction of a producer has an epoch of its own (KIP-890)."""
NO_LEADER = BrokerId(-1)


def format_topic_id(topic_id: bytes) -> str:
    """The id in the form that Kafka prints: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id).decode("ascii").rstrip("=")


def parse_topic_id(text: str) -> TopicId:
    """The inverse of `format_topic_id`. Raises ValueError unless the text stands for exactly 16 bytes."""
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"not a topic id: {text!r} stands for {len(raw)} bytes, not 16")
    return TopicId(raw)
