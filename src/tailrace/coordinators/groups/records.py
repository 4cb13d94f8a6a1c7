"""Records of `__consumer_offsets`, in Kafka's formats: committed offsets, and each group's generation.

A key starts with an int16, its kind: 0 and 1 an offset (0 is the oldest form, only read), 2 a group, 3 and 5 to 8 a
part of a consumer group (`consumer_records`). A value starts with an int16, its version. A null value is a tombstone.
Other kinds are skipped.
"""

from dataclasses import dataclass
from typing import TypeVar

from tailrace.coordinators.groups.consumer_records import (
    ConsumerGroupRecord,
    ConsumerRecordKind,
    consumer_key,
    decode_consumer_record,
)
from tailrace.model.errors import CorruptRecords, KafkaError, MalformedMessage
from tailrace.protocol.schema import (
    PREFIX_BYTES,
    ZERO_UUID,
    Buffer,
    Int32,
    Int64,
    Uuid,
    decode,
    encode_prefixed,
    field,
    message,
    prefix_of,
    struct,
)

_LEGACY_OFFSET, _OFFSET, _GROUP = 0, 1, 2

_CONSUMER_KINDS = frozenset(ConsumerRecordKind)

_OFFSET_VERSION = 4
_EXPIRING_OFFSET_VERSION = 1
"""The only version of the value with an expiry time."""
_GROUP_VERSION = 3


@message(versions="0-1")
class OffsetCommitKey:
    group: str
    topic: str
    partition: Int32


@message(versions="0-4", flexible="4+")
class OffsetCommitValue:
    """A committed offset. Timestamps in ms since 1970, -1: none."""

    offset: Int64
    leader_epoch: Int32 = field(versions="3+", default=-1)
    metadata: str
    commit_timestamp: Int64
    expire_timestamp: Int64 = field(versions="1", default=-1)
    topic_id: Uuid = field(versions="4+", tag=0, default=ZERO_UUID)
    ranges: bytes = field(versions="4+", tag=10000, default=b"")
    """The ranges that are committed beyond the offset (KIP-X), in the form of `stored_ranges`; a field of Tailrace."""
    state_epoch: Int64 = field(versions="4+", tag=10001, default=0)
    """The number of resets of the offset, which a range commit has to know; a field of Tailrace."""


@message(versions="2")
class GroupMetadataKey:
    group: str


@struct
class MemberMetadata:
    """A member of one generation. `subscription` and `assignment` are opaque: only the clients understand both."""

    member_id: str
    group_instance_id: str | None = field(versions="3+", default=None)
    client_id: str
    client_host: str
    rebalance_timeout: Int32 = field(versions="1+", default=-1)
    session_timeout: Int32
    subscription: bytes
    assignment: bytes


@message(versions="0-4", flexible="4+")
class GroupMetadataValue:
    """A generation of a group: its members and their assignments."""

    protocol_type: str
    generation: Int32
    protocol: str | None
    leader: str | None
    current_state_timestamp: Int64 = field(versions="2+", default=-1)
    members: tuple[MemberMetadata, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """A group's new offset in one partition; None deletes the offset."""

    group_id: str
    topic: str
    partition: int
    value: OffsetCommitValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group's new generation; None: the group is deleted."""

    group_id: str
    value: GroupMetadataValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingOffset:
    """A group's offset in one partition, which becomes committed with the producer's transaction.

    The log has an `OffsetRecord` in a transactional batch.
    """

    group_id: str
    producer_id: int
    topic: str
    partition: int
    value: OffsetCommitValue


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """The end of a producer's transaction with offsets of this group.

    The log has one marker for all groups.
    """

    group_id: str
    producer_id: int
    is_committed: bool


GroupLogRecord = OffsetRecord | GroupRecord | ConsumerGroupRecord | PendingOffset | TransactionEnd


def pending_offset(record: OffsetRecord, producer_id: int, value: OffsetCommitValue) -> PendingOffset:
    """The pending offset of a record in a transactional batch."""
    return PendingOffset(
        group_id=record.group_id,
        producer_id=producer_id,
        topic=record.topic,
        partition=record.partition,
        value=value,
    )


T = TypeVar("T", OffsetCommitValue, GroupMetadataValue)


def encode_record(record: GroupLogRecord) -> tuple[bytes, bytes | None]:
    """The record as key and value of a log record; not for a TransactionEnd, which is a marker."""
    assert not isinstance(record, TransactionEnd), "a marker is a batch of its own kind"
    if isinstance(record, ConsumerGroupRecord):
        key = encode_prefixed(consumer_key(record), record.kind)
        return key, None if record.value is None else encode_prefixed(record.value, 0)
    if isinstance(record, GroupRecord):
        key = encode_prefixed(GroupMetadataKey(group=record.group_id), _GROUP)
        return key, None if record.value is None else encode_prefixed(record.value, _GROUP_VERSION)
    value = record.value
    key = encode_prefixed(
        OffsetCommitKey(group=record.group_id, topic=record.topic, partition=record.partition), _OFFSET
    )
    version = _OFFSET_VERSION if value is None or value.expire_timestamp < 0 else _EXPIRING_OFFSET_VERSION
    return key, None if value is None else encode_prefixed(value, version)


def decode_record(key: Buffer | None, value: Buffer | None) -> OffsetRecord | GroupRecord | ConsumerGroupRecord | None:
    """The record; None for an unknown kind. Raises CorruptRecords."""
    try:
        if key is None:
            raise MalformedMessage("a record without a key")
        kind = prefix_of(key)
        if kind in (_LEGACY_OFFSET, _OFFSET):
            return _decode_offset(kind, key, value)
        if kind == _GROUP:
            group = decode(GroupMetadataKey, kind, key, PREFIX_BYTES).group
            return GroupRecord(group_id=group, value=_decode_value(GroupMetadataValue, value))
        if kind in _CONSUMER_KINDS:
            return decode_consumer_record(ConsumerRecordKind(kind), key, PREFIX_BYTES, value, PREFIX_BYTES)
    except KafkaError as fault:
        raise CorruptRecords(f"a record of the group offsets topic cannot be read: {fault.detail}") from None
    return None


def _decode_offset(kind: int, key: Buffer, value: Buffer | None) -> OffsetRecord:
    where = decode(OffsetCommitKey, kind, key, PREFIX_BYTES)
    return OffsetRecord(
        group_id=where.group,
        topic=where.topic,
        partition=where.partition,
        value=_decode_value(OffsetCommitValue, value),
    )


def _decode_value(cls: type[T], value: Buffer | None) -> T | None:
    return None if value is None else decode(cls, prefix_of(value), value, PREFIX_BYTES)
