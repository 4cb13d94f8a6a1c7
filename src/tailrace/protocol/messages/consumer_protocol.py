"""Messages between classic consumers inside JoinGroup and SyncGroup: an int16 version, then the message.

The broker keeps these bytes without looking inside; clients and tools that describe a group read the bytes.
"""

from typing import TypeVar

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.schema import PREFIX_BYTES, Int32, decode_from, field, message, prefix_of, schema_of, struct

T = TypeVar("T")

PROTOCOL_TYPE = "consumer"
"""The group's protocol type when its members speak this protocol."""


@struct
class ConsumerTopicPartitions:
    """Partitions of one topic."""

    topic: str
    partitions: tuple[Int32, ...]


@message(versions="0-3")
class ConsumerProtocolSubscription:
    """A member's subscription. v1 adds owned partitions (KIP-429), v2 their generation, v3 the rack (KIP-881)."""

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[ConsumerTopicPartitions, ...] = field(versions="1+", default=())
    generation_id: Int32 = field(versions="2+", default=-1)
    rack_id: str | None = field(versions="3+", default=None)


@message(versions="0-3")
class ConsumerProtocolAssignment:
    """The assignment that a member gets from the leader of its group."""

    assigned_partitions: tuple[ConsumerTopicPartitions, ...]
    user_data: bytes | None = None


def version_of(cls: type[object], data: Buffer) -> int:
    """The version in which to encode a `cls` for a client: the version of the client's own message `data`, at most the
    newest version of `cls`. A negative version counts as 0.

    Raises MalformedMessage if `data` is too short for a version.
    """
    return max(0, min(prefix_of(data), schema_of(cls).versions.last))


def decode_prefixed(cls: type[T], data: Buffer) -> T:
    """The message behind a version prefix. A version that is not known here is read as the newest known version;
    further bytes are left unread.

    Newer versions only append fields, so members of different ages can share a group. Raises MalformedMessage.
    """
    version = prefix_of(data)
    if version < 0:
        raise MalformedMessage(f"{cls.__name__}: version {version}")
    return decode_from(cls, min(version, schema_of(cls).versions.last), data, PREFIX_BYTES)[0]
