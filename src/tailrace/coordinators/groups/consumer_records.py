"""Records of a consumer group in `__consumer_offsets` (KIP-848), in Kafka's formats.

The kind of a record is the int16 at the start of its key. Values have version 0.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tailrace.protocol.schema import (
    Buffer,
    Int8,
    Int32,
    Int64,
    Uuid,
    decode,
    field,
    message,
    struct,
)


@struct
class StoredTopicPartitions:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


@message(versions="3-6")
class GroupKey:
    """The key of records about the whole group: kinds 3 and 6."""

    group_id: str


@message(versions="5-8")
class GroupMemberKey:
    """The key of records about a member: kinds 5, 7 and 8."""

    group_id: str
    member_id: str


@message(versions="16")
class ExpressionKey:
    """The key of records about a regular expression: kind 16."""

    group_id: str
    regular_expression: str


@message(versions="0", flexible="0+")
class ConsumerGroupMetadataValue:
    """The group's epoch. `metadata_hash` changes with the subscribed topics."""

    epoch: Int32
    metadata_hash: Int64 = field(versions="0+", tag=0, default=0)


@struct
class ClassicProtocol:
    """An assignor that a member with the classic protocol supports, with the member's metadata for the assignor."""

    name: str
    metadata: bytes


@struct
class ClassicMemberMetadata:
    """Session timeout and protocols from the JoinGroup of a member with the classic protocol."""

    session_timeout_ms: Int32 = 0
    supported_protocols: tuple[ClassicProtocol, ...] = ()


@message(versions="0", flexible="0+")
class ConsumerGroupMemberMetadataValue:
    """The subscription of a member.

    A member with KIP-848's protocol has None as `classic_member_metadata`, and None is written. Kafka leaves the field
    out for a classic member without metadata, so the default is such metadata.
    """

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str
    client_host: str
    subscribed_topic_names: tuple[str, ...] = ()
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None = None
    classic_member_metadata: ClassicMemberMetadata | None = field(
        versions="0+", tag=0, nullable="0+", default=ClassicMemberMetadata()
    )
    principal: str = field(versions="0+", tag=10000, default="")
    """The principal of the member's client, if access is decided by rules: a regular expression matches the topics that
    the client may describe. Kafka's readers skip the field."""


@message(versions="0", flexible="0+")
class TargetAssignmentMetadataValue:
    """The group epoch that the target assignment was made for."""

    assignment_epoch: Int32


@message(versions="0", flexible="0+")
class TargetAssignmentMemberValue:
    """The target assignment of a member."""

    topic_partitions: tuple[StoredTopicPartitions, ...]


@message(versions="0", flexible="0+")
class CurrentMemberAssignmentValue:
    """The current assignment of a member."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: tuple[StoredTopicPartitions, ...]
    partitions_pending_revocation: tuple[StoredTopicPartitions, ...]


@message(versions="0", flexible="0+")
class RegularExpressionValue:
    """The topics that a subscribed regular expression matches. `timestamp` is the time of the match, in ms since 1970.

    `version` is the offset of Kafka's metadata image; -1 makes a Kafka broker resolve the expression anew.
    """

    topics: tuple[str, ...]
    version: Int64 = -1
    timestamp: Int64


class ConsumerRecordKind(IntEnum):
    """The kind of record, by the number at the start of its key."""

    GROUP = 3
    MEMBER = 5
    TARGET = 6
    TARGET_MEMBER = 7
    CURRENT = 8
    EXPRESSION = 16


VALUE_OF: dict[ConsumerRecordKind, type[Any]] = {
    ConsumerRecordKind.GROUP: ConsumerGroupMetadataValue,
    ConsumerRecordKind.MEMBER: ConsumerGroupMemberMetadataValue,
    ConsumerRecordKind.TARGET: TargetAssignmentMetadataValue,
    ConsumerRecordKind.TARGET_MEMBER: TargetAssignmentMemberValue,
    ConsumerRecordKind.CURRENT: CurrentMemberAssignmentValue,
    ConsumerRecordKind.EXPRESSION: RegularExpressionValue,
}

ConsumerValue = (
    ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | TargetAssignmentMetadataValue
    | TargetAssignmentMemberValue
    | CurrentMemberAssignmentValue
    | RegularExpressionValue
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupRecord:
    """The new value of one part of a consumer group; None deletes the part."""

    kind: ConsumerRecordKind
    group_id: str
    member_id: str = ""
    """The member id; empty in records about the whole group or about an expression."""
    regular_expression: str = ""
    """The regular expression; empty for all kinds but EXPRESSION."""
    value: ConsumerValue | None


_OF_GROUP = frozenset((ConsumerRecordKind.GROUP, ConsumerRecordKind.TARGET))


ConsumerKey = GroupKey | GroupMemberKey | ExpressionKey


def consumer_key(record: ConsumerGroupRecord) -> ConsumerKey:
    """The key of the record."""
    if record.kind is ConsumerRecordKind.EXPRESSION:
        return ExpressionKey(group_id=record.group_id, regular_expression=record.regular_expression)
    if record.kind in _OF_GROUP:
        return GroupKey(group_id=record.group_id)
    return GroupMemberKey(group_id=record.group_id, member_id=record.member_id)


def decode_consumer_record(
    kind: ConsumerRecordKind, key: Buffer, key_position: int, value: Buffer | None, value_position: int
) -> ConsumerGroupRecord:
    """The record of a key and a value, which begin at these positions. Raises MalformedMessage."""
    decoded = None if value is None else decode(VALUE_OF[kind], 0, value, value_position)
    if kind in _OF_GROUP:
        return ConsumerGroupRecord(
            kind=kind, group_id=decode(GroupKey, kind, key, key_position).group_id, value=decoded
        )
    if kind is ConsumerRecordKind.EXPRESSION:
        named = decode(ExpressionKey, kind, key, key_position)
        return ConsumerGroupRecord(
            kind=kind, group_id=named.group_id, regular_expression=named.regular_expression, value=decoded
        )
    found = decode(GroupMemberKey, kind, key, key_position)
    return ConsumerGroupRecord(kind=kind, group_id=found.group_id, member_id=found.member_id, value=decoded)
